//! The plan of one pool's berths: what is there, in; what to write, out. No I/O, no clock of its own.
//!
//! Everything that invariant I1 asks of the controller is decided here. The same function runs in production and
//! in tests that feed it random states. Writes are meant to be made in the order given, each against the very
//! resourceVersion that was read, and the first one that fails ends the plan: the later ones count on it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::{Berth, BerthState, ClosedReason, HoldPhase, Holding, Offer};
use berth_api::pool::BerthCounts;
use berth_api::{Digest, NodeName, NodeUid, PoolName};
use jiff::Timestamp;

mod candidates;
mod occupancy;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use candidates::Wait;
use occupancy::Occupancy;
pub use occupancy::{How, Use};

/// How long an offer stays open, as seen by this process. The agent takes it within milliseconds; one that does not
/// is not there.
pub const OPEN_FOR: Duration = Duration::from_secs(120);

/// How far ahead `open-until` is written. That is compared with the node's clock, so it is no more than the bound for
/// an offer whose controller is dead; a live one closes it after [`OPEN_FOR`], by its own clock. Were it that short, a
/// node whose clock is two minutes ahead would never take one. A window for reboots will have to shorten it.

/// All that the plan of one pool depends on.
#[derive(Debug, Clone)]
pub struct PoolFacts {
    /// The pool.
    pub pool: PoolName,
    /// The epoch of this leader.
    pub epoch: u64,
    /// The capacity `k` that the spec asks for; 0 when the pool is being deleted.
    pub capacity: usize,
    /// The capacity that `status.berths.total` says. Never is more used than that.
    pub published: usize,
    /// The admin has paused the pool.
    pub paused: bool,
    /// The spec names another image than the target in force, and that one is not resolved yet: the target is
    /// withdrawn, whatever comes instead.
    pub unresolved: bool,
    /// The pool's members.
    pub members: Vec<Member>,
    /// Every Lease that carries the pool's label.
    pub berths: Vec<SeenBerth>,
    /// UIDs of nodes that hold or are offered a berth of another pool.
    pub elsewhere: BTreeSet<NodeUid>,
    /// Node UIDs of which a live read has just shown that no such Node exists any more.
    pub confirmed_gone: BTreeSet<NodeUid>,
}

/// A berth's Lease as it was read.
#[derive(Debug, Clone)]
pub struct SeenBerth {
    /// Name of the Lease.
    pub lease: String,
    /// What it says, or why it cannot be read; then it counts as held by a node nobody knows.
    pub berth: Result<Berth, String>,
    /// A write of this leader had an unknown fate and may still be on its way.
    pub in_doubt: bool,
    /// For how long this process has seen it offered as it is.
    pub age: Duration,
}

/// A member of the pool, as far as the plan is concerned.
#[derive(Debug, Clone)]
pub struct Member {
    /// Name of the Node.
    pub name: NodeName,
    /// UID of the Node.
    pub uid: NodeUid,
    /// The Node is Ready.
    pub ready: bool,
    /// The Node is unschedulable, by anyone's doing.
    pub unschedulable: bool,
    /// The Node carries our cordon annotation.
    pub our_cordon: bool,
    /// Digest that the pool's target has for the node's platform.
    pub desired: Option<Digest>,
    /// Digest that is published in the node's BootcNode.
    pub published: Option<Digest>,
    /// Node UID that the BootcNode was published for.
    pub published_uid: NodeUid,
    /// The agent has reported on the current generation of that BootcNode, from a Node of that UID.
    pub observed: bool,
    /// The agent reports `UpdatePrepared`.
    pub prepared: bool,
    /// Digest that is staged with finalization locked.
    pub staged: Option<Digest>,
    /// Digest that is booted.
    pub booted: Option<Digest>,
    /// Digests that failed on the node.
    pub failed: Vec<Digest>,
    /// Digest of the last turn that ended badly, and how many did for that digest.
    pub last_turn: Option<(Digest, u32)>,
    /// How often this process has seen the node let an offer of the desired digest lapse.
    pub lapses: u32,
    /// The agent has been heard of lately.
    pub heard: bool,
}

