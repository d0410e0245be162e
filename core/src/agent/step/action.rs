//! The agent's actions, and the reasons why it does nothing.

use std::time::Duration;

use berth_api::berth::{Berth, Outcome};
use berth_api::digest::Digest;
use berth_api::node::{Deployment, DesiredImage};
use berth_api::seeded::Bug;

use crate::agent::storage::{OstreeLock, StagingLock};

/// Time within which a requested reboot must begin; after that it counts as blocked.
pub const REBOOT_GRACE: Duration = Duration::from_secs(60);
/// Time between two looks at something that nobody announces: an inhibitor, a Node that is not Ready yet.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Wait before a blocked reboot is asked for again, when there is no way back to before the commit.
pub const REBOOT_AGAIN: Duration = Duration::from_secs(60);
/// Time between two looks at something that only others can change, while nothing announces it.
pub(super) const LOOK_SELDOM: Duration = Duration::from_secs(10);
/// Time between two looks at the host's deployments, while only others can change them.
pub(super) const LOOK_HOST_AGAIN: Duration = Duration::from_secs(30);
/// Time between two looks at a Node that is not Ready yet, soon after a boot.
pub(super) const READY_AGAIN: Duration = Duration::from_millis(100);

/// The next action.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Do nothing, until something changes or the time is over.
    Wait(WaitReason, Option<Duration>),
    /// Read the host's deployments.
    LookAtHost,
    /// Read the Node object.
    ReadNode,
    /// Try, and not mean, the writes that the API server must refuse (I6).
    TryGuard,
    /// Pull and stage this image, locked in this way.
    StartPull(DesiredImage, StagingLock),
    /// Stop the pull of this digest.
    CancelPull(Digest),
    /// Lock what is staged, by ostree's lock.
    Lock(OstreeLock),
    /// Unlock what is staged. Only under a committed berth.
    Unlock,
    /// Remove what is staged.
    Unstage(Deployment),
    /// Ask logind to reboot. Only under a committed berth.
    Reboot,
    /// Take the offered berth.
    Take(Berth),
    /// Cordon the Node and record that in the same patch.
    Cordon(Berth),
    /// Make one pass of the drain.
    Drain,
    /// Commit the berth.
    Commit(Berth),
    /// Write the berth as it is, so that an older write of it that is still on its way loses.
    Fence(Berth),
    /// Take the commit back.
    Uncommit(Berth),
    /// Go on to this digest under the same berth, from a boot that is not proven.
    Relicense(Berth, Digest),
    /// Start to give the berth back.
    Release(Berth, Outcome, String),
    /// Write the Node: undo our cordon, and mark it in any case.
    Restore(Berth),
    /// Close the berth.
    GiveBack(Berth),
    /// Undo a cordon of ours that no berth covers.
    Uncordon,
}

impl Step {
    /// Writes the berth: what was sent before it and not answered may still arrive after it.
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
            | Self::Cordon(_)
            | Self::Drain
            | Self::Restore(_)
            | Self::Uncordon => false,
        }
    }

    /// Writes to the cluster: the berth, the Node or its pods.
    pub fn asks_cluster(&self) -> bool {
        self.writes_berth() || matches!(self, Self::Cordon(_) | Self::Drain | Self::Restore(_) | Self::Uncordon)
    }

    /// Says whether the step must not be done unless the memory on the host was written: a host that forgets what it
    /// tried reboots for ever.
    pub fn needs_memory(&self) -> bool {
        let needs = matches!(self, Self::Take(_) | Self::Commit(_) | Self::Relicense(..));
        needs && !Bug::MemoryNotNeeded.is_awake()
    }
}

/// Reason why there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// The host goes down.
    ShuttingDown,
    /// Nothing is asked of this node.
    NothingAsked,
    /// Everything that Berth did here is undone.
    Released,
    /// The berths are not known yet.
    BerthsUnknown,
    /// The berth is for a Node of this name that no longer exists.
    ForeignBerth,
    /// The spec is published for another Node of this name.
    OtherNode,
    /// The node runs what it should.
    Updated,
    /// The node runs what it should, and its next boot would take another deployment.
    RollbackQueued,
    /// The image is not resolved.
    Unresolved,
    /// The host cannot be updated.
    HostUnusable,
    /// The host's bus, systemd or logind does not answer.
    HostUnreachable,
    /// The agent's memory on the host cannot be written.
    Forgetful,
    /// The API server does not refuse what it must, or did not answer yet.
    Unguarded,
    /// Another updater on the host would apply what is staged.
    RivalUpdater,
    /// The host's own rules refuse the image.
    ImageRefused,
    /// The digest failed here before.
    FailedDigest,
    /// Something failed; its backoff runs.
    BackingOff,
    /// Packages that somebody has staged cannot be locked, and are not removed: any reboot applies them.
    Unlockable,
    /// The controller lets others pull first.
    StagingHeld,
    /// The pull runs.
    Pulling,
    /// Staged and locked; no berth is offered.
    NoBerth,
    /// The drain waits for pods.
    Draining,
    /// The reboot was asked for.
    Rebooting,
    /// Rebooted; the Node is not Ready under this boot yet.
    NotReady,
    /// Rebooted into something that is neither the target nor what ran before.
    Unproven,
    /// The next image is staged, but a gate of the pool keeps the holder from going on to it.
    Revoked,
    /// The next image is staged, but the window in which reboots may start has closed.
    WindowClosed,
    /// There is no way back to before the commit, and something inhibits the reboot.
    Inhibited,
    /// An admin has excluded the Node.
    Excluded,
}
