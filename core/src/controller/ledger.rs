//! Counts the offers that each node has had of a digest. Nodes with fewer offers come first, so a node that uses no
//! offer cannot get every offer. Pure.
//!
//! The counts come from the controller's own writes. A node cannot lower its count: neither its reports, nor its moves
//! of a berth, nor a new Node of the same name change the count.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::{Berth, BerthState, Outcome};
use berth_api::seeded::Bug;
use berth_api::{Digest, NodeName};

use super::plan::{BerthWrite, Origin, WriteReason};

/// Number of offers that each node has had of each digest.
///
/// The order of the nodes depends on all offers. Otherwise a node could keep its berth until a window closes, and would
/// be first again in the next window. The counts are kept in memory. A new leader counts the last offer of each berth,
/// if the berth shows it.
#[derive(Debug, Default)]
pub struct Ledger {
    counts: BTreeMap<NodeName, BTreeMap<Digest, Count>>,
    /// For each Lease, its last offer.
    last: BTreeMap<String, Last>,
    /// Names of the Leases that this process has seen.
    seen: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Count {
    offers: u32,
    /// How many of the offers the controller took back because of the pool, for example because a window has closed.
    taken_back: u32,
}

#[derive(Debug)]
struct Last {
    node: NodeName,
    target: Digest,
    taken_back: bool,
}

impl Ledger {
    /// Returns a ledger that knows only the last offer of each berth.
    pub fn of<'a>(berths: impl Iterator<Item = (&'a str, &'a Berth)>) -> Self {
        let mut this = Self::default();
        this.see(berths);
        this
    }

    /// Counts the last offer of each berth that this process sees for the first time.
    pub fn see<'a>(&mut self, berths: impl Iterator<Item = (&'a str, &'a Berth)>) {
        for (lease, berth) in berths {
            if !self.seen.insert(lease.to_owned()) {
                continue;
            }
            if let Some((node, target)) = last_offer(berth) {
                self.count(lease, node, target);
            }
        }
    }

    /// Records a write of this process that the API server has stored.
    pub fn wrote(&mut self, write: &BerthWrite) {
        let BerthWrite::Update { lease, berth, why } = write else {
            return;
        };
        self.seen.insert(lease.clone());
        match (why, &berth.state) {
            (WriteReason::Offer, BerthState::Offered(offer)) => self.count(lease, &offer.node, &offer.target),
            (WriteReason::Withdrawn(_, Origin::Pool), BerthState::Closed(closed)) => {
                self.take_back(lease, closed.last_node.as_ref(), true);
            }
            (WriteReason::Revoke(_, Origin::Pool), BerthState::Held(holding)) => {
                self.take_back(lease, Some(&holding.node), true);
            }
            (WriteReason::Unrevoke, BerthState::Held(holding)) => self.take_back(lease, Some(&holding.node), false),
            _ => {}
        }
    }

    fn count(&mut self, lease: &str, node: &NodeName, target: &Digest) {
        let counts = self.counts.entry(node.clone()).or_default();
        let count = counts.entry(target.clone()).or_default();
        count.offers = count.offers.saturating_add(1);
        let last = Last {
            node: node.clone(),
            target: target.clone(),
            taken_back: false,
        };
        self.last.insert(lease.to_owned(), last);
    }

    /// Records whether the Lease's last offer, if it went to this node, was taken back because of the pool.
    fn take_back(&mut self, lease: &str, node: Option<&NodeName>, taken_back: bool) {
        let last = self.last.get_mut(lease);
        let Some(last) = last.filter(|last| node == Some(&last.node) && last.taken_back != taken_back) else {
            return;
        };
        last.taken_back = taken_back;
        let counts = self.counts.get_mut(&last.node);
        if let Some(count) = counts.and_then(|counts| counts.get_mut(&last.target)) {
            count.taken_back = if taken_back {
                count.taken_back.saturating_add(1)
            } else {
                count.taken_back.saturating_sub(1)
            };
        }
    }

    /// Returns how many offers of this digest the node has had.
    pub fn offers(&self, node: &NodeName, target: &Digest) -> u32 {
        if Bug::BadTurnsForgotten.is_awake() {
            return 0;
        }
        self.count_of(node, target).map_or(0, |count| count.offers)
    }

    /// Returns how many offers of this digest the node has had and the controller did not take back because of the pool.
    pub fn turns(&self, node: &NodeName, target: &Digest) -> u32 {
        let count = self.count_of(node, target);
        count.map_or(0, |count| count.offers.saturating_sub(count.taken_back))
    }

    fn count_of(&self, node: &NodeName, target: &Digest) -> Option<&Count> {
        self.counts.get(node)?.get(target)
    }

    /// Returns how many offers the node has had, of the digest that it was offered most often.
    pub fn most(&self, node: &NodeName) -> u32 {
        let counts = self.counts.get(node).into_iter().flat_map(BTreeMap::values);
        counts.map(|count| count.offers).max().unwrap_or_default()
    }

    /// Forgets all offers to the node, because an admin requested a retry.
    pub fn forget(&mut self, node: &NodeName) {
        self.counts.remove(node);
        self.last.retain(|_, last| last.node != *node);
    }

    /// Forgets all offers of digests that `is_kept` rejects. A Node that is deleted keeps its count, because a new Node
    /// of the same name may be the same machine.
    pub fn keep(&mut self, is_kept: impl Fn(&Digest) -> bool) {
        for counts in self.counts.values_mut() {
            counts.retain(|digest, _| is_kept(digest));
        }
        self.counts.retain(|_, counts| !counts.is_empty());
        self.last.retain(|_, last| is_kept(&last.target));
    }
}