impl Member {
    /// Whether the node is in U: unavailable for whatever reason.
    pub fn unavailable(&self) -> bool {
        !self.ready || self.unschedulable || self.our_cordon
    }
}

/// One write to a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BerthWrite {
    /// POST of a berth that does not exist.
    Create(Berth),
    /// PUT over the Lease that was read.
    Update {
        /// Name of the Lease.
        lease: String,
        /// What it shall say.
        berth: Berth,
        /// Why.
        why: Why,
    },
    /// DELETE of the Lease that was read: closed, and above the capacity.
    Delete {
        /// Name of the Lease.
        lease: String,
    },
}

impl BerthWrite {
    /// Name of the Lease.
    pub fn lease(&self) -> String {
        match self {
            Self::Create(berth) => berth.name(),
            Self::Update { lease, .. } | Self::Delete { lease } => lease.clone(),
        }
    }
}

/// Why a berth is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A fence: in-flight writes of a former leader, or of our own that are in doubt, now lose.
    Stamp,
    /// It is offered.
    Offer,
    /// The offer was not taken in time.
    Lapsed,
    /// The offer is withdrawn, for this reason.
    Withdrawn(&'static str),
    /// The holder is asked to give back, for this reason.
    Revoke(&'static str),
    /// The holder may go on after all.
    Unrevoke,
    /// Its Node is gone.
    Gone,
    /// The capacity is smaller now.
    Shrunk,
}

/// What to do about one pool's berths, and what that says to people.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The writes, in this order.
    pub writes: Vec<BerthWrite>,
    /// Why each member that should change is not offered a berth.
    pub waiting: BTreeMap<NodeName, Wait>,
    /// Who uses up the capacity.
    pub used_by: Vec<Use>,
    /// The berths as read. `total` is what is to be published now: a smaller capacity only once no open offer
    /// exceeds it (I1c).
    pub counts: BerthCounts,
}

impl PoolFacts {
    fn member(&self, name: &NodeName, uid: &NodeUid) -> Option<&Member> {
        self.members.iter().find(|m| m.name == *name && m.uid == *uid)
    }

    fn readable(&self) -> impl Iterator<Item = (&SeenBerth, &Berth)> {
        self.berths.iter().filter_map(|s| s.berth.as_ref().ok().map(|b| (s, b)))
    }

    /// Whether a write of somebody else's, or one of ours with an unknown fate, could still land on a berth.
    fn unfenced(&self) -> bool {
        self.readable().any(|(s, b)| s.in_doubt || b.epoch != self.epoch)
    }
}

/// Plans one pool's berths.
pub fn plan(facts: &PoolFacts, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let settled = settle(facts, &mut plan.writes);
    create_missing(facts, &mut plan.writes);
    offer(facts, settled, now, &mut plan);
    plan.counts = counts(facts);
    plan
}

/// Brings every existing berth into order, and returns the berths as they are after that.
fn settle(facts: &PoolFacts, writes: &mut Vec<BerthWrite>) -> Vec<SeenBerth> {
    let mut after = vec![];
    let mut room = Room::of(facts);
    for seen in &facts.berths {
        let Ok(berth) = &seen.berth else {
            after.push(seen.clone());
            continue;
        };
        if deletable(facts, berth) {
            writes.push(BerthWrite::Delete { lease: seen.lease.clone() });
            continue;
        }
        let fence = seen.in_doubt || berth.epoch != facts.epoch;
        let next = settled(facts, berth, seen.age, &mut room).or_else(|| fence.then(|| (berth.clone(), Why::Stamp)));
        let berth = match next {
            None => berth.clone(),
            Some((next, why)) => {
                let next = next.stamped(facts.epoch);
                writes.push(BerthWrite::Update { lease: seen.lease.clone(), berth: next.clone(), why });
                next
            }
        };
        after.push(SeenBerth { lease: seen.lease.clone(), berth: Ok(berth), in_doubt: false, age: seen.age });
    }
    after
}

