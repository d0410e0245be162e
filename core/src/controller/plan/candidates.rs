//! Which members may be offered a berth, their order, and why the other members wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use berth_api::berth::Offer;
use berth_api::pool::WaveState;
use berth_api::seeded::Bug;
use berth_api::{Digest, NodeName, NodeUid};
use jiff::Timestamp;

use super::block_reason::BlockReason;
use super::facts::{Failures, Member, PoolFacts};
use super::failures::has_failed_on;
use super::occupancy::Occupancy;
use super::waves::Progress;
use super::writes::Origin;
use crate::controller::quorum::Cause;

/// Returns the digest that the member should change to, or why it should not change. A failure that only the pool's
/// status records counts too (I8). If an admin or the controller closed the berth, the agent does not report the
/// failure.
pub(in crate::controller) fn wanted(member: &Member, failures: &Failures) -> Result<Digest, BlockReason> {
    let desired = member.desired.as_ref().ok_or(BlockReason::NoImage)?;
    if member.agent.booted.as_ref() == Some(desired) {
        return Err(BlockReason::UpToDate);
    }
    if member.agent.failed.contains(desired) || has_failed_on(failures, desired, &member.name) {
        return Err(BlockReason::FailedBefore);
    }
    Ok(desired.clone())
}

pub(super) fn ready(member: &Member, desired: &Digest) -> Result<(), BlockReason> {
    if member.published.digest.as_ref() != Some(desired) {
        return Err(BlockReason::NotPublished);
    }
    if member.published.uid != member.uid {
        return Err(BlockReason::OtherNode);
    }
    if !member.published.observed {
        return Err(BlockReason::NotObserved);
    }
    if member.agent.staged.as_ref() != Some(desired) {
        return Err(BlockReason::NotStaged);
    }
    if !member.agent.prepared {
        return Err(BlockReason::NotPrepared);
    }
    if !member.agent.heard {
        return Err(BlockReason::Silent);
    }
    Ok(())
}

/// Returns why no berth is opened for this member although the pool's gates are open. If this plan already offers a
/// berth to another control plane node, `at_work` is the cause to return.
pub(super) fn gated(
    facts: &PoolFacts,
    progress: &Progress,
    member: &Member,
    at_work: Option<Cause>,
    now: Timestamp,
) -> Option<BlockReason> {
    // I10: while this node is down, it may use up the fleet's limit or block the control plane nodes of earlier pools
    // (I11). The earlier pools then cannot finish before this node is repaired, so it does not wait for them.
    let is_worst_server = member
        .place
        .control_plane
        .is_some_and(|verdict| verdict.withhold.is_none());
    let repairs = !member.node.ready && (is_worst_server || facts.is_fleet_starved());
    if facts.order.is_some() && !repairs && !Bug::OrderIgnored.is_awake() {
        return Some(BlockReason::Order);
    }
    match progress.waits(member) {
        Some(WaveState::Soaking) => return Some(BlockReason::Soaking),
        Some(_) => return Some(BlockReason::Wave),
        None => {}
    }
    if let Some(cause) = member
        .place
        .control_plane
        .and_then(|verdict| verdict.withhold.or(at_work))
    {
        return Some(BlockReason::ControlPlane(cause));
    }
    let closes = facts.closes?;
    if !member.agent.clock_synchronized {
        return Some(BlockReason::NoClock);
    }
    let needed = member.estimate.drain.saturating_add(member.estimate.reboot);
    let fits = now.checked_add(needed).is_ok_and(|end| end < closes);
    (!fits).then_some(BlockReason::TooLate)
}

/// Returns why the member must not continue its turn: an earlier wave is not done, or the control plane needs the node
/// (I11). The controller then withdraws the member's offer, or asks for its uncommitted berth back. The agent checks
/// the windows, so this function does not.
pub(super) fn closed_for(progress: &Progress, member: &Member) -> Option<(&'static str, Origin)> {
    match progress.waits(member) {
        Some(_) => Some(("WaveWaiting", Origin::Pool)),
        None => Some((member.place.control_plane?.ask_back?.as_str(), Origin::Pool)),
    }
}

