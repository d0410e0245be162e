//! Plan of one pool's berths: a pure function from facts to writes.
//!
//! The plan is the controller's part of invariant I1: how many nodes may be down at once. The same function runs in
//! production and in tests that feed it random states. Writes must be made in the given order, each against the
//! resourceVersion that was read. The first failed write ends the plan, because the later ones rely on it.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::{Berth, BerthState, Offer};
use berth_api::pool::BerthCounts;
use berth_api::seeded::Bug;
use berth_api::{Digest, NodeName, NodeUid};
use jiff::Timestamp;

use crate::controller::quorum::Cause;

mod block_reason;
pub(super) mod candidates;
mod facts;
pub mod failures;
mod fleet_limit;
mod occupancy;
#[cfg(test)]
pub(crate) mod properties;
mod settle;
#[cfg(test)]
pub(crate) mod tests;
pub(super) mod waves;
mod writes;

pub use berth_api::waves::{CONTROL_PLANE, REST};
pub use block_reason::BlockReason;
pub use facts::{AgentState, Estimate, Failures, Member, NodeState, Place, PoolFacts, Published, SeenBerth, Wave};
pub use failures::MAX_NAMED;
pub use fleet_limit::FleetUse;
use occupancy::Occupancy;
use waves::Progress;
use writes::open_until;
pub use writes::{BerthWrite, MANY_OFFERS, OPEN_FOR, Origin, Plan, WriteReason};

/// Plans one pool's berths.
pub fn plan(facts: &PoolFacts, now: Timestamp) -> Plan {
    let progress = Progress::of(facts);
    let failures = failures::all(facts);
    let halt = failures::halt(facts, &failures);
    let gate = facts.gate.clone().or_else(|| halt.clone());
    let mut plan = Plan {
        gate,
        halt,
        failures,
        order: facts.order.clone(),
        fleet: facts.fleet.clone(),
        waves: progress.status(facts),
        unproven: progress.unproven(facts),
        vain: vain(facts),
        ..Plan::default()
    };
    let settled = settle::settle(facts, &progress, &mut plan);
    create_missing(facts, &mut plan.writes);
    offer(facts, settled, &progress, now, &mut plan);
    plan.counts = counts(facts);
    plan
}

fn vain(facts: &PoolFacts) -> BTreeMap<NodeName, u32> {
    let mut vain = BTreeMap::new();
    for member in &facts.members {
        let is_updated = member.agent.booted == member.desired;
        if member.turns >= MANY_OFFERS && !is_updated {
            vain.insert(member.name.clone(), member.turns);
        }
    }
    vain
}

/// Adds writes that create missing berths. Creates at most one usable berth per member, so that a huge capacity does
/// not create a huge number of Leases.
fn create_missing(facts: &PoolFacts, writes: &mut Vec<BerthWrite>) {
    let names: BTreeSet<&str> = facts.berths.iter().map(|s| s.lease.as_str()).collect();
    let members: BTreeSet<&NodeUid> = facts.members.iter().map(|m| &m.uid).collect();
    let others = facts.berths.iter().filter(|seen| !is_of_use(seen, &members)).count();
    for index in 0..facts.capacity.min(members.len() + others) {
        let Ok(index) = u32::try_from(index) else {
            return;
        };
        let berth = Berth::new(facts.pool.clone(), index, facts.epoch);
        if !names.contains(berth.name().as_str()) {
            writes.push(BerthWrite::Create(berth));
        }
    }
}

/// True if a member holds the berth, is offered it, or may be offered it.
fn is_of_use(seen: &SeenBerth, members: &BTreeSet<&NodeUid>) -> bool {
    let Ok(berth) = &seen.berth else { return false };
    match berth.node() {
        Some((_, uid)) => members.contains(uid),
        None => !seen.refused && !failures::is_unrecorded(berth),
    }
}

/// Offers closed berths as far as the pool's capacity (I1b), the fleet's limit and the gates allow. Records why each
/// member without an offer waits.
fn offer(facts: &PoolFacts, berths: Vec<SeenBerth>, progress: &Progress, now: Timestamp, plan: &mut Plan) {
    let limit = facts.capacity.min(facts.published);
    let mut occupancy = Occupancy::of(facts, &berths);
    let mut free = FreeBerths::of(&berths, limit);
    let mut queue = candidates::Queue::of(facts, &occupancy);
    let closed = closed(facts);
    // I11: a plan offers a berth to at most one control plane node, even if each of several could go down alone.
    let mut at_work = None;
    while let Some(member) = queue.next() {
        // Gates are checked before the agent's readiness, because a closed gate can make agents unready. A pause, for
        // example, is published to the agents. Until an agent reports on the new spec, its node would wait with the
        // reason `NotObserved`.
        let target = target_for(facts, plan, &occupancy, member).and_then(|target| {
            match candidates::gated(facts, progress, member, at_work, now) {
                Some(wait) => Err(wait),
                None => Ok(target),
            }
        });
        let write = target.and_then(|target| {
            candidates::ready(member, &target)?;
            if let Some(wait) = closed {
                return Err(wait);
            }
            if !occupancy.room_for(member, limit) {
                return Err(BlockReason::Capacity);
            }
            let fleet = plan.fleet.as_ref();
            if fleet.is_some_and(|fleet| !fleet.room_for(member.node.is_unavailable())) {
                return Err(BlockReason::FleetCapacity);
            }
            free.open(facts, member, target).ok_or(BlockReason::NoBerth)
        });
        match write {
            Ok(write) => {
                plan.writes.push(write);
                occupancy.offered(member);
                if let Some(fleet) = &mut plan.fleet {
                    fleet.offer(&member.name, member.node.is_unavailable());
                }
                queue.offered(member);
                at_work = at_work.or(member.place.control_plane.map(|_| Cause::OtherAtWork));
            }
            Err(wait) => drop(plan.waiting.insert(member.name.clone(), wait)),
        }
    }
    plan.used_by = Occupancy::uses(facts, &berths, &plan.writes);
}

