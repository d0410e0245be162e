//! Forecasts the order of a pool's updates, by planning repeatedly in a simulation where all goes well.
//!
//! In the simulation, gates are open, earlier pools are updated, soaks are over, images are staged, all agents report
//! and the other API servers answer. In each round [`plan`] offers berths, and every node that was offered a berth or
//! held one comes back updated. So the forecast has the order that the plan would choose.
//!
//! A plan looks at every member, and a large pool with a capacity of one needs a round per member. So a round contains
//! only the members that can affect it. These are unavailable members, members without an image to update to, and the
//! first members of each zone in the order of offers. From each zone, at most as many take part as the pool's capacity.
//! Members that are updated and available are left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use berth_api::berth::{Berth, BerthState};
use berth_api::{Digest, NodeName, NodeUid};
use jiff::Timestamp;

use crate::controller::gate::GateReason;
use crate::controller::plan::candidates::{self, Rank};
use crate::controller::plan::waves::is_proven;
use crate::controller::plan::{
    BerthWrite, BlockReason, Member, PoolFacts, Published, SeenBerth, WriteReason, failures, plan,
};

/// Approximate maximum number of members to examine, summed over all rounds. If thousands of members are unavailable at
/// once, the forecast assumes a higher capacity, to stay below this number. This can change only the order between
/// zones.
const MAX_LOOKS: usize = 1_000_000;

/// Order of a pool's updates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Turns of the members that do not run their image yet, in order. Turns that need a person's help come last.
    pub turns: Vec<Turn>,
    /// Members that stay unproven unless a person helps. These members block all later waves. If several waves have
    /// such members, only the members in the first of these waves are listed.
    pub stuck: Vec<NodeName>,
}

/// The turn of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The member.
    pub node: NodeName,
    /// Wave of the member, as an index into [`PoolFacts::waves`].
    pub wave: usize,
    /// True if the turn comes without a person's help. False if something blocks it permanently: a failure, a missing
    /// image, a hold, or other members that use up all capacity or keep an earlier wave unproven.
    pub comes: bool,
}

/// Returns the order of a pool's updates.
pub fn forecast(facts: &PoolFacts, now: Timestamp) -> Forecast {
    let mut forecast = play(Future::of(facts), now);
    let order = facts.order.as_ref();
    if order.is_some_and(|order| order.reason != GateReason::EarlierPool) {
        forecast.turns.iter_mut().for_each(|turn| turn.comes = false);
    }
    forecast
}

/// Simulates rounds until a round changes nothing. Then removes all blocked members and simulates further rounds, for
/// the turns that need a person's help.
fn play(mut future: Future, now: Timestamp) -> Forecast {
    let mut forecast = Forecast::default();
    let mut comes = true;
    loop {
        let (turns, moved) = future.round(now);
        forecast
            .turns
            .extend(turns.into_iter().map(|(node, wave)| Turn { node, wave, comes }));
        if moved {
            continue;
        }
        match future.awaits() {
            Some(_) if comes => forecast.stuck = future.help(),
            Some(_) if future.facts.capacity == 0 => future.raise(1),
            _ => break,
        }
        comes = false;
    }
    forecast.turns.extend(future.left());
    forecast
}

impl PoolFacts {
    /// Returns the facts for an image that is not resolved yet, assuming that no member runs it.
    #[must_use]
    pub fn with_unknown_image(mut self) -> Self {
        let unknown: Option<Digest> = format!("sha256:{}", "0".repeat(64)).parse().ok();
        for member in &mut self.members {
            member.desired.clone_from(&unknown);
        }
        self
    }
}

/// Simulated state of a pool where every turn succeeds.
struct Future {
    /// Facts for the next plan. Between two rounds, the facts contain only the members that take part in every round.
    facts: PoolFacts,
    /// Members that take part only in some rounds, by rank and zone. The key of a zone is the name of its first member.
    fit: BTreeMap<Rank, BTreeMap<NodeName, VecDeque<Member>>>,
    /// Blocked members that were removed so that other members can be updated.
    aside: Vec<Member>,
    helped: bool,
}

/// Members of one zone in one round. `dealt` is the number of members that take part. `rest` has the other members.
struct DealtZone {
    rank: Rank,
    dealt: usize,
    rest: VecDeque<Member>,
}

