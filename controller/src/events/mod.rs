//! Kubernetes events for admins. Nothing depends on them; the objects' status has the same information.

pub mod writer;

use berth_api::berth::{Berth, BerthState, ClosedReason, Outcome};
use berth_api::condition::{CommonReason, find, fleet, pool as types};
use berth_api::fleet::{BootcFleet, BootcFleetStatus};
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus};
use berth_api::{Digest, NodeName, NodeUid};
use berth_core::controller::troubles::TroubleNews;
use berth_core::controller::turns::{Happened, TurnNews};
use berth_core::text;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::runtime::events::{Event, EventType};

/// Reasons of all events that the controller writes.
pub const REASONS: [&str; 36] = [
    "RebootTimedOut",
    "NodeImplausible",
    "NodeDegraded",
    "NodeRecovered",
    "ImageAvailable",
    "ImageAdopted",
    "ImageNotResolved",
    "ImageResolved",
    "ImageFeedFailing",
    "ImageFeedRestored",
    "RolloutComplete",
    "RolloutHalted",
    "RolloutGoesOn",
    "Paused",
    "Resumed",
    "WindowOpened",
    "WindowClosed",
    "BootImageSkew",
    "BootImageWithinLimit",
    "BootImageUnknown",
    "NodeConflict",
    "BerthGone",
    "BerthExcluded",
    "TurnBegan",
    "Rebooting",
    "TurnCompleted",
    "TurnFailed",
    "TurnGivenBack",
    "AgentsSilent",
    "AgentsHeard",
    "RegistryUnreachable",
    "RegistryReached",
    "Unguarded",
    "Guarded",
    "BootstrapUnhealthy",
    "BootstrapHealthy",
];

/// A condition change to report as an event.
struct ConditionEvent {
    condition: &'static str,
    status: &'static str,
    warning: bool,
    /// True if the change ends a state that another event reported.
    is_end: bool,
    reason: &'static str,
    action: &'static str,
}

const fn point(
    condition: &'static str,
    status: &'static str,
    warning: bool,
    reason: &'static str,
    action: &'static str,
) -> ConditionEvent {
    ConditionEvent {
        condition,
        status,
        warning,
        is_end: false,
        reason,
        action,
    }
}

const fn end(
    condition: &'static str,
    status: &'static str,
    reason: &'static str,
    action: &'static str,
) -> ConditionEvent {
    ConditionEvent {
        is_end: true,
        ..point(condition, status, false, reason, action)
    }
}

/// Condition changes of a pool that are reported by events.
const OF_POOL: [ConditionEvent; 14] = [
    point(types::ROLLOUT_HALTED, "True", true, "RolloutHalted", "Halt"),
    end(types::ROLLOUT_HALTED, "False", "RolloutGoesOn", "Resume"),
    point(types::UPDATED, "True", false, "RolloutComplete", "Report"),
    point(types::PAUSED, "True", false, "Paused", "Pause"),
    end(types::PAUSED, "False", "Resumed", "Resume"),
    point(types::WINDOW_OPEN, "True", false, "WindowOpened", "Open"),
    end(types::WINDOW_OPEN, "False", "WindowClosed", "Close"),
    point(types::IMAGE_RESOLVED, "False", true, "ImageNotResolved", "Resolve"),
    end(types::IMAGE_RESOLVED, "True", "ImageResolved", "Resolve"),
    point(types::FEED_FAILING, "True", true, "ImageFeedFailing", "Resolve"),
    end(types::FEED_FAILING, "False", "ImageFeedRestored", "Resolve"),
    point(types::BOOT_IMAGE_SKEW, "True", true, "BootImageSkew", "Refuse"),
    end(types::BOOT_IMAGE_SKEW, "False", "BootImageWithinLimit", "Report"),
    point(types::NODE_CONFLICT, "True", true, "NodeConflict", "Report"),
];

/// Condition changes of the fleet that are reported by events. A pause of the fleet is reported on each pool instead.
const OF_FLEET: [ConditionEvent; 8] = [
    point(fleet::AGENTS_HEALTHY, "False", true, "AgentsSilent", "Report"),
    end(fleet::AGENTS_HEALTHY, "True", "AgentsHeard", "Report"),
    point(
        fleet::REGISTRY_REACHABLE,
        "False",
        true,
        "RegistryUnreachable",
        "Resolve",
    ),
    end(fleet::REGISTRY_REACHABLE, "True", "RegistryReached", "Resolve"),
    point(fleet::GUARDED, "False", true, "Unguarded", "Report"),
    end(fleet::GUARDED, "True", "Guarded", "Report"),
    point(fleet::BOOTSTRAP_HEALTHY, "False", true, "BootstrapUnhealthy", "Report"),
    end(fleet::BOOTSTRAP_HEALTHY, "True", "BootstrapHealthy", "Report"),
];

