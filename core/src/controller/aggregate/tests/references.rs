//! Tests of the status of a pool whose image reference was changed.

use super::*;

fn of_reference<'a>(
    old: &'a BootcNodePoolStatus,
    answers: &'a Answers,
    plan: &'a Plan,
    generation: i64,
) -> PoolStatusFacts<'a> {
    PoolStatusFacts {
        generation: Some(generation),
        spec: &V3,
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
    // Digest 2 is the target already, from another reference.
    for (n, publish_second) in [(2, 7), (3, 9)] {
        let answers = answered(&Target {
            digest: digest(n),
            ..target()
        });
        let (plan, now) = (Plan::default(), Timestamp::from_second(9).unwrap());
        let status = status(&of_reference(&old, &answers, &plan, 1), now);
        let publish_time = status.target.unwrap().publish_time.unwrap();
        assert_eq!(publish_time.0.as_second(), publish_second);
    }
}

#[test]
fn a_refusal_ends_with_the_reference() {
    let mut refused = BootcNodePoolStatus {
        target: Some(target()),
        ..BootcNodePoolStatus::default()
    };
    let verdict = Verdict::yes(CommonReason::NextImageRefused, "the next image is for newer machines");
    let type_ = condition::pool::BOOT_IMAGE_SKEW;
    condition::set(&mut refused.conditions, type_, verdict, Some(1), Timestamp::UNIX_EPOCH);
    let mut followed = refused.clone();
    followed.target = Some(Target {
        image: "quay.io/os:v3".into(),
        ..target()
    });
    // The registry has not resolved the reference yet.
    for (what, old, generation, is_refused) in [
        ("the same spec", &refused, 1, true),
        ("another reference", &refused, 2, false),
        // The spec was edited, but not its reference.
        ("a followed tag", &followed, 2, true),
    ] {
        let (answers, plan) = (Answers::default(), Plan::default());
        let status = status(&of_reference(old, &answers, &plan, generation), Timestamp::UNIX_EPOCH);
        let skew = condition::find(&status.conditions, type_).unwrap();
        assert_eq!(skew.reason == "NextImageRefused", is_refused, "{what}");
    }
}
