//! How members use their permits to pull: permits that they left unused, and pulls that do not end. Both start from zero
//! after a restart, and no invariant depends on them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::Digest;
use berth_api::node::Staging;
use berth_api::seeded::Bug;

use crate::Moment;
use crate::controller::snapshot::Objects;
use crate::controller::view::BootcNodeView;

/// If a member has a permit and does not pull for this long, the permit counts as left unused. The permit counts once
/// more after each further period. After repeated failures, an agent's backoff is longer than this. The node then
/// queues behind nodes that had no permit yet.
pub const PERMIT_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// If a member reports pulls of one digest for this long in total, its pull no longer counts against `maxStaging`. An
/// agent ends a pull after two hours, so a longer pull is a false report, or a retry after a pull that took too long.
pub const PULL_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// Use of the permits to pull, by node name. Members with fewer unused permits get a permit first.
#[derive(Debug, Default)]
pub struct StagingPermits {
    permits: BTreeMap<String, Permit>,
    pulls: BTreeMap<String, Pulls>,
}

/// How long a member has reported pulls of a digest, in total. The time counts by this process's clock, and continues
/// whatever the member reports in between.
#[derive(Debug)]
struct Pulls {
    digest: Digest,
    total: Duration,
    /// Time of the last look, if the member pulled then.
    last: Option<Moment>,
}

impl Pulls {
    fn see(&mut self, digest: &Digest, pulling: bool, now: Moment) {
        if self.digest != *digest {
            *self = Self {
                digest: digest.clone(),
                total: Duration::ZERO,
                last: None,
            };
        }
        if let Some(last) = self.last {
            self.total += now.since(last);
        }
        self.last = pulling.then_some(now);
    }
}

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
    /// Records which nodes have a permit and which of them pull.
    pub fn see(&mut self, bootc_nodes: &Objects<BootcNodeView>, now: Moment) {
        self.permits.retain(|name, _| bootc_nodes.contains_key(name));
        self.pulls.retain(|name, _| bootc_nodes.contains_key(name));
        for (name, host) in bootc_nodes {
            let (Some(spec), Some(report)) = (host.view.spec(), host.view.report()) else {
                continue;
            };
            let digest = spec.image.as_ref().map(|i| &i.digest);
            if let Some(digest) = digest {
                let pulls = self.pulls.entry(name.clone()).or_insert_with(|| Pulls {
                    digest: digest.clone(),
                    total: Duration::ZERO,
                    last: None,
                });
                pulls.see(digest, report.pull.pulling, now);
            }
            let Some(digest) =
                digest.filter(|d| report.images.staged.as_ref() != Some(d) && report.images.booted.as_ref() != Some(d))
            else {
                self.permits.remove(name);
                continue;
            };
            let permit = self.permits.entry(name.clone()).or_insert_with(|| Permit::new(digest));
            if permit.digest != *digest {
                *permit = Permit::new(digest);
            }
            let idle = spec.staging == Staging::Allowed && !report.pull.pulling;
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
        self.permits
            .get(name)
            .filter(|permit| permit.digest == *digest && !Bug::PermitKept.is_awake())
            .map_or(0, |permit| permit.unused)
    }

    /// True if the node has reported pulls of that digest for longer than an agent lets a pull take.
    pub fn is_overlong(&self, name: &str, digest: &Digest) -> bool {
        let pulls = self.pulls.get(name).filter(|pulls| pulls.digest == *digest);
        pulls.is_some_and(|pulls| pulls.total >= PULL_LIMIT) && !Bug::EndlessPullCounts.is_awake()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::snapshot::Entry;

    fn at(seconds: u64) -> Moment {
        Moment::after(Duration::from_secs(seconds))
    }

    fn digest(n: u8) -> Digest {
        format!("sha256:{}", n.to_string().repeat(64)).parse().unwrap()
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
            ("the node pulled in between", &idle, 3 * whole, 2),
            ("the node has no permit", &held, 5 * whole, 2),
            ("the image is staged", &staged, 6 * whole, 0),
            ("not long ago", &idle, 6 * whole, 0),
            ("it is asked again", &idle, 7 * whole, 1),
            ("the image is booted", &booted, 6 * whole, 0),
            ("not long ago", &idle, 6 * whole, 0),
            ("it is asked again", &idle, 7 * whole, 1),
        ] {
            let view = BootcNodeView::of(serde_json::from_value(host.clone()).unwrap());
            permits.see(&[("n1".to_owned(), Entry::new(view))].into(), at(now));
            assert_eq!([1, 2].map(|n| permits.unused("n1", &digest(n))), [0, unused], "{what}");
        }
    }

    #[test]
    fn a_pull_that_does_not_end_is_overlong() {
        let pulled = json!({
            "type": "ImagePulledFromRegistry", "status": "Unknown", "reason": "Pulling", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let pulls = host("Allowed", json!({ "conditions": [pulled] }));
        let staged = host("Allowed", json!({ "staged": { "digest": digest(2) } }));
        let half = PULL_LIMIT.as_secs() / 2;
        let mut permits = StagingPermits::default();
        for (what, host, now, is_overlong) in [
            ("the pull begins", &pulls, 0, false),
            ("half of the time", &pulls, half, false),
            ("the node reports the image as staged", &staged, half + 1, false),
            ("the pull begins again", &pulls, 3 * half, false),
            ("not quite", &pulls, 4 * half - 2, false),
            ("the whole time", &pulls, 4 * half - 1, true),
            ("nothing resets it", &staged, 4 * half, true),
        ] {
            let view = BootcNodeView::of(serde_json::from_value(host.clone()).unwrap());
            permits.see(&[("n1".to_owned(), Entry::new(view))].into(), at(now));
            assert_eq!(permits.is_overlong("n1", &digest(2)), is_overlong, "{what}");
            assert!(!permits.is_overlong("n1", &digest(1)), "{what}");
        }
    }
}