impl ConditionEvent {
    /// Returns the event's message if the write from `old` to `new` made this change. If the change ends a state, the
    /// condition must have been `True` or `False` in `old`. Any other change must be a warning, or the condition must
    /// exist in `old`.
    fn message(&self, old: &[Condition], new: &[Condition]) -> Option<String> {
        let before = find(old, self.condition).map(|before| before.status.as_str());
        let now = find(new, self.condition)?;
        let is_new = now.status == self.status && before != Some(self.status);
        let is_news = if self.is_end {
            matches!(before, Some("True" | "False"))
        } else {
            self.warning || before.is_some()
        };
        (is_new && is_news).then(|| match now.message.as_str() {
            "" => format!("{} is {}", self.condition, self.status),
            message => message.to_owned(),
        })
    }

    fn note(&self, message: String, about: ObjectReference) -> Note {
        Note::new((self.warning, self.reason, self.action), message, about)
    }
}

/// An event to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// True if the event needs an admin's attention.
    pub warning: bool,
    /// CamelCase reason.
    pub reason: &'static str,
    /// CamelCase name of the action.
    pub action: &'static str,
    /// Message, one line.
    pub message: String,
    /// Object that the event is about.
    pub about: ObjectReference,
    /// Another object involved.
    pub related: Option<ObjectReference>,
}

/// Fixed parts of an event: true if it is a warning, then its reason and its action.
type Kind = (bool, &'static str, &'static str);

impl Note {
    fn new((warning, reason, action): Kind, message: String, about: ObjectReference) -> Self {
        Self {
            warning,
            reason,
            action,
            message,
            about,
            related: None,
        }
    }

