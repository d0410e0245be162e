//! Knowledge of an agent's process, and the Node as the process reads it.

use crate::host::Begun;
use crate::lease::Phase;
use crate::number::Image;

/// Knowledge of an agent's process, which is lost when the process dies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Agent {
    /// UID of the Node that the BootcNode was created for; 0 while unknown.
    pub published: u8,
    pub os: Option<Os>,
    /// True if the deployments cannot have changed since the last read.
    pub fresh: bool,
    /// Image of a successful pull, until the agent sees it staged.
    pub pulled: Image,
    pub node: NodeRead,
    /// True if the latest write of the berth is from this process, and its response arrived. No older write can succeed
    /// after that write.
    pub fenced: bool,
    /// True if the agent has restored the Node since it began to give the berth back.
    pub restored: bool,
    pub drained: bool,
    pub reboot: Reboot,
    /// True if the turn's outcome is already counted.
    pub counted: bool,
    /// Phase that the agent wrote last, if it still uses that value. Ignore the outcome in [`Phase::Releasing`].
    pub wrote: Option<Phase>,
    /// True if locking the staged image failed repeatedly.
    pub lock_failure: bool,
    /// The failing change of the staged image, if any.
    pub failing: Failing,
    pub blind: bool,
    /// True if the failed read of the deployments is old enough to retry.
    pub blind_long: bool,
    /// True if this process knows that no unlocked image is staged.
    pub disarmed: bool,
    /// How long the host's bus has not responded.
    pub silence: Begun,
    pub memory_error: bool,
    /// True if the agent has processed the result of the last pull, but the host still shows that result.
    pub knows_result: bool,
    /// The API server's last response to forbidden writes.
    pub guard: Guard,
    /// True if the agent must try forbidden writes again.
    pub guard_due: bool,
}

impl Agent {
    /// Returns an agent that has just started. `tries_guard`: agents test whether the API server rejects forbidden
    /// writes.
    pub fn fresh(tries_guard: bool) -> Self {
        Self {
            guard: if tries_guard { Guard::Unknown } else { Guard::Refuses },
            guard_due: tries_guard,
            ..Self::default()
        }
    }
}

/// The API server's response to forbidden writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Guard {
    #[default]
    Refuses,
    Allows,
    Unknown,
}

/// A failing change of the staged image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Failing {
    #[default]
    No,
    /// Consecutive failures to lock the image.
    Lock(u8),
    Unstage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Os {
    pub booted: Image,
    pub staged: Image,
    pub locked: bool,
    /// Image of the rollback deployment; 0 if none.
    pub previous: Image,
    /// Image queued for the next boot instead of the running one; 0 if none.
    pub queued: Image,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum NodeRead {
    /// Not read since the Node changed.
    #[default]
    Unread,
    Gone,
    /// The Node, as last read. The second value is true if the Node has not changed since that read.
    Is(Object, bool),
}

/// State of an agent's reboot request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Reboot {
    #[default]
    No,
    Asked,
    /// The shutdown should have begun by now.
    Late,
    /// The shutdown has not begun, and a new request is allowed.
    Long,
    /// The request was rejected, or the shutdown never began.
    Blocked,
    /// Blocked, and a new request is allowed.
    BlockedLong,
}

/// Berth's cordon, as recorded on the Node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Cordon {
    #[default]
    No,
    /// The Node was schedulable before the cordon.
    OverSchedulable,
    /// The Node was already cordoned before Berth's cordon.
    OverCordoned,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Object {
    pub exists: bool,
    /// Number of earlier Nodes with the same name.
    pub uid: u8,
    pub unschedulable: bool,
    pub cordon: Cordon,
    /// True if the Node was Ready in the kubelet's last report.
    pub ready: bool,
    /// Boot of the kubelet's last report, counted back from the running boot (0).
    pub boot: u8,
    pub excluded: bool,
}
