use std::time::Duration;

use berth_api::berth::{Berth, Outcome};
use berth_api::condition::CommonReason;
use berth_api::digest::Digest;
use berth_api::node::{Deployment, DesiredImage};
use berth_api::seeded::Bug;

use crate::agent::storage::{OstreeLock, StagingLock};

/// A requested reboot that has not begun after this time counts as blocked.
pub const REBOOT_START_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between checks of a state that sends no event, such as an inhibitor or a Node that is not Ready.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before the agent requests a blocked reboot again, if the commit cannot be taken back.
pub const REBOOT_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between checks of a state that sends no event and that only other programs or people change.
pub(super) const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// Interval between reads of the host's deployments while only other programs or people change them.
pub(super) const HOST_LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// Shortest interval between reads of a Node that is not Ready soon after a boot.
pub(super) const READY_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The next action.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Do nothing until an event arrives or this time has passed. Without a time, wait for an event.
    Wait(WaitReason, Option<Duration>),
    /// Read the host's deployments.
    LookAtHost,
    /// Read the Node object.
    ReadNode,
    /// Probe, as a dry run, the writes that the API server must reject (I6).
    TryGuard,
    /// Pull this image and stage it with this lock.
    StartPull(DesiredImage, StagingLock),
    /// Stop the pull of this digest.
    CancelPull(Digest),
    /// Set ostree's lock on the staged deployment.
    Lock(OstreeLock),
    /// Unlock the staged deployment. Only under a committed berth.
    Unlock,
    /// Remove the staged deployment.
    Unstage(Deployment),
    /// Ask logind to reboot. Only under a committed berth.
    Reboot,
    /// Queue the rollback deployment, which has this digest, for the next boot. Only under a committed berth. With
    /// the reason and the message of the part that the proof of the running boot lacks.
    Rollback(Digest, CommonReason, String),
    /// Take the offered berth.
    Take(Berth),
    /// Cordon the Node, and record the cordon in the same patch.
    Cordon(Berth),
    /// Make one pass of the drain.
    Drain,
    /// Commit the berth.
    Commit(Berth),
    /// Write the berth unchanged, so that an older write still in flight conflicts.
    Fence(Berth),
    /// Take the commit back.
    Uncommit(Berth),
    /// From an unproven boot, license a reboot into this digest under the held berth.
    Relicense(Berth, Digest),
    /// Begin to give the berth back, with this outcome and message.
    Release(Berth, Outcome, String),
    /// Undo Berth's cordon. Writes the Node even without a cordon, so that an older write in flight conflicts.
    Restore(Berth),
    /// Close the berth.
    GiveBack(Berth),
    /// Remove a cordon of Berth's from a Node that holds no berth.
    Uncordon,
}

impl Step {
    /// True if the step writes the berth. Until the API server answers, the berth's content is unknown.
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

    /// True if the step writes the berth, the Node or its pods.
    pub fn asks_cluster(&self) -> bool {
        self.writes_berth() || matches!(self, Self::Cordon(_) | Self::Drain | Self::Restore(_) | Self::Uncordon)
    }

    /// True if the memory file must be written first: a host that forgets a failed target would reboot forever.
    pub fn needs_memory(&self) -> bool {
        let needs = matches!(
            self,
            Self::Take(_) | Self::Commit(_) | Self::Relicense(..) | Self::Rollback(..)
        );
        needs && !Bug::MemoryNotNeeded.is_awake()
    }
}

/// Reason to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// The host is shutting down.
    ShuttingDown,
    /// No BootcNode exists for this node.
    NothingAsked,
    /// All of Berth's changes are undone.
    Released,
    /// The berths are not known yet.
    BerthsUnknown,
    /// The berth is for another Node object of this name.
    ForeignBerth,
    /// The spec is for another Node object of this name.
    OtherNode,
    /// The node runs the desired image.
    Updated,
    /// The node runs the desired image, but the next boot would take another deployment.
    RollbackQueued,
    /// The image is not resolved yet.
    Unresolved,
    /// The host cannot be updated, or its deployments cannot be read.
    HostUnusable,
    /// The host's bus, systemd or logind does not answer.
    HostUnreachable,
    /// The agent cannot write its memory file on the host.
    Forgetful,
    /// The API server does not reject writes to other nodes' objects, or has not answered yet.
    Unguarded,
    /// Another updater on the host would apply the staged image.
    RivalUpdater,
    /// The host's own policy rejects the image.
    ImageRefused,
    /// The digest failed here before.
    FailedDigest,
    /// The node backs off after a failure.
    BackingOff,
    /// A staged deployment that must not be removed cannot be locked: any reboot would apply it.
    Unlockable,
    /// The controller does not permit this node to pull yet.
    StagingHeld,
    /// A pull is running.
    Pulling,
    /// The image is staged and locked, and no berth is offered.
    NoBerth,
    /// The drain waits for pods.
    Draining,
    /// A reboot was requested, or a shutdown is scheduled.
    Rebooting,
    /// The host rebooted, and the Node is not Ready under this boot yet.
    NotReady,
    /// The host rebooted, and its boot lacks another part of its proof than a Ready Node.
    Unhealthy,
    /// The host booted neither the target nor the previous image.
    Unproven,
    /// A gate of the pool is closed, so the held berth cannot be licensed for the next image.
    Revoked,
    /// The next image is staged, but the maintenance window has closed.
    WindowClosed,
    /// The reboot is inhibited, so the node takes no offer, or waits under its berth after an unproven boot.
    Inhibited,
    /// An admin has excluded the Node.
    Excluded,
}