    fn of_node(kind: Kind, message: String, node: (&NodeName, &NodeUid), pool: Option<&BootcNodePool>) -> Self {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.0.to_string()),
            uid: Some(node.1.to_string()),
            ..ObjectReference::default()
        };
        Self {
            related: pool.map(|pool| pool.object_ref(&())),
            ..Self::new(kind, message, about)
        }
    }

    /// Event: a node that holds a berth is silent or did not come back from its reboot in time.
    pub fn reboot_timed_out(node: &NodeName, uid: &NodeUid, message: String, pool: Option<&BootcNodePool>) -> Self {
        Self::of_node((true, "RebootTimedOut", "Report"), message, (node, uid), pool)
    }

    /// Event: a node's reports cannot be true.
    pub fn implausible(node: &NodeName, uid: &NodeUid, message: String, pool: Option<&BootcNodePool>) -> Self {
        Self::of_node((true, "NodeImplausible", "Report"), message, (node, uid), pool)
    }

    /// Event: a node became degraded, or recovered.
    pub fn of_trouble(news: &TroubleNews, pool: Option<&BootcNodePool>) -> Self {
        let node = &news.node;
        let (warning, reason, message) = match &news.trouble {
            Some(found) => {
                let message = format!("{}; see `kubectl berth node {node}`", found.line());
                (true, "NodeDegraded", message)
            }
            None => (false, "NodeRecovered", "the node is no longer degraded".to_owned()),
        };
        Self::of_node((warning, reason, "Report"), message, (node, &news.uid), pool)
    }

    /// Event about a node's turn. `None` if another event has announced the reboot. Also `None` if something other than
    /// the node ended the turn: [`Note::closed`] reports berths that the controller closed.
    pub fn of_turn(news: &TurnNews, pool: Option<&BootcNodePool>) -> Option<Self> {
        let (berth, target, node) = (&news.berth, &news.target, &news.node);
        let (kind, message) = match &news.what {
            Happened::Taken => {
                let message = format!(
                    "berth {berth}: the node's update to {target} has begun; the node is drained and then reboots"
                );
                ((false, "TurnBegan", "Drain"), message)
            }
            Happened::Committed { announced: true, .. } => return None,
            Happened::Committed { .. } => {
                let message = format!("berth {berth}: preparations are done; the node reboots into {target}");
                ((false, "Rebooting", "Reboot"), message)
            }
            Happened::Ended { given_back: false, .. } => return None,
            Happened::Ended { outcome, .. } if *outcome == Outcome::Updated.as_str() => {
                let message = format!("berth {berth}: the node runs {target} and became Ready");
                ((false, "TurnCompleted", "GiveBack"), message)
            }
            Happened::Ended { outcome, .. } if *outcome == Outcome::Failed.as_str() => {
                let message = format!("berth {berth}: {target} failed on this node; see `kubectl berth node {node}`");
                ((true, "TurnFailed", "GiveBack"), message)
            }
            Happened::Ended { outcome, .. } => {
                let asked = [Outcome::Revoked, Outcome::Withdrawn].map(Outcome::as_str);
                let message = format!(
                    "berth {berth}: given back without the update ({outcome}); see `kubectl berth node {node}`"
                );
                ((!asked.contains(outcome), "TurnGivenBack", "GiveBack"), message)
            }
        };
        Some(Self::of_node(kind, message, (node, &news.uid), pool))
    }

    /// Events about the changes of a pool's status from `old` to `new`. Each is sent once, even if the leader changes.
    pub fn of_status(pool: &BootcNodePool, old: &BootcNodePoolStatus, new: &BootcNodePoolStatus) -> Vec<Self> {
        let mut notes = Self::of_image(pool, old, new);
        notes.extend(Self::of_unknown_boot_image(pool, old, new));
        let conditions = (&old.conditions, &new.conditions);
        notes.extend(OF_POOL.iter().filter_map(|point| {
            let message = point.message(conditions.0, conditions.1)?;
            Some(point.note(message, pool.object_ref(&())))
        }));
        notes
    }

    /// Events about the changes that the write from `old` to `new` made to the fleet's status.
    pub fn of_fleet(fleet: &BootcFleet, old: &BootcFleetStatus, new: &BootcFleetStatus) -> Vec<Self> {
        let passed = OF_FLEET.iter().filter_map(|point| {
            let message = point.message(&old.conditions, &new.conditions)?;
            Some(point.note(message, fleet.object_ref(&())))
        });
        passed.collect()
    }

    /// Events about a pool's image: another image is available, or was adopted.
    fn of_image(pool: &BootcNodePool, old: &BootcNodePoolStatus, new: &BootcNodePoolStatus) -> Vec<Self> {
        let mut notes = vec![];
        let before = old.available.as_ref().map(|a| &a.digest);
        if let Some(available) = new.available.as_ref().filter(|a| Some(&a.digest) != before) {
            let image = image_words(available.version.as_deref(), &available.digest);
            let message = format!(
                "the tag of {} points to {image}; the pool still uses another digest",
                pool.spec.image_ref()
            );
            let kind = (false, "ImageAvailable", "Watch");
            notes.push(Self::new(kind, message, pool.object_ref(&())));
        }
        if let (Some(before), Some(after)) = (&old.target, &new.target)
            && before.digest != after.digest
        {
            let images = [before, after].map(|image| image_words(image.version.as_deref(), &image.digest));
            let message = format!(
                "{} was adopted from {}; previously {}",
                images[1], after.image, images[0]
            );
            let kind = (false, "ImageAdopted", "Adopt");
            notes.push(Self::new(kind, message, pool.object_ref(&())));
        }
        notes
    }

    /// Event: the boot image cannot be compared with the target. Sent only once for each target.
    fn of_unknown_boot_image(
        pool: &BootcNodePool,
        old: &BootcNodePoolStatus,
        new: &BootcNodePoolStatus,
    ) -> Option<Self> {
        let (target, message) = not_compared(new)?;
        let is_new = not_compared(old).map(|(target, _)| target) != Some(target);
        let kind = (true, "BootImageUnknown", "Report");
        is_new.then(|| Self::new(kind, message, pool.object_ref(&())))
    }

    /// Event: the controller closed a berth that its holder had not given back. `None` for any other write.
    pub fn closed(pool: &BootcNodePool, before: Option<&Berth>, after: &Berth) -> Option<Self> {
        let BerthState::Closed(closed) = &after.state else {
            return None;
        };
        let (reason, warning, why) = match closed.reason {
            ClosedReason::Gone => ("BerthGone", false, "its Node is gone"),
            ClosedReason::Excluded => ("BerthExcluded", true, "its Node is excluded and not Ready"),
            _ => return None,
        };
        let holder = before?.holding()?;
        let berth = after.name();
        let message = format!(
            "berth {berth} of node {} was closed before the node gave it back: {why}",
            holder.node
        );
        Some(Self::new((warning, reason, "Close"), message, pool.object_ref(&())))
    }

    fn event(&self) -> Event {
        Event {
            type_: if self.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: self.reason.to_owned(),
            note: Some(text::note(&self.message)),
            action: self.action.to_owned(),
            secondary: self.related.clone(),
        }
    }
}