/// Which offers may stay open.
struct Room {
    /// So many, when the capacity has shrunk: the holders come first.
    left: usize,
    /// Nodes that have a berth, or an offer that stays: they need no other.
    served: BTreeSet<NodeUid>,
}

impl Room {
    fn of(facts: &PoolFacts) -> Self {
        let occupancy = Occupancy::of(facts, &facts.berths);
        let holders = facts.readable().filter_map(|(_, b)| b.holding()).map(|h| h.uid.clone());
        Self {
            left: facts.capacity.saturating_sub(occupancy.held()),
            served: holders.chain(facts.elsewhere.iter().cloned()).collect(),
        }
    }

    /// Keeps an offer open, or says why it cannot stay.
    fn keep(&mut self, offer: &Offer) -> Result<(), &'static str> {
        if !self.served.insert(offer.uid.clone()) {
            return Err("the node has another berth");
        }
        self.left = self.left.checked_sub(1).ok_or("the capacity of the pool is used up")?;
        Ok(())
    }
}

/// What a berth should become, unless it is to stay as it is.
fn settled(facts: &PoolFacts, berth: &Berth, age: Duration, room: &mut Room) -> Option<(Berth, Why)> {
    let (next, why) = match &berth.state {
        BerthState::Held(h) if facts.confirmed_gone.contains(&h.uid) => (berth.ended(ClosedReason::Gone), Why::Gone),
        BerthState::Held(h) => return revoked(facts, berth, h),
        BerthState::Offered(o) if facts.confirmed_gone.contains(&o.uid) => (berth.ended(ClosedReason::Gone), Why::Gone),
        BerthState::Offered(_) if age >= OPEN_FOR => (berth.closed(ClosedReason::Lapsed), Why::Lapsed),
        BerthState::Offered(o) => {
            let reason = match candidates::withdrawal(facts, o) {
                Some(reason) => reason,
                None => room.keep(o).err()?,
            };
            (berth.closed(ClosedReason::Withdrawn), Why::Withdrawn(reason))
        }
        BerthState::Closed(c) if above(facts, berth) && c.reason != ClosedReason::Shrunk => {
            (berth.closed(ClosedReason::Shrunk), Why::Shrunk)
        }
        BerthState::Closed(_) => return None,
    };
    // `Refused` cannot happen for the states matched above; then nothing is written.
    next.ok().map(|next| (next, why))
}

/// Whether the berth is above the capacity, and the world has been told of that.
fn above(facts: &PoolFacts, berth: &Berth) -> bool {
    facts.published <= facts.capacity && berth.index as usize >= facts.capacity
}

fn deletable(facts: &PoolFacts, berth: &Berth) -> bool {
    above(facts, berth) && matches!(&berth.state, BerthState::Closed(c) if c.reason == ClosedReason::Shrunk)
}

/// Asks a holder that has not committed for its berth, or takes that back once the reason is gone.
fn revoked(facts: &PoolFacts, berth: &Berth, holding: &Holding) -> Option<(Berth, Why)> {
    if matches!(holding.phase, HoldPhase::Releasing(_)) {
        return None;
    }
    let member = facts.member(&holding.node, &holding.uid);
    let reason = match member {
        None => Some("LeftPool"),
        Some(m) if facts.unresolved || m.desired.as_ref() != Some(&holding.target) => Some("TargetChanged"),
        Some(_) if facts.paused => Some("Paused"),
        Some(_) => None,
    };
    let (text, why) = match (reason, &holding.revoke) {
        (Some(reason), None) if holding.phase == HoldPhase::Taken => (Some(reason.to_owned()), Why::Revoke(reason)),
        (None, Some(_)) => (None, Why::Unrevoke),
        _ => return None,
    };
    berth.revoked(text).ok().map(|next| (next, why))
}

