//! Input of the agent's decisions, as plain data. The input includes the current time and the node's name, so a
//! decision can be replayed.

mod boots;
mod cluster;
mod desired;
mod health;
mod host;
mod past;
mod pool_checks;
mod rollback_guard;

use std::time::Duration;

use berth_api::berth::{Berth, Holding};
use berth_api::condition::Word;
use berth_api::digest::Digest;
use berth_api::names::{NodeName, PoolName};
use berth_api::node::{Deployment, Turn};
use jiff::Timestamp;

pub use self::boots::{FellBack, LastBooted, OutsideBoot};
pub use self::cluster::{ClusterNode, DrainFacts, Guard, GuardFacts};
pub use self::desired::{Desired, Member};
pub use self::health::{BootComplete, Checks, HealthBefore, HostHealth};
pub use self::host::{Deployments, HostFacts, LockFailure, Os, PullFacts, Reboot, SoftReboots, Unreachable};
pub use self::past::{Past, Undone, Verified};
pub use self::pool_checks::{CheckAnswer, CheckReading, PodReading};
pub use self::rollback_guard::{Fired, RollbackGuard};
use crate::agent::host_policy::Objection;
use crate::agent::reason::Reason;
use crate::finding::{self, Finding, Subject};

/// All facts that a decision of the agent may depend on.
#[derive(Debug, Clone)]
pub struct AgentFacts {
    /// The node that this agent serves.
    pub node: NodeName,
    /// Current time by this node's clock.
    pub now: Timestamp,
    /// Spec of the BootcNode.
    pub desired: Desired,
    /// State of the host.
    pub host: HostFacts,
    /// The Node object of this node.
    pub cluster_node: ClusterNode,
    /// Berths labeled with this node; `None` until they are read.
    pub berths: Option<Vec<Berth>>,
    /// True if this agent process made the last write of the held berth, and the API server confirmed it. Any older
    /// write that is still in flight then fails.
    pub fenced: bool,
    /// True if this agent process has written the Node since it began to give the berth back.
    pub restored: bool,
    /// Progress of the current turn's drain.
    pub drain: DrainFacts,
    /// How long the agent has waited for the proof of this boot, across agent restarts; zero if the boot needs no
    /// proof.
    pub proving_for: Duration,
    /// How long this agent process has seen the Node Ready under this boot without a break; zero if the Node is not
    /// Ready.
    pub ready_for: Duration,
    /// The last readings of the pool's checks, under this boot.
    pub check_readings: Vec<CheckReading>,
    /// Whether the API server rejects writes to other nodes' objects.
    pub guard: GuardFacts,
    /// The agent's record of earlier pulls, turns and failures on this node.
    pub past: Past,
    /// The step that keeps failing, if any.
    pub trouble: Option<StepFailure>,
}

impl AgentFacts {
    /// Returns the staged deployment if it has this digest, unless its pull failed or was stopped.
    pub fn staged_whole(&self, digest: &Digest) -> Option<&Deployment> {
        let staged = self.host.os.staged()?;
        (staged.digest.as_ref() == Some(digest) && self.past.is_complete(digest)).then_some(staged)
    }

    pub(crate) fn undoes_boot(&self) -> bool {
        let undone = self.past.undone.as_ref();
        undone.is_some_and(|undone| undone.boot_id == self.host.boot_id)
    }

    /// True if the next boot takes the rollback that the agent itself queued, to undo the running boot.
    pub(crate) fn has_queued_undo(&self) -> bool {
        self.undoes_boot() && self.host.os.is_rollback_queued()
    }

    /// Returns why the host's own policy rejects the desired image. `None` if the policy accepts the image, or if no
    /// image is desired.
    pub fn objection(&self) -> Option<Objection> {
        self.host.rules.objection(self.desired.image()?)
    }

    pub(crate) fn degraded(&self, reason: impl Into<Word>, message: impl Into<String>) -> Finding {
        let pool = match &self.desired {
            Desired::Member(member) => member.pool.clone(),
            Desired::Unknown | Desired::Release => PoolName::new(""),
        };
        finding::node::degraded(Subject::Node(self.node.clone(), pool), reason, message)
    }

    /// Returns the details of the berth that this node holds: its phase, target and boot.
    pub(crate) fn holding(&self) -> Option<&Holding> {
        let mut holdings = self.berths.iter().flatten().filter_map(Berth::holding);
        holdings.find(|holding| holding.node == self.node)
    }

    /// Returns the last turn if it ended without an update, and its digest is still the desired digest.
    pub(crate) fn failed_turn(&self) -> Option<&Turn> {
        let last = self.past.last_turn.as_ref();
        last.filter(|turn| Some(&turn.digest) == self.desired.digest())
    }
}

/// A step that has failed several times in a row, with its last error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepFailure {
    /// Reason for a condition.
    pub reason: Reason,
    /// Error message.
    pub message: String,
    /// Number of failures in a row.
    pub attempts: u32,
}
