//! Statuses of pools whose reference was changed.

use super::*;

/// A pool without members whose reference is `quay.io/os:v3`.
fn of_reference<'a>(
    old: &'a BootcNodePoolStatus,
    answers: &'a Answers,
    plan: &'a Plan,
    generation: i64,
) -> PoolStatusFacts<'a> {
    PoolStatusFacts {
        generation: Some(generation),
        reference: "quay.io/os:v3",
        ..of_empty_pool(old, answers, plan)
    }
}

#[test]
fn a_digest_keeps_its_publish_time() {
    let old = BootcNodePoolStatus {
        target: Some(Target {
            publish_time: Some(Timestamp::from_second(7).unwrap().into()),
            ..target()
        }),
        ..BootcNodePoolStatus::default()
    };
    let resolve = |digest_of: u8| {
        let answers = answered(&Target {
            digest: digest(digest_of),
            ..target()
        });
        let (plan, now) = (Plan::default(), Timestamp::from_second(9).unwrap());
        let status = status(&of_reference(&old, &answers, &plan, 1), now);
        status.target.unwrap().publish_time.unwrap().0.as_second()
    };
    assert_eq!(resolve(2), 7, "the same digest under another name");
    assert_eq!(resolve(3), 9);
}

#[test]
fn a_refusal_ends_with_the_reference() {
    let refused = |generation| {
        let mut conditions = vec![];
        let verdict = Verdict::yes(Why::NextImageRefused, "the next image is for newer machines");
        let type_ = condition::pool::BOOT_IMAGE_SKEW;
        condition::set(&mut conditions, type_, verdict, Some(generation), Timestamp::UNIX_EPOCH);
        BootcNodePoolStatus {
            target: Some(target()),
            conditions,
            ..BootcNodePoolStatus::default()
        }
    };
    // The registry has not yet reported where the reference points.
    let skew = |old: &BootcNodePoolStatus, generation| {
        let (answers, plan) = (Answers::default(), Plan::default());
        let status = status(&of_reference(old, &answers, &plan, generation), Timestamp::UNIX_EPOCH);
        let said = condition::find(&status.conditions, condition::pool::BOOT_IMAGE_SKEW);
        said.map(|said| said.reason.clone()).unwrap()
    };
    assert_eq!(skew(&refused(1), 1), "NextImageRefused", "the same spec");
    assert_ne!(skew(&refused(1), 2), "NextImageRefused", "another reference");
    // For a followed tag, the edit may have changed something else.
    let mut followed = refused(1);
    followed.target = Some(Target {
        image: "quay.io/os:v3".into(),
        ..target()
    });
    assert_eq!(skew(&followed, 2), "NextImageRefused");
}
