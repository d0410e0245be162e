//! The order in which the members of a pool would go: the plan, made again and again for a future in which all goes well.
//!
//! In that future gates are open, earlier pools are updated, soaks are over, images are staged, agents are heard and other
//! API servers answer. In each round [`plan`] offers berths, and everybody who was offered one, or held one before, comes
//! back updated. So nothing here knows the order: it is what `plan` makes of it.
//!
//! A plan looks at every member, and a large pool takes a round for each of them when one goes at a time. Only those members
//! take part in a round that can make a difference to it: all that are unavailable or have nothing to go to, and of the
//! others, of the first ranks, so many of each zone as there may be offers. Who is updated and available takes part no more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use berth_api::berth::{Berth, BerthState};
use berth_api::{Digest, NodeName, NodeUid};
use jiff::Timestamp;

use crate::controller::gate::{Gate, GateReason};
use crate::controller::plan::candidates::{self, Rank};
use crate::controller::plan::waves::is_proven;
use crate::controller::plan::{BerthWrite, BlockReason, Member, PoolFacts, SeenBerth, WriteReason, failures, plan};

/// Members looked at in all rounds together. A pool of which thousands are unavailable at once would need more; then more go
/// at a time than would in truth, which changes the order between zones at most.
const LOOKS: usize = 1_000_000;

/// The order in which members would go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Turns of the members that do not run what they should, the first to go first; those that cannot go come last.
    pub turns: Vec<Turn>,
    /// The members of the first wave that is never proven unless somebody helps: those that keep all later waves waiting.
    pub stuck: Vec<NodeName>,
}

/// The turn of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The member.
    pub node: NodeName,
    /// Its wave, as an index into [`PoolFacts::waves`].
    pub wave: usize,
    /// True when it comes without anybody's help. Otherwise something is in its way that does not end by itself: a failure,
    /// a missing image, an admin who holds it back, or other members that use up all capacity or keep an earlier wave from being proven.
    pub comes: bool,
}

/// Says in which order the members of a pool would go.
pub fn forecast(facts: &PoolFacts, now: Timestamp) -> Forecast {
    let mut forecast = told(Future::of(facts), now);
    let ends_by_itself = |order: &Gate| order.reason == GateReason::EarlierPool;
    if !facts.order.as_ref().is_none_or(ends_by_itself) {
        forecast.turns.iter_mut().for_each(|turn| turn.comes = false);
    }
    forecast
}

/// Goes through the rounds of a future until nobody moves.
fn told(mut future: Future, now: Timestamp) -> Forecast {
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
    /// The facts as they would be for an image that is not resolved yet: it is taken to be one that no member runs.
    #[must_use]
    pub fn with_unknown_image(mut self) -> Self {
        let unknown: Option<Digest> = format!("sha256:{}", "0".repeat(64)).parse().ok();
        for member in &mut self.members {
            member.desired.clone_from(&unknown);
        }
        self
    }
}

/// A pool in a future in which all goes well.
struct Future {
    /// Facts that the next plan is made from. Between rounds its members are those that take part in every round.
    facts: PoolFacts,
    /// The other members, in the order of their ranks: each queue is what is left of a zone, under the name of its first.
    fit: BTreeMap<Rank, BTreeMap<NodeName, VecDeque<Member>>>,
    /// Members that cannot go and were taken out, so that others can.
    aside: Vec<Member>,
    helped: bool,
}

/// Members of one zone that take part in a round, and what is left of the zone meanwhile.
struct Hand {
    rank: Rank,
    dealt: usize,
    rest: VecDeque<Member>,
}

