//! Conditions for tools that use kstatus: `Ready`, `Reconciling` and `Stalled`, derived from the other conditions.

use berth_api::condition::{self, CommonReason, Verdict, pool as types};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::controller::image::ResolveReason;

/// Reasons of `Degraded` that need a person to act. Until a person acts, the pool has less capacity or does not update
/// at all.
pub(super) const POOL_TROUBLES: [&str; 6] = [
    "InvalidSelector",
    "UnreadableLease",
    "NameTaken",
    "WriteRefused",
    "OrderCycle",
    "UnknownPool",
];
/// Reasons of `ImageResolved` and `FeedFailing` that do not come from a registry and need a person to act.
const REFUSALS: [CommonReason; 3] = [
    CommonReason::NoSuchPlatform,
    CommonReason::BootImageSkew,
    CommonReason::RegistryNotAllowed,
];

/// True if an image with this reason of `ImageResolved` stays unresolved until a person acts. False for a missing
/// image, which may still be pushed, and for a registry that refuses requests.
fn is_final(reason: &str) -> bool {
    match ResolveReason::from_word(reason) {
        Some(ResolveReason::ImageNotFound | ResolveReason::DigestUnavailable | ResolveReason::RegistryRefused) => false,
        _ => ends_feed(reason),
    }
}

/// True if a pool with this reason of `FeedFailing` gets no new images of its tag until a person acts.
fn ends_feed(reason: &str) -> bool {
    match ResolveReason::from_word(reason) {
        Some(known) => !known.is_passing(),
        None => REFUSALS.iter().any(|refusal| refusal.as_str() == reason),
    }
}

