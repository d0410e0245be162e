use berth_api::pool::{ImageMetadata, PlatformDigest};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::*;
use crate::floors::{Reached, check};

const FOLLOWED: &str = "quay.io/os:stable";
const HOUR: Duration = Duration::from_secs(3600);

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn image(reference: &str, n: u8) -> Target {
    Target {
        image: reference.into(),
        digest: digest(n),
        version: Some(n.to_string()),
        metadata: None,
        platforms: vec![PlatformDigest {
            architecture: "amd64".into(),
            variant: None,
            digest: digest(n),
        }],
        publish_time: None,
    }
}

fn pinned(n: u8) -> String {
    format!("{FOLLOWED}@{}", digest(n))
}

fn by_digest_of(n: u8) -> String {
    format!("quay.io/os@{}", digest(n))
}

fn available(n: u8, seen_seconds: u64) -> Available {
    Available {
        digest: digest(n),
        version: Some(n.to_string()),
        since: at(0).into(),
        seen_seconds,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn found(n: u8, age: Duration) -> Answer {
    Answer {
        found: Some(Found {
            image: image("quay.io/os:anything", n),
            age,
        }),
        trouble: None,
    }
}

fn away() -> Option<QueryFailure> {
    Some(QueryFailure {
        reason: Word::stored("RegistryUnavailable"),
        message: "no route to host".into(),
        since: at(60),
        attempts: 3,
        next: Some(at(120)),
    })
}

struct Case {
    reference: Written<ImageRef>,
    target: Option<Target>,
    available: Option<Available>,
    minimum_age: Duration,
    seen: Duration,
    answers: Answers,
    unserved: bool,
}

fn case(reference: &str, tag: Answer) -> Case {
    let follows = follows(&reference.into());
    Case {
        reference: reference.into(),
        target: Some(image(reference, 1)),
        available: None,
        minimum_age: Duration::ZERO,
        seen: Duration::ZERO,
        answers: Answers {
            named: if follows { tag.clone() } else { Answer::default() },
            tag,
            ..Answers::default()
        },
        unserved: false,
    }
}

impl Case {
    fn facts(&self) -> ImageFacts<'_> {
        ImageFacts {
            reference: &self.reference,
            minimum_age: self.minimum_age,
            target: self.target.as_ref(),
            available: self.available.as_ref(),
            seen: self.seen,
            answers: &self.answers,
        }
    }

    fn decide(&self) -> Decision {
        let refusal = self.unserved.then(|| Refusal {
            reason: CommonReason::NoSuchPlatform,
            words: "has nothing for n1".to_owned(),
        });
        decide(&self.facts(), |_| refusal.clone(), at(1000))
    }

    /// Returns the digest of the target, the digest of the available image, and the status and the reason of the
    /// condition.
    fn says(&self) -> (Option<Digest>, Option<Digest>, String) {
        let Decision {
            target,
            available,
            verdict,
            ..
        } = self.decide();
        let said = format!("{:?} {}", verdict.status, verdict.reason);
        (target.map(|t| t.digest), available.map(|a| a.digest), said)
    }

    fn wants_confirmation(&self) -> bool {
        let questions = Questions::of(self.reference.get().unwrap());
        self.facts().wants_confirmation(&questions)
    }
}

#[test]
fn queries_use_the_digest_and_the_tag() {
    let (pinned, by_digest) = (pinned(1), by_digest_of(1));
    for (reference, named, tag, is_followed) in [
        (FOLLOWED, FOLLOWED, Some(FOLLOWED), true),
        (&pinned, &by_digest, Some(FOLLOWED), false),
        (&by_digest, &by_digest, None, false),
    ] {
        let questions = Questions::of(&reference.parse().unwrap());
        assert_eq!(questions.named.to_string(), named);
        assert_eq!(questions.tag.as_ref().map(ToString::to_string).as_deref(), tag);
        assert_eq!(questions.follows(), is_followed, "{reference}");
        assert_eq!(follows(&reference.into()), is_followed, "{reference}");
    }
    assert!(!follows(&"os".into()));
}

#[test]
fn metadata_is_added_as_soon_as_known() {
    let said = Some(ImageMetadata {
        revision: Some("abc".into()),
        ..ImageMetadata::default()
    });
    for reference in [FOLLOWED.to_owned(), pinned(1)] {
        let mut answer = found(1, HOUR);
        answer.found.as_mut().unwrap().image = Target {
            metadata: said.clone(),
            platforms: vec![],
            ..image("quay.io/os:anything", 1)
        };
        let mut case = case(&reference, answer);
        let before = case.target.clone().unwrap();
        for version in [None, before.version.clone()] {
            case.target.as_mut().unwrap().version = version;
            let target = case.decide().target.unwrap();
            let expected = Target {
                metadata: said.clone(),
                ..before.clone()
            };
            assert_eq!(target, expected, "the platforms stay, so no node reboots");
        }
        case.target.as_mut().unwrap().metadata = Some(ImageMetadata::default());
        assert_eq!(case.decide().target, case.target, "the metadata stays");
    }
}

#[test]
fn each_kind_of_reference_has_its_rule() {
    let moved = found(2, Duration::ZERO);
    for (reference, tag, target, available, reason) in [
        (FOLLOWED, &moved, 2, None, "Resolved"),
        (FOLLOWED, &found(1, HOUR), 1, None, "Resolved"),
        (&pinned(1), &moved, 1, Some(digest(2)), "ImageAvailable"),
        (&by_digest_of(1), &moved, 1, None, "Resolved"),
    ] {
        let expected = (Some(digest(target)), available, format!("Some(true) {reason}"));
        assert_eq!(case(reference, tag.clone()).says(), expected);
    }
}

#[test]
fn a_target_that_cannot_be_read_is_reported_until_it_is_replaced() {
    let mut case = case(FOLLOWED, Answer::default());
    case.target = Some(image("an older version wrote this", 1));
    for (trouble, reason) in [(None, "None Resolving"), (away(), "Some(false) RegistryUnavailable")] {
        case.answers.named.trouble = trouble;
        let decision = case.decide();
        let words = &decision.verdict.message;
        assert!(
            words.contains("status.target.image is invalid") && words.contains("an older version"),
            "{words}"
        );
        assert_eq!((case.says().2.as_str(), decision.target), (reason, case.target.clone()));
    }
    case.answers.named = found(2, Duration::ZERO);
    assert_eq!(case.decide().target.unwrap().image, FOLLOWED.into());
    case.reference = case.target.as_ref().unwrap().image.clone();
    assert_eq!(
        case.says().2,
        "Some(false) InvalidReference",
        "the spec's reference is invalid too"
    );
    assert_eq!(case.decide().target, case.target);
}

#[test]
fn a_changed_reference_is_adopted_at_once() {
    let mut case = case("quay.io/other:1", found(7, Duration::ZERO));
    case.target = Some(image(FOLLOWED, 1));
    case.available = Some(available(2, 0));
    case.minimum_age = HOUR;
    let decision = case.decide();
    assert_eq!(decision.target.unwrap().image, "quay.io/other:1".into());
    assert_eq!(case.says().0, Some(digest(7)));
    case.answers = Answers::default();
    let waiting = case.decide();
    assert_eq!(waiting.target, case.target, "reference and digest stay together");
    assert_eq!((waiting.available, waiting.verdict.status), (None, None));
    case.answers.named.trouble = away();
    assert_eq!(case.says().2, "Some(false) RegistryUnavailable");
    case.reference = "nonsense".into();
    assert_eq!(case.says().2, "Some(false) InvalidReference");
    assert_eq!(case.decide().next, Next::Clear, "no registry is asked");
    case.reference = "quay.io/other:1".into();
    case.answers = Answers::default();
    case.answers.named = found(7, Duration::ZERO);
    case.unserved = true;
    assert_eq!(
        case.says(),
        (Some(digest(1)), None, "Some(false) NoSuchPlatform".into())
    );
    assert!(matches!(case.decide().next, Next::Refused(refusal) if refusal.reason == CommonReason::NoSuchPlatform));
}

#[test]
fn a_new_digest_must_age_and_be_confirmed() {
    let mut case = case(FOLLOWED, found(2, Duration::ZERO));
    case.minimum_age = HOUR;
    let waits = (Some(digest(1)), Some(digest(2)), "Some(true) MinimumAge".to_owned());
    assert_eq!(case.says(), waits);
    assert_eq!(case.decide().available.unwrap().since.0, at(1000));
    case.available = Some(available(2, 0));
    for (seen, asked_ago, is_adopted, wants_confirmation) in [
        (3599, 0, false, false),
        // The tag was last queried an hour ago, and may have been moved away from a bad image since then.
        (3600, 3600, false, true),
        (3605, 5, true, false),
    ] {
        case.seen = Duration::from_secs(seen);
        case.answers.tag = found(2, Duration::from_secs(asked_ago));
        assert_eq!(case.says().0 == Some(digest(2)), is_adopted, "{seen}");
        assert_eq!(case.wants_confirmation(), wants_confirmation, "{seen}");
    }
    case.answers.tag = Answer::default();
    assert!(case.wants_confirmation(), "a new leader");
    assert_eq!(case.says(), waits);
    case.answers.tag = found(3, Duration::ZERO);
    let other = case.decide().available.unwrap();
    assert_eq!(
        (other.digest, other.seen_seconds),
        (digest(3), 0),
        "another digest starts from zero"
    );
    assert!(!case.wants_confirmation());
    case.answers.tag = found(1, Duration::ZERO);
    assert_eq!(
        case.says(),
        (Some(digest(1)), None, "Some(true) Resolved".into()),
        "moved back"
    );
}

#[test]
fn only_a_followed_tag_is_confirmed() {
    for (reference, target, is_confirmed) in [
        (FOLLOWED, FOLLOWED, true),
        (FOLLOWED, "quay.io/other:1", false),
        (&pinned(1), &pinned(1), false),
    ] {
        let mut case = case(reference, Answer::default());
        case.target = Some(image(target, 1));
        case.available = Some(available(2, 0));
        (case.minimum_age, case.seen) = (HOUR, HOUR);
        assert_eq!(case.wants_confirmation(), is_confirmed, "{reference} {target}");
    }
}

#[test]
fn a_time_left_has_the_larger_unit() {
    for (seconds, expected) in [
        (1, "1 s"),
        (119, "119 s"),
        (120, "2 min"),
        (121, "3 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (7201, "3 h"),
    ] {
        assert_eq!(about(seconds), expected);
    }
}

#[test]
fn a_refused_image_is_not_adopted() {
    let mut case = case(FOLLOWED, found(2, Duration::ZERO));
    case.unserved = true;
    let refused = (Some(digest(1)), Some(digest(2)), "Some(true) NoSuchPlatform".to_owned());
    assert_eq!(case.says(), refused);
    assert!(case.decide().verdict.message.contains("has nothing for n1"));
    assert!(!case.wants_confirmation());
    let mut pinned_case = self::case(&pinned(1), found(2, Duration::ZERO));
    pinned_case.unserved = true;
    assert_eq!(pinned_case.says(), refused);
    let message = pinned_case.decide().verdict.message;
    assert!(
        message.contains("has nothing for n1") && !message.contains("approve"),
        "{message}"
    );
}

#[test]
fn an_unreadable_fleet_keeps_the_target() {
    for reference in [FOLLOWED.to_owned(), pinned(1)] {
        let mut case = case(&reference, Answer::default());
        case.available = Some(available(2, 0));
        case.answers.fleet_unreadable = true;
        let expected = "Some(true) FleetUnreadable".to_owned();
        assert_eq!(case.says(), (Some(digest(1)), Some(digest(2)), expected));
    }
}

#[test]
fn a_countdown_changes_a_status_twenty_times_at_most() {
    let mut case = case(FOLLOWED, found(2, HOUR));
    case.minimum_age = HOUR;
    case.available = Some(available(2, 0));
    let mut seen = std::collections::BTreeSet::new();
    for second in 0..3600 {
        case.seen = Duration::from_secs(second);
        let decision = case.decide();
        seen.insert((decision.available.unwrap().seen_seconds, decision.verdict.message));
    }
    assert_eq!(seen.len(), 20);
    assert!(
        seen.iter().any(|(_, message)| message.contains("is adopted in 57 min")),
        "{seen:?}"
    );
}

#[test]
fn a_registry_outage_keeps_the_target() {
    for reference in [FOLLOWED.to_owned(), pinned(1)] {
        let mut case = case(&reference, Answer::default());
        case.available = Some(available(2, 0));
        case.answers.tag.trouble = away();
        let expected = "Some(true) RegistryUnavailable".to_owned();
        assert_eq!(case.says(), (Some(digest(1)), Some(digest(2)), expected));
        let message = case.decide().verdict.message;
        let words = "no route to host; since 1970-01-01T00:01:00Z, attempt 3, next try at 1970-01-01T00:02:00Z";
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn ages_continue_from_earlier_leaders() {
    let (mut ages, pool, other) = (Ages::default(), PoolName::from("p"), PoolName::from("q"));
    for (now, available, kept, age) in [
        (10, Some(available(2, 100)), &pool, 100),
        // The 20 s that this process added to the status do not count twice.
        (40, Some(available(2, 120)), &pool, 130),
        (50, Some(available(3, 0)), &pool, 0),
        (60, None, &pool, 0),
        (70, Some(available(3, 5)), &pool, 5),
        (75, Some(available(3, 5)), &other, 10),
        // The pool was deleted and created again.
        (80, Some(available(3, 5)), &other, 5),
    ] {
        let seen = ages.see(&pool, available.as_ref(), Moment::after(Duration::from_secs(now)));
        assert_eq!(seen.as_secs(), age, "{now}");
        ages.keep(|name| name == kept);
    }
}

/// Random input for a case: kinds of references, digests of images, times in seconds, and flags for failures.
type AnyCase = ((usize, usize), (u8, u8, u8, u8), (u64, u64, u64), (bool, bool));

fn any_answer(n: u8, age: u64, troubled: bool) -> Answer {
    let mut answer = if n == 4 {
        Answer::default()
    } else {
        found(n, Duration::from_secs(age))
    };
    answer.trouble = away().filter(|_| troubled);
    answer
}

fn any_case(case: AnyCase) -> (Case, usize) {
    let ((kind, old_kind), (target, tag, named, known), (minimum, seen, age), (unserved, troubled)) = case;
    let references = [
        FOLLOWED.to_owned(),
        pinned(target),
        format!("quay.io/os@{}", digest(target)),
        "quay.io/old:1".into(),
    ];
    let named = if kind == 0 { tag } else { named };
    let case = Case {
        target: Some(image(&references[old_kind], target)),
        available: (known < 4).then(|| available(known, 0)),
        minimum_age: Duration::from_secs(minimum),
        seen: Duration::from_secs(seen),
        answers: Answers {
            named: any_answer(named, age, troubled),
            tag: any_answer(tag, age, troubled),
            ..Answers::default()
        },
        unserved,
        reference: references[kind].as_str().into(),
    };
    (case, kind)
}

fn check_adopted(case: &Case, after: &Target, kind: usize, reached: &Reached) -> TestCaseResult {
    reached.note("adopted");
    prop_assert!(!case.unserved);
    prop_assert_eq!(&after.image, &case.reference, "the target has the spec's reference");
    let answered = case.answers.named.found.as_ref().unwrap();
    prop_assert_eq!(&after.digest, &answered.image.digest);
    prop_assert_eq!(&after.platforms, &answered.image.platforms);
    if case.target.as_ref().unwrap().image == case.reference {
        reached.note("moved by its tag");
        prop_assert_eq!(kind, 0, "only a followed tag changes its digest");
        let is_available = case
            .available
            .as_ref()
            .is_some_and(|known| known.digest == after.digest);
        let is_old_enough = answered.age + case.minimum_age <= case.seen;
        prop_assert!(case.minimum_age.is_zero() || (is_available && is_old_enough));
    }
    Ok(())
}

fn keeps_the_rules(case: AnyCase, reached: &Reached) -> TestCaseResult {
    let (case, kind) = any_case(case);
    let decision = case.decide();
    let (before, after) = (case.target.clone().unwrap(), decision.target.unwrap());
    if after.digest == before.digest && after.image == before.image {
        if decision.available.is_some() && !case.minimum_age.is_zero() && kind == 0 {
            reached.note("too young");
        }
        prop_assert_eq!(&after.platforms, &before.platforms);
    } else {
        check_adopted(&case, &after, kind, reached)?;
    }
    if let Some(available) = &decision.available {
        prop_assert!(available.digest != after.digest && kind != 2 && after.image == case.reference);
    }
    prop_assert!(decision.verdict.status != Some(true) || after.image == case.reference);
    // The age of an image that has just become available is 0.
    let [now, before] = [&decision.available, &case.available].map(|image| image.as_ref().map(|image| &image.digest));
    let again = Case {
        target: Some(after.clone()),
        available: decision.available.clone(),
        seen: if now == before { case.seen } else { Duration::ZERO },
        ..case
    };
    prop_assert_eq!(again.decide().target.unwrap(), after, "a second pass decides alike");
    Ok(())
}

/// The new target is the previous target, or an image exactly as the registry described it. The available image is
/// never the target. A pinned digest changes only with the reference. No image is adopted before it is old enough.
#[test]
fn any_facts_keep_the_rules() {
    let kinds = (0..3usize, 0..4usize);
    let images = (0u8..4, 0u8..5, 0u8..5, 0u8..5);
    let times = (0u64..5, 0u64..8, 0u64..8);
    let cases = (kinds, images, times, (any::<bool>(), any::<bool>()));
    let floors = [("adopted", 300), ("moved by its tag", 5), ("too young", 40)];
    check(ProptestConfig::with_cases(3000), cases, &floors, keeps_the_rules);
}
