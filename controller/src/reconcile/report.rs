//! Reports the results of a pass as metrics and events.

use std::time::Duration;

use berth_api::PoolName;
use berth_api::berth::Berth;
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus};
use berth_core::controller::gauges::{GaugeFacts, MeasuredPool};
use berth_core::controller::plan::BerthWrite;
use berth_core::controller::pool::Pool;
use berth_core::controller::view::LeaseView;

use super::phases::{Berths, Findings};
use super::reconciler::Reconciler;
use crate::events::Note;

/// Minimum time between two computations of the pools' metrics.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

impl Reconciler {
    /// Sends an event if the write took a berth away from its holder.
    pub(super) fn report_closed_berth(&self, berths: &Berths, pool: &Pool, write: &BerthWrite) {
        let (Some(object), BerthWrite::Update { lease, berth, .. }) = (&pool.object, write) else {
            return;
        };
        let before = berths.named(lease);
        let before: Option<&Berth> = before.and_then(|l| l.berth.as_ref().ok());
        if let Some(note) = Note::closed(object, before, berth) {
            self.outside.events.queue(note);
        }
    }

    pub(super) fn report(&mut self, findings: &Findings) {
        let metrics = &self.outside.metrics;
        metrics.pass();
        let now = findings.observed.now;
        for news in self.memory.seen.turns.see(&findings.planned.berths.leases, now) {
            metrics.turn(&news);
            if let Some(note) = Note::of_turn(&news, object_of(findings, &news.pool)) {
                self.outside.events.queue(note);
            }
        }
        for news in self.memory.seen.stagings.see(&findings.observed.snapshot) {
            metrics.staged(&news);
        }
        for news in self.memory.seen.troubles.see(&findings.observed.snapshot) {
            let note = Note::of_trouble(&news, object_of(findings, &news.pool));
            self.outside.events.queue(note);
        }
        // The computation visits every member, and Prometheus reads the metrics less often than passes run.
        let next = self.memory.pools.measured.map(|last| last + MEASURE_INTERVAL);
        match next.filter(|next| *next > now) {
            Some(next) => self.again(next),
            None => {
                metrics.show(&measured(findings));
                self.memory.pools.measured = Some(now);
            }
        }
    }
}

fn object_of<'a>(findings: &'a Findings, name: &PoolName) -> Option<&'a BootcNodePool> {
    findings.observed.pool(name)?.object.as_ref()
}

fn status(pool: &Pool) -> Option<&BootcNodePoolStatus> {
    pool.object.as_ref()?.status.as_ref()
}

fn measured(findings: &Findings) -> GaugeFacts<'_> {
    let snapshot = &findings.observed.snapshot;
    let fleet = snapshot.fleet.as_ref();
    let fleet = fleet.and_then(|fleet| fleet.view.object.as_ref().ok()?.status.as_ref());
    let pools = findings.observed.pools.iter();
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
    let holdings = leases.filter_map(LeaseView::holding);
    let lost = holdings.filter(|holding| findings.timed_out.contains(&holding.uid));
    let members = findings.membership.members(&pool.name).filter_map(|name| {
        let host = findings.observed.host(name.as_str())?;
        host.content.as_ref().ok()
    });
    let implausible = findings.membership.members(&pool.name).filter_map(|name| {
        let node = findings.observed.node(name.as_str())?;
        Some((name, findings.implausible.get(&node.uid)?.reason))
    });
    Some(MeasuredPool {
        name: pool.name.as_str(),
        status,
        gate: gate.map(|gate| gate.reason),
        gates,
        timed_out: lost.map(|holding| &holding.node).collect(),
        implausible: implausible.collect(),
        members: members.collect(),
        waiting: plan.map_or(vec![], |plan| plan.waiting.values().copied().collect()),
    })
}