/// Returns the node and digest of the berth's last offer. `None` if the berth does not show it, or if the offer may have
/// ended because of the pool.
fn last_offer(berth: &Berth) -> Option<(&NodeName, &Digest)> {
    match &berth.state {
        BerthState::Offered(offer) => Some((&offer.node, &offer.target)),
        BerthState::Held(holding) => Some((&holding.node, &holding.target)),
        BerthState::Closed(closed) => match closed.outcome? {
            // A node that was updated runs the digest and needs no other offer. A false report must not hide the offer.
            Outcome::Updated
            | Outcome::Lapsed
            | Outcome::DrainTimeout
            | Outcome::NotStaged
            | Outcome::RebootBlocked
            | Outcome::NotApplied => Some((closed.last_node.as_ref()?, closed.last_target.as_ref()?)),
            // A berth does not show why it was revoked or withdrawn. A failed digest is in the pool's status.
            Outcome::Revoked | Outcome::Withdrawn | Outcome::Failed => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use berth_api::berth::ClosedReason;

    use super::super::plan::tests::{closed, committed, digest, offered, taken};
    use super::*;

    fn write(berth: &Berth, why: WriteReason) -> BerthWrite {
        BerthWrite::Update {
            lease: berth.name(),
            berth: berth.clone(),
            why,
        }
    }

    fn offer(ledger: &mut Ledger, node: &str) {
        ledger.wrote(&write(&offered(0, node), WriteReason::Offer));
    }

    fn count(ledger: &Ledger, node: &str) -> u32 {
        ledger.offers(&node.into(), &digest(2))
    }

    #[test]
    fn each_offer_counts_however_its_turn_ends() {
        let withdrawn = offered(0, "n1").closed(ClosedReason::Withdrawn).unwrap();
        let lapsed = offered(0, "n1").closed(ClosedReason::Lapsed).unwrap();
        let gone = taken(0, "n1").ended(ClosedReason::Gone).unwrap();
        let left = taken(0, "n1").revoked(Some("LeftPool".into())).unwrap();
        for (berth, why) in [
            (
                withdrawn,
                WriteReason::Withdrawn("the node is no longer prepared", Origin::Node),
            ),
            (lapsed, WriteReason::Lapsed),
            (gone, WriteReason::Gone),
            (left, WriteReason::Revoke("LeftPool", Origin::Node)),
        ] {
            let mut ledger = Ledger::default();
            offer(&mut ledger, "n1");
            ledger.wrote(&write(&berth, why));
            offer(&mut ledger, "n1");
            assert_eq!(count(&ledger, "n1"), 2, "{why:?}");
        }
        // The agent takes the berth and gives it back: whatever outcome it writes, the offer counts.
        for outcome in [Outcome::Updated, Outcome::Revoked, Outcome::DrainTimeout] {
            let mut ledger = Ledger::default();
            offer(&mut ledger, "n1");
            let back = taken(0, "n1")
                .releasing(outcome, "b1".into())
                .unwrap()
                .given_back()
                .unwrap();
            ledger.see([("p-0", &taken(0, "n1")), ("p-0", &back)].into_iter());
            assert_eq!(count(&ledger, "n1"), 1, "{outcome:?}");
        }
    }

    #[test]
    fn an_offer_that_a_gate_ends_counts_for_the_order_only() {
        let numbers = |ledger: &Ledger| (count(ledger, "n1"), ledger.turns(&"n1".into(), &digest(2)));
        let withdrawn = offered(0, "n1").closed(ClosedReason::Withdrawn).unwrap();
        let revoked = taken(0, "n1").revoked(Some("Paused".into())).unwrap();
        for (berth, why) in [
            (withdrawn, WriteReason::Withdrawn("Paused", Origin::Pool)),
            (revoked, WriteReason::Revoke("Paused", Origin::Pool)),
        ] {
            let mut ledger = Ledger::default();
            offer(&mut ledger, "n1");
            offer(&mut ledger, "n1");
            ledger.wrote(&write(&berth, why));
            assert_eq!(numbers(&ledger), (2, 1), "{why:?}");
            ledger.wrote(&write(&berth, why));
            assert_eq!(numbers(&ledger), (2, 1), "once per offer");
            ledger.wrote(&write(&taken(0, "n1"), WriteReason::Unrevoke));
            assert_eq!(numbers(&ledger), (2, 2), "the turn continues");
            ledger.wrote(&write(&taken(0, "n1"), WriteReason::Unrevoke));
            assert_eq!(numbers(&ledger), (2, 2), "the turn counts once");
            // The offer to n2 was stored, but its answer was lost.
            ledger.wrote(&write(&taken(0, "n2"), WriteReason::Revoke("Paused", Origin::Pool)));
            assert_eq!(numbers(&ledger), (2, 2), "another node's offer");
        }
    }

    #[test]
    fn a_new_leader_counts_what_the_berths_show() {
        let back = |outcome| {
            let releasing = taken(0, "n1").releasing(outcome, "b1".into()).unwrap();
            releasing.given_back().unwrap()
        };
        for (berth, offers) in [
            (offered(0, "n1"), 1),
            (committed(0, "n1"), 1),
            (offered(0, "n1").closed(ClosedReason::Lapsed).unwrap(), 1),
            (back(Outcome::DrainTimeout), 1),
            (back(Outcome::NotApplied), 1),
            (back(Outcome::Updated), 1),
            (back(Outcome::Revoked), 0),
            (offered(0, "n1").closed(ClosedReason::Withdrawn).unwrap(), 0),
            (closed(0), 0),
        ] {
            let mut ledger = Ledger::of([("p-0", &berth)].into_iter());
            assert_eq!(count(&ledger, "n1"), offers, "{berth:?}");
            ledger.see([("p-0", &offered(0, "n1"))].into_iter());
            assert_eq!(count(&ledger, "n1"), offers, "only at first sight");
        }
    }

    #[test]
    fn a_retry_forgets_the_offers_to_its_nodes() {
        let mut ledger = Ledger::default();
        offer(&mut ledger, "n2");
        offer(&mut ledger, "n1");
        ledger.forget(&"n1".into());
        assert_eq!((count(&ledger, "n1"), count(&ledger, "n2")), (0, 1));
        ledger.see([("p-0", &offered(0, "n1"))].into_iter());
        assert_eq!(count(&ledger, "n1"), 0, "the berth is already known");
    }

    #[test]
    fn offers_of_other_digests_are_forgotten() {
        let mut ledger = Ledger::default();
        offer(&mut ledger, "n1");
        assert_eq!(ledger.most(&"n1".into()), 1);
        assert_eq!(ledger.offers(&"n1".into(), &digest(3)), 0);
        ledger.keep(|kept| *kept == digest(2));
        assert_eq!(count(&ledger, "n1"), 1);
        ledger.keep(|kept| *kept == digest(3));
        assert_eq!((count(&ledger, "n1"), ledger.most(&"n1".into())), (0, 0));
        // The forgotten offer cannot be taken back from a later count.
        offer(&mut ledger, "n1");
        ledger.wrote(&write(&taken(1, "n1"), WriteReason::Revoke("Paused", Origin::Pool)));
        assert_eq!(ledger.turns(&"n1".into(), &digest(2)), 1);
    }
}
