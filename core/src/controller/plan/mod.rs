//! The plan of one pool's berths: what is there, in; what to write, out. No I/O, no clock of its own.
//!
//! Everything that invariant I1 asks of the controller is decided here. The same function runs in production and
//! in tests that feed it random states. Writes are meant to be made in the order given, each against the very
//! resourceVersion that was read, and the first one that fails ends the plan: the later ones count on it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::{Berth, BerthState, Offer};
use berth_api::pool::{BerthCounts, WaveStatus};
use berth_api::seeded::Bug;
use berth_api::{Digest, NodeName, NodeUid, PoolName};
use jiff::Timestamp;

use crate::controller::fleet::FleetUse;
use crate::controller::quorum::{Cause, Verdict};
use crate::text::few;

mod candidates;
mod failures;
mod forecast;
mod gate;
mod occupancy;
#[cfg(test)]
pub(crate) mod properties;
mod settle;
#[cfg(test)]
pub(crate) mod tests;
mod waves;

pub use candidates::BlockReason;
pub use failures::{Failures, MAX_NAMED};
pub use forecast::{Forecast, Turn, forecast};
pub use gate::{Gate, GateReason};
use occupancy::Occupancy;
pub use occupancy::{How, Use};
use waves::Progress;
pub use waves::{CONTROL_PLANE, REST, Wave};

/// Time for which an offer stays open, as seen by this process. An agent takes it within milliseconds; one that does
/// not is not there.
pub const OPEN_FOR: Duration = Duration::from_secs(120);

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
    /// Reason for which no berth of the pool is opened, whatever its nodes are like.
    pub gate: Option<Gate>,
    /// Time until which reboots may start, under windows or exclusions.
    pub closes: Option<Timestamp>,
    /// The waves in order, those that the spec does not name included.
    pub waves: Vec<Wave>,
    /// Content of `status.failures`.
    pub failures: Failures,
    /// The rollout halts at so many failures.
    pub max_failures: usize,
    /// The spec names another image than the target in force, and that one is not resolved yet: the target is
    /// withdrawn, whatever comes instead.
    pub unresolved: bool,
    /// True when the watches may show old objects: nothing is opened.
    pub outdated: bool,
    /// The pool's members.
    pub members: Vec<Member>,
    /// Every Lease that carries the pool's label.
    pub berths: Vec<SeenBerth>,
    /// UIDs of nodes that hold or are offered a berth of another pool.
    pub elsewhere: BTreeSet<NodeUid>,
    /// Node UIDs of which a live read has just shown that no such Node exists any more.
    pub confirmed_gone: BTreeSet<NodeUid>,
    /// UIDs of Nodes that are excluded and not Ready: nobody else will close what they hold.
    pub lost: BTreeSet<NodeUid>,
    /// Use of the fleet's limit by all pools; `None`: there is none.
    pub fleet: Option<FleetUse>,
    /// Reason for which the pool waits for those that go before it. It keeps berths from being opened, and revokes nothing.
    pub order: Option<Gate>,
}

/// A berth's Lease as it was read.
#[derive(Debug, Clone)]
pub struct SeenBerth {
    /// Name of the Lease.
    pub lease: String,
    /// The berth, or the error of reading it; an unreadable one counts as held by an unknown node.
    pub berth: Result<Berth, String>,
    /// A write of this leader had an unknown fate and may still be on its way.
    pub in_doubt: bool,
    /// The API server refused a write to it. Nothing is written to it, and it counts as used.
    pub refused: bool,
    /// Time for which this process has seen it offered as it is.
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
    /// Number of offers of the desired digest that this process has seen the node let lapse.
    pub lapses: u32,
    /// The agent has been heard of lately.
    pub heard: bool,
    /// Its agent is told to undo everything, for the node leaves the pool or its BootcNode is being deleted: it counts as
    /// before, and is offered nothing.
    pub leaving: bool,
    /// True if it has left the pool and its agent has not released it in time. It uses up capacity while it is down, but no
    /// wave and no later pool waits for it.
    pub abandoned: bool,
    /// An admin holds it back: it counts as before, stages its image, and is offered nothing.
    pub held_back: bool,
    /// Its wave, as an index into [`PoolFacts::waves`].
    pub wave: usize,
    /// Its zone; nodes without one are in one zone together.
    pub zone: String,
    /// Verdict of I11 on it, when it carries the control plane.
    pub control_plane: Option<Verdict>,
    /// True if its agent reports that the host's clock is synchronised.
    pub clock_synchronized: bool,
    /// Expected length of its drain and its reboot.
    pub estimate: Estimate,
}

