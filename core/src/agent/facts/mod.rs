//! Facts that an agent decides by: plain data, gathered by [`crate::run`], read by [`crate::agent::step`] and
//! [`crate::agent::report`]. Time and identity are part of them, so that a decision can be repeated.

mod cluster;
mod desired;
mod host;
mod past;

use std::time::Duration;

use berth_api::berth::{Berth, Holding};
use berth_api::digest::Digest;
use berth_api::names::{BootId, NodeName};
use berth_api::node::{Deployment, Turn};
use jiff::Timestamp;

pub use self::cluster::{ClusterNode, DrainFacts, Guard, GuardFacts};
pub use self::desired::{Desired, Member};
pub use self::host::{Deployments, HostFacts, LockFails, Os, PullFacts, Reboot, Unreachable};
pub use self::past::{Past, Verified};
use crate::agent::host_policy::{Objection, Rules};
use crate::agent::reason::Reason;

/// Everything that a decision may depend on.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The node that this agent serves.
    pub node: NodeName,
    /// Time by this node's clock.
    pub now: Timestamp,
    /// The BootcNode's request.
    pub desired: Desired,
    /// State of the host.
    pub host: HostFacts,
    /// The Node object.
    pub cluster_node: ClusterNode,
    /// The berths labelled with this node; `None` while they are not known.
    pub berths: Option<Vec<Berth>>,
    /// True if the last write of the held berth was one of this process, and was answered. Then no other write that
    /// this process, or one before it, has sent can still come in.
    pub fenced: bool,
    /// True if this process has written the Node since it began to give the berth back.
    pub restored: bool,
    /// Progress of this turn's drain.
    pub drain: DrainFacts,
    /// Time for which the node has been proving its boot, agent restarts included.
    pub proving_for: Duration,
    /// Answer of the API server to writes that it must refuse.
    pub guard: GuardFacts,
    /// Memory of earlier tries.
    pub past: Past,
    /// The step that fails again and again now.
    pub trouble: Option<Trouble>,
}

impl Facts {
    /// The staged deployment, when it is of this digest and has all that belongs to it, as far as is known.
    pub fn staged_whole(&self, digest: &Digest) -> Option<&Deployment> {
        let staged = self.host.os.staged()?;
        (staged.digest.as_ref() == Some(digest) && self.past.is_complete(digest)).then_some(staged)
    }

    /// Objection of the host to the image that is desired now, by its own rules.
    pub fn objection(&self) -> Option<Objection> {
        self.host.rules.objection(self.desired.image()?)
    }

    /// The holding of this node's berth, if it holds one.
    pub(crate) fn holding(&self) -> Option<&Holding> {
        let mut holdings = self.berths.iter().flatten().filter_map(Berth::holding);
        holdings.find(|holding| holding.node == self.node)
    }

    /// The last turn, when it was for what is desired now and ended badly.
    pub(crate) fn failed_turn(&self) -> Option<&Turn> {
        let last = self.past.last_turn.as_ref();
        last.filter(|turn| Some(&turn.digest) == self.desired.digest())
    }

    /// Facts of an agent that has just started: its name and its boot, and nothing else.
    pub fn nothing_yet(node: NodeName, boot_id: BootId, now: Timestamp) -> Self {
        Self {
            node,
            now,
            desired: Desired::Unknown,
            host: HostFacts {
                boot_id,
                os: Os::Unknown,
                fresh: false,
                disarmed: false,
                lock_fails: None,
                pull: None,
                inhibitors: vec![],
                shutting_down: false,
                shutdown_scheduled: false,
                unreachable: None,
                forgetful: None,
                rules: Rules::default(),
                rivals: vec![],
                finalization_failed: false,
                reboot: Reboot::NotAsked,
                clock_synchronized: None,
            },
            cluster_node: ClusterNode::Unread,
            berths: None,
            fenced: false,
            restored: false,
            drain: DrainFacts::default(),
            proving_for: Duration::ZERO,
            guard: GuardFacts {
                answer: Guard::Unknown,
                next_try: Duration::ZERO,
                silence: None,
            },
            past: Past::default(),
            trouble: None,
        }
    }
}

/// A step that fails again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// CamelCase reason.
    pub reason: Reason,
    /// The error's words.
    pub message: String,
    /// Number of failures so far.
    pub attempts: u32,
}
