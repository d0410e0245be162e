//! Counts of permits to pull that members left unused. The counts start from zero after a restart, and no invariant
//! depends on them. Pure.

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

/// Number of permits to pull that each member left unused. Members with fewer unused permits get a permit first.
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
    /// Records which nodes have a permit and which of them pull.
    pub fn see(&mut self, bootc_nodes: &Objects<BootcNodeView>, now: Moment) {
        self.0.retain(|name, _| bootc_nodes.contains_key(name));
        for (name, host) in bootc_nodes {
            let (Some(spec), Some(report)) = (host.view.spec(), host.view.report()) else {
                continue;
            };
            let digest = spec.image.as_ref().map(|i| &i.digest);
            let Some(digest) =
                digest.filter(|d| report.images.staged.as_ref() != Some(d) && report.images.booted.as_ref() != Some(d))
            else {
                self.0.remove(name);
                continue;
            };
            let permit = self.0.entry(name.clone()).or_insert_with(|| Permit::new(digest));
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
}
