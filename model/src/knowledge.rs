//! Knowledge of an agent's process, and the Node as the process reads it.

use crate::host::Begun;
use crate::lease::Phase;
use crate::number::Image;

/// Knowledge of an agent's process, lost when the process dies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Agent {
    /// UID of the Node that its BootcNode was created for; 0 while unknown.
    pub published: u8,
    /// Deployments, as last read.
    pub os: Option<Os>,
    /// True if no event since that read may have changed the deployments.
    pub fresh: bool,
    /// Image of a successful pull, until it is seen staged.
    pub pulled: Image,
    /// The Node, as last read.
    pub node: NodeRead,
    /// True if this process wrote its berth last and got the answer, so no older write can still succeed.
    pub fenced: bool,
    /// True if it has restored the Node since it began to give the berth back.
    pub restored: bool,
    /// True if the drain is complete.
    pub drained: bool,
    /// State of its reboot request.
    pub reboot: Reboot,
    /// True if the outcome of the turn is already counted.
    pub counted: bool,
    /// The last phase that it wrote, if that matters. The outcome in it is ignored.
    pub wrote: Option<Phase>,
    /// True if locking the staged image failed repeatedly.
    pub lock_failure: bool,
    /// The last change of the staged image, if it failed.
    pub failing: Failing,
    /// True if the last read of the deployments failed.
    pub blind: bool,
    /// True if that failed read is so old that a new one is due.
    pub blind_long: bool,
    /// True if this process knows that no unlocked image is staged.
    pub disarmed: bool,
    /// How long the host's bus has not answered.
    pub silence: Begun,
    /// True if the last write of the memory to disk failed.
    pub memory_error: bool,
    /// True if it has processed the result of a pull that the host still shows.
    pub knows_result: bool,
    /// The API server's last response to writes that it must refuse.
    pub guard: Guard,
    /// True if those writes are due to be tried again.
    pub guard_due: bool,
}

impl Agent {
    /// Returns an agent that has just started. `tries_guard`: it tests whether the API server refuses the writes that it must
    /// refuse.
    pub fn fresh(tries_guard: bool) -> Self {
        Self {
            guard: if tries_guard { Guard::Unknown } else { Guard::Refuses },
            guard_due: tries_guard,
            ..Self::default()
        }
    }
}

/// Response of the API server to writes that it must refuse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Guard {
    /// The API server refuses them.
    #[default]
    Refuses,
    /// The API server would accept one.
    Allows,
    /// No response yet.
    Unknown,
}

/// A failing change of the staged image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Failing {
    /// No change fails.
    #[default]
    No,
    /// Locking failed this many times in a row.
    Lock(u8),
    /// Removing failed.
    Unstage,
}

/// Deployments, as read from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Os {
    pub booted: Image,
    pub staged: Image,
    /// True if the staged image is locked.
    pub locked: bool,
    /// Image of the rollback deployment; 0 if none.
    pub previous: Image,
    /// Image queued for the next boot instead of the running one; 0 if none.
    pub queued: Image,
}

/// The Node, as read by an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum NodeRead {
    /// The Node was not read since it changed.
    #[default]
    Unread,
    /// The Node did not exist.
    Gone,
    /// The Node, and true if its resourceVersion is still current.
    Is(Object, bool),
}

/// State of a reboot request by an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Reboot {
    #[default]
    No,
    /// Requested just now.
    Asked,
    /// The shutdown should have begun by now.
    Late,
    /// The shutdown has not begun, and a new request is allowed.
    Long,
    /// Refused, or the shutdown never began.
    Blocked,
    /// Blocked, and a new request is allowed.
    BlockedLong,
}

/// Berth's cordon, as recorded on the Node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Cordon {
    /// Berth has not cordoned the Node.
    #[default]
    No,
    /// Cordoned by Berth; the Node was schedulable before.
    OverSchedulable,
    /// Cordoned by Berth; the Node was already cordoned before.
    OverCordoned,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Object {
    pub exists: bool,
    /// Number of this Node among the Nodes of this name.
    pub uid: u8,
    /// `spec.unschedulable`
    pub unschedulable: bool,
    /// Berth's annotation.
    pub cordon: Cordon,
    /// `Ready`, as last reported.
    pub ready: bool,
    /// Boot of the last kubelet report.
    pub boot: u8,
    /// True if an admin's label excludes it from its pool.
    pub excluded: bool,
}
