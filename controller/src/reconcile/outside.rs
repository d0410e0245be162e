//! The reconciler's way to its own machine and to the API servers, and its ways to tell what it has found: metrics and
//! events.

use std::time::Duration;

use berth_api::berth::Berth;
use berth_api::pool::BootcNodePoolStatus;
use berth_api::{NodeName, PoolName};
use berth_core::controller::gauges::{GaugeFacts, MeasuredPool};
use berth_core::controller::plan::BerthWrite;
use berth_core::controller::pool::Pool;
use berth_core::controller::quorum::ControlPlane;

use super::Reconciler;
use super::berths::Before;
use super::seen::{Berths, Findings, Seen};
use crate::clock::Clock;
use crate::events::Note;
use crate::events::writer::Events;
use crate::firstboots::FirstBoots;
use crate::metrics::Metrics;
use crate::readyz::Readyz;

/// Least time between two looks at all members for the metrics.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// The rest of the world.
#[derive(Debug)]
pub struct Outside {
    /// Writer of events.
    pub events: Events,
    /// Metrics for Prometheus.
    pub metrics: Metrics,
    /// Probes of the API servers.
    pub readyz: Readyz,
    /// Events of machines on their first boot.
    pub firstboots: FirstBoots,
    /// Clock of this machine.
    pub clock: Clock,
}

impl Reconciler {
    /// Says whether this machine's clock is synchronised, as far as any pool depends on that. Client required, but it waits
    /// for nobody.
    pub(super) fn is_clock_synchronized(&mut self, seen: &Seen) -> bool {
        let windows = |pool: &Pool| {
            let rollout = pool.object.as_ref().map(|object| object.spec.rollout());
            rollout.is_some_and(|r| !r.windows.is_empty() || !r.exclusions.is_empty())
        };
        !seen.pools.iter().any(windows) || self.outside.clock.is_synchronized(seen.now)
    }

    /// The control plane, by what the API servers have answered. Sees to it that they are asked as long as somebody depends
    /// on it. Client required, but it waits for nobody.
    pub(super) fn control_plane(&self, before: Before<'_>, berths: &Berths) -> ControlPlane {
        let shared = self.shared(before, berths);
        let wanted = shared.needs_servers(&before.seen.pools);
        let answers = self.outside.readyz.answers(wanted);
        shared.control_plane(wanted.then_some(&answers))
    }

    /// Tells of a berth that was taken away from its holder.
    pub(super) fn tell_of_berth(&self, berths: &Berths, pool: &Pool, write: &BerthWrite) {
        let (Some(object), BerthWrite::Update { lease, berth, .. }) = (&pool.object, write) else {
            return;
        };
        let before = berths.named(lease);
        let before: Option<&Berth> = before.and_then(|l| l.berth.as_ref().ok());
        if let Some(note) = Note::closed(object, before, berth) {
            self.outside.events.tell(note);
        }
    }

    /// Tells Prometheus, and whoever reads events, what this pass has found.
    pub(super) fn tell(&mut self, findings: &Findings) {
        let metrics = &self.outside.metrics;
        metrics.pass();
        let now = findings.seen.now;
        let object = |name: &PoolName| {
            let pool = findings.seen.pools.iter().find(|pool| pool.name == *name);
            pool?.object.as_ref()
        };
        for news in self.memory.turns.see(&findings.planned.berths.leases, now) {
            metrics.turn(&news);
            if let Some(note) = Note::of_turn(&news, object(&news.pool)) {
                self.outside.events.tell(note);
            }
        }
        for news in self.memory.stagings.see(&findings.seen.snapshot) {
            metrics.staged(&news);
        }
        for news in self.memory.troubles.see(&findings.seen.snapshot) {
            let note = Note::of_trouble(&news, object(&news.pool));
            self.outside.events.tell(note);
        }
        // Nobody reads them more often, and they are made from all members.
        let next = self.memory.measured.map(|last| last + MEASURE_INTERVAL);
        match next.filter(|next| *next > now) {
            Some(next) => self.again(next),
            None => {
                metrics.show(&measured(findings));
                self.memory.measured = Some(now);
            }
        }
    }
}

fn status(pool: &Pool) -> Option<&BootcNodePoolStatus> {
    pool.object.as_ref()?.status.as_ref()
}

fn measured(findings: &Findings) -> GaugeFacts<'_> {
    let snapshot = &findings.seen.snapshot;
    let fleet = snapshot.fleet.as_ref();
    let fleet = fleet.and_then(|fleet| fleet.view.object.as_ref().ok()?.status.as_ref());
    let pools = findings.seen.pools.iter();
    GaugeFacts {
        pools: pools.filter_map(|pool| pool_facts(findings, pool)).collect(),
        fleet,
    }
}

fn pool_facts<'a>(findings: &'a Findings, pool: &'a Pool) -> Option<MeasuredPool<'a>> {
    let status = status(pool)?;
    let plan = findings.planned.plans.get(&pool.name);
    let gates = findings.gates.get(&pool.name);
    let planned = plan.and_then(|plan| plan.gate.as_ref());
    let gate = planned.or(gates.and_then(|gates| gates.gate.as_ref()));
    let leases = findings.planned.berths.leases.iter().filter(|l| l.pool == pool.name);
    let holdings = leases.filter_map(|l| l.berth.as_ref().ok()?.holding());
    let lost = holdings.filter(|holding| findings.timed_out.contains(&holding.uid));
    let content = |name: &NodeName| {
        let host = findings.seen.snapshot.bootc_nodes.get(name.as_str())?;
        host.view.content.as_ref().ok()
    };
    Some(MeasuredPool {
        name: pool.name.as_str(),
        status,
        gate: gate.map(|gate| gate.reason),
        gates,
        timed_out: lost.map(|holding| &holding.node).collect(),
        members: findings.membership.members(&pool.name).filter_map(content).collect(),
        waiting: plan.map_or(vec![], |plan| plan.waiting.values().copied().collect()),
    })
}
