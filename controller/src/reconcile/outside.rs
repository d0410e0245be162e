//! What the reconciler asks of its own machine and of the API servers, and whom it tells what it has found: metrics
//! and events.

use std::collections::BTreeSet;

use berth_api::PoolName;
use berth_api::berth::Berth;
use berth_api::condition::{find, is_true, pool as types};
use berth_api::pool::{BerthCounts, BootcNodePoolStatus, NodeCounts};
use berth_core::controller::facts::Pool;
use berth_core::controller::plan::BerthWrite;

use super::{Pass, Reconciler};
use crate::clock::Clock;
use crate::events::{Events, Note};
use crate::metrics::{Metrics, PoolNumbers};
use crate::readyz::Readyz;

/// The rest of the world.
#[derive(Debug)]
pub struct Outside {
    /// Whom to tell of what somebody should look at.
    pub events: Events,
    /// What Prometheus reads.
    pub metrics: Metrics,
    /// Which API servers answer.
    pub readyz: Readyz,
    /// This machine's clock.
    pub clock: Clock,
}

impl Reconciler {
    /// Looks at the clock and the API servers, as far as any pool depends on them.
    pub(super) fn look_outside(&mut self, pass: &mut Pass) {
        let windows = |pool: &Pool| {
            let rollout = pool.object.as_ref().map(|object| object.spec.rollout());
            rollout.is_some_and(|r| !r.windows.is_empty() || !r.exclusions.is_empty())
        };
        pass.clock_synchronized = !pass.pools.iter().any(windows) || self.outside.clock.is_synchronized(pass.now);
        self.look_at_servers(pass);
    }

    /// Takes note of what the API servers have answered, and sees to it that they are asked as long as somebody depends
    /// on it.
    pub(super) fn look_at_servers(&mut self, pass: &mut Pass) {
        let wanted = self.shared(pass).updates_control_plane(&pass.pools);
        let answers = self.outside.readyz.answers(wanted);
        pass.answers = wanted.then_some(answers);
    }

    /// Tells of a berth that was taken away from its holder.
    pub(super) fn tell_of_berth(&self, pass: &Pass, pool: &Pool, write: &BerthWrite) {
        let (Some(object), BerthWrite::Update { lease, berth, .. }) = (&pool.object, write) else {
            return;
        };
        let before = pass.leases.iter().find(|l| l.name() == lease);
        let before: Option<&Berth> = before.and_then(|l| l.berth.as_ref().ok());
        if let Some(note) = Note::closed(object, before, berth) {
            self.outside.events.tell(note);
        }
    }

    /// Tells Prometheus, and whoever reads events, what this pass has found.
    pub(super) fn tell(&mut self, pass: &Pass) {
        let metrics = &self.outside.metrics;
        metrics.pass();
        let numbers: Vec<PoolNumbers> = pass.pools.iter().filter_map(|pool| numbers(pass, pool)).collect();
        metrics.pools(&numbers);
        let halted: BTreeSet<PoolName> = pass
            .pools
            .iter()
            .filter(|p| status(p).is_some_and(is_halted))
            .map(|p| p.name.clone())
            .collect();
        // A leader that has just begun repeats nothing that a former one may have told.
        let known = self.halted.replace(halted.clone()).unwrap_or_else(|| halted.clone());
        for pool in pass
            .pools
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

fn numbers(pass: &Pass, pool: &Pool) -> Option<PoolNumbers> {
    let status = status(pool)?;
    let planned = pass.plans.get(&pool.name).and_then(|plan| plan.gate.as_ref());
    let gate = planned.or(pass.gates.get(&pool.name).and_then(|gates| gates.gate.as_ref()));
    let holdings = pass
        .leases
        .iter()
        .filter(|l| l.pool == pool.name)
        .filter_map(|l| l.berth.as_ref().ok()?.holding());
    let lost = holdings.filter(|holding| pass.timed_out.contains(&holding.uid));
    Some(PoolNumbers {
        pool: pool.name.to_string(),
        nodes: node_states(&status.nodes),
        berths: berth_states(&status.berths),
        halted: is_halted(status),
        gate: gate.map(|gate| gate.reason.to_owned()),
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
