//! Offers, soaks and permits as this process has seen them, timed by its own clock. A restarted controller counts from
//! zero; no safety depends on it. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::berth::{Berth, BerthState, Offer};
use berth_api::node::Staging;
use berth_api::pool::{WaveState, WaveStatus};
use berth_api::seeded::Bug;
use berth_api::{Digest, NodeUid, PoolName};

use crate::Moment;
use crate::controller::snapshot::Objects;
use crate::controller::view::BootcNodeView;

/// Age of each open offer, and the number of offers that each node let lapse, as seen by this process.
#[derive(Debug, Default)]
pub struct Offers {
    open: BTreeMap<String, (Offer, Moment)>,
    lapses: BTreeMap<NodeUid, (Digest, u32)>,
}

impl Offers {
    /// Records the current berths.
    pub fn see<'a>(&mut self, berths: impl Iterator<Item = (&'a str, &'a Berth)>, now: Moment) {
        let mut open = BTreeMap::new();
        for (lease, berth) in berths {
            match &berth.state {
                BerthState::Offered(offer) => {
                    let before = self.open.get(lease).filter(|(before, _)| before == offer);
                    let since = before.map_or(now, |(_, since)| *since);
                    open.insert(lease.to_owned(), (offer.clone(), since));
                }
                // The node takes offers after all.
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

    /// Returns how long an offer has been open.
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

    /// Returns how many offers of that digest the node let lapse.
    pub fn lapses(&self, uid: &NodeUid, target: &Digest) -> u32 {
        self.lapses
            .get(uid)
            .filter(|(digest, _)| digest == target)
            .map_or(0, |(_, lapses)| *lapses)
    }

    /// Returns how many offers of its last digest the node let lapse.
    pub fn lapses_of_any(&self, uid: &NodeUid) -> u32 {
        self.lapses.get(uid).map_or(0, |(_, lapses)| *lapses)
    }

    /// Forgets all other Nodes.
    pub fn keep(&mut self, is_there: impl Fn(&NodeUid) -> bool) {
        self.lapses.retain(|uid, _| is_there(uid));
    }
}

/// How long this process has seen each wave soak.
#[derive(Debug, Default)]
pub struct Soaks(BTreeMap<(PoolName, String), Soak>);

#[derive(Debug)]
struct Soak {
    /// Target that the wave soaks with.
    target: Digest,
    /// Time that earlier leaders counted.
    before: Duration,
    since: Moment,
    seen: Duration,
}

impl Soaks {
    /// Records the progress of a pool's waves towards that target.
    pub fn see(&mut self, pool: &PoolName, target: &Digest, waves: &[WaveStatus], now: Moment) {
        self.0.retain(|(of, wave), soak| {
            of != pool || (soak.target == *target && waves.iter().any(|w| w.name == *wave && is_proven(w)))
        });
        for wave in waves.iter().filter(|w| is_proven(w)) {
            let soak = self.0.entry((pool.clone(), wave.name.clone()));
            let soak = soak.or_insert_with(|| Soak {
                target: target.clone(),
                before: Duration::from_secs(wave.soaked_seconds),
                since: now,
                seen: Duration::ZERO,
            });
            soak.seen = now.since(soak.since);
        }
    }

    /// Returns how long the wave has soaked with that target, as of the last record.
    pub fn soaked(&self, pool: &PoolName, target: &Digest, wave: &str) -> Duration {
        let soak = self
            .0
            .get(&(pool.clone(), wave.to_owned()))
            .filter(|soak| soak.target == *target);
        soak.map_or(Duration::ZERO, |soak| soak.before.saturating_add(soak.seen))
    }
}

fn is_proven(wave: &WaveStatus) -> bool {
    matches!(wave.state, WaveState::Soaking | WaveState::Done)
}

/// A permit to pull that is not used for this long counts as unused. The backoff of an agent whose pulls fail becomes
/// longer than that in the end; its node then queues behind those that had no turn yet.
pub const PERMIT_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Number of permits to pull that each member left unused. The reason does not matter: such a member queues behind
/// those that had no turn yet.
#[derive(Debug, Default)]
pub struct StagingPermits(BTreeMap<String, Permit>);

#[derive(Debug)]
struct Permit {
    digest: Digest,
    idle_since: Option<Moment>,
    unused: u32,
}

impl Permit {
    fn new(digest: &Digest) -> Self {
        Self {
            digest: digest.clone(),
            idle_since: None,
            unused: 0,
        }
    }
}

impl StagingPermits {
    /// Records the current specs and reports.
    pub fn see(&mut self, bootc_nodes: &Objects<BootcNodeView>, now: Moment) {
        self.0.retain(|name, _| bootc_nodes.contains_key(name));
        for (name, host) in bootc_nodes {
            let (Some(spec), Some(report)) = (host.view.spec(), host.view.report()) else {
                continue;
            };
            let digest = spec.image.as_ref().map(|i| &i.digest);
            let Some(digest) =
                digest.filter(|d| report.staged.as_ref() != Some(d) && report.booted.as_ref() != Some(d))
            else {
                self.0.remove(name);
                continue;
            };
            let permit = self.0.entry(name.clone()).or_insert_with(|| Permit::new(digest));
            if permit.digest != *digest {
                *permit = Permit::new(digest);
            }
            let idle = spec.staging == Staging::Allowed && !report.pulling;
            match (idle, permit.idle_since) {
                (true, None) => permit.idle_since = Some(now),
                (true, Some(since)) if now.since(since) >= PERMIT_TIMEOUT => {
                    permit.unused += 1;
                    permit.idle_since = Some(now);
                }
                (true, Some(_)) => {}
                (false, _) => permit.idle_since = None,
            }
        }
    }

    /// Returns how many permits for that digest the node left unused.
    pub fn unused(&self, name: &str, digest: &Digest) -> u32 {
        self.0
            .get(name)
            .filter(|permit| permit.digest == *digest && !Bug::PermitKept.is_awake())
            .map_or(0, |permit| permit.unused)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::snapshot::Entry;

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

    fn digest(n: u8) -> Digest {
        format!("sha256:{}", n.to_string().repeat(64)).parse().unwrap()
    }

    fn wave(name: &str, state: WaveState, soaked_seconds: u64) -> WaveStatus {
        WaveStatus {
            name: name.to_owned(),
            total: 1,
            updated: 1,
            state,
            soaked_seconds,
        }
    }

    #[test]
    fn an_offer_ages_from_first_sight() {
        let mut offers = Offers::default();
        let closed = Berth::new("p".into(), 0, 1);
        let first = closed.offered(offer("u", 1)).unwrap();
        let second = closed.offered(offer("u", 2)).unwrap();
        for (now, berth, age) in [
            (5, &first, 0),
            // A fence is not another offer.
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
    fn another_image_soaks_from_zero() {
        let mut soaks = Soaks::default();
        let pool = PoolName::from("p");
        soaks.see(&pool, &digest(1), &[wave("canary", WaveState::Soaking, 30)], at(0));
        soaks.see(&pool, &digest(1), &[wave("canary", WaveState::Done, 30)], at(60));
        assert_eq!(
            soaks.soaked(&pool, &digest(1), "canary").as_secs(),
            90,
            "what a former leader has seen counts"
        );
        // The plan for another target is made before its waves are recorded.
        assert_eq!(soaks.soaked(&pool, &digest(2), "canary"), Duration::ZERO);
        soaks.see(&pool, &digest(2), &[wave("canary", WaveState::Active, 30)], at(61));
        assert_eq!(soaks.soaked(&pool, &digest(1), "canary"), Duration::ZERO);
    }

    #[test]
    fn a_wave_soaks_only_while_proven() {
        let mut soaks = Soaks::default();
        let pool = PoolName::from("p");
        let target = offer("u", 1).target;
        for (now, canary, soaked) in [
            (0, WaveState::Active, 0),
            (10, WaveState::Active, 0),
            (20, WaveState::Soaking, 0),
            (50, WaveState::Soaking, 30),
            // A member fell back.
            (60, WaveState::Active, 0),
            (70, WaveState::Soaking, 0),
            (75, WaveState::Done, 5),
        ] {
            let waves = [wave("canary", canary, 0), wave("other", WaveState::Soaking, 0)];
            soaks.see(&pool, &target, &waves, at(now));
            assert_eq!(soaks.soaked(&pool, &target, "canary").as_secs(), soaked, "{now}");
        }
    }

    fn host(staging: &str, status: Value) -> Value {
        let image = json!({ "ref": "r.io/os", "digest": digest(2), "indexDigest": digest(2) });
        let spec = json!({ "staging": staging, "image": image });
        json!({ "metadata": { "name": "n1" }, "spec": spec, "status": status })
    }

    #[test]
    fn a_permit_counts_as_unused_after_a_while() {
        let mut permits = StagingPermits::default();
        let pulled = json!({
            "type": "ImagePulledFromRegistry", "status": "Unknown", "reason": "Pulling", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let idle = host("Allowed", json!({}));
        let pulls = host("Allowed", json!({ "conditions": [pulled] }));
        let held = host("Held", json!({}));
        let staged = host("Allowed", json!({ "staged": { "digest": digest(2) } }));
        let booted = host("Allowed", json!({ "booted": { "digest": digest(2) } }));
        let whole = PERMIT_TIMEOUT.as_secs();
        for (what, host, now, unused) in [
            ("first", &idle, 0, 0),
            ("soon", &idle, whole - 1, 0),
            ("unused once", &idle, whole, 1),
            ("soon again", &idle, whole + 1, 1),
            ("unused twice", &idle, 2 * whole, 2),
            ("it pulls", &pulls, 2 * whole + 1, 2),
            ("it pulled in between", &idle, 3 * whole, 2),
            ("it has no permit", &held, 5 * whole, 2),
            ("it is staged", &staged, 6 * whole, 0),
            ("not long ago", &idle, 6 * whole, 0),
            ("it is asked again", &idle, 7 * whole, 1),
            ("it is booted", &booted, 6 * whole, 0),
            ("not long ago", &idle, 6 * whole, 0),
            ("it is asked again", &idle, 7 * whole, 1),
        ] {
            let view = BootcNodeView::of(serde_json::from_value(host.clone()).unwrap());
            permits.see(&[("n1".to_owned(), Entry::new(view))].into(), at(now));
            assert_eq!([1, 2].map(|n| permits.unused("n1", &digest(n))), [0, unused], "{what}");
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
