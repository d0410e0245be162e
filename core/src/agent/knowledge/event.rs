//! Events that change the agent's knowledge.

use std::time::Duration;

use berth_api::berth::Berth;
use berth_api::digest::Digest;
use berth_api::names::{BootId, NodeUid};
use berth_api::node::{BootcNodeStatus, DrainBlocker};

use crate::agent::facts::{ClusterNode, Desired, Guard, Os, PullFacts};
use crate::agent::host_policy::Rules;
use crate::agent::reason::Reason;
use crate::agent::step::{Step, WaitReason};

/// Answers of the host's services, asked in every pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Services {
    /// The running boot.
    pub boot_id: BootId,
    /// The host is going down.
    pub shutting_down: bool,
    /// Says whether somebody has scheduled a shutdown for later.
    pub shutdown_scheduled: bool,
    /// Inhibitors of a shutdown.
    pub inhibitors: Vec<String>,
    /// The host's clock is synchronised; `None` when nobody has asked, or there was no answer.
    pub clock_synchronized: Option<bool>,
}

impl Services {
    /// A boot of which nothing else is known yet.
    pub fn under(boot_id: BootId) -> Self {
        Self {
            boot_id,
            shutting_down: false,
            shutdown_scheduled: false,
            inhibitors: vec![],
            clock_synchronized: None,
        }
    }
}

/// The host's deployments, as they were just read.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// The deployments.
    pub os: Os,
    /// Other updaters that are active on the host.
    pub rivals: Vec<String>,
    /// Finalization of the staged deployment failed at the last shutdown.
    pub finalization_failed: bool,
}

/// State of the pull unit.
#[derive(Debug, Clone, PartialEq)]
pub enum PullReading {
    /// No pull runs, and the end of none is to be dealt with.
    None,
    /// A pull runs.
    Running(PullFacts),
    /// A pull ended well.
    Succeeded {
        /// Digest of the image.
        digest: Digest,
        /// Digest of the text of the signature policy that it ran under; `None` if none was enforced.
        policy: Option<Digest>,
    },
    /// A pull failed.
    Failed {
        /// Digest of the image.
        digest: Digest,
        /// Reason and words.
        failure: HostFailure,
    },
}

impl PullReading {
    /// Digest of the pull that has ended.
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
    /// CamelCase reason.
    pub reason: Reason,
    /// The tool's own words.
    pub message: String,
}

/// End of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// The step is done, and was answered.
    Done,
    /// Nothing had to be done after all.
    NotNeeded,
    /// A pass of the drain came to this.
    Drain {
        /// Every pod that has to go is gone.
        done: bool,
        /// Pods that block the drain.
        blockers: Vec<DrainBlocker>,
        /// Pods that should have gone, could not, and do not block the reboot.
        left_behind: Vec<DrainBlocker>,
        /// Time until the next pass is due.
        next: Duration,
    },
    /// logind refused.
    Refused(String),
    /// The step failed, or its fate is not known.
    Failed {
        /// CamelCase reason.
        reason: Reason,
        /// The error's words.
        message: String,
    },
}

/// Something that the agent has come to know.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<'a> {
    /// The BootcNode asks for this. The status is that of an object seen for the first time.
    Published {
        /// Demands of the object.
        desired: Desired,
        /// UID of the Node that it is for; `None` without an object.
        uid: Option<NodeUid>,
        /// Status to remember by.
        status: Option<&'a BootcNodeStatus>,
    },
    /// The host's services have answered.
    Services(Services),
    /// The host's bus, systemd or logind did not answer; the error's words.
    Unreachable(String),
    /// The memory was written to the host, or could not be, for this reason.
    Memory(Option<String>),
    /// The host's rules were read.
    Rules(Box<Rules>),
    /// The host pulls with other credentials from now on.
    NewCredentials,
    /// The pull unit was looked at.
    Pull(PullReading),
    /// The deployments were read.
    Looked(Look),
    /// The Node was read.
    NodeRead(ClusterNode),
    /// The API server's answer to writes that it must refuse, or the error in place of a clear one.
    Guard(Result<Guard, String>),
    /// The berths were read, or the watch has told of them.
    Berths(Vec<Berth>),
    /// Time for a sign of life.
    Heartbeat,
    /// A step is about to be done. What the memory says then is written before.
    Begins(&'a Step),
    /// A step has ended.
    Ends(&'a Step, Ending),
    /// There is nothing to do for a while.
    Rests(WaitReason),
    /// Something could not be read.
    Unreadable,
}