/// Returns why a holder that cannot give its berth back must keep its current image: the control plane needs the node
/// (I11). `None` if the holder may change to another image. A wave never prevents this change.
pub(super) fn stays(member: &Member) -> Option<(&'static str, Origin)> {
    Some((member.place.control_plane?.stay?.as_str(), Origin::Pool))
}

/// Returns why an open offer is withdrawn; `None` if it stays. If the agent is silent or has not reported yet, the
/// offer stays until it lapses.
pub(super) fn withdrawal(facts: &PoolFacts, offer: &Offer, member: Option<&Member>) -> Option<(&'static str, Origin)> {
    if facts.unresolved {
        return Some(("the pool's current image is not resolved", Origin::Pool));
    }
    Some((unfit(facts, offer, member)?, Origin::Node))
}

/// Returns why the node may not take its open offer; `None` if it may.
fn unfit(facts: &PoolFacts, offer: &Offer, member: Option<&Member>) -> Option<&'static str> {
    let Some(member) = member else {
        return Some("the node is no longer a member");
    };
    if member.desired.as_ref() != Some(&offer.target) || member.published.digest.as_ref() != Some(&offer.target) {
        return Some("the node should run another image now");
    }
    if member.node.held_back {
        return Some("the node is held back by an admin");
    }
    match wanted(member, &facts.failures).and_then(|desired| ready(member, &desired)) {
        Err(BlockReason::FailedBefore) => Some("the image failed on the node"),
        Err(BlockReason::UpToDate) => Some("the node runs the image already"),
        Err(BlockReason::NotStaged | BlockReason::NotPrepared) => Some("the node is no longer prepared"),
        _ => None,
    }
}

/// Sort key of a member: wave, number of offers or bad turns, availability (unavailable first). The member with the
/// lowest rank is offered a berth first.
pub(in crate::controller) type Rank = (usize, u32, bool);

pub(in crate::controller) fn rank(member: &Member) -> Rank {
    // A new leader does not know all offers, but the node's report does not count for more than one: a node that reports
    // its bad turns must not come behind a node that does not.
    let is_reported = member.agent.last_turn.is_some() && member.agent.last_turn == member.desired;
    let offers = member.offers.max(u32::from(is_reported));
    (member.place.wave, offers, !member.node.is_unavailable())
}

impl PoolFacts {
    /// Returns the lowest rank among the members that are ready for an offer. The wave is left out, because waves of
    /// different pools cannot be compared.
    pub(in crate::controller) fn best_candidate(&self) -> Option<(u32, bool)> {
        let worked_on: BTreeSet<&NodeUid> = self.readable().filter_map(|(_, berth)| Some(berth.node()?.1)).collect();
        let idle = self.members.iter();
        let idle = idle.filter(|m| !worked_on.contains(&m.uid) && !m.node.held_back);
        let candidates = idle.filter(|m| wanted(m, &self.failures).and_then(|desired| ready(m, &desired)).is_ok());
        let ranks = candidates.map(|m| {
            let (_, offers, is_available) = rank(m);
            (offers, is_available)
        });
        ranks.min()
    }
}

/// Members in the order of offers. The order is by wave (lowest first), number of offers of the desired digest so far or
/// bad turns (fewest first), availability (unavailable members first), number of nodes down in the zone (fewest first),
/// and name.
///
/// A member that had an offer and does not run the digest goes behind the others of its wave, even if it is
/// unavailable. It may be ready again at once, and in any other place it would receive every offer. If two nodes cannot
/// be updated, they alternate.
pub(super) struct Queue<'a> {
    ranks: BTreeMap<Rank, Zones<'a>>,
    /// For each zone, by its index: number of nodes that are unavailable, hold a berth or are offered one.
    down: Vec<usize>,
    zones: BTreeMap<&'a str, usize>,
}

