//! Everything that the agent knows between two passes.

use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use berth_api::berth::{Berth, HoldPhase, Holding};
use berth_api::digest::Digest;
use berth_api::names::{BootId, NodeName, NodeUid};
use berth_api::node::Deployment;
use berth_api::seeded::Bug;

use super::event::Services;
use super::guard_probe::GuardProbe;
use crate::agent::facts::{
    AgentFacts, ClusterNode, Desired, DrainFacts, HostFacts, LockFailure, Os, Past, PullFacts, Reboot, StepFailure,
    Unreachable,
};
use crate::agent::host_policy::Rules;
use crate::agent::reason::Reason;
use crate::agent::step::Step;
use crate::{Moment, Now};

/// A step is reported after this many failures in a row; fewer are normal in a cluster.
const REPORT_AFTER: u32 = 3;

/// Everything that the agent knows between two passes. A restart loses it, except [`Past`], which is stored on the
/// host.
#[derive(Debug, Clone, PartialEq)]
pub struct Knowledge {
    /// The node that this agent serves.
    pub node: NodeName,
    /// Spec of the BootcNode.
    pub desired: Desired,
    /// UID of the Node that the BootcNode was published for.
    pub published_for: Option<NodeUid>,
    /// Answers of the host's services in this pass.
    pub services: Services,
    /// First failed request to the services and its time, while none has succeeded since.
    pub unreachable: Option<(String, Moment)>,
    /// Error of the last write of the memory file, until a write succeeds.
    pub memory_error: Option<String>,
    /// The host's deployments as last read.
    pub os: Os,
    /// True if `os` was read after the last event that may have changed it.
    pub fresh: bool,
    /// True if this process saw nothing armed, and has since done nothing that could arm an image.
    pub disarmed: bool,
    /// Set after repeated failures to lock the staged image.
    pub lock_failure: Option<LockRetry>,
    /// Time of the last read of the deployments.
    pub looked: Moment,
    /// The host's policy as read in this pass.
    pub rules: Rules,
    /// Other updaters that are active on the host.
    pub rivals: Vec<String>,
    /// True if finalization of the staged deployment failed at the last shutdown.
    pub finalization_failed: bool,
    /// The running pull.
    pub pull: Option<PullFacts>,
    /// Digest of a successful pull, until the deployments are read again.
    pub pulled: Option<Digest>,
    /// Digest of a finished pull that was processed, while the host still reports it.
    pub ended: Option<Digest>,
    /// True if the host's credentials changed since the last pull began.
    pub renewed: bool,
    /// The Node as last read.
    pub cluster_node: ClusterNode,
    /// Berths labelled with this node; `None` before they were read.
    pub berths: Option<Vec<Berth>>,
    /// True if this process wrote the berth last and got the answer: no other write can still arrive.
    pub fenced: bool,
    /// State of the current turn.
    pub turn: Turn,
    /// Start of the current drain.
    pub draining: Option<Since>,
    /// Start of the current proof.
    pub proving: Option<Since>,
    /// Whether the API server rejects writes to other nodes' objects.
    pub guard: GuardProbe,
    /// Record of earlier attempts.
    pub past: Past,
    /// The step that failed last, with its failures in a row.
    pub failing: Option<(Discriminant<Step>, StepFailure)>,
    /// Set while there is nothing to do with the node.
    pub rest: Option<Rest>,
}

/// State while there is nothing to do with the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// Time of the next read of the cluster; `None` before the first read since the rest began.
    pub reread: Option<Moment>,
}

/// Knowledge about one turn, dropped when it ends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// Result of the last drain pass.
    pub drain: DrainFacts,
    /// Time of the next drain pass.
    pub next_pass: Option<Moment>,
    /// Number of the drain: a new number makes the drain forget earlier pods.
    pub drain_number: u64,
    /// Time when a reboot was requested.
    pub reboot_asked: Option<Moment>,
    /// Why the requested reboot did not happen, and since when.
    pub reboot_blocked: Option<(String, Moment)>,
    /// Time since the host has been busy with another program's work, so that it is neither unlocked nor rebooted.
    pub busy_since: Option<Moment>,
    /// True if this process wrote the Node since it began to give the berth back.
    pub restored: bool,
    /// True if the end of the turn was counted in the record.
    pub counted: bool,
    /// Message about the end of the turn.
    pub message: String,
    /// Phase of the berth as this process last wrote it.
    pub wrote: Option<Discriminant<HoldPhase>>,
    /// Last successful change to the staged image, until another step is decided.
    pub changed: Option<Discriminant<Step>>,
}

