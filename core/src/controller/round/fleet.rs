//! State that the pools share: the fleet's limit on unavailable nodes, and the order of the pools (`rollout.after`).
//! Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use berth_api::berth::Berth;
use berth_api::seeded::Bug;
use berth_api::{NodeUid, PoolName};

use super::facts::Round;
use crate::controller::gate::{Gate, GateReason};
use crate::controller::plan::{FleetUse, PoolFacts};
use crate::controller::pool::Pool;
use crate::controller::usage::{CapacityUse, UseKind};
use crate::controller::view::{LeaseView, NodeView};
use crate::text::NAMED;

impl Round<'_> {
    /// Returns how nodes and berths use up the fleet's limit; `None` without a limit.
    pub fn fleet_use(&self) -> Option<FleetUse> {
        let limit = self.snapshot.fleet_spec()?.limit(self.membership.all().len())?;
        // Leases with an unknown holder that use up the limit.
        let unknown: Vec<(&str, UseKind)> = self
            .leases
            .iter()
            .filter_map(|l| Some((l.name(), self.unknown(l)?)))
            .collect();
        let worked_on: BTreeSet<&NodeUid> = self.readable().filter_map(|(_, b)| Some(b.node()?.1)).collect();
        let leaving = self.membership.all_leaving().filter(|name| self.has_yet_to_leave(name));
        let members = self.membership.all().chain(leaving);
        let nodes = members.filter_map(|name| self.snapshot.nodes.get(name.as_str()));
        let down: Vec<(&NodeView, UseKind)> = nodes.filter_map(|n| Some((n.view.as_ref(), n.view.down()?))).collect();
        let unavailable: BTreeSet<&NodeUid> = down.iter().map(|(n, _)| &n.uid).collect();
        let mut users: BTreeMap<&str, UseKind> = down.iter().map(|(n, how)| (n.name.as_str(), *how)).collect();
        users.extend(unknown.iter().copied());
        users.extend(self.readable().filter_map(|(_, berth)| {
            let how = berth.holding().map_or(UseKind::IsOffered, |_| UseKind::Holds);
            Some((berth.node()?.0.as_str(), how))
        }));
        let users = users.into_iter().take(NAMED);
        // Berths of unreadable pools, and Leases that cannot be written: their offers cannot be withdrawn, so they
        // count like holders.
        let staying = self
            .readable()
            .filter(|(l, b)| b.holding().is_some() || self.is_unreadable(&l.pool) || self.is_refused(l));
        let staying: BTreeSet<&NodeUid> = staying.filter_map(|(_, b)| Some(b.node()?.1)).collect();
        let unfenced = self
            .readable()
            .filter(|(l, b)| !self.is_fenced(l, b) && !self.is_refused(l));
        let unfenced: BTreeSet<&PoolName> = unfenced.map(|(l, _)| &l.pool).collect();
        Some(FleetUse {
            limit,
            held_or_offered: worked_on.len() + unknown.len(),
            unavailable: unavailable.len(),
            all: worked_on.union(&unavailable).count() + unknown.len(),
            used_by: users
                .map(|(who, how)| CapacityUse {
                    who: who.to_owned(),
                    how,
                })
                .collect(),
            may_stay: limit.saturating_sub(staying.len() + unknown.len()),
            unfenced: !unfenced.is_empty() && !Bug::NoEpochStamp.is_awake(),
            unreadable: unfenced
                .into_iter()
                .filter(|pool| self.is_unreadable(pool))
                .cloned()
                .collect(),
        })
    }

    fn readable(&self) -> impl Iterator<Item = (&LeaseView, &Berth)> {
        self.leases.iter().filter_map(|l| Some((l, l.berth.as_ref().ok()?)))
    }

    fn is_unreadable(&self, pool: &PoolName) -> bool {
        let pool = self.snapshot.pools.get(pool.as_str());
        pool.is_some_and(|pool| pool.view.object.is_err())
    }

    pub(super) fn is_refused(&self, lease: &LeaseView) -> bool {
        self.refused.contains(lease.name())
    }

    /// Returns how a Lease that names no node uses up the fleet's limit. `None` if the Lease names a node, or uses up
    /// nothing.
    fn unknown(&self, lease: &LeaseView) -> Option<UseKind> {
        match &lease.berth {
            Err(_) => Some(UseKind::Unreadable),
            Ok(berth) if berth.node().is_none() && self.is_refused(lease) => Some(UseKind::Refused),
            Ok(_) => None,
        }
    }

    /// True if no earlier write can still change the berth.
    pub(super) fn is_fenced(&self, lease: &LeaseView, berth: &Berth) -> bool {
        berth.epoch == self.epoch && !self.in_doubt.contains(lease.name())
    }

    /// Returns the input for each pool's plan, in the order of `pools`, with the state that all pools share.
    pub fn all(&self, pools: &[Pool]) -> Vec<PoolFacts> {
        let mut all: Vec<PoolFacts> = pools.iter().map(|pool| self.of(pool)).collect();
        let fleet = self.fleet_use();
        let mut order = order(pools, &all);
        for facts in &mut all {
            facts.fleet = fleet.clone();
            facts.order = order.remove(&facts.pool);
        }
        all
    }
}

