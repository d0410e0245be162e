//! Reasons why members are not offered a berth.

use crate::controller::quorum::Cause;

/// Why a member is not offered a berth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockReason {
    /// The member runs the target already.
    UpToDate,
    /// The target has no image for the member's platform, or the pool has no target yet.
    NoImage,
    /// The member's BootcNode does not name the target yet.
    NotPublished,
    /// The BootcNode's spec was published for an earlier Node of the same name.
    OtherNode,
    /// The agent has not reported on the BootcNode's current spec yet.
    NotObserved,
    /// The target failed on the node before.
    FailedBefore,
    /// The target is not staged, or is staged but not locked.
    NotStaged,
    /// The agent does not report `UpdatePrepared`, for example because it waits before a retry or the reboot is
    /// inhibited.
    NotPrepared,
    /// The node is leaving the pool, or its BootcNode is being deleted.
    Leaving,
    /// The agent has not reported recently.
    Silent,
    /// The member holds a berth, or is offered one.
    HasBerth,
    /// An admin holds the member back.
    HeldBack,
    /// A gate of the pool is closed: see [`super::Plan::gate`].
    Gate,
    /// The rollout is halted: the image failed on at least `maxFailures` nodes.
    Halted,
    /// The pool waits for the pools in its `rollout.after`: see [`super::Plan::order`].
    Order,
    /// An earlier wave is not proven yet.
    Wave,
    /// An earlier wave is proven, and still soaks.
    Soaking,
    /// The member is a control plane node, and the control plane cannot spare it now (I11). Holds the cause.
    ControlPlane(Cause),
    /// Windows or exclusions apply, and the host's clock is not synchronized.
    NoClock,
    /// The window closes before the expected end of the member's drain and reboot.
    TooLate,
    /// The image in the pool's spec is not resolved yet.
    Unresolved,
    /// The controller may not have seen the latest changes of the pool, or of objects that the pool depends on.
    Outdated,
    /// The new leader has not fenced all berths against late writes yet.
    Fencing,
    /// The pool's capacity is used up.
    Capacity,
    /// The fleet's limit is used up.
    FleetCapacity,
    /// The pool has capacity left, but no closed berth. The controller must first create or close a berth.
    NoBerth,
}

impl BlockReason {
    /// Returns the label value for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UpToDate => "UpToDate",
            Self::NoImage => "NoImage",
            Self::NotPublished => "NotPublished",
            Self::OtherNode => "OtherNode",
            Self::NotObserved => "NotObserved",
            Self::FailedBefore => "FailedBefore",
            Self::NotStaged => "NotStaged",
            Self::NotPrepared => "NotPrepared",
            Self::Leaving => "Leaving",
            Self::Silent => "Silent",
            Self::HasBerth => "HasBerth",
            Self::HeldBack => "HeldBack",
            Self::Gate => "Gate",
            Self::Halted => "Halted",
            Self::Order => "Order",
            Self::Wave => "Wave",
            Self::Soaking => "Soaking",
            Self::ControlPlane(_) => "ControlPlane",
            Self::NoClock => "NoClock",
            Self::TooLate => "TooLate",
            Self::Unresolved => "Unresolved",
            Self::Outdated => "Outdated",
            Self::Fencing => "Fencing",
            Self::Capacity => "Capacity",
            Self::FleetCapacity => "FleetCapacity",
            Self::NoBerth => "NoBerth",
        }
    }

    /// Returns a verb phrase for a message, with the node as its subject.
    pub fn words(self) -> &'static str {
        match self {
            Self::UpToDate => "runs the target",
            Self::NoImage => "has no image for its platform",
            Self::NotPublished => "has no published image yet",
            Self::OtherNode => "was re-created under the same name",
            Self::NotObserved => "has not reported on its image",
            Self::FailedBefore => "failed with this image before",
            Self::NotStaged => "has not staged its image",
            Self::NotPrepared => "has not prepared its update (UpdatePrepared)",
            Self::Leaving => "is leaving the pool",
            Self::Silent => "has a silent agent",
            Self::HasBerth => "is being updated",
            Self::HeldBack => "is held back by an admin",
            Self::Gate => "waits because a gate is closed",
            Self::Halted => "waits because the rollout is halted",
            Self::Order => "waits for a pool in rollout.after",
            Self::Wave => "waits for an earlier wave",
            Self::Soaking => "waits until the soak time of an earlier wave is over",
            Self::ControlPlane(cause) => cause.words(),
            Self::NoClock => "waits because its clock is not synchronized",
            Self::TooLate => "waits for the next window: its drain and reboot would outlast this one",
            Self::Unresolved => "waits until the pool's image is resolved",
            Self::Outdated => "waits for the controller to catch up with the pool's changes",
            Self::Fencing => "waits until the new leading controller has taken over all berths",
            Self::Capacity => "waits for a berth",
            Self::FleetCapacity => "waits because maxUnavailable of BootcFleet cluster is used up",
            Self::NoBerth => "waits for the controller to create or free a berth",
        }
    }
}