/// Expected length of a turn, from what was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Time from taking the berth to the end of the drain.
    pub drain: Duration,
    /// Time from the commit to the proof.
    pub reboot: Duration,
}

impl Member {
    /// Way in which the node is unavailable, if it is.
    fn down(&self) -> Option<How> {
        How::down(self.ready, self.unschedulable, self.our_cordon)
    }

    /// Says whether the node is in U: unavailable for whatever reason.
    pub fn unavailable(&self) -> bool {
        self.down().is_some()
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
        /// The berth after the write.
        berth: Berth,
        /// Reason of the write.
        why: WriteReason,
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

    /// Says whether the write offers the berth to a node.
    pub fn is_offer(&self) -> bool {
        let Self::Update { why, .. } = self else { return false };
        *why == WriteReason::Offer
    }
}

/// Reason for which a berth is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteReason {
    /// A fence: in-flight writes of a former leader, or of our own that are in doubt, now lose.
    Stamp,
    /// The berth is offered.
    Offer,
    /// The offer was not taken in time.
    Lapsed,
    /// The offer is withdrawn, for this reason.
    Withdrawn(&'static str),
    /// The holder is asked to give back, for this reason.
    Revoke(&'static str),
    /// The holder may go on after all.
    Unrevoke,
    /// The holder is told anew until when its reboot may start.
    Window,
    /// Its Node is gone.
    Gone,
    /// Its Node is excluded and does not come back.
    Excluded,
    /// The failure that ended there stands in the pool's status now.
    Recorded,
    /// The capacity is smaller now.
    Shrunk,
}

/// Writes of one pool's berths, and what they mean for people.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The writes, in this order.
    pub writes: Vec<BerthWrite>,
    /// Reason for which each member that should change is not offered a berth.
    pub waiting: BTreeMap<NodeName, BlockReason>,
    /// Nodes that use up the capacity.
    pub used_by: Vec<Use>,
    /// Reason for which no berth is opened at all: a gate, or else too many failures.
    pub gate: Option<Gate>,
    /// The image failed on too many nodes, whatever else is closed.
    pub halt: Option<Gate>,
    /// Control plane nodes that others may wait for, by cause.
    pub waited_for: BTreeMap<Cause, Vec<NodeName>>,
    /// Messages about API servers' addresses that several Nodes have; none if no member carries the control plane.
    pub address_conflicts: Vec<String>,
    /// Reason for which the pool waits for those that go before it.
    pub order: Option<Gate>,
    /// Use of the fleet's limit once the offers are made.
    pub fleet: Option<FleetUse>,
    /// Progress of each wave.
    pub waves: Vec<WaveStatus>,
    /// New content of `status.failures`.
    pub failures: Failures,
    /// The berths as read. `total` is what is to be published now: a smaller capacity only once no open offer
    /// exceeds it (I1c).
    pub counts: BerthCounts,
}

impl Plan {
    /// True if the plan writes to the Lease of that name, or creates it.
    pub fn writes_to(&self, lease: &str) -> bool {
        self.writes.iter().any(|write| write.lease() == lease)
    }

