use std::time::Duration;

use berth_api::condition::Word;
use berth_api::pool::Target;
use berth_api::{Digest, condition};
use jiff::Timestamp;

use super::super::{Answer, Answers, Found, QueryFailure, decide};
use super::*;

const FOLLOWED: &str = "quay.io/os:stable";

fn digest(n: u8) -> Digest {
    format!("sha256:{}", n.to_string().repeat(64)).parse().unwrap()
}

fn image(reference: &str, n: u8) -> Target {
    Target {
        image: reference.into(),
        digest: digest(n),
        version: None,
        metadata: None,
        platforms: vec![],
        publish_time: None,
    }
}

fn found(n: u8) -> Answer {
    Answer {
        found: Some(Found {
            image: image(FOLLOWED, n),
            age: Duration::ZERO,
        }),
        trouble: None,
    }
}

/// Returns the answer to a query that now fails with `reason`. `before` is the previous answer.
fn fails(reason: &'static str, before: Answer) -> Answer {
    Answer {
        trouble: Some(QueryFailure {
            reason: Word::stored(reason),
            message: "its words".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            attempts: 3,
            next: Some(Timestamp::UNIX_EPOCH),
        }),
        ..before
    }
}

/// Returns the status and the reason of `FeedFailing`, or `-` if the condition stays unchanged. `reference` is the
/// reference in the spec. The target is image 1, which was resolved from the reference `of`.
fn says(reference: &str, of: &str, answer: Answer, is_refused: bool, polled: bool) -> String {
    let target = image(of, 1);
    let answers = Answers {
        named: answer.clone(),
        tag: answer,
        ..Answers::default()
    };
    let facts = ImageFacts {
        reference: &reference.into(),
        minimum_age: Duration::ZERO,
        target: Some(&target),
        available: None,
        seen: Duration::ZERO,
        answers: &answers,
    };
    let refusal = is_refused.then(|| Refusal {
        reason: CommonReason::NoSuchPlatform,
        words: "has nothing for n1".to_owned(),
    });
    let decision = decide(&facts, |_| refusal.clone(), Timestamp::UNIX_EPOCH);
    let Some(verdict) = assess(&facts, decision.target.as_ref(), &decision.next, polled) else {
        return "-".to_owned();
    };
    let mut conditions = vec![];
    condition::set(
        &mut conditions,
        condition::pool::FEED_FAILING,
        verdict,
        None,
        Timestamp::UNIX_EPOCH,
    );
    format!("{} {}", conditions[0].status, conditions[0].reason)
}

fn asked(answer: Answer) -> String {
    says(FOLLOWED, FOLLOWED, answer, false, true)
}

#[test]
fn every_failure_of_a_tag_is_reported() {
    for reason in [
        "Unauthorized",
        "ImageNotFound",
        "PullSecretNotFound",
        "DigestMismatch",
        "NoSuchPlatform",
        "RegistryUnavailable",
    ] {
        let expected = format!("True {reason}");
        assert_eq!(asked(fails(reason, found(1))), expected);
        // A new leader has not received an image yet.
        assert_eq!(asked(fails(reason, Answer::default())), expected);
    }
    assert_eq!(asked(found(1)), "False AsExpected");
    assert_eq!(asked(found(2)), "False AsExpected", "the other image is adopted");
    let refused = says(FOLLOWED, FOLLOWED, found(2), true, true);
    assert_eq!(refused, "True NoSuchPlatform");
    assert_eq!(
        asked(Answer::default()),
        "-",
        "a leader that has not queried the tag changes nothing"
    );
}

#[test]
fn what_is_not_followed_does_not_fail() {
    let pinned = format!("{FOLLOWED}@{}", digest(1));
    let by_digest = format!("quay.io/os@{}", digest(1));
    let other = "quay.io/os:other";
    let lost = fails("ImageNotFound", Answer::default());
    for (reference, of, answer, is_refused, polled, expected) in [
        // A pinned reference adopts nothing, but an admin relies on reports about its tag.
        (&*pinned, &*pinned, &lost, false, true, "True ImageNotFound"),
        (&pinned, &pinned, &found(2), true, true, "False AsExpected"),
        (&by_digest, &by_digest, &lost, false, true, "False AsExpected"),
        // An air-gapped cluster queries no registry.
        (FOLLOWED, FOLLOWED, &lost, false, false, "Unknown NotPolled"),
        // `ImageResolved` reports that the other reference is not resolved.
        (other, FOLLOWED, &lost, false, true, "Unknown ImageNotResolved"),
        (other, FOLLOWED, &found(2), true, true, "Unknown ImageNotResolved"),
        ("nonsense", FOLLOWED, &lost, false, true, "Unknown ImageNotResolved"),
        // The other reference is adopted in this pass.
        (other, FOLLOWED, &found(2), false, true, "False AsExpected"),
    ] {
        let said = says(reference, of, answer.clone(), is_refused, polled);
        assert_eq!(said, expected, "{reference} {of}");
    }
}

#[test]
fn a_fleet_that_cannot_be_read_changes_nothing() {
    let target = image(FOLLOWED, 1);
    let answers = Answers {
        fleet_unreadable: true,
        ..Answers::default()
    };
    let facts = ImageFacts {
        reference: &FOLLOWED.into(),
        minimum_age: Duration::ZERO,
        target: Some(&target),
        available: None,
        seen: Duration::ZERO,
        answers: &answers,
    };
    assert_eq!(assess(&facts, Some(&target), &Next::Unknown, false), None);
}
