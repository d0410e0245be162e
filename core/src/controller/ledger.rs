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
/// An offer does not count if the controller took it back because of the pool, for example because a window has closed.
/// The counts are kept in memory. A new leader counts the last offer of each berth.
#[derive(Debug, Default)]
pub struct Ledger {
    offers: BTreeMap<NodeName, BTreeMap<Digest, u32>>,
    /// For each Lease, its last counted offer. Removed when the offer no longer counts.
    last: BTreeMap<String, (NodeName, Digest)>,
    /// Names of the Leases that this process has seen.
    seen: BTreeSet<String>,
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
            (WriteReason::Withdrawn(_, Origin::Pool) | WriteReason::Revoke(_, Origin::Pool), _) => self.excuse(lease),
            (WriteReason::Unrevoke, BerthState::Held(holding)) if !self.last.contains_key(lease) => {
                self.count(lease, &holding.node, &holding.target);
            }
            _ => {}
        }
    }

    fn count(&mut self, lease: &str, node: &NodeName, target: &Digest) {
        let count = self.offers.entry(node.clone()).or_default();
        let count = count.entry(target.clone()).or_default();
        *count = count.saturating_add(1);
        self.last.insert(lease.to_owned(), (node.clone(), target.clone()));
    }

    /// Takes back the count of the Lease's last offer.
    fn excuse(&mut self, lease: &str) {
        let Some((node, target)) = self.last.remove(lease) else {
            return;
        };
        let counts = self.offers.get_mut(&node);
        if let Some(count) = counts.and_then(|counts| counts.get_mut(&target)) {
            *count = count.saturating_sub(1);
        }
    }

    /// Returns how many offers of this digest the node has had.
    pub fn offers(&self, node: &NodeName, target: &Digest) -> u32 {
        if Bug::BadTurnsForgotten.is_awake() {
            return 0;
        }
        let counts = self.offers.get(node);
        counts
            .and_then(|counts| counts.get(target))
            .copied()
            .unwrap_or_default()
    }

    /// Returns how many offers the node has had, of the digest that it was offered most often.
    pub fn most(&self, node: &NodeName) -> u32 {
        let counts = self.offers.get(node).into_iter().flat_map(BTreeMap::values);
        counts.copied().max().unwrap_or_default()
    }

    /// Forgets all offers to the node, because an admin requested a retry.
    pub fn forget(&mut self, node: &NodeName) {
        self.offers.remove(node);
        self.last.retain(|_, (name, _)| name != node);
    }

    /// Forgets all offers of digests that `is_kept` rejects. A Node that is deleted keeps its count, because a new Node
    /// of the same name may be the same machine.
    pub fn keep(&mut self, is_kept: impl Fn(&Digest) -> bool) {
        for counts in self.offers.values_mut() {
            counts.retain(|digest, _| is_kept(digest));
        }
        self.offers.retain(|_, counts| !counts.is_empty());
        self.last.retain(|_, (_, digest)| is_kept(digest));
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
    fn an_offer_that_a_gate_ends_does_not_count() {
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
            assert_eq!(count(&ledger, "n1"), 1, "{why:?}");
            ledger.wrote(&write(&berth, why));
            assert_eq!(count(&ledger, "n1"), 1, "once per offer");
            ledger.wrote(&write(&taken(0, "n1"), WriteReason::Unrevoke));
            assert_eq!(count(&ledger, "n1"), 2, "the turn continues");
            ledger.wrote(&write(&taken(0, "n1"), WriteReason::Unrevoke));
            assert_eq!(count(&ledger, "n1"), 2, "the turn counts once");
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
        assert_eq!(count(&ledger, "n1"), 1);
    }
}
