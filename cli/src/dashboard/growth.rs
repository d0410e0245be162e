//! Detects changed timelines without drawing them. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use berth_api::Digest;
use berth_api::node::BootcNode;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::snapshot::Snapshot;
use crate::timeline::{WIDE, last_update, targets};
use crate::unreadable::pool_of;

/// Minimum time between two looks.
const LOOK_INTERVAL: SignedDuration = SignedDuration::from_secs(1);

/// Timelines as they were last reported.
#[derive(Debug, Default)]
pub(super) struct Growth {
    looked: Option<Timestamp>,
    seen: BTreeMap<String, Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    drawn: Timestamp,
    outline: Outline,
}

/// Outline of a pool's timeline. It stays the same while chapters only last longer.
#[derive(Debug, Clone, Copy, Default)]
struct Outline {
    hash: u64,
    /// Start of the first chapter.
    begin: Option<Timestamp>,
    /// True if a chapter has not ended.
    lasts: bool,
}

impl Growth {
    /// Returns the pools whose timelines have changed since they were last returned, sorted by name. Looks at most once
    /// a second.
    pub(super) fn changed(&mut self, snapshot: &Snapshot, now: Timestamp) -> Vec<String> {
        let is_soon = self.looked.is_some_and(|looked| {
            let waited = now.duration_since(looked);
            !waited.is_negative() && waited < LOOK_INTERVAL
        });
        if is_soon {
            return vec![];
        }
        self.looked = Some(now);
        let outlines = outlines(snapshot);
        let mut changed: Vec<String> = self
            .seen
            .keys()
            .filter(|pool| !outlines.contains_key(*pool))
            .cloned()
            .collect();
        self.seen.retain(|pool, _| outlines.contains_key(pool));
        for (pool, outline) in outlines {
            let known = self.seen.get(&pool);
            if known.is_none_or(|known| known.is_outdated(outline, now)) {
                self.seen.insert(pool.clone(), Seen { drawn: now, outline });
                changed.push(pool);
            }
        }
        changed.sort();
        changed
    }
}

impl Seen {
    fn is_outdated(&self, outline: Outline, now: Timestamp) -> bool {
        if self.outline.hash != outline.hash {
            return true;
        }
        let Some(begin) = outline.begin.filter(|_| outline.lasts) else {
            return false;
        };
        // A chapter that lasts is a pixel longer after this time.
        let pixel = now.as_second().saturating_sub(begin.as_second()) / i64::from(WIDE);
        now.as_second().saturating_sub(self.drawn.as_second()) >= pixel.max(1)
    }
}

fn outlines(snapshot: &Snapshot) -> BTreeMap<String, Outline> {
    let mut nodes: BTreeMap<&str, Vec<&BootcNode>> = BTreeMap::new();
    for bootc in &snapshot.bootc_nodes {
        nodes.entry(pool_of(bootc)).or_default().push(&bootc.object);
    }
    let mut outlines = BTreeMap::new();
    for pool in snapshot.shown() {
        let name = pool.name_any();
        let members = nodes.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        outlines.insert(name, outline(members, &targets(pool)));
    }
    outlines
}

/// Returns the outline of a pool's newest rollout. As in the picture, updates to other images do not count as soon as a
/// node has begun to update to the target.
fn outline(members: &[&BootcNode], targets: &BTreeSet<&Digest>) -> Outline {
    let (mut newest, mut all) = (Outline::default(), Outline::default());
    let mut hash = 0_u64;
    for node in members {
        let mut hasher = DefaultHasher::new();
        node.metadata.name.hash(&mut hasher);
        if let Some(update) = last_update(node) {
            let is_newest = targets.contains(&update.to.digest);
            (&update.to.digest, is_newest).hash(&mut hasher);
            for chapter in &update.chapters {
                let start = chapter.start_time.as_ref().map(|time| time.0);
                let end = chapter.end_time.as_ref().map(|time| time.0);
                (chapter.name.as_str(), start, end).hash(&mut hasher);
                all.add(start, end);
                if is_newest {
                    newest.add(start, end);
                }
            }
        }
        // The order of the nodes does not matter.
        hash = hash.wrapping_add(hasher.finish());
    }
    let shown = if newest.begin.is_some() { newest } else { all };
    Outline { hash, ..shown }
}

impl Outline {
    fn add(&mut self, start: Option<Timestamp>, end: Option<Timestamp>) {
        let Some(start) = start else { return };
        self.begin = Some(self.begin.map_or(start, |begin| begin.min(start)));
        self.lasts |= end.is_none();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DIGEST: &str = "sha256:2222222222222222222222222222222222222222222222222222222222222222";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn snapshot(chapters: Value) -> Snapshot {
        let update = json!({ "to": { "digest": DIGEST }, "chapters": chapters });
        serde_json::from_value(json!({
            "pools": [{ "metadata": { "name": "p" }, "spec": { "nodeSelector": {}, "image": { "ref": "r" } } }],
            "bootcNodes": [{
                "metadata": { "name": "n" }, "spec": { "poolName": "p", "nodeUID": "u" },
                "status": { "timeline": { "updates": [update] } },
            }],
        }))
        .unwrap()
    }

    fn drains(start: i64, end: Option<i64>) -> Value {
        let mut chapter = json!({ "name": "Drained", "startTime": at(start).to_string() });
        if let Some(end) = end {
            chapter["endTime"] = json!(at(end).to_string());
        }
        json!([chapter])
    }

    #[test]
    fn a_change_is_reported_once() {
        let mut growth = Growth::default();
        let ended = snapshot(drains(1_000, Some(1_010)));
        assert_eq!(growth.changed(&ended, at(2_000)), ["p"], "the first look");
        assert!(growth.changed(&ended, at(2_001)).is_empty());
        let longer = snapshot(drains(1_000, Some(1_020)));
        assert_eq!(growth.changed(&longer, at(2_002)), ["p"]);
        assert!(
            growth.changed(&longer, at(9_000)).is_empty(),
            "ended chapters do not grow"
        );
        assert_eq!(
            growth.changed(&Snapshot::default(), at(9_001)),
            ["p"],
            "the pool is gone"
        );
        assert!(growth.changed(&Snapshot::default(), at(9_002)).is_empty());
    }

    #[test]
    fn a_chapter_that_lasts_grows() {
        let mut growth = Growth::default();
        let lasts = snapshot(drains(1_000, None));
        assert_eq!(growth.changed(&lasts, at(1_010)), ["p"]);
        let soon = at(1_010) + SignedDuration::from_millis(250);
        assert!(growth.changed(&lasts, soon).is_empty(), "at most once a second");
        assert_eq!(growth.changed(&lasts, at(1_011)), ["p"]);
        assert_eq!(growth.changed(&lasts, at(1_000 + 9_000)), ["p"]);
        assert!(
            growth.changed(&lasts, at(1_000 + 9_005)).is_empty(),
            "less than a pixel"
        );
        assert_eq!(growth.changed(&lasts, at(1_000 + 9_010)), ["p"]);
    }
}