impl Future {
    fn of(now: &PoolFacts) -> Self {
        let mut facts = PoolFacts {
            gate: None,
            closes: None,
            failures: failures::all(now),
            max_failures: usize::MAX,
            unresolved: false,
            outdated: false,
            capacity: capacity_of(now),
            published: capacity_of(now),
            confirmed_gone: BTreeSet::new(),
            lost: BTreeSet::new(),
            fleet: None,
            order: None,
            members: vec![],
            ..now.clone()
        };
        facts.waves.iter_mut().for_each(|wave| wave.soaked = wave.soak);
        let busy: BTreeSet<NodeUid> = busy(&facts).into_iter().chain(facts.elsewhere.clone()).collect();
        facts.berths = facts.berths.iter().map(|seen| settled(seen, facts.epoch)).collect();
        let mut zones: BTreeMap<(Rank, String), VecDeque<Member>> = BTreeMap::new();
        let mut members: Vec<Member> = now.members.iter().filter(|m| !m.leaving).map(prepared).collect();
        members.sort_by(|a, b| a.name.cmp(&b.name));
        for member in members {
            let fit = !member.node.is_unavailable() && !busy.contains(&member.uid) && !member.node.held_back;
            match candidates::wanted(&member, &facts.failures) {
                Ok(_) if fit => {
                    let key = (candidates::rank(&member), member.place.zone.clone());
                    zones.entry(key).or_default().push_back(member);
                }
                _ if fit && is_proven(&member) => {}
                _ => facts.members.push(member),
            }
        }
        let mut this = Self {
            facts,
            fit: BTreeMap::new(),
            aside: vec![],
            helped: false,
        };
        for ((rank, _), zone) in zones {
            this.keep(rank, zone);
        }
        let least = this.facts.members.len().saturating_mul(now.members.len()) / MAX_LOOKS;
        if this.facts.capacity > 0 && this.facts.capacity < least {
            this.raise(least);
        }
        this
    }

    fn keep(&mut self, rank: Rank, zone: VecDeque<Member>) {
        if let Some(first) = zone.front().map(|m| m.name.clone()) {
            self.fit.entry(rank).or_default().insert(first, zone);
        }
    }

    fn raise(&mut self, capacity: usize) {
        (self.facts.capacity, self.facts.published) = (capacity, capacity);
    }

    /// Simulates one round. Returns each member that had its turn, with its wave. Also returns true if anything
    /// changed.
    fn round(&mut self, now: Timestamp) -> (Vec<(NodeName, usize)>, bool) {
        let hands = self.deal();
        let mut done = busy(&self.facts);
        let mut moved = !done.is_empty() || !self.facts.elsewhere.is_empty();
        for write in plan(&self.facts, now).writes {
            match write {
                BerthWrite::Create(berth) => self.facts.berths.push(fresh(berth)),
                BerthWrite::Update {
                    berth,
                    why: WriteReason::Offer,
                    ..
                } => done.extend(berth.offer().map(|offer| offer.uid.clone())),
                _ => continue,
            }
            moved = true;
        }
        let epoch = self.facts.epoch;
        for seen in &mut self.facts.berths {
            if let Ok(berth) = &seen.berth {
                *seen = fresh(Berth::new(berth.pool.clone(), berth.index, epoch));
            }
        }
        self.facts.elsewhere.clear();
        let turns = self.finish(&done);
        moved |= self.collect(hands);
        (turns, moved)
    }

    /// Adds to the facts the members that may get an offer in this round. Returns, for each zone, the number of members
    /// added and the other members of the zone.
    fn deal(&mut self) -> Vec<DealtZone> {
        let limit = self.facts.capacity;
        // The plan prefers zones without unavailable nodes, but `fit` is sorted by name. So the round takes one more
        // zone for each zone with an unavailable node.
        let down: BTreeSet<&str> = self.facts.members.iter().map(|m| m.place.zone.as_str()).collect();
        let zones = limit.saturating_add(down.len());
        let (mut hands, mut left) = (vec![], limit);
        for (rank, of_rank) in &mut self.fit {
            for _ in 0..zones {
                let Some((_, mut rest)) = of_rank.pop_first() else {
                    break;
                };
                let dealt = rest.len().min(limit);
                self.facts.members.extend(rest.drain(..dealt));
                left = left.saturating_sub(dealt);
                let rank = *rank;
                hands.push(DealtZone { rank, dealt, rest });
            }
            if left == 0 {
                break;
            }
        }
        hands
    }

    /// Marks these nodes as updated. Returns the names and waves of the members whose image changed, in the order of
    /// `done`.
    fn finish(&mut self, done: &[NodeUid]) -> Vec<(NodeName, usize)> {
        let members = self.facts.members.iter().enumerate();
        let places: BTreeMap<NodeUid, usize> = members.map(|(place, m)| (m.uid.clone(), place)).collect();
        let mut turns = vec![];
        for uid in done {
            let member = places.get(uid).and_then(|place| self.facts.members.get_mut(*place));
            let Some(member) = member else { continue };
            match candidates::wanted(member, &self.facts.failures) {
                Ok(digest) => {
                    turns.push((member.name.clone(), member.place.wave));
                    (member.agent.booted, member.node.ready) = (Some(digest), true);
                }
                // The member already runs the target and only has to be proven.
                Err(BlockReason::UpToDate) => member.node.ready = true,
                Err(_) => {}
            }
        }
        turns
    }

