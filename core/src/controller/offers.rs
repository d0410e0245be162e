//! Ages of open offers, and counts of offers that lapsed because the node did not take them. Only offers that this
//! process has seen count: a restarted controller counts from zero. No invariant depends on the counts. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::berth::{Berth, BerthState, Offer};
use berth_api::seeded::Bug;
use berth_api::{Digest, NodeUid};

use crate::Moment;

/// Ages of the open offers, and the number of offers that each node let lapse. Only offers that this process has seen
/// count.
#[derive(Debug, Default)]
pub struct Offers {
    open: BTreeMap<String, (Offer, Moment)>,
    lapses: BTreeMap<NodeUid, (Digest, u32)>,
}

impl Offers {
    /// Records which berths are offered and which are held now.
    pub fn see<'a>(&mut self, berths: impl Iterator<Item = (&'a str, &'a Berth)>, now: Moment) {
        let mut open = BTreeMap::new();
        for (lease, berth) in berths {
            match &berth.state {
                BerthState::Offered(offer) => {
                    let before = self.open.get(lease).filter(|(before, _)| before == offer);
                    let since = before.map_or(now, |(_, since)| *since);
                    open.insert(lease.to_owned(), (offer.clone(), since));
                }
                // The node took an offer, so its earlier lapsed offers no longer count.
                BerthState::Held(holding) => {
                    self.lapses.remove(&holding.uid);
                    if Bug::ExpiredBerthStolen.is_awake() {
                        let since = self.open.get(lease).map_or(now, |(_, since)| *since);
                        let offer = Offer {
                            node: holding.node.clone(),
                            uid: holding.uid.clone(),
                            target: holding.target.clone(),
                            open_until: None,
                        };
                        open.insert(lease.to_owned(), (offer, since));
                    }
                }
                BerthState::Closed(_) => {}
            }
        }
        self.open = open;
    }

    /// Returns how long the offer of this Lease has been open. Zero if the Lease has no open offer.
    pub fn age(&self, lease: &str, now: Moment) -> Duration {
        self.open
            .get(lease)
            .map_or(Duration::ZERO, |(_, since)| now.since(*since))
    }

    /// Records that an offer was closed because its node did not take it.
    pub fn lapsed(&mut self, offer: &Offer) {
        let lapses = self.lapses(&offer.uid, &offer.target).saturating_add(1);
        self.lapses.insert(offer.uid.clone(), (offer.target.clone(), lapses));
    }

    /// Returns how many offers of this digest the node has let lapse since it last took an offer.
    pub fn lapses(&self, uid: &NodeUid, target: &Digest) -> u32 {
        self.lapses
            .get(uid)
            .filter(|(digest, _)| digest == target)
            .map_or(0, |(_, lapses)| *lapses)
    }

    /// Returns how many offers the node has let lapse since it last took an offer. If these offers were for several
    /// digests, counts only the offers for the latest digest.
    pub fn lapses_of_any(&self, uid: &NodeUid) -> u32 {
        self.lapses.get(uid).map_or(0, |(_, lapses)| *lapses)
    }

    /// Keeps only the Nodes that `is_there` accepts.
    pub fn keep(&mut self, is_there: impl Fn(&NodeUid) -> bool) {
        self.lapses.retain(|uid, _| is_there(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(uid: &str, until: i64) -> Offer {
        Offer {
            node: "n1".into(),
            uid: uid.into(),
            target: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
            open_until: Some(jiff::Timestamp::from_second(until).unwrap()),
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment::after(Duration::from_secs(seconds))
    }

    #[test]
    fn an_offer_ages_from_first_sight() {
        let mut offers = Offers::default();
        let closed = Berth::new("p".into(), 0, 1);
        let first = closed.offered(offer("u", 1)).unwrap();
        let second = closed.offered(offer("u", 2)).unwrap();
        for (now, berth, age) in [
            (5, &first, 0),
            // Fencing a berth does not reset the age of its offer.
            (95, &first.stamped(2), 90),
            (96, &second, 0),
            (100, &second, 4),
            (101, &closed, 0),
            (102, &second, 0),
        ] {
            offers.see([("p-0", berth)].into_iter(), at(now));
            assert_eq!(offers.age("p-0", at(now)).as_secs(), age, "{now}");
        }
    }

    #[test]
    fn lapses_are_counted_by_node_and_digest() {
        let mut offers = Offers::default();
        let one = offer("u", 1);
        offers.lapsed(&one);
        offers.lapsed(&one);
        offers.lapsed(&offer("v", 1));
        let other = format!("sha256:{}", "1".repeat(64)).parse().unwrap();
        assert_eq!(
            [offers.lapses(&one.uid, &one.target), offers.lapses(&one.uid, &other)],
            [2, 0]
        );
        assert_eq!(
            [offers.lapses_of_any(&one.uid), offers.lapses_of_any(&"w".into())],
            [2, 0]
        );
        let offered = Berth::new("p".into(), 0, 1).offered(one.clone()).unwrap();
        let taken = offered.taken(&one.node, &one.uid, None, "b".into()).unwrap();
        offers.see([("p-0", &taken)].into_iter(), Moment::default());
        assert_eq!(
            [
                offers.lapses(&one.uid, &one.target),
                offers.lapses(&"v".into(), &one.target)
            ],
            [0, 1]
        );
        offers.keep(|uid| uid.as_str() != "v");
        assert_eq!(offers.lapses(&"v".into(), &one.target), 0);
    }
}