    /// Returns why these members wait, in words, with the control plane nodes that they wait for.
    pub fn wait_words(&self, why: BlockReason, waiting: &[&NodeName]) -> String {
        let words = why.words().to_owned();
        let BlockReason::ControlPlane(cause) = why else {
            return words;
        };
        let Some(nodes) = self.waited_for.get(&cause) else {
            return words;
        };
        let others: Vec<String> = nodes
            .iter()
            .filter(|node| !waiting.contains(node))
            .map(ToString::to_string)
            .collect();
        if others.is_empty() {
            return words;
        }
        format!("{words} ({})", few(others))
    }

    /// True if a member waits for anything.
    pub fn has_waiting(&self) -> bool {
        self.waiting.values().any(|why| *why != BlockReason::UpToDate)
    }

    /// Takes back the offers that were not made, because these writes of the plan failed or were skipped.
    pub fn not_made(&mut self, writes: &[BerthWrite]) {
        for write in writes.iter().filter(|write| write.is_offer()) {
            let BerthWrite::Update { berth, .. } = write else {
                continue;
            };
            let Some(offer) = berth.offer() else {
                continue;
            };
            let is_offered = |used: &Use| used.how == How::IsOffered && used.who == offer.node.as_str();
            self.used_by.retain(|used| !is_offered(used));
            self.waiting.insert(offer.node.clone(), BlockReason::NoBerth);
        }
    }
}

impl PoolFacts {
    /// Nodes that use up capacity as it is now, before anything is offered.
    pub fn uses(&self) -> Vec<Use> {
        Occupancy::uses(self, &self.berths, &[])
    }

    fn readable(&self) -> impl Iterator<Item = (&SeenBerth, &Berth)> {
        self.berths.iter().filter_map(|s| s.berth.as_ref().ok().map(|b| (s, b)))
    }

    /// Says whether a write of another leader, or one of ours with an unknown fate, could still land on a berth.
    ///
    /// A berth that the API server refuses to write counts as used already, so a late write to it uses up no more.
    fn unfenced(&self) -> bool {
        let is_unfenced = |(seen, berth): (&SeenBerth, &Berth)| {
            let is_open_to_late_writes = seen.in_doubt || berth.epoch != self.epoch;
            is_open_to_late_writes && !seen.refused
        };
        !Bug::NoEpochStamp.is_awake() && self.readable().any(is_unfenced)
    }

    /// Says whether the pool has a node left to update to what it wants now; whoever is not proven counts, as among waves.
    pub fn has_left(&self) -> bool {
        self.members
            .iter()
            .filter(|member| !member.abandoned)
            .any(|member| self.unresolved || !waves::is_proven(member))
    }

    /// Says whether nodes that are down use up the whole limit of the fleet.
    fn is_fleet_starved(&self) -> bool {
        self.fleet.as_ref().is_some_and(FleetUse::is_starved)
    }
}

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
        ..Plan::default()
    };
    let settled = settle::settle(facts, &progress, &mut plan);
    create_missing(facts, &mut plan.writes);
    offer(facts, settled, &progress, now, &mut plan);
    plan.counts = counts(facts);
    plan
}

