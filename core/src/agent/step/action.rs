use std::time::Duration;

use berth_api::berth::{Berth, Outcome};
use berth_api::condition::CommonReason;
use berth_api::digest::Digest;
use berth_api::node::{Deployment, DesiredImage};
use berth_api::seeded::Bug;

use crate::agent::storage::{OstreeLock, StagingLock};

/// How long a requested reboot may take to begin. A reboot that takes longer counts as blocked.
pub const REBOOT_START_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between checks of a state that can change without an event, such as a Node that is not Ready.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two requests of a blocked reboot. Applies only if the agent cannot take the commit back.
pub const REBOOT_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between checks of a state that only other programs change, without an event. An example is an inhibitor.
pub(super) const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// Interval between reads of the host's deployments while Berth itself does not change them.
pub(super) const HOST_LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// Shortest interval between reads of a Node that is not Ready. Used soon after a boot.
pub(super) const READY_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The agent's next action.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Do nothing until an event arrives or this time has passed. `None`: wait for an event only.
    Wait(WaitReason, Option<Duration>),
    /// Read the host's deployments.
    LookAtHost,
    /// Read the Node object.
    ReadNode,
    /// Run the guard probe (I6): try, as a dry run, writes that the API server must reject.
    TryGuard,
    /// Pull this image and stage it. The [`StagingLock`] determines how the image gets locked.
    StartPull(DesiredImage, StagingLock),
    /// Stop the pull of this digest.
    CancelPull(Digest),
    /// Set ostree's lock on the staged deployment.
    Lock(OstreeLock),
    /// Unlock the staged deployment. Allowed only under a committed berth.
    Unlock,
    /// Remove this staged deployment.
    Unstage(Deployment),
    /// Ask logind to reboot. Allowed only under a committed berth.
    Reboot,
    /// Make the next boot take the rollback deployment. Allowed only under a committed berth. Holds the digest of the
    /// deployment, and the reason and the message for the missing part of the running boot's proof.
    Rollback(Digest, CommonReason, String),
    /// Take this berth, which is offered to the node.
    Take(Berth),
    /// Cordon the Node. The same patch records that Berth set the cordon.
    Cordon(Berth),
    /// Make one drain pass: evict pods, and list the pods that remain.
    Drain,
    /// Commit the berth. The agent may then unlock the image and reboot once.
    Commit(Berth),
    /// Write the berth unchanged, so that the API server rejects an older write that is still in flight.
    Fence(Berth),
    /// Take the commit back. The agent may then no longer reboot.
    Uncommit(Berth),
    /// Commit the berth again for this digest, although the running boot is unproven.
    Relicense(Berth, Digest),
    /// Begin to give the berth back. Holds the outcome and the message of the turn.
    Release(Berth, Outcome, String),
    /// Undo Berth's cordon. This writes the Node even if it has no cordon, so that the API server rejects an older
    /// write that is still in flight.
    Restore(Berth),
    /// Close the berth, which ends the turn.
    GiveBack(Berth),
    /// Remove Berth's cordon from a Node that holds no berth.
    Uncordon,
}

impl Step {
    /// True if the step writes the berth. Until the API server answers such a write, the agent does not know what the
    /// berth contains.
    pub fn writes_berth(&self) -> bool {
        match self {
            Self::Take(_)
            | Self::Commit(_)
            | Self::Fence(_)
            | Self::Uncommit(_)
            | Self::Relicense(..)
            | Self::Release(..)
            | Self::GiveBack(_) => true,
            Self::Wait(..)
            | Self::LookAtHost
            | Self::ReadNode
            | Self::TryGuard
            | Self::StartPull(..)
            | Self::CancelPull(_)
            | Self::Lock(_)
            | Self::Unlock
            | Self::Unstage(_)
            | Self::Reboot
            | Self::Rollback(..)
            | Self::Cordon(_)
            | Self::Drain
            | Self::Restore(_)
            | Self::Uncordon => false,
        }
    }

    /// True if the step writes the berth or the Node, or evicts pods.
    pub fn asks_cluster(&self) -> bool {
        self.writes_berth() || matches!(self, Self::Cordon(_) | Self::Drain | Self::Restore(_) | Self::Uncordon)
    }

    /// True if the agent must store its memory file before this step. Without the file, the host could forget that a
    /// target failed, and reboot into the target again and again.
    pub fn needs_memory(&self) -> bool {
        let needs = matches!(
            self,
            Self::Take(_) | Self::Commit(_) | Self::Relicense(..) | Self::Rollback(..)
        );
        needs && !Bug::MemoryNotNeeded.is_awake()
    }
}

/// Why the agent waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// The host is shutting down.
    ShuttingDown,
    /// No BootcNode exists for this node.
    NothingAsked,
    /// The node is in no pool, and all of Berth's changes are undone.
    Released,
    /// The berths have not been read yet.
    BerthsUnknown,
    /// The berth is for an earlier Node of the same name, with another UID.
    ForeignBerth,
    /// The BootcNode's spec is for an earlier Node of the same name, with another UID.
    OtherNode,
    /// The node runs the desired image.
    Updated,
    /// The node runs the desired image, but the next boot would take another deployment.
    RollbackQueued,
    /// The controller has published no image for this node yet.
    Unresolved,
    /// Berth cannot update the host, or cannot read its deployments.
    HostUnusable,
    /// The host's bus, systemd or logind does not answer.
    HostUnreachable,
    /// The agent cannot write its memory file on the host.
    Forgetful,
    /// The API server accepts writes to other nodes' objects, or the agent does not know yet if it does.
    Unguarded,
    /// Another updater on the host would apply the staged image.
    RivalUpdater,
    /// The host's own policy rejects the image.
    ImageRefused,
    /// The desired digest failed on this node before.
    FailedDigest,
    /// A pull or a turn has failed, and the wait before the next attempt is not over.
    BackingOff,
    /// A staged deployment can be neither locked nor removed: any reboot would apply it.
    Unlockable,
    /// The controller does not permit this node to pull yet.
    StagingHeld,
    /// A pull is running.
    Pulling,
    /// The image is staged and locked; the node waits for a berth to be offered.
    NoBerth,
    /// Pods are still on the node, and the next drain pass is not due yet.
    Draining,
    /// A reboot was requested or a shutdown is scheduled, so the host will go down.
    Rebooting,
    /// The host has rebooted, but the Node is not Ready under the new boot yet.
    NotReady,
    /// The host has rebooted, but its health does not prove the new boot yet.
    Unhealthy,
    /// The host runs neither the target of the berth nor the previous image.
    Unproven,
    /// The node needs a new commit of its berth to continue to the next image, but a gate of the pool is closed.
    Revoked,
    /// The next image is staged, but the maintenance window has closed, so the node may not reboot.
    WindowClosed,
    /// A reboot is blocked, for example by an inhibitor. A node without a berth takes no offer. A node with an unproven
    /// boot keeps its berth and waits.
    Inhibited,
    /// An admin has excluded the Node.
    Excluded,
}