fn image_words(version: Option<&str>, digest: &Digest) -> String {
    match version {
        Some(version) => format!("{version} ({digest})"),
        None => digest.to_string(),
    }
}

/// Returns the target and a message if the boot image cannot be compared with it.
fn not_compared(status: &BootcNodePoolStatus) -> Option<(Option<&Digest>, String)> {
    let skew = find(&status.conditions, types::BOOT_IMAGE_SKEW)?;
    let target = status.target.as_ref().map(|target| &target.digest);
    (skew.reason == CommonReason::CannotCompare.as_str()).then(|| (target, skew.message.clone()))
}

#[cfg(test)]
mod tests {
    use berth_api::berth::Offer;
    use berth_api::condition::Word;
    use berth_api::fleet::BootcFleetSpec;
    use berth_api::pool::{Available, BootcNodePoolSpec, Target};
    use berth_core::finding::{self, Subject};

    use super::*;

    #[test]
    fn only_berths_taken_away_are_reported() {
        let pool = BootcNodePool::new("p", BootcNodePoolSpec::default());
        let target = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        let offer = Offer {
            node: "n1".into(),
            uid: "u".into(),
            target,
            open_until: None,
        };
        let offered = Berth::new("p".into(), 0, 1).offered(offer).unwrap();
        let held = offered.taken(&"n1".into(), &"u".into(), None, "b".into()).unwrap();
        let gone = held.ended(ClosedReason::Gone).unwrap();
        let note = Note::closed(&pool, Some(&held), &gone).unwrap();
        assert_eq!(
            (note.reason, note.about.kind.as_deref()),
            ("BerthGone", Some("BootcNodePool"))
        );
        assert!(
            note.message.contains("n1") && note.message.contains("p-0"),
            "{}",
            note.message
        );
        let excluded = Note::closed(&pool, Some(&held), &held.ended(ClosedReason::Excluded).unwrap()).unwrap();
        assert!(excluded.warning && excluded.reason == "BerthExcluded");
        assert_eq!(
            Note::closed(&pool, Some(&offered), &offered.ended(ClosedReason::Gone).unwrap()),
            None,
            "it held nothing"
        );
        assert_eq!(Note::closed(&pool, Some(&held), &held.stamped(9)), None);
    }

    #[test]
    fn a_turn_is_reported_on_its_node() {
        fn note(what: Happened) -> Option<Note> {
            let news = TurnNews {
                pool: "p".into(),
                berth: "p-0".into(),
                node: "n1".into(),
                uid: "u1".into(),
                target: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
                what,
            };
            let pool = BootcNodePool::new("p", BootcNodePoolSpec::default());
            Note::of_turn(&news, Some(&pool))
        }
        fn commits(announced: bool) -> Happened {
            Happened::Committed { drain: None, announced }
        }
        fn ended(outcome: Outcome, given_back: bool) -> Happened {
            Happened::Ended {
                outcome: outcome.as_str(),
                reboot: None,
                given_back,
            }
        }
        for (what, expected) in [
            (Happened::Taken, Some(("TurnBegan", false))),
            (commits(false), Some(("Rebooting", false))),
            (commits(true), None),
            (ended(Outcome::Updated, true), Some(("TurnCompleted", false))),
            (ended(Outcome::Failed, true), Some(("TurnFailed", true))),
            (ended(Outcome::Revoked, true), Some(("TurnGivenBack", false))),
            (ended(Outcome::Withdrawn, true), Some(("TurnGivenBack", false))),
            (ended(Outcome::DrainTimeout, true), Some(("TurnGivenBack", true))),
            (ended(Outcome::RebootBlocked, true), Some(("TurnGivenBack", true))),
            // A berth that the controller closed is reported by `Note::closed` instead.
            (ended(Outcome::Failed, false), None),
        ] {
            let note = note(what);
            assert_eq!(note.as_ref().map(|n| (n.reason, n.warning)), expected, "{what:?}");
            let Some(note) = note else { continue };
            assert!(REASONS.contains(&note.reason), "{} is not listed", note.reason);
            assert!(note.message.starts_with("berth p-0: "), "{}", note.message);
            let (kind, uid) = (note.about.kind.as_deref(), note.about.uid.as_deref());
            assert_eq!((kind, uid), (Some("Node"), Some("u1")));
            let related = note.event().secondary.and_then(|pool| pool.name);
            assert_eq!(related.as_deref(), Some("p"));
        }
    }

