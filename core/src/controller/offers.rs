//! Ages of open offers, measured by this process: a restarted controller measures from zero. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::berth::{Berth, BerthState, Offer};
use berth_api::seeded::Bug;

use crate::Moment;

/// Ages of the open offers, since this process first saw them.
#[derive(Debug, Default)]
pub struct Offers {
    open: BTreeMap<String, (Offer, Moment)>,
}

impl Offers {
    /// Records which berths are offered now.
    pub fn see<'a>(&mut self, berths: impl Iterator<Item = (&'a str, &'a Berth)>, now: Moment) {
        let mut open = BTreeMap::new();
        for (lease, berth) in berths {
            match &berth.state {
                BerthState::Offered(offer) => {
                    let before = self.open.get(lease).filter(|(before, _)| before == offer);
                    let since = before.map_or(now, |(_, since)| *since);
                    open.insert(lease.to_owned(), (offer.clone(), since));
                }
                BerthState::Held(holding) if Bug::ExpiredBerthStolen.is_awake() => {
                    let since = self.open.get(lease).map_or(now, |(_, since)| *since);
                    let offer = Offer {
                        node: holding.node.clone(),
                        uid: holding.uid.clone(),
                        target: holding.target.clone(),
                        open_until: None,
                    };
                    open.insert(lease.to_owned(), (offer, since));
                }
                BerthState::Held(_) | BerthState::Closed(_) => {}
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
}
