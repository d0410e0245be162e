//! The reconciler's way to its own machine and to the API servers, and its ways to tell what it has found: metrics and
//! events.

use std::collections::BTreeSet;

use berth_api::PoolName;
use berth_api::berth::Berth;
use berth_api::condition::{find, is_true, pool as types};
use berth_api::pool::{BerthCounts, BootcNodePoolStatus, NodeCounts};
use berth_core::controller::facts::Pool;
use berth_core::controller::plan::BerthWrite;
use berth_core::controller::quorum::ControlPlane;

use super::Reconciler;
use super::berths::Before;
use super::seen::{Berths, Findings, Seen};
use crate::clock::Clock;
use crate::events::{Events, Note};
use crate::metrics::{Metrics, PoolNumbers};
use crate::readyz::Readyz;

/// The rest of the world.
#[derive(Debug)]
pub struct Outside {
    /// Writer of events.
    pub events: Events,
    /// Metrics for Prometheus.
    pub metrics: Metrics,
    /// Probes of the API servers.
    pub readyz: Readyz,
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
        let wanted = shared.updates_control_plane(&before.seen.pools);
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
        let numbers: Vec<PoolNumbers> = findings
            .seen
            .pools
            .iter()
            .filter_map(|pool| numbers(findings, pool))
            .collect();
        metrics.pools(&numbers);
        let pools = &findings.seen.pools;
        let halted: BTreeSet<PoolName> = pools
            .iter()
            .filter(|p| status(p).is_some_and(is_halted))
            .map(|p| p.name.clone())
            .collect();
        // A leader that has just begun repeats nothing that a former one may have told.
        let known = self
            .memory
            .halted
            .replace(halted.clone())
            .unwrap_or_else(|| halted.clone());
        for pool in pools
            .iter()
            .filter(|p| halted.contains(&p.name) && !known.contains(&p.name))
        {
            let condition = status(pool).and_then(|s| find(&s.conditions, types::ROLLOUT_HALTED));
            if let (Some(object), Some(condition)) = (&pool.object, condition) {
                self.outside
                    .events
                    .tell(Note::halted(object, condition.message.clone()));
            }
        }
    }
}

fn status(pool: &Pool) -> Option<&BootcNodePoolStatus> {
    pool.object.as_ref()?.status.as_ref()
}

fn is_halted(status: &BootcNodePoolStatus) -> bool {
    is_true(&status.conditions, types::ROLLOUT_HALTED)
}

fn numbers(findings: &Findings, pool: &Pool) -> Option<PoolNumbers> {
    let status = status(pool)?;
    let planned = findings
        .planned
        .plans
        .get(&pool.name)
        .and_then(|plan| plan.gate.as_ref());
    let gate = planned.or(findings.gates.get(&pool.name).and_then(|gates| gates.gate.as_ref()));
    let holdings = findings
        .planned
        .berths
        .leases
        .iter()
        .filter(|l| l.pool == pool.name)
        .filter_map(|l| l.berth.as_ref().ok()?.holding());
    let lost = holdings.filter(|holding| findings.timed_out.contains(&holding.uid));
    Some(PoolNumbers {
        pool: pool.name.to_string(),
        nodes: node_states(&status.nodes),
        berths: berth_states(&status.berths),
        halted: is_halted(status),
        gate: gate.map(|gate| gate.reason.as_str().to_owned()),
        timed_out: lost.map(|holding| holding.node.to_string()).collect(),
    })
}

fn node_states(counts: &NodeCounts) -> Vec<(&'static str, u32)> {
    vec![
        ("total", counts.total),
        ("updated", counts.updated),
        ("staging", counts.staging),
        ("staged", counts.staged),
        ("draining", counts.draining),
        ("rebooting", counts.rebooting),
        ("pending", counts.pending),
        ("excluded", counts.excluded),
        ("degraded", counts.degraded),
        ("unavailable", counts.unavailable),
    ]
}

fn berth_states(counts: &BerthCounts) -> Vec<(&'static str, u32)> {
    vec![
        ("total", counts.total),
        ("held", counts.held),
        ("offered", counts.offered),
        ("closed", counts.closed),
    ]
}