/// Creates missing berths, but not more than could be used: one for each member, besides those that others have, or
/// that must stay closed for now. A capacity of a million costs no million Leases.
fn create_missing(facts: &PoolFacts, writes: &mut Vec<BerthWrite>) {
    let names: BTreeSet<&str> = facts.berths.iter().map(|s| s.lease.as_str()).collect();
    let members: BTreeSet<&NodeUid> = facts.members.iter().map(|m| &m.uid).collect();
    let is_of_use = |seen: &&SeenBerth| match seen.berth.as_ref() {
        Ok(berth) => match berth.node() {
            None if seen.refused => false,
            Some((_, uid)) => members.contains(uid),
            None => !failures::is_unrecorded(berth),
        },
        Err(_) => false,
    };
    let others = facts.berths.iter().filter(|seen| !is_of_use(seen)).count();
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

/// Offers closed berths, as far as I1(b) and the gates allow, and notes why the other members wait.
fn offer(facts: &PoolFacts, berths: Vec<SeenBerth>, progress: &Progress, now: Timestamp, plan: &mut Plan) {
    let limit = facts.capacity.min(facts.published);
    let mut occupancy = Occupancy::of(facts, &berths);
    let mut free = Free::of(&berths, limit);
    let mut queue = candidates::Queue::of(facts, &berths, &occupancy);
    let unfenced = facts.unfenced() || facts.fleet.as_ref().is_some_and(|fleet| fleet.unfenced);
    // I11: of the control plane this plan takes down no more than one node, whatever each of them could do by itself.
    let mut at_work = None;
    while let Some(member) = queue.next() {
        // What is closed comes before what its agent has yet to report: it is told to the agent, which then has to report
        // anew, and must not be taken back because of that.
        let may = candidates::wanted(member, &plan.failures).and_then(|target| match () {
            () if facts.confirmed_gone.contains(&member.uid) => Err(BlockReason::OtherNode),
            () if member.leaving => Err(BlockReason::Leaving),
            () if occupancy.has(&member.uid) => Err(BlockReason::HasBerth),
            () if member.held_back => Err(BlockReason::HeldBack),
            () if facts.gate.is_some() && !Bug::GateIgnored.is_awake() => Err(BlockReason::Gate),
            () if plan.gate.is_some() && !Bug::GateIgnored.is_awake() => Err(BlockReason::Halted),
            () => candidates::gated(facts, progress, member, at_work, now).map_or(Ok(target), Err),
        });
        let may = may.and_then(|target| {
            candidates::ready(member, &target)?;
            match () {
                () if facts.unresolved => Err(BlockReason::Unresolved),
                () if facts.outdated && !Bug::StaleWatchOpens.is_awake() => Err(BlockReason::Outdated),
                () if unfenced => Err(BlockReason::Fencing),
                () if !occupancy.room_for(member, limit) => Err(BlockReason::Capacity),
                () if plan.fleet.as_ref().is_some_and(|f| !f.room_for(member.unavailable())) => {
                    Err(BlockReason::FleetCapacity)
                }
                () => free.open(facts, member, target).ok_or(BlockReason::NoBerth),
            }
        });
        match may {
            Ok(write) => {
                plan.writes.push(write);
                occupancy.offered(member);
                if let Some(fleet) = &mut plan.fleet {
                    fleet.offer(&member.name, member.unavailable());
                }
                queue.offered(member);
                at_work = at_work.or(member.control_plane.map(|_| Cause::OtherAtWork));
            }
            Err(wait) => drop(plan.waiting.insert(member.name.clone(), wait)),
        }
    }
    plan.used_by = Occupancy::uses(facts, &berths, &plan.writes);
}

/// The closed berths that may be opened, the lowest number first, so that two plans from one state meet on the same
/// object.
struct Free<'a>(BTreeMap<u32, &'a SeenBerth>);

impl<'a> Free<'a> {
    fn of(berths: &'a [SeenBerth], limit: usize) -> Self {
        let writable = berths.iter().filter(|seen| !seen.refused);
        let closed = writable.filter_map(|seen| match seen.berth.as_ref() {
            // I8: what failed there must be on record first.
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

/// Time until which the member's reboot may start: it must be over before the window is.
fn open_until(facts: &PoolFacts, member: &Member) -> Option<Timestamp> {
    facts
        .closes
        .map(|closes| closes.checked_sub(member.estimate.reboot).unwrap_or(closes))
}

/// The berths as they were read. One that cannot be read, or is closed and cannot be written, counts as held.
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
        || !facts.unfenced() && (counts.offered == 0 || occupancy.held_or_offered() <= facts.capacity);
    let total = if facts.capacity >= facts.published || shrink_is_safe {
        facts.capacity
    } else {
        facts.published
    };
    counts.total = u32::try_from(total).unwrap_or(u32::MAX);
    counts
}
