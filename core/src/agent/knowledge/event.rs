//! Events that change the agent's knowledge.

use std::time::Duration;

use berth_api::berth::Berth;
use berth_api::digest::Digest;
use berth_api::names::{BootId, NodeUid};
use berth_api::node::timeline::ProofPart;
use berth_api::node::{BootcNodeStatus, DrainBlocker};

use crate::agent::facts::{
    CheckReading, ClusterNode, Desired, Guard, HostHealth, Os, PullFacts, RollbackGuard, SoftReboots,
};
use crate::agent::host_policy::Rules;
use crate::agent::reason::Reason;
use crate::agent::step::{Step, WaitReason};

/// State that the agent reads from the host's services (systemd, logind, timedated) in every pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Services {
    /// ID of the current boot.
    pub boot_id: BootId,
    /// True while the host shuts down.
    pub shutting_down: bool,
    /// True if a shutdown is scheduled for later.
    pub shutdown_scheduled: bool,
    /// Inhibitors that keep logind from shutting the host down, each with its reason.
    pub inhibitors: Vec<String>,
    /// Whether the host's clock is synchronized; `None` if timedated was not asked or did not answer.
    pub clock_synchronized: Option<bool>,
    /// Health of the running boot; `None` outside a turn.
    pub health: Option<HostHealth>,
    /// State of the host's rollback guard.
    pub rollback_guard: RollbackGuard,
    /// The host's support of soft reboots.
    pub soft_reboots: SoftReboots,
}

impl Services {
    /// Returns the state before the services have answered: only the boot ID is known.
    pub fn under(boot_id: BootId) -> Self {
        Self {
            boot_id,
            shutting_down: false,
            shutdown_scheduled: false,
            inhibitors: vec![],
            clock_synchronized: None,
            health: None,
            rollback_guard: RollbackGuard::Disarmed,
            soft_reboots: SoftReboots::default(),
        }
    }
}

/// Result of reading the host's deployments.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// The deployments.
    pub os: Os,
    /// Other updaters that are active on the host.
    pub rivals: Vec<String>,
    /// True if finalization of the staged deployment failed at the last shutdown.
    pub finalization_failed: bool,
}

/// State of the unit that pulls an image.
#[derive(Debug, Clone, PartialEq)]
pub enum PullReading {
    /// No unit is pulling, and no result of a finished unit is left to process.
    None,
    /// A pull runs.
    Running(PullFacts),
    /// A pull succeeded.
    Succeeded {
        /// Digest of the image.
        digest: Digest,
        /// Digest of the text of the signature policy that the host enforced during the pull; `None` if it enforced
        /// none.
        policy: Option<Digest>,
    },
    /// A pull failed.
    Failed {
        /// Digest of the image.
        digest: Digest,
        /// Reason and message.
        failure: HostFailure,
    },
}

impl PullReading {
    /// Returns the digest of a pull that has ended; `None` otherwise.
    pub fn ended(&self) -> Option<&Digest> {
        match self {
            Self::None | Self::Running(_) => None,
            Self::Succeeded { digest, .. } | Self::Failed { digest, .. } => Some(digest),
        }
    }
}

/// Failure of a host tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFailure {
    /// Reason for a condition.
    pub reason: Reason,
    /// The tool's error message.
    pub message: String,
}

/// Result of a drain pass.
#[derive(Debug, Clone, PartialEq)]
pub enum DrainProgress {
    /// Every pod that must leave is gone.
    Done {
        /// Pods and volumes that stay on the node. The node reboots without waiting for them.
        left_behind: Vec<DrainBlocker>,
    },
    /// Pods or volumes remain.
    Waiting {
        /// Pods and volumes that block the drain. Pods that wait for an admin or for their disruption budget come
        /// first.
        blockers: Vec<DrainBlocker>,
        /// Time until the next drain pass.
        next: Duration,
    },
}

/// How a step of the agent ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// The step succeeded: the host or the API server confirmed it.
    Done,
    /// Nothing had to be done.
    NotNeeded,
    /// The step was a drain pass, with this result.
    Drain(DrainProgress),
    /// logind refused to reboot, with this message.
    Refused(String),
    /// The step failed, or its result is unknown.
    Failed {
        /// Reason for a condition.
        reason: Reason,
        /// Error message.
        message: String,
    },
}

/// An event that changes the agent's knowledge.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<'a> {
    /// The BootcNode was read.
    Published {
        /// Spec of the BootcNode.
        desired: Desired,
        /// UID of the Node that the BootcNode is for; `None` without a BootcNode.
        uid: Option<NodeUid>,
        /// Status of the BootcNode, if this is the first time that this agent process reads the BootcNode; `None`
        /// later.
        status: Option<&'a BootcNodeStatus>,
        /// True if the BootcNode has a status that cannot be read.
        is_unread: bool,
    },
    /// The host's services answered.
    Services(Services),
    /// The host's bus, systemd or logind did not answer; the error message.
    Unreachable(String),
    /// The agent tried to write its memory file. Holds the error, or `None` after a success.
    Memory(Option<String>),
    /// The host's policy was read.
    Rules(Box<Rules>),
    /// The host's registry credentials changed.
    NewCredentials,
    /// The state of the pull unit was read.
    Pull(PullReading),
    /// The deployments were read.
    Looked(Look),
    /// The Node was read.
    NodeRead(ClusterNode),
    /// The pool's checks were read in the running boot.
    PoolChecks(Vec<CheckReading>),
    /// Parts of the running boot's proof that are complete so far.
    Proves(&'static [ProofPart]),
    /// The containers of the pods that the pool's checks select were read, before the reboot of this turn.
    ContainersBefore(Vec<String>),
    /// The guard probe ended: its result, or the error if there was no clear answer.
    Guard(Result<Guard, String>),
    /// The berths were read, or their watch reported a change.
    Berths(Vec<Berth>),
    /// The heartbeat is due.
    Heartbeat,
    /// A step is about to begin. The agent writes its memory file first, and then performs the step.
    Begins(&'a Step),
    /// A step has ended, with this result.
    Ends(&'a Step, Ending),
    /// The agent decided to wait, for this reason.
    Rests(WaitReason),
    /// A read of the Node or the berths failed.
    Unreadable,
}