impl Future {
    fn of(now: &PoolFacts) -> Self {
        let lapsed = candidates::lapsed(&now.berths);
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
        let mut members: Vec<Member> = now
            .members
            .iter()
            .filter(|m| !m.leaving)
            .map(|m| prepared(m, lapsed.contains(&m.name)))
            .collect();
        members.sort_by(|a, b| a.name.cmp(&b.name));
        for member in members {
            let fit = !member.unavailable() && !busy.contains(&member.uid) && !member.held_back;
            match candidates::wanted(&member, &facts.failures) {
                Ok(_) if fit => {
                    let key = (candidates::rank(&member, member.lapses), member.zone.clone());
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
        let least = this.facts.members.len().saturating_mul(now.members.len()) / LOOKS;
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

    /// Makes one plan and carries it out. Answers whose turn it was, and whether anything has changed.
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
        let closed = |seen: &SeenBerth| match &seen.berth {
            Ok(berth) => fresh(Berth::new(berth.pool.clone(), berth.index, epoch)),
            Err(_) => seen.clone(),
        };
        self.facts.berths = self.facts.berths.iter().map(closed).collect();
        self.facts.elsewhere.clear();
        let turns = self.finish(&done);
        moved |= self.collect(hands);
        (turns, moved)
    }

    /// Adds the members to the facts that may be offered something, besides those that take part in every round.
    fn deal(&mut self) -> Vec<Hand> {
        let limit = self.facts.capacity;
        // Zones with nodes down come after those that have none, whatever their names.
        let down: BTreeSet<&str> = self.facts.members.iter().map(|m| m.zone.as_str()).collect();
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
                hands.push(Hand { rank, dealt, rest });
            }
            if left == 0 {
                break;
            }
        }
        hands
    }

    /// Lets those come back updated whose turn it was, and answers them in that order, with their waves.
    fn finish(&mut self, done: &[NodeUid]) -> Vec<(NodeName, usize)> {
        let members = self.facts.members.iter().enumerate();
        let places: BTreeMap<NodeUid, usize> = members.map(|(place, m)| (m.uid.clone(), place)).collect();
        let mut turns = vec![];
        for uid in done {
            let member = places.get(uid).and_then(|place| self.facts.members.get_mut(*place));
            let Some(member) = member else { continue };
            match candidates::wanted(member, &self.facts.failures) {
                Ok(digest) => {
                    turns.push((member.name.clone(), member.wave));
                    (member.booted, member.ready) = (Some(digest), true);
                }
                // It is about to be proven.
                Err(BlockReason::UpToDate) => member.ready = true,
                Err(_) => {}
            }
        }
        turns
    }

    /// Takes the members out of the facts again that do not take part in every round. Answers whether a cordon of Berth was
    /// taken off meanwhile.
    fn collect(&mut self, hands: Vec<Hand>) -> bool {
        let dealt: usize = hands.iter().map(|hand| hand.dealt).sum();
        let always = self.facts.members.len().saturating_sub(dealt);
        let mut dealt = self.facts.members.split_off(always).into_iter();
        for Hand {
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
        for member in self.facts.members.iter_mut().filter(|m| m.our_cordon) {
            (member.our_cordon, member.unschedulable, uncordoned) = (false, false, true);
        }
        let helped = self.helped;
        self.facts
            .members
            .retain(|m| !is_proven(m) || m.unavailable() && !helped);
        uncordoned
    }

    /// Tells whether the member has somewhere to go, and may.
    fn goes(&self, member: &Member) -> bool {
        !member.held_back && candidates::wanted(member, &self.facts.failures).is_ok()
    }

    /// The first wave that has somebody who could go.
    fn awaits(&self) -> Option<usize> {
        let fit = self.fit.keys().map(|rank| rank.0);
        let members = self.facts.members.iter().filter(|m| self.goes(m)).map(|m| m.wave);
        fit.chain(members).min()
    }

    /// Takes everything out that keeps the others from going, and answers the members that keep their wave from being
    /// proven.
    fn help(&mut self) -> Vec<NodeName> {
        self.helped = true;
        self.facts.berths.retain(|seen| seen.berth.is_ok());
        let next = self.awaits();
        let members = std::mem::take(&mut self.facts.members);
        let (going, others): (Vec<_>, Vec<_>) = members.into_iter().partition(|m| self.goes(m));
        self.facts.members = going;
        let unproven = || others.iter().filter(|m| !is_proven(m) && Some(m.wave) < next);
        let wave = unproven().map(|m| m.wave).min();
        let stuck = unproven()
            .filter(|m| Some(m.wave) == wave)
            .map(|m| m.name.clone())
            .collect();
        self.aside = others;
        stuck
    }

    /// Turns of the members that were never offered a berth, in order.
    fn left(self) -> Vec<Turn> {
        let fit = self.fit.into_values().flat_map(BTreeMap::into_values).flatten();
        let mut left: Vec<Member> = self.facts.members.into_iter().chain(self.aside).chain(fit).collect();
        left.retain(|m| m.booted.is_none() || m.booted != m.desired);
        left.sort_by_key(|m| (candidates::rank(m, m.lapses), m.name.clone()));
        let turn = |m: Member| Turn {
            node: m.name,
            wave: m.wave,
            comes: false,
        };
        left.into_iter().map(turn).collect()
    }
}

/// The member as it is once its agent has done all that it does before a turn.
fn prepared(member: &Member, lapsed: bool) -> Member {
    Member {
        published: member.desired.clone(),
        published_uid: member.uid.clone(),
        staged: member.desired.clone(),
        observed: true,
        prepared: true,
        heard: true,
        control_plane: None,
        clock_synchronized: true,
        // The berth forgets it with its next turn.
        lapses: member.lapses.max(u32::from(lapsed)),
        ..member.clone()
    }
}

/// Number of members that go at once, as far as the fleet's limit allows it: nodes of other pools that are unavailable use it
/// up for good.
fn capacity_of(facts: &PoolFacts) -> usize {
    let Some(fleet) = &facts.fleet else {
        return facts.capacity;
    };
    let own = facts.members.iter().filter(|m| m.unavailable()).count();
    let others = fleet.unavailable.saturating_sub(own);
    facts.capacity.min(fleet.limit.saturating_sub(others))
}

/// Nodes that hold a berth or are offered one that they may take: what they were going to do is done after the first round.
fn busy(facts: &PoolFacts) -> Vec<NodeUid> {
    let held_back: BTreeSet<&NodeUid> = facts.members.iter().filter(|m| m.held_back).map(|m| &m.uid).collect();
    let is_withdrawn = |berth: &Berth| berth.offer().is_some_and(|offer| held_back.contains(&offer.uid));
    let berths = facts.readable().filter(|(_, berth)| !is_withdrawn(berth));
    let nodes = berths.filter_map(|(_, berth)| berth.node());
    nodes.map(|(_, uid)| uid.clone()).collect()
}

/// The berth without anything that only the next write of the controller settles.
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
    SeenBerth {
        lease: berth.name(),
        berth: Ok(berth),
        in_doubt: false,
        refused: false,
        age: Duration::ZERO,
    }
}

#[cfg(test)]
mod tests;