/// The pools that still have members to update, by name.
type Left<'a> = BTreeMap<&'a str, &'a PoolFacts>;

/// Maximum number of nodes that a pool names while it waits for them. Few, so that the message does not change with each node of a
/// large pool.
const LAST_NODES: usize = 3;

/// The `rollout.after` of each pool: names of the pools that go first.
type After<'a> = BTreeMap<&'a str, &'a [String]>;

/// Returns a gate for each pool that waits for pools in its `rollout.after`. The gate stops new offers, except to a
/// broken node that keeps the earlier pools from finishing. Open offers and held berths stay.
fn order(pools: &[Pool], facts: &[PoolFacts]) -> BTreeMap<PoolName, Gate> {
    let after = pools
        .iter()
        .filter_map(|pool| Some((pool.name.as_str(), pool.object.as_ref()?.spec.after())));
    let after: After<'_> = after.collect();
    let left: Left<'_> = facts
        .iter()
        .filter(|f| f.has_left())
        .map(|f| (f.pool.as_str(), f))
        .collect();
    let mut gates = BTreeMap::new();
    for (pool, names) in after.iter().filter(|(_, names)| !names.is_empty()) {
        if let Some(gate) = reason(pool, names, &after, &left) {
            gates.insert(PoolName::from(*pool), gate);
        }
    }
    gates
}

/// Returns why a pool waits for the pools in its `rollout.after` (`names`).
fn reason(pool: &str, names: &[String], after: &After<'_>, left: &Left<'_>) -> Option<Gate> {
    let unknown = joined(names, |name| !after.contains_key(name));
    if !unknown.is_empty() {
        let message = format!(
            "rollout.after names {unknown}, which does not exist or cannot be read: no node is offered a berth; \
             create or repair it, or remove it from rollout.after"
        );
        let reason = GateReason::UnknownPool;
        return Some(Gate { reason, message });
    }
    if let Some(circle) = circle(pool, after) {
        let message = format!(
            "rollout.after has a cycle, {circle}: no node of these pools is offered a berth; remove one of them \
             from rollout.after"
        );
        let reason = GateReason::OrderCycle;
        return Some(Gate { reason, message });
    }
    let earlier: Vec<&PoolFacts> = names
        .iter()
        .filter_map(|name| left.get(name.as_str()).copied())
        .collect();
    if earlier.is_empty() {
        return None;
    }
    let pools: Vec<&str> = earlier.iter().map(|facts| facts.pool.as_str()).collect();
    Some(Gate {
        reason: GateReason::EarlierPool,
        message: format!(
            "waits until all nodes of {} are updated and Ready (rollout.after){}",
            pools.join(", "),
            last_nodes(&earlier)
        ),
    })
}

/// Names the last nodes of these pools, if they are few. The status of a pool counts a node as updated if it runs the image, even if
/// the node is not Ready or has the mark of Berth's cordon.
fn last_nodes(pools: &[&PoolFacts]) -> String {
    let members = pools.iter().flat_map(|pool| pool.left());
    let names: Vec<&str> = members
        .take(LAST_NODES + 1)
        .map(|member| member.name.as_str())
        .collect();
    if names.len() > LAST_NODES {
        return String::new();
    }
    format!("; left: {}", names.join(", "))
}

fn joined(names: &[String], is_wanted: impl Fn(&str) -> bool) -> String {
    let names = names.iter().map(String::as_str).filter(|name| is_wanted(name));
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the shortest cycle from a pool back to itself, in the form `a after b after a`.
fn circle(pool: &str, after: &After<'_>) -> Option<String> {
    // Maps each pool found so far to the pool that names it in `rollout.after`, on the shortest path from the start.
    let mut reached: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([pool]);
    while let Some(at) = queue.pop_front() {
        for next in after.get(at).into_iter().copied().flatten() {
            if next == pool {
                let mut way = vec![pool, at];
                while let Some(by) = way.last().and_then(|last| reached.get(last)) {
                    way.push(by);
                }
                way.reverse();
                return Some(way.join(" after "));
            }
            if !reached.contains_key(next.as_str()) {
                reached.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
pub(super) mod tests;