#[derive(Default)]
struct Zones<'a> {
    members: BTreeMap<usize, VecDeque<&'a Member>>,
    /// Queue of zones. An entry has the number of nodes down in the zone when the entry was made, the name of the
    /// zone's first member, and the index of the zone. The number of nodes down only grows, so the first entry is valid
    /// if its number is still current.
    first: BinaryHeap<Reverse<(usize, &'a NodeName, usize)>>,
}

impl<'a> Queue<'a> {
    pub(super) fn of(facts: &'a PoolFacts, occupancy: &Occupancy<'_>) -> Self {
        let mut members: Vec<&Member> = facts.members.iter().collect();
        members.sort_by_key(|m| &m.name);
        let mut this = Self {
            ranks: BTreeMap::new(),
            down: vec![],
            zones: BTreeMap::new(),
        };
        for member in members {
            let next = this.zones.len();
            let zone = *this.zones.entry(&member.place.zone).or_insert(next);
            this.down.resize(this.zones.len(), 0);
            if let Some(down) = this.down.get_mut(zone) {
                *down += usize::from(occupancy.counts(&member.uid));
            }
            let rank = this.ranks.entry(rank(member)).or_default();
            let others = rank.members.entry(zone).or_default();
            if others.is_empty() {
                rank.first.push(Reverse((0, &member.name, zone)));
            }
            others.push_back(member);
        }
        this
    }

    pub(super) fn next(&mut self) -> Option<&'a Member> {
        let mut rank = self.ranks.first_entry()?;
        let Zones { members, first } = rank.get_mut();
        let member = loop {
            let Reverse((then, name, zone)) = first.pop()?;
            let now = self.down.get(zone).copied().unwrap_or_default();
            if then < now {
                first.push(Reverse((now, name, zone)));
                continue;
            }
            let others = members.get_mut(&zone)?;
            let member = others.pop_front();
            if let Some(next) = others.front() {
                first.push(Reverse((now, &next.name, zone)));
            }
            break member;
        };
        if first.is_empty() {
            rank.remove();
        }
        member
    }

    /// Records an offer to the member: counts one more node as down in its zone.
    pub(super) fn offered(&mut self, member: &'a Member) {
        let zone = self.zones.get(member.place.zone.as_str());
        if let Some(down) = zone.and_then(|zone| self.down.get_mut(*zone)) {
            *down += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{changed, facts, member};
    use super::*;

    proptest! {
        /// Compares the order documented at `Queue` with a simple sort of the remaining members.
        #[test]
        fn members_come_by_rank_then_nodes_down_then_name(
            nodes in proptest::collection::vec((0usize..2, 0u8..5, any::<bool>()), 0..40),
            offers in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let mut members = vec![];
            for (n, (wave, zone, ready)) in nodes.into_iter().enumerate() {
                let member = member(&format!("n{:02}", n * 7 % 40));
                members.push(changed(member, |m| {
                    (m.place.wave, m.place.zone, m.node.ready) = (wave, zone.to_string(), ready);
                }));
            }
            let f = facts(1, members, vec![]);
            let occupancy = Occupancy::of(&f, &[]);
            let mut queue = Queue::of(&f, &occupancy);
            let mut left: Vec<&Member> = f.members.iter().collect();
            let mut down = BTreeMap::<&str, usize>::new();
            for member in &f.members {
                *down.entry(&member.place.zone).or_default() += usize::from(!member.node.ready);
            }
            for offer in offers {
                let expected = left.iter().copied().min_by_key(|m| (rank(m), down[m.place.zone.as_str()], &m.name));
                let next = queue.next();
                prop_assert_eq!(next.map(|m| &m.name), expected.map(|m| &m.name));
                let Some(next) = next else { break };
                left.retain(|m| m.name != next.name);
                if offer {
                    queue.offered(next);
                    *down.entry(&next.place.zone).or_default() += 1;
                }
            }
        }
    }
}