    #[test]
    fn a_trouble_is_reported_on_its_node() {
        fn news(trouble: Option<(&str, &str)>) -> TroubleNews {
            TroubleNews {
                node: "n1".into(),
                uid: "u1".into(),
                pool: "p".into(),
                trouble: trouble.map(|(reason, message)| {
                    finding::node::degraded(Subject::Node("n1".into(), "p".into()), Word::stored(reason), message)
                }),
            }
        }
        let pool = BootcNodePool::new("p", BootcNodePoolSpec::default());
        let begun = Note::of_trouble(&news(Some(("DiskFull", "40 MB are free"))), Some(&pool));
        assert!(begun.warning && REASONS.contains(&begun.reason));
        assert_eq!(begun.message, "DiskFull: 40 MB are free; see `kubectl berth node n1`");
        assert_eq!(begun.related.and_then(|pool| pool.name).as_deref(), Some("p"));
        let over = Note::of_trouble(&news(None), None);
        assert!(!over.warning && REASONS.contains(&over.reason));
        assert_eq!(
            (over.about.kind.as_deref(), over.about.uid.as_deref()),
            (Some("Node"), Some("u1"))
        );
    }

    #[test]
    fn a_new_image_is_reported_once() {
        let pool = BootcNodePool::new("p", BootcNodePoolSpec::default());
        fn digest(n: u8) -> Digest {
            format!("sha256:{}", n.to_string().repeat(64)).parse().unwrap()
        }
        fn status(target: u8, available: Option<u8>) -> BootcNodePoolStatus {
            BootcNodePoolStatus {
                target: Some(Target {
                    image: "quay.io/os:1".into(),
                    digest: digest(target),
                    version: Some(format!("{target}.0")),
                    metadata: None,
                    platforms: vec![],
                    publish_time: None,
                }),
                available: available.map(|n| Available {
                    digest: digest(n),
                    version: None,
                    since: jiff::Timestamp::UNIX_EPOCH.into(),
                    seen_seconds: 0,
                }),
                ..BootcNodePoolStatus::default()
            }
        }
        fn told(pool: &BootcNodePool, old: &BootcNodePoolStatus, new: &BootcNodePoolStatus) -> Vec<&'static str> {
            let notes = Note::of_image(pool, old, new);
            notes.iter().map(|note| note.reason).collect()
        }
        assert_eq!(told(&pool, &status(1, None), &status(1, Some(2))), ["ImageAvailable"]);
        assert_eq!(told(&pool, &status(1, Some(2)), &status(2, None)), ["ImageAdopted"]);
        assert!(told(&pool, &status(1, Some(2)), &status(1, Some(2))).is_empty());
        assert!(
            told(&pool, &BootcNodePoolStatus::default(), &status(1, None)).is_empty(),
            "the first one is not reported"
        );
        let adopted = &Note::of_image(&pool, &status(1, None), &status(2, None))[0].message;
        assert!(
            adopted.starts_with("2.0 (sha256:2") && adopted.contains("previously 1.0"),
            "{adopted}"
        );
    }

    type Conditions<'a> = &'a [(&'a str, &'a str)];

    fn conditions(pairs: Conditions<'_>) -> Vec<Condition> {
        let conditions = pairs.iter().map(|(type_, status)| {
            serde_json::from_value(serde_json::json!({
                "type": type_, "status": status, "reason": "R", "message": format!("{type_} {status}"),
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }))
            .unwrap()
        });
        conditions.collect()
    }

    fn notes_of_change(old: Conditions<'_>, new: Conditions<'_>) -> Vec<(&'static str, String)> {
        let pool = BootcNodePool::new("p", BootcNodePoolSpec::default());
        let fleet = BootcFleet::new("cluster", BootcFleetSpec::default());
        let of_pool = [old, new].map(|pairs| BootcNodePoolStatus {
            conditions: conditions(pairs),
            ..BootcNodePoolStatus::default()
        });
        let of_fleet = [old, new].map(|pairs| BootcFleetStatus {
            conditions: conditions(pairs),
            ..BootcFleetStatus::default()
        });
        let notes = Note::of_status(&pool, &of_pool[0], &of_pool[1]).into_iter();
        let notes = notes.chain(Note::of_fleet(&fleet, &of_fleet[0], &of_fleet[1]));
        notes.map(|note| (note.reason, note.message)).collect()
    }

    #[test]
    fn each_change_is_reported_once() {
        for point in OF_POOL.iter().chain(&OF_FLEET) {
            let before = if point.status == "True" { "False" } else { "True" };
            let (now, other) = ((point.condition, point.status), (point.condition, before));
            assert!(REASONS.contains(&point.reason), "{} is not listed", point.reason);
            let expected = vec![(point.reason, format!("{} {}", point.condition, point.status))];
            assert_eq!(notes_of_change(&[other], &[now]), expected);
            assert!(notes_of_change(&[now], &[now]).is_empty(), "{}: once", point.reason);
            let ends = notes_of_change(&[now], &[other]);
            assert!(
                ends.iter().all(|(reason, _)| *reason != point.reason),
                "{}: not at its end",
                point.reason
            );
            let first = notes_of_change(&[], &[now]);
            assert_eq!(!first.is_empty(), point.warning, "the first is news only if it is bad");
            // After `Unknown` only a warning or a start is reported, not an end.
            let unknown = notes_of_change(&[(point.condition, "Unknown")], &[now]);
            assert_eq!(!unknown.is_empty(), point.warning || !point.is_end, "{}", point.reason);
        }
    }

    #[test]
    fn an_unknown_boot_image_is_reported_once_per_target() {
        let pool = BootcNodePool::new("p", BootcNodePoolSpec::default());
        fn status(reason: &str, target: u8) -> BootcNodePoolStatus {
            let condition = serde_json::json!({
                "type": "BootImageSkew", "status": "Unknown", "reason": reason, "message": "4.20.0 and 9.6 use different version schemes",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            BootcNodePoolStatus {
                target: Some(Target {
                    image: "quay.io/os:1".into(),
                    digest: format!("sha256:{}", target.to_string().repeat(64)).parse().unwrap(),
                    version: None,
                    metadata: None,
                    platforms: vec![],
                    publish_time: None,
                }),
                conditions: vec![serde_json::from_value(condition).unwrap()],
                ..BootcNodePoolStatus::default()
            }
        }
        fn told(pool: &BootcNodePool, old: &BootcNodePoolStatus, new: &BootcNodePoolStatus) -> Vec<Note> {
            let notes = Note::of_status(pool, old, new);
            notes.into_iter().filter(|note| note.reason != "ImageAdopted").collect()
        }
        let unknown = status("CannotCompare", 1);
        // A pool that waits for its image or first machine is not reported.
        for old in [
            BootcNodePoolStatus::default(),
            status("ImageNotResolved", 1),
            status("NotReported", 1),
        ] {
            assert!(told(&pool, &BootcNodePoolStatus::default(), &old).is_empty());
            let notes = told(&pool, &old, &unknown);
            let said: Vec<_> = notes
                .iter()
                .map(|note| (note.reason, note.warning, note.message.as_str()))
                .collect();
            assert_eq!(
                said,
                [("BootImageUnknown", true, "4.20.0 and 9.6 use different version schemes")]
            );
        }
        assert!(REASONS.contains(&"BootImageUnknown"));
        assert!(told(&pool, &unknown, &unknown).is_empty());
        assert!(told(&pool, &unknown, &status("NotReported", 1)).is_empty());
        assert_eq!(
            told(&pool, &unknown, &status("CannotCompare", 2)).len(),
            1,
            "another image"
        );
    }

    #[test]
    fn a_note_fits() {
        let note = Note::reboot_timed_out(&"n1".into(), &"u".into(), "ü".repeat(2000), None);
        assert_eq!(note.event().note.map(|n| n.len()), Some(text::MAX_NOTE));
        assert_eq!(note.about.api_version.as_deref(), Some("v1"));
    }
}
