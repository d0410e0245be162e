use std::time::Duration;

use berth_api::digest::Digest;
use berth_api::names::{BootId, NodeName, NodeUid};
use berth_api::pool::PoolCheck;
use berth_api::seeded::Bug;

use super::cluster::ClusterView;
use super::failures::Failures;
use super::host::HostView;
use super::pulls::Pulls;
use super::turn::{Since, Turn};
use crate::agent::facts::{AgentFacts, Desired, HostFacts, Past, RollbackGuard, Unreachable};
use crate::{Moment, Now};

/// The status reports a failing step only after this number of failures in a row. Fewer failures are normal in a
/// cluster.
const REPORT_AFTER: u32 = 3;

/// Everything that the agent knows between two passes of its loop. A restart loses all of it except [`Past`].
#[derive(Debug, Clone, PartialEq)]
pub struct Knowledge {
    pub(super) node: NodeName,
    /// Spec of the BootcNode.
    pub desired: Desired,
    /// UID of the Node that the BootcNode was published for.
    pub published_for: Option<NodeUid>,
    /// The host, as last read.
    pub host: HostView,
    /// The running pull and the last finished one.
    pub pulls: Pulls,
    /// The Node and the berths, as last read.
    pub cluster: ClusterView,
    /// State of the current turn.
    pub turn: Turn,
    /// The agent's record of earlier pulls, turns and failures, which the host keeps in a file.
    pub past: Past,
    /// Failures of steps, of locking the staged image, and of writing the memory file that are not resolved yet.
    pub failures: Failures,
    pub(super) rest: Option<Rest>,
}

/// State of an agent at rest: see [`Knowledge::is_at_rest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rest {
    /// When the agent reads the Node and the berths again. `None` until the first heartbeat at rest.
    pub(super) reread: Option<Moment>,
}

impl Knowledge {
    /// Creates the knowledge of an agent that has just started. `past` is the record that it read from the host.
    pub fn new(node: NodeName, boot_id: BootId, past: Past, now: &Now) -> Self {
        // If the drain began under another boot, that time does not count towards the drain's time limit.
        let mut drain_began = past.drain_since.as_ref().and_then(|since| since.under(&boot_id));
        if let Some(began) = past.drain_began.filter(|_| Bug::WallClockDrain.is_awake()) {
            let elapsed = Duration::try_from(now.wall.duration_since(began)).unwrap_or_default();
            drain_began = Some(Moment::after(now.clock.since_start().saturating_sub(elapsed)));
        }
        let mut turn = Turn::default();
        turn.drain.since = drain_began.map(|began| Since::remembered(began, now));
        Self {
            node,
            desired: Desired::Unknown,
            published_for: None,
            host: HostView::unread(boot_id, now.clock),
            pulls: Pulls::default(),
            cluster: ClusterView::unread(now.clock),
            turn,
            past,
            failures: Failures::default(),
            rest: None,
        }
    }

    /// Returns the input of a decision.
    pub fn facts(&self, now: &Now) -> AgentFacts {
        AgentFacts {
            node: self.node.clone(),
            now: now.wall,
            desired: self.desired.clone(),
            host: self.host_facts(now),
            cluster_node: self.cluster.node.clone(),
            berths: self.cluster.berths.clone(),
            fenced: self.cluster.fenced,
            restored: self.turn.restored,
            drain: self.turn.drain.facts(now),
            proving_for: self.turn.proving.map_or(Duration::ZERO, |since| since.elapsed(now)),
            ready_for: self
                .turn
                .ready_since
                .map_or(Duration::ZERO, |since| now.clock.since(since)),
            check_readings: self.turn.pool_checks.readings.clone(),
            guard: self.cluster.guard.facts(now.clock),
            past: self.past.clone(),
            trouble: self.failures.trouble().filter(|t| t.attempts >= REPORT_AFTER).cloned(),
        }
    }

    fn host_facts(&self, now: &Now) -> HostFacts {
        let host = self.host.clone();
        HostFacts {
            boot_id: host.services.boot_id,
            os: host.os,
            fresh: host.fresh,
            disarmed: host.disarmed,
            lock_failure: self.failures.lock_facts(now),
            pull: self.pulls.running.clone(),
            inhibitors: host.services.inhibitors,
            shutting_down: host.services.shutting_down,
            shutdown_scheduled: host.services.shutdown_scheduled,
            unreachable: host.unreachable.map(|(why, since)| Unreachable {
                why,
                ago: now.clock.since(since),
            }),
            memory_error: self.failures.memory.clone(),
            rules: host.rules,
            rivals: host.rivals,
            finalization_failed: host.finalization_failed,
            reboot: self.turn.reboot.facts(now),
            clock_synchronized: host.services.clock_synchronized,
            health: host.services.health,
            rollback_guard: host.services.rollback_guard,
            soft_reboots: host.services.soft_reboots,
        }
    }

    /// Returns the digest of a finished pull whose unit may be removed from the host, because the memory file already
    /// has the pull's result.
    pub fn pull_to_forget(&self) -> Option<&Digest> {
        self.pulls.processed.as_ref().filter(|_| self.failures.memory.is_none())
    }

    /// True if the rollback guard's file on the host shows that the guard has fired.
    pub fn has_fired_guard(&self) -> bool {
        matches!(self.host.services.rollback_guard, RollbackGuard::Fired(_))
    }

    /// True if the guard's file may be removed from the host: the guard fired in an earlier boot, and the memory file
    /// has recorded that.
    pub fn may_forget_fired_guard(&self) -> bool {
        match &self.host.services.rollback_guard {
            RollbackGuard::Fired(fired) => fired.boot_id != *self.host.boot_id() && self.failures.memory.is_none(),
            RollbackGuard::Disarmed | RollbackGuard::Armed => false,
        }
    }

    /// True if the agent has nothing to do: the node runs the desired image, or is in no pool.
    pub fn is_at_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// True if the heartbeat also reads the Node and the berths. The first heartbeat at rest reads them, since a write
    /// of the last turn may have arrived late. Later heartbeats read them about every half hour.
    pub fn rereads_cluster(&self, now: &Now) -> bool {
        match self.rest {
            Some(Rest { reread: Some(at) }) => at <= now.clock,
            _ => true,
        }
    }

    /// True if the node holds a berth. The agent then also reads the host's health: before the reboot, and to prove the
    /// boot after it.
    pub fn is_in_turn(&self) -> bool {
        self.cluster.holding().is_some()
    }

    /// Returns the pool's checks that the agent must run now. Empty unless the boot waits for its proof, the Node is
    /// Ready, and the last reading is old enough. Omits checks of a Node condition, because the agent reads conditions
    /// from the Node object.
    pub fn due_checks(&self, now: &Now) -> Vec<PoolCheck> {
        let is_ready = self.turn.ready_since.is_some();
        if self.turn.proving.is_none() || !is_ready || !self.turn.pool_checks.are_due(now) {
            return vec![];
        }
        let Desired::Member(member) = &self.desired else {
            return vec![];
        };
        let checks = member.health.checks.iter();
        checks.filter(|check| check.node_condition.is_none()).cloned().collect()
    }

    /// True if the node may soon reboot: it holds a berth, or an image is staged. The agent then also reads the
    /// inhibitors.
    pub fn is_reboot_ahead(&self) -> bool {
        self.host.os.staged().is_some() || self.is_in_turn()
    }
}