fn create_missing(facts: &PoolFacts, writes: &mut Vec<BerthWrite>) {
    let names: BTreeSet<&str> = facts.berths.iter().map(|s| s.lease.as_str()).collect();
    for index in 0..facts.capacity {
        let Ok(index) = u32::try_from(index) else {
            return;
        };
        let berth = Berth::new(facts.pool.clone(), index, facts.epoch);
        if !names.contains(berth.name().as_str()) {
            writes.push(BerthWrite::Create(berth));
        }
    }
}

/// Offers closed berths, as far as I1(b) allows, and notes why the other members wait.
fn offer(facts: &PoolFacts, mut berths: Vec<SeenBerth>, now: Timestamp, plan: &mut Plan) {
    let limit = facts.capacity.min(facts.published);
    let mut occupancy = Occupancy::of(facts, &berths);
    for member in candidates::ordered(facts, &berths) {
        let wait = match candidates::fit(member) {
            Err(wait) => Some(wait),
            Ok(_) if facts.confirmed_gone.contains(&member.uid) => Some(Wait::OtherNode),
            Ok(_) if occupancy.has(&member.uid) => Some(Wait::HasBerth),
            Ok(_) if facts.paused => Some(Wait::Paused),
            Ok(_) if facts.unresolved => Some(Wait::Unresolved),
            Ok(_) if facts.unfenced() => Some(Wait::Fencing),
            Ok(_) if !occupancy.room_for(member, limit) => Some(Wait::Capacity),
            Ok(target) => match open(facts, &mut berths, member, target, limit, now) {
                Some(write) => {
                    plan.writes.push(write);
                    occupancy.offered(member);
                    None
                }
                None => Some(Wait::NoBerth),
            },
        };
        if let Some(wait) = wait {
            plan.waiting.insert(member.name.clone(), wait);
        }
    }
    plan.used_by = Occupancy::of(facts, &facts.berths).uses(facts);
}

/// Offers the closed berth with the lowest number, so that two plans from one state meet on the same object.
fn open(
    facts: &PoolFacts,
    berths: &mut [SeenBerth],
    member: &Member,
    target: Digest,
    limit: usize,
    now: Timestamp,
) -> Option<BerthWrite> {
    let free = |s: &&mut SeenBerth| matches!(&s.berth, Ok(b) if (b.index as usize) < limit && matches!(b.state, BerthState::Closed(_)));
    let index = |s: &&mut SeenBerth| s.berth.as_ref().map_or(u32::MAX, |b| b.index);
    let seen = berths.iter_mut().filter(free).min_by_key(index)?;
    let offer = Offer { node: member.name.clone(), uid: member.uid.clone(), target, open_until: None };
    let next = seen.berth.as_ref().ok()?.offered(offer).ok()?;
    let next = next.stamped(facts.epoch);
    seen.berth = Ok(next.clone());
    Some(BerthWrite::Update { lease: seen.lease.clone(), berth: next, why: Why::Offer })
}

/// The berths as they were read. An unreadable one counts as held.
fn counts(facts: &PoolFacts) -> BerthCounts {
    let mut counts = BerthCounts::default();
    for seen in &facts.berths {
        match seen.berth.as_ref().map(|b| &b.state) {
            Ok(BerthState::Closed(_)) => counts.closed += 1,
            Ok(BerthState::Offered(_)) => counts.offered += 1,
            Ok(BerthState::Held(_)) | Err(_) => counts.held += 1,
        }
    }
    let occupancy = Occupancy::of(facts, &facts.berths);
    let shrink_is_safe = !facts.unfenced() && (counts.offered == 0 || occupancy.held_or_offered() <= facts.capacity);
    let total = if facts.capacity >= facts.published || shrink_is_safe { facts.capacity } else { facts.published };
    counts.total = u32::try_from(total).unwrap_or(u32::MAX);
    counts
}