/// Returns why the pool offers no berth now, apart from its gates: the image is unresolved, the watch may be stale, or
/// a berth is not fenced.
fn closed(facts: &PoolFacts) -> Option<BlockReason> {
    if facts.unresolved {
        Some(BlockReason::Unresolved)
    } else if facts.outdated && !Bug::StaleWatchOpens.is_awake() {
        Some(BlockReason::Outdated)
    } else if facts.is_unfenced() || facts.fleet.as_ref().is_some_and(|fleet| fleet.unfenced) {
        Some(BlockReason::Fencing)
    } else {
        None
    }
}

/// Returns the digest to offer to the member, or why the member gets no offer. The caller checks the member's wave and
/// the agent's readiness.
fn target_for(
    facts: &PoolFacts,
    plan: &Plan,
    occupancy: &Occupancy<'_>,
    member: &Member,
) -> Result<Digest, BlockReason> {
    let target = candidates::wanted(member, &plan.failures)?;
    if facts.confirmed_gone.contains(&member.uid) {
        return Err(BlockReason::OtherNode);
    }
    if member.leaving {
        return Err(BlockReason::Leaving);
    }
    if occupancy.has(&member.uid) {
        return Err(BlockReason::HasBerth);
    }
    if member.node.held_back {
        return Err(BlockReason::HeldBack);
    }
    if facts.gate.is_some() && !Bug::GateIgnored.is_awake() {
        return Err(BlockReason::Gate);
    }
    if plan.gate.is_some() && !Bug::GateIgnored.is_awake() {
        return Err(BlockReason::Halted);
    }
    Ok(target)
}

/// Closed berths that may be opened, sorted by index. The order makes two plans of the same state write the same
/// Leases.
struct FreeBerths<'a>(BTreeMap<u32, &'a SeenBerth>);

impl<'a> FreeBerths<'a> {
    fn of(berths: &'a [SeenBerth], limit: usize) -> Self {
        let writable = berths.iter().filter(|seen| !seen.refused);
        let closed = writable.filter_map(|seen| match seen.berth.as_ref() {
            // I8: a failure must be recorded before its berth is opened again.
            Ok(berth) if (berth.index as usize) < limit && !failures::is_unrecorded(berth) => match berth.state {
                BerthState::Closed(_) => Some((berth.index, seen)),
                _ => None,
            },
            _ => None,
        });
        Self(closed.collect())
    }

    fn open(&mut self, facts: &PoolFacts, member: &Member, target: Digest) -> Option<BerthWrite> {
        let (_, seen) = self.0.pop_first()?;
        let open_until = open_until(facts, member);
        let offer = Offer {
            node: member.name.clone(),
            uid: member.uid.clone(),
            target,
            open_until,
        };
        let berth = seen.berth.as_ref().ok()?.offered(offer).ok()?.stamped(facts.epoch);
        Some(BerthWrite::Update {
            lease: seen.lease.clone(),
            berth,
            why: WriteReason::Offer,
        })
    }
}

/// Counts the berths before the plan's writes. A berth that cannot be read counts as held, and so does a closed berth
/// that cannot be written. `total` is the capacity to publish.
fn counts(facts: &PoolFacts) -> BerthCounts {
    let mut counts = BerthCounts::default();
    for seen in &facts.berths {
        match seen.berth.as_ref().map(|b| &b.state) {
            Ok(BerthState::Closed(_)) if seen.refused => counts.held += 1,
            Ok(BerthState::Closed(_)) => counts.closed += 1,
            Ok(BerthState::Offered(_)) => counts.offered += 1,
            Ok(BerthState::Held(_)) | Err(_) => counts.held += 1,
        }
    }
    let occupancy = Occupancy::of(facts, &facts.berths);
    let shrink_is_safe = Bug::ShrinkAtOnce.is_awake()
        || !facts.is_unfenced() && (counts.offered == 0 || occupancy.held_or_offered() <= facts.capacity);
    let total = if facts.capacity >= facts.published || shrink_is_safe {
        facts.capacity
    } else {
        facts.published
    };
    counts.total = u32::try_from(total).unwrap_or(u32::MAX);
    counts
}
