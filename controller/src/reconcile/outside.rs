//! What the reconciler asks of its own machine and of the API servers, and whom it tells what it has found: metrics
//! and events.

use std::collections::BTreeSet;

use berth_api::berth::Berth;
use berth_api::condition::{find, is_true, pool as types};
use berth_api::membership::Membership;
use berth_api::pool::{BerthCounts, BootcNodePoolStatus, NodeCounts};
use berth_api::waves::is_control_plane;
use berth_api::{NodeUid, PoolName};
use berth_core::controller::facts::Pool;
use berth_core::controller::plan::BerthWrite;
use berth_core::controller::publish::desired_digest;
use berth_core::controller::servers;
use berth_core::controller::view::NodeView;

use super::Reconciler;
use super::seen::{Berths, Findings, Outlook, Seen, Servers};
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
    /// Client required, but it waits for nobody: looks at the clock and the API servers, as far as any pool depends on
    /// them.
    pub(super) fn look_outside(&mut self, seen: &Seen, membership: &Membership, berths: &Berths) -> Outlook {
        let windows = |pool: &Pool| {
            let rollout = pool.object.as_ref().map(|object| object.spec.rollout());
            rollout.is_some_and(|r| !r.windows.is_empty() || !r.exclusions.is_empty())
        };
        Outlook {
            clock_synchronized: !seen.pools.iter().any(windows) || self.outside.clock.is_synchronized(seen.now),
            servers: self.look_at_servers(seen, membership, berths),
        }
    }

    /// Works out which control plane nodes must not go down now. For one that has no berth yet, the servers of those that
    /// have one do not count: these go down without being asked again. A holder is judged by what answers alone, or two
    /// that are stuck would keep each other from going on.
    pub(super) fn look_at_servers(&mut self, seen: &Seen, membership: &Membership, berths: &Berths) -> Servers {
        let pools = seen.pools.iter();
        let waiting: Vec<&NodeView> = pools.flat_map(|pool| control_plane(seen, membership, pool)).collect();
        let answers = self.outside.readyz.answers(!waiting.is_empty());
        let nodes = || seen.snapshot.nodes.values().map(|node| node.view.as_ref());
        let has_berth = |uid: &NodeUid| berths.occupied.by_uid.contains_key(uid);
        let alone = |node: &&&NodeView| {
            let busy = |uid: &NodeUid| !has_berth(&node.uid) && has_berth(uid);
            servers::alone(node, nodes(), &answers, busy, seen.now)
        };
        let uid = |node: &&NodeView| node.uid.clone();
        Servers {
            alone: waiting.iter().filter(alone).map(uid).collect(),
            outdated: waiting.iter().map(uid).filter(|uid| !has_berth(uid)).collect(),
        }
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

/// The control plane nodes among a pool's members that do not run its target yet.
fn control_plane<'a>(seen: &'a Seen, membership: &'a Membership, pool: &Pool) -> Vec<&'a NodeView> {
    let nodes = membership
        .members(&pool.name)
        .filter_map(|name| seen.snapshot.nodes.get(name.as_str()));
    let outdated = |node: &&NodeView| {
        let report = seen
            .snapshot
            .hosts
            .get(node.name.as_str())
            .and_then(|host| host.view.report());
        let desired = desired_digest(pool.target(), &node.architecture);
        desired.is_some() && report.and_then(|r| r.booted.as_ref()) != desired
    };
    nodes
        .map(|node| node.view.as_ref())
        .filter(|node| is_control_plane(&node.labels))
        .filter(outdated)
        .collect()
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