/// Repeated failure to lock an image that must not be removed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LockRetry {
    /// Last error message.
    pub why: String,
    /// Number of pauses so far.
    pub pauses: u32,
    /// Time of the next attempt.
    pub again: Moment,
}

/// Start of something that may have begun before this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Since {
    /// Time when this process learnt of it.
    pub at: Moment,
    /// How long it had lasted by then.
    pub before: Duration,
}

impl Since {
    /// Starts now.
    pub(super) fn now(now: &Now) -> Self {
        Self {
            at: now.clock,
            before: Duration::ZERO,
        }
    }

    /// Started at a stored moment of this boot.
    pub(super) fn remembered(began: Moment, now: &Now) -> Self {
        Self {
            at: now.clock,
            before: now.clock.since(began),
        }
    }

    fn elapsed(self, now: &Now) -> Duration {
        self.before.saturating_add(now.clock.since(self.at))
    }
}

impl Knowledge {
    /// Creates the knowledge of an agent that has just started, with the host's record.
    pub fn new(node: NodeName, boot_id: BootId, past: Past, now: &Now) -> Self {
        // A drain that began under another boot starts its time limit again.
        let mut drain_began = past.drain_since.as_ref().and_then(|since| since.under(&boot_id));
        if let Some(began) = past.drain_began.filter(|_| Bug::WallClockDrain.is_awake()) {
            let elapsed = Duration::try_from(now.wall.duration_since(began)).unwrap_or_default();
            drain_began = Some(Moment::after(now.clock.since_start().saturating_sub(elapsed)));
        }
        Self {
            node,
            desired: Desired::Unknown,
            published_for: None,
            services: Services::under(boot_id),
            unreachable: None,
            memory_error: None,
            os: Os::Unknown,
            fresh: false,
            disarmed: false,
            lock_failure: None,
            looked: now.clock,
            rules: Rules::default(),
            rivals: vec![],
            finalization_failed: false,
            pull: None,
            pulled: None,
            ended: None,
            renewed: false,
            cluster_node: ClusterNode::Unread,
            berths: None,
            fenced: false,
            turn: Turn::default(),
            draining: drain_began.map(|began| Since::remembered(began, now)),
            proving: None,
            guard: GuardProbe::unknown(now.clock),
            past,
            failing: None,
            rest: None,
        }
    }

    /// Returns the input of a decision.
    pub fn facts(&self, now: &Now) -> AgentFacts {
        let services = self.services.clone();
        AgentFacts {
            node: self.node.clone(),
            now: now.wall,
            desired: self.desired.clone(),
            host: HostFacts {
                boot_id: services.boot_id,
                os: self.os.clone(),
                fresh: self.fresh,
                disarmed: self.disarmed,
                lock_failure: self.lock_failure.as_ref().map(|trouble| LockFailure {
                    why: trouble.why.clone(),
                    pause: trouble.again.since(now.clock),
                }),
                pull: self.pull.clone(),
                inhibitors: services.inhibitors,
                shutting_down: services.shutting_down,
                shutdown_scheduled: services.shutdown_scheduled,
                unreachable: self.unreachable.as_ref().map(|(why, since)| Unreachable {
                    why: why.clone(),
                    ago: now.clock.since(*since),
                }),
                memory_error: self.memory_error.clone(),
                rules: self.rules.clone(),
                rivals: self.rivals.clone(),
                finalization_failed: self.finalization_failed,
                reboot: self.reboot(now),
                clock_synchronized: services.clock_synchronized,
            },
            cluster_node: self.cluster_node.clone(),
            berths: self.berths.clone(),
            fenced: self.fenced,
            restored: self.turn.restored,
            drain: DrainFacts {
                elapsed: self.draining_for(now),
                next_pass: self.turn.next_pass.map(|at| at.since(now.clock)),
                ..self.turn.drain.clone()
            },
            proving_for: self.proving.map_or(Duration::ZERO, |since| since.elapsed(now)),
            guard: self.guard.facts(now.clock),
            past: self.past.clone(),
            trouble: self.trouble().filter(|t| t.attempts >= REPORT_AFTER).cloned(),
        }
    }

