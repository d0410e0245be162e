//! Everything that the agent knows between two passes.

use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use berth_api::berth::{Berth, HoldPhase, Holding};
use berth_api::digest::Digest;
use berth_api::names::{BootId, NodeName, NodeUid};
use berth_api::node::Deployment;
use berth_api::seeded::Bug;

use super::event::Services;
use super::guard_probe::Guarded;
use crate::agent::facts::{
    ClusterNode, Deployments, Desired, DrainFacts, Facts, HostFacts, LockFails, Os, Past, PullFacts, Reboot, Trouble,
    Unreachable,
};
use crate::agent::host_policy::Rules;
use crate::agent::reason::Reason;
use crate::agent::step::Step;
use crate::{Moment, Now};

/// Failures of one step in a row that are reported; fewer are the ordinary noise of a cluster.
const TELL_AFTER: u32 = 3;

/// Everything that the agent knows between two passes. A restart loses it, but for what [`Past`] keeps on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Knowledge {
    /// The node that this agent serves.
    pub node: NodeName,
    /// Demands of the BootcNode.
    pub desired: Desired,
    /// UID of the Node that the BootcNode was published for.
    pub published_for: Option<NodeUid>,
    /// Answers of the host's services in this pass.
    pub services: Services,
    /// First question to them without an answer, in words, while there was none since.
    pub unreachable: Option<(String, Moment)>,
    /// Reason for which the memory could not be written to the host, while that is so.
    pub forgetful: Option<String>,
    /// The host's deployments, as read last.
    pub os: Os,
    /// `os` was read after the last thing that may have changed it.
    pub fresh: bool,
    /// Nothing was armed when this process looked last, and it has done nothing since that could arm anything.
    pub disarmed: bool,
    /// What is staged could not be locked, time and again.
    pub lock_fails: Option<LockTrouble>,
    /// Moment at which the deployments were read last.
    pub looked: Moment,
    /// Rules of the host about what it pulls, as read in this pass.
    pub rules: Rules,
    /// Other updaters that are active on the host.
    pub rivals: Vec<String>,
    /// Finalization of the staged deployment failed at the last shutdown.
    pub finalization_failed: bool,
    /// The pull that runs.
    pub pull: Option<PullFacts>,
    /// Digest of a pull that ended well, while its image was not seen to be staged.
    pub pulled: Option<Digest>,
    /// Digest of a pull whose end is taken in, while the host still tells of it.
    pub ended: Option<Digest>,
    /// The host got other credentials since the last pull began.
    pub renewed: bool,
    /// The Node, as read last.
    pub cluster_node: ClusterNode,
    /// The berths labelled with this node; `None` before they were read.
    pub berths: Option<Vec<Berth>>,
    /// The last write of the berth was this process's, and was answered: no other one can still arrive.
    pub fenced: bool,
    /// State of the running turn.
    pub turn: Turn,
    /// Beginning of the running drain.
    pub draining: Option<Since>,
    /// Beginning of the running proof.
    pub proving: Option<Since>,
    /// The API server's answer to writes that it must refuse.
    pub guard: Guarded,
    /// Memory of earlier tries.
    pub past: Past,
    /// The step that failed last, and how often in a row.
    pub failing: Option<(Discriminant<Step>, Trouble)>,
    /// Rest of a node with which nothing is to be done; `None` while there is.
    pub rest: Option<Rest>,
}

/// Rest of a node with which nothing is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// Moment at which the cluster is read again, once it was read during this rest.
    pub reread: Option<Moment>,
}

/// Knowledge about one turn, forgotten with it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// The drain as of its last pass.
    pub drain: DrainFacts,
    /// Moment at which the next pass of the drain is due.
    pub next_pass: Option<Moment>,
    /// Number of the drain: a new one begins with no memory of pods.
    pub drain_number: u64,
    /// Moment at which a reboot was asked for.
    pub reboot_asked: Option<Moment>,
    /// Reason why no reboot came of it, and since when.
    pub reboot_blocked: Option<(String, Moment)>,
    /// Moment since which the host is at work for somebody else, so that it is neither unlocked nor rebooted.
    pub busy_since: Option<Moment>,
    /// This process has written the Node since it began to give back.
    pub restored: bool,
    /// The end of the turn is counted in the memory.
    pub counted: bool,
    /// End of the turn, in words.
    pub message: String,
    /// Phase of the berth as this process wrote it last.
    pub wrote: Option<Discriminant<HoldPhase>>,
    /// The last change of what is staged that ended well, until something else was decided.
    pub changed: Option<Discriminant<Step>>,
}

/// A lock that fails again and again, on what must not be removed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LockTrouble {
    /// The last error's words.
    pub why: String,
    /// Number of pauses so far.
    pub pauses: u32,
    /// Moment at which it is tried again.
    pub again: Moment,
}

