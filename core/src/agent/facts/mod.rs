//! Input of the agent's decisions, as plain data. Includes the time and the identity, so a decision can be replayed.

mod boots;
mod cluster;
mod desired;
mod health;
mod host;
mod past;

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
pub use self::host::{Deployments, HostFacts, LockFailure, Os, PullFacts, Reboot, Unreachable};
pub use self::past::{Past, Undone, Verified};
use crate::agent::host_policy::Objection;
use crate::agent::reason::Reason;
use crate::finding::{self, Finding, Subject};

/// Everything that a decision may depend on.
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
    /// The Node object.
    pub cluster_node: ClusterNode,
    /// Berths labelled with this node; `None` until they are read.
    pub berths: Option<Vec<Berth>>,
    /// True if this process wrote the held berth last, and the API server answered: older writes in flight then fail.
    pub fenced: bool,
    /// True if this process wrote the Node after it began to give the berth back.
    pub restored: bool,
    /// Progress of the current turn's drain.
    pub drain: DrainFacts,
    /// How long the agent has waited for the proof of this boot, across agent restarts; zero if none is awaited.
    pub proving_for: Duration,
    /// How long the Node has been Ready under this boot, as far as this process has read it; zero if it is not Ready.
    pub ready_for: Duration,
    /// Whether the API server rejects writes to other nodes' objects.
    pub guard: GuardFacts,
    /// Record of earlier pulls, turns and failures on this node.
    pub past: Past,
    /// The step that fails repeatedly, if there is one.
    pub trouble: Option<StepFailure>,
}

impl AgentFacts {
    /// Returns the staged deployment if it has this digest and its pull is not known to be incomplete.
    pub fn staged_whole(&self, digest: &Digest) -> Option<&Deployment> {
        let staged = self.host.os.staged()?;
        (staged.digest.as_ref() == Some(digest) && self.past.is_complete(digest)).then_some(staged)
    }

    pub(crate) fn undoes_boot(&self) -> bool {
        let undone = self.past.undone.as_ref();
        undone.is_some_and(|undone| undone.boot_id == self.host.boot_id)
    }

    /// True if the agent has queued the rollback that undoes the running boot.
    pub(crate) fn has_queued_undo(&self) -> bool {
        self.undoes_boot() && self.host.os.is_rollback_queued()
    }

    /// Returns the host policy's objection to the desired image; `None` if the policy allows it or no image is desired.
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

    /// Returns the last turn if its digest is still desired and it did not end in an update.
    pub(crate) fn failed_turn(&self) -> Option<&Turn> {
        let last = self.past.last_turn.as_ref();
        last.filter(|turn| Some(&turn.digest) == self.desired.digest())
    }
}

/// A step that fails repeatedly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepFailure {
    /// CamelCase reason.
    pub reason: Reason,
    /// Error message.
    pub message: String,
    /// Number of failures so far.
    pub attempts: u32,
}