    /// Removes the members that [`Self::deal`] added to the facts. Keeps the unproven members for later rounds. Returns
    /// true if a member lost Berth's cordon.
    fn collect(&mut self, hands: Vec<DealtZone>) -> bool {
        let dealt: usize = hands.iter().map(|hand| hand.dealt).sum();
        let always = self.facts.members.len().saturating_sub(dealt);
        let mut dealt = self.facts.members.split_off(always).into_iter();
        for DealtZone {
            rank,
            dealt: count,
            mut rest,
        } in hands
        {
            let back: Vec<Member> = dealt.by_ref().take(count).filter(|m| !is_proven(m)).collect();
            back.into_iter().rev().for_each(|member| rest.push_front(member));
            self.keep(rank, rest);
        }
        self.fit.retain(|_, zones| !zones.is_empty());
        let mut uncordoned = false;
        for member in self.facts.members.iter_mut().filter(|m| m.node.our_cordon) {
            (member.node.our_cordon, member.node.unschedulable, uncordoned) = (false, false, true);
        }
        let helped = self.helped;
        self.facts
            .members
            .retain(|m| !is_proven(m) || m.node.is_unavailable() && !helped);
        uncordoned
    }

    /// True if the member has an image to update to and is not held back.
    fn goes(&self, member: &Member) -> bool {
        !member.node.held_back && candidates::wanted(member, &self.facts.failures).is_ok()
    }

    /// Returns the index of the first wave with a member that can still be updated; `None` if no such member is left.
    fn awaits(&self) -> Option<usize> {
        let fit = self.fit.keys().map(|rank| rank.0);
        let members = self.facts.members.iter().filter(|m| self.goes(m)).map(|m| m.place.wave);
        fit.chain(members).min()
    }

    /// Removes all blocked members and unreadable berths. Returns the members that keep the first unfinished wave
    /// unproven.
    fn help(&mut self) -> Vec<NodeName> {
        self.helped = true;
        self.facts.berths.retain(|seen| seen.berth.is_ok());
        let next = self.awaits();
        let members = std::mem::take(&mut self.facts.members);
        let (going, others): (Vec<_>, Vec<_>) = members.into_iter().partition(|m| self.goes(m));
        self.facts.members = going;
        let unproven = others.iter().filter(|m| !is_proven(m) && Some(m.place.wave) < next);
        let unproven: Vec<&Member> = unproven.collect();
        let wave = unproven.iter().map(|m| m.place.wave).min();
        let stuck = unproven.iter().filter(|m| Some(m.place.wave) == wave);
        let stuck = stuck.map(|m| m.name.clone()).collect();
        self.aside = others;
        stuck
    }

    /// Returns the turns of the members that were offered no berth in any round, in order.
    fn left(self) -> Vec<Turn> {
        let fit = self.fit.into_values().flat_map(BTreeMap::into_values).flatten();
        let mut left: Vec<Member> = self.facts.members.into_iter().chain(self.aside).chain(fit).collect();
        left.retain(|m| m.agent.booted.is_none() || m.agent.booted != m.desired);
        left.sort_by_key(|m| (candidates::rank(m), m.name.clone()));
        left.into_iter()
            .map(|m| Turn {
                node: m.name,
                wave: m.place.wave,
                comes: false,
            })
            .collect()
    }
}

/// Returns the member as it will be when its agent has staged and locked the target.
fn prepared(member: &Member) -> Member {
    let mut member = member.clone();
    member.published = Published {
        digest: member.desired.clone(),
        uid: member.uid.clone(),
        observed: true,
    };
    member.agent.staged.clone_from(&member.desired);
    (
        member.agent.prepared,
        member.agent.heard,
        member.agent.clock_synchronized,
    ) = (true, true, true);
    member.place.control_plane = None;
    member
}

/// Returns how many members may be updated at once. Unavailable nodes of other pools count against the fleet's limit.
fn capacity_of(facts: &PoolFacts) -> usize {
    let Some(fleet) = &facts.fleet else {
        return facts.capacity;
    };
    let own = facts.members.iter().filter(|m| m.node.is_unavailable()).count();
    let others = fleet.unavailable.saturating_sub(own);
    facts.capacity.min(fleet.limit.saturating_sub(others))
}

/// Returns the nodes that hold a berth or may take an open offer. Their turns end in this round.
fn busy(facts: &PoolFacts) -> Vec<NodeUid> {
    let held_back: BTreeSet<&NodeUid> = facts
        .members
        .iter()
        .filter(|m| m.node.held_back)
        .map(|m| &m.uid)
        .collect();
    // The controller withdraws offers to nodes that are held back.
    let berths = facts
        .readable()
        .filter(|(_, berth)| berth.offer().is_none_or(|offer| !held_back.contains(&offer.uid)));
    let nodes = berths.filter_map(|(_, berth)| berth.node());
    nodes.map(|(_, uid)| uid.clone()).collect()
}

/// Returns the berth after the controller's next write, which fences it. A closed berth also loses its record of the
/// last turn.
fn settled(seen: &SeenBerth, epoch: u64) -> SeenBerth {
    match &seen.berth {
        Ok(berth) if matches!(berth.state, BerthState::Closed(_)) => {
            fresh(Berth::new(berth.pool.clone(), berth.index, epoch))
        }
        Ok(berth) => fresh(berth.stamped(epoch)),
        Err(_) => seen.clone(),
    }
}

fn fresh(berth: Berth) -> SeenBerth {
    SeenBerth::new(berth.name(), Ok(berth))
}

#[cfg(test)]
mod tests;