/// Beginning of something that may be older than this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Since {
    /// Moment at which this process knew of it.
    pub at: Moment,
    /// Time that it had lasted by then.
    pub before: Duration,
}

impl Since {
    /// Begins now.
    pub(super) fn now(now: &Now) -> Self {
        Self {
            at: now.clock,
            before: Duration::ZERO,
        }
    }

    /// Began at a moment of this boot that the host remembers.
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
    /// An agent that has just begun, with what the host remembers.
    pub fn new(node: NodeName, boot_id: BootId, past: Past, now: &Now) -> Self {
        // A drain that began under another boot has its whole time again.
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
            forgetful: None,
            os: Os::Unknown,
            fresh: false,
            disarmed: false,
            lock_fails: None,
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
            guard: Guarded::unknown(now.clock),
            past,
            failing: None,
            rest: None,
        }
    }

    /// Everything that a decision may depend on.
    pub fn facts(&self, now: &Now) -> Facts {
        let services = self.services.clone();
        Facts {
            node: self.node.clone(),
            now: now.wall,
            desired: self.desired.clone(),
            host: HostFacts {
                boot_id: services.boot_id,
                os: self.os.clone(),
                fresh: self.fresh,
                disarmed: self.disarmed,
                lock_fails: self.lock_fails.as_ref().map(|trouble| LockFails {
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
                forgetful: self.forgetful.clone(),
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
            trouble: self.trouble().filter(|t| t.attempts >= TELL_AFTER).cloned(),
        }
    }

    /// An image that is desired is removed because it cannot be locked: it must not be staged anew without a pause.
    pub(super) fn given_up(&mut self, staged: &Deployment, now: &Now) {
        let can_lock = |d: &Deployments| d.storage.ostree_lock().is_some() && self.lock_fails.is_none();
        let is_for_the_lock = !staged.locked && self.os.deployments().is_some_and(|d| !can_lock(d));
        let is_tried_again = self
            .failing
            .as_ref()
            .is_some_and(|(kind, _)| *kind == discriminant(&Step::Unstage(staged.clone())));
        let desired = self
            .desired
            .digest()
            .filter(|d| staged.digest.as_ref() == Some(d) && self.past.is_complete(d));
        if let Some(digest) = desired.filter(|_| is_for_the_lock && !is_tried_again).cloned() {
            let message = "the staged image was not locked, and could not be: it is removed and staged anew";
            self.past
                .host_failed(Reason::LockFailed.as_str(), message, &digest, now.wall, now.chance);
        }
    }

    /// The ended pull that the host may forget: what came of it is on the host. Until then its unit is the only record of
    /// it that outlives this process.
    pub fn pull_to_forget(&self) -> Option<&Digest> {
        self.ended.as_ref().filter(|_| self.forgetful.is_none())
    }

    /// Says whether the end of this pull is news. The host tells of it until it is forgotten, which it is not while the
    /// memory cannot be written.
    pub fn is_news(&self, ended: &Digest) -> bool {
        self.ended.as_ref() != Some(ended)
    }

    /// The step that fails, however often it has.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.failing.as_ref().map(|(_, trouble)| trouble)
    }

    /// Time since the drain of this turn began, restarts of the agent included.
    pub fn draining_for(&self, now: &Now) -> Duration {
        self.draining.map_or(Duration::ZERO, |since| since.elapsed(now))
    }

    /// The berth that this node holds, with its holding.
    pub fn holding(&self) -> Option<&Holding> {
        self.berths.iter().flatten().find_map(Berth::holding)
    }

    /// True if nothing is to be done with the node: it runs what it should, or no pool has it.
    pub fn is_at_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// True if a sign of life is an occasion to read the Node and the berths again. At rest they are read with the first one, since
    /// a write of the turn before may have arrived late, and then seldom.
    pub fn rereads_cluster(&self, now: &Now) -> bool {
        match self.rest {
            Some(Rest { reread: Some(at) }) => at <= now.clock,
            _ => true,
        }
    }

    /// A berth, offered or held, says until when a reboot may start.
    pub fn is_under_window(&self) -> bool {
        let until = |b: &Berth| match b.offer() {
            Some(offer) => offer.open_until,
            None => b.holding().and_then(|h| h.open_until),
        };
        self.berths.iter().flatten().any(|berth| until(berth).is_some())
    }

    /// A reboot may follow soon: who could be in its way is worth asking for.
    pub fn is_reboot_ahead(&self) -> bool {
        self.os.staged().is_some() || self.holding().is_some()
    }

    /// The same change of what is staged ended well just before: it had no effect.
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