    /// Records a failed pull if a desired image is removed because it cannot be locked. The backoff delays the next
    /// attempt.
    pub(super) fn record_unlockable(&mut self, staged: &Deployment, now: &Now) {
        let deployments = self.os.deployments();
        let cannot_lock = deployments.is_some_and(|d| d.storage.ostree_lock().is_none() || self.lock_failure.is_some());
        let is_for_the_lock = !staged.locked && cannot_lock;
        let is_tried_again = self
            .failing
            .as_ref()
            .is_some_and(|(kind, _)| *kind == discriminant(&Step::Unstage(staged.clone())));
        let desired = self
            .desired
            .digest()
            .filter(|d| staged.digest.as_ref() == Some(d) && self.past.is_complete(d));
        if let Some(digest) = desired.filter(|_| is_for_the_lock && !is_tried_again).cloned() {
            let message = "the staged image could not be locked: it is removed and staged again";
            self.past
                .pull_failed(Reason::LockFailed.as_str(), message, &digest, now.wall, now.chance);
        }
    }

    /// Returns the finished pull that the host may forget, since its result was stored. Until then, only its unit
    /// keeps the result over a restart of the agent.
    pub fn pull_to_forget(&self) -> Option<&Digest> {
        self.ended.as_ref().filter(|_| self.memory_error.is_none())
    }

    /// True if the end of this pull was not processed yet. The host reports it until it is forgotten, which waits for
    /// a successful write of the memory.
    pub fn is_news(&self, ended: &Digest) -> bool {
        self.ended.as_ref() != Some(ended)
    }

    /// Returns the step that fails now, even after a single failure.
    pub fn trouble(&self) -> Option<&StepFailure> {
        self.failing.as_ref().map(|(_, trouble)| trouble)
    }

    /// Returns the time since this turn's drain began, including time before an agent restart.
    pub fn draining_for(&self, now: &Now) -> Duration {
        self.draining.map_or(Duration::ZERO, |since| since.elapsed(now))
    }

    /// Returns the holding of this node's berth.
    pub fn holding(&self) -> Option<&Holding> {
        self.berths.iter().flatten().find_map(Berth::holding)
    }

    /// True if there is nothing to do: the node runs the desired image, or is in no pool.
    pub fn is_at_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// True if the heartbeat also reads the Node and the berths. A node at rest reads them at the first heartbeat,
    /// since a late write of its turn may have arrived, and then rarely.
    pub fn rereads_cluster(&self, now: &Now) -> bool {
        match self.rest {
            Some(Rest { reread: Some(at) }) => at <= now.clock,
            _ => true,
        }
    }

    /// True if an offered or held berth has a time limit for starting the reboot.
    pub fn is_under_window(&self) -> bool {
        self.berths.iter().flatten().any(|berth| match berth.offer() {
            Some(offer) => offer.open_until.is_some(),
            None => berth.holding().is_some_and(|holding| holding.open_until.is_some()),
        })
    }

    /// True if a reboot may follow soon, so that inhibitors should be checked.
    pub fn is_reboot_ahead(&self) -> bool {
        self.os.staged().is_some() || self.holding().is_some()
    }

    /// True if the same change to the staged image just succeeded, and so had no effect.
    pub fn repeats(&self, step: &Step) -> bool {
        self.turn.changed == Some(discriminant(step))
    }

    fn reboot(&self, now: &Now) -> Reboot {
        match (&self.turn.reboot_blocked, self.turn.reboot_asked) {
            (Some((why, since)), _) => Reboot::Blocked {
                why: why.clone(),
                ago: now.clock.since(*since),
            },
            (None, Some(at)) => Reboot::Asked(now.clock.since(at)),
            (None, None) => Reboot::NotAsked,
        }
    }
}