/// Derives `Ready`, `Reconciling` and `Stalled` from a pool's other conditions. `follows` is true if the pool adopts
/// new images automatically.
pub(super) fn summary(conditions: &[Condition], follows: bool) -> [(&'static str, Verdict); 3] {
    let (ready, reconciling, stalled) = match state(conditions, follows) {
        State::Ready(why) => (Verdict::repeats(true, why), as_expected(), as_expected()),
        State::Stalled(why) => (
            Verdict::repeats(false, why),
            Verdict::no(CommonReason::Stalled, ""),
            Verdict::repeats(true, why),
        ),
        State::Paused(why) => (
            Verdict::repeats(false, why),
            Verdict::no(CommonReason::Paused, ""),
            as_expected(),
        ),
        State::Reconciling(Some(why)) => (Verdict::repeats(false, why), Verdict::repeats(true, why), as_expected()),
        State::Reconciling(None) => (
            Verdict::no(CommonReason::Progressing, ""),
            Verdict::yes(CommonReason::Progressing, ""),
            as_expected(),
        ),
    };
    [
        (types::READY, ready),
        (types::RECONCILING, reconciling),
        (types::STALLED, stalled),
    ]
}

fn as_expected() -> Verdict {
    Verdict::no(CommonReason::AsExpected, "")
}

/// State of a pool. Holds the condition that the derived conditions copy their reason and message from.
enum State<'a> {
    Ready(&'a Condition),
    Stalled(&'a Condition),
    Paused(&'a Condition),
    Reconciling(Option<&'a Condition>),
}

fn state(conditions: &[Condition], follows: bool) -> State<'_> {
    let progressing = condition::find(conditions, types::PROGRESSING);
    if progressing.is_some_and(|c| c.reason == "Deleting") {
        return State::Reconciling(progressing);
    }
    let degraded = condition::find_true(conditions, types::DEGRADED);
    let trouble = degraded.filter(|c| POOL_TROUBLES.contains(&c.reason.as_str()));
    let resolved = condition::find(conditions, types::IMAGE_RESOLVED);
    let refused = resolved.filter(|c| c.status == "False" && is_final(&c.reason));
    let halted = condition::find_true(conditions, types::ROLLOUT_HALTED);
    if let Some(why) = halted.or(trouble).or(refused) {
        return State::Stalled(why);
    }
    // A pool that selects no node is ready.
    let updated = condition::find(conditions, types::UPDATED);
    if let Some(done) = updated.filter(|c| c.status == "True" || c.reason == "NoNodes") {
        // A running rollout does not need new images of the tag, so `FeedFailing` stalls the pool only after the
        // rollout.
        let failing = condition::find_true(conditions, types::FEED_FAILING);
        let dead = failing.filter(|c| follows && ends_feed(&c.reason));
        return match dead {
            Some(dead) => State::Stalled(dead),
            None => State::Ready(done),
        };
    }
    match condition::find_true(conditions, types::PAUSED) {
        Some(paused) => State::Paused(paused),
        None => State::Reconciling(progressing),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::condition::{Word, set};
    use jiff::Timestamp;

    use super::*;

    /// Formats the derived conditions of a pool that follows its tag, such as `T F F AllUpdated`. The parts are
    /// `Ready`, `Reconciling`, `Stalled`, and the reason of `Ready`.
    fn shown(of: &[(&'static str, &str, &'static str)]) -> String {
        shown_of(of, true)
    }

    fn shown_of(of: &[(&'static str, &str, &'static str)], follows: bool) -> String {
        let mut conditions = vec![];
        for (type_, status, reason) in of {
            let verdict = match *status {
                "True" => Verdict::yes(Word::stored(reason), "words"),
                "False" => Verdict::no(Word::stored(reason), "words"),
                _ => Verdict::unknown(Word::stored(reason), "words"),
            };
            set(&mut conditions, type_, verdict, None, Timestamp::UNIX_EPOCH);
        }
        let all = summary(&conditions, follows);
        let states: Vec<_> = all
            .iter()
            .map(|(_, v)| v.status.map_or("?", |yes| if yes { "T" } else { "F" }))
            .collect();
        format!("{} {}", states.join(" "), all[0].1.reason)
    }

    fn waiting(more: &[(&'static str, &'static str, &'static str)]) -> String {
        let waits = [
            ("Updated", "False", "NotAllUpdated"),
            ("Progressing", "False", "OutsideWindow"),
        ];
        shown(&[&waits[..], more].concat())
    }

    #[test]
    fn each_state_of_a_pool_has_its_words() {
        for (found, expected) in [
            (shown(&[]), "F T F Progressing"),
            (shown(&[("Updated", "True", "AllUpdated")]), "T F F AllUpdated"),
            (shown(&[("Updated", "Unknown", "NoNodes")]), "T F F NoNodes"),
            (waiting(&[]), "F T F OutsideWindow"),
            (waiting(&[("Paused", "True", "PausedByAdmin")]), "F F F PausedByAdmin"),
            (
                waiting(&[("RolloutHalted", "True", "TooManyFailures")]),
                "F F T TooManyFailures",
            ),
            (waiting(&[("Degraded", "True", "NodesDegraded")]), "F T F OutsideWindow"),
            (waiting(&[("Degraded", "True", "OrderCycle")]), "F F T OrderCycle"),
            (
                waiting(&[("ImageResolved", "False", "RegistryUnavailable")]),
                "F T F OutsideWindow",
            ),
            (
                waiting(&[("ImageResolved", "False", "NotBootable")]),
                "F F T NotBootable",
            ),
            // The image that the tag points to lacks a platform, so the pool keeps its current image.
            (
                waiting(&[("ImageResolved", "True", "NoSuchPlatform")]),
                "F T F OutsideWindow",
            ),
        ] {
            assert_eq!(found, expected);
        }
        let deleting = [("Updated", "True", "AllUpdated"), ("Progressing", "True", "Deleting")];
        assert_eq!(shown(&deleting), "F T F Deleting");
        let halted = [
            ("Updated", "True", "AllUpdated"),
            ("RolloutHalted", "True", "TooManyFailures"),
        ];
        assert_eq!(shown(&halted), "F F T TooManyFailures");
    }

    #[test]
    fn only_some_image_errors_degrade_a_pool() {
        for (reason, unresolved, dead) in [
            // Each row: the reason, the state of a pool without an image, and the state of an updated pool whose
            // `FeedFailing` has this reason.
            ("Unauthorized", "F F T Unauthorized", "F F T Unauthorized"),
            ("RegistryBlocked", "F F T RegistryBlocked", "F F T RegistryBlocked"),
            ("ClientSetup", "F F T ClientSetup", "F F T ClientSetup"),
            (
                "PullSecretNotFound",
                "F F T PullSecretNotFound",
                "F F T PullSecretNotFound",
            ),
            ("DigestMismatch", "F F T DigestMismatch", "F F T DigestMismatch"),
            ("NoSuchPlatform", "F F T NoSuchPlatform", "F F T NoSuchPlatform"),
            ("BootImageSkew", "F F T BootImageSkew", "F F T BootImageSkew"),
            ("ImageNotFound", "F T F OutsideWindow", "F F T ImageNotFound"),
            ("RegistryRefused", "F T F OutsideWindow", "F F T RegistryRefused"),
            ("RegistryUnavailable", "F T F OutsideWindow", "T F F AllUpdated"),
            ("RateLimited", "F T F OutsideWindow", "T F F AllUpdated"),
            ("InvalidAnswer", "F T F OutsideWindow", "T F F AllUpdated"),
            ("PullSecretUnreadable", "F T F OutsideWindow", "T F F AllUpdated"),
            ("FleetUnreadable", "F T F OutsideWindow", "T F F AllUpdated"),
        ] {
            assert_eq!(waiting(&[("ImageResolved", "False", reason)]), unresolved, "{reason}");
            let updated = [("Updated", "True", "AllUpdated"), ("FeedFailing", "True", reason)];
            assert_eq!(shown(&updated), dead, "{reason}");
            assert_eq!(
                shown_of(&updated, false),
                "T F F AllUpdated",
                "{reason}: the tag is only watched"
            );
            let going = waiting(&[("FeedFailing", "True", reason)]);
            assert_eq!(going, "F T F OutsideWindow", "{reason}: the rollout continues");
        }
    }
}
