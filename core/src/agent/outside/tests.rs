use berth_api::berth::Outcome;
use berth_api::condition::CommonReason;
use berth_api::node::Deployment;
use berth_api::node::timeline::TurnRecord;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

/// Returns the deployments of a host. `booted` is the number of the booted image, or 0 if its digest is unknown.
/// `rollback` is the number of the rollback image, or 0 if the host has none.
fn running(booted: u8, rollback: u8) -> Deployments {
    let [booted, rollback] = [booted, rollback].map(|n| Deployment {
        digest: (n != 0).then(|| digest(n)),
        ..Deployment::default()
    });
    Deployments {
        booted,
        rollback: rollback.digest.is_some().then_some(rollback),
        ..Deployments::default()
    }
}

/// Returns the state of a turn that updates from image 1 to image 2. The berth was committed in boot b1.
fn holding() -> Holding {
    Holding {
        node: "n1".into(),
        uid: "u1".into(),
        target: digest(2),
        from: Some(digest(1)),
        boot_id: "b1".into(),
        phase: HoldPhase::Committed,
        revoke: None,
        open_until: None,
    }
}

#[test]
fn a_finalized_target_that_does_not_run_fell_back() {
    let boots: BootId = "b2".into();
    let queued = Deployments {
        rollback_queued: true,
        ..running(1, 2)
    };
    for (what, known, before, not_finalized, expected) in [
        ("boot counting", queued.clone(), Some(false), false, true),
        ("a rollback by greenboot", running(1, 2), Some(false), false, true),
        (
            "after a retry of the same image",
            queued.clone(),
            Some(true),
            false,
            true,
        ),
        (
            "an agent without the record committed",
            queued.clone(),
            None,
            false,
            true,
        ),
        ("a third image runs", running(7, 2), Some(false), false, true),
        ("finalization failed", queued, Some(false), true, false),
        (
            "power was lost before finalization",
            running(1, 7),
            Some(false),
            false,
            false,
        ),
        ("it was a deployment before", running(1, 2), Some(true), false, false),
        ("unknown whether it was", running(1, 2), None, false, false),
        ("the target runs", running(2, 1), Some(false), false, false),
        ("the digest cannot be read", running(0, 2), Some(false), false, false),
    ] {
        let mut past = Past {
            target_deployed: before,
            ..Past::default()
        };
        past.falls_back(&holding(), &boots, &Os::Bootc(Box::new(known)), not_finalized);
        assert_eq!(past.fell_back.is_some(), expected, "{what}");
        assert_eq!(past.failed_digests.contains(&digest(2)), expected, "{what}");
    }
}

#[test]
fn only_a_new_boot_under_a_committed_berth_falls_back() {
    let os = Os::Bootc(Box::new(running(1, 2)));
    let taken = Holding {
        phase: HoldPhase::Taken,
        ..holding()
    };
    let releasing = Holding {
        phase: HoldPhase::Releasing(Outcome::NotApplied),
        ..holding()
    };
    for (holding, boot_id, os) in [
        (taken, "b2", os.clone()),
        (releasing, "b2", os.clone()),
        (holding(), "b1", os.clone()),
        (holding(), "b2", Os::Unknown),
    ] {
        let mut past = Past {
            target_deployed: Some(false),
            ..Past::default()
        };
        past.falls_back(&holding, &boot_id.into(), &os, false);
        assert_eq!(past.fell_back, None, "{holding:?} {boot_id}");
    }
}

#[test]
fn berths_own_rollback_is_no_fall_back() {
    let os = Os::Bootc(Box::new(running(1, 2)));
    let mut past = Past {
        target_deployed: Some(false),
        tried: Some(digest(2)),
        ..Past::default()
    };
    past.undo_begins(
        Some(&digest(2)),
        &"b2".into(),
        CommonReason::HealthCheckFailed,
        "a check failed",
    );
    past.falls_back(&holding(), &"b3".into(), &os, false);
    assert_eq!(past.fell_back, None);
    past.undone = None;
    past.falls_back(&holding(), &"b3".into(), &os, false);
    assert!(past.fell_back.as_ref().is_some_and(|fell| fell.ran), "{past:?}");
    // After a retry, the agent does not record the fallback in the same boot again.
    assert!(past.retry(Some("again"), &"b2".into()));
    past.falls_back(&holding(), &"b3".into(), &os, false);
    assert!(past.failed_digests.is_empty(), "{past:?}");
}

/// Returns the record of a host that runs image 2 and has image 1 as its rollback deployment.
fn known() -> Past {
    let mut past = Past::default();
    past.boots_without_berth(&running(2, 1), Some(&digest(2)));
    past
}

#[test]
fn another_boot_without_a_berth_is_recorded() {
    for (what, seen, desired, is_rollback) in [
        ("a rollback", running(1, 2), Some(2), Some(true)),
        ("a rollback, nothing is resolved", running(1, 2), None, Some(true)),
        (
            "a rollback while another image is desired",
            running(1, 2),
            Some(3),
            Some(true),
        ),
        ("an admin staged another image", running(7, 2), Some(2), Some(false)),
        ("the left image is gone", running(1, 0), Some(2), Some(false)),
        ("the pool wants the old image", running(1, 2), Some(1), None),
        ("the same image", running(2, 1), Some(3), None),
        ("the digest cannot be read", running(0, 2), Some(2), None),
    ] {
        let mut past = known();
        past.boots_without_berth(&seen, desired.map(digest).as_ref());
        let outside = past.outside_boot.as_ref().map(|outside| outside.is_rollback);
        assert_eq!(outside, is_rollback, "{what}");
        let failed: Vec<_> = (is_rollback == Some(true)).then(|| digest(2)).into_iter().collect();
        assert_eq!(past.failed_digests, failed, "{what}");
    }
}

#[test]
fn an_image_that_failed_is_no_rollback() {
    let mut past = Past::default();
    past.boots_without_berth(&running(1, 2), Some(&digest(2)));
    past.digest_failed(&digest(2));
    past.boots_without_berth(&running(2, 1), Some(&digest(3)));
    assert!(past.outside_boot.is_some_and(|outside| !outside.is_rollback));
    assert_eq!(past.failed_digests, [digest(2)], "1 has not failed");
}

#[test]
fn an_outside_boot_ends() {
    type End = fn(&mut Past);
    let ends: [(&str, End, bool); 6] = [
        (
            "nothing",
            |past| past.boots_without_berth(&running(1, 2), Some(&digest(2))),
            true,
        ),
        (
            "forward again",
            |past| past.boots_without_berth(&running(2, 1), Some(&digest(3))),
            false,
        ),
        (
            "the pool goes back",
            |past| past.boots_without_berth(&running(1, 2), Some(&digest(1))),
            false,
        ),
        ("a berth is taken", |past| past.boots_with_berth(&running(1, 2)), true),
        (
            "a berth's image runs",
            |past| past.boots_with_berth(&running(3, 1)),
            false,
        ),
        ("the node leaves its pool", Past::forget_boot, false),
    ];
    for (what, end, stays) in ends {
        let mut past = known();
        past.boots_without_berth(&running(1, 2), Some(&digest(2)));
        assert!(past.outside_boot.is_some());
        end(&mut past);
        assert_eq!(past.outside_boot.is_some(), stays, "{what}");
    }
}

#[test]
fn a_retry_allows_the_left_image() {
    let mut past = known();
    past.boots_without_berth(&running(1, 2), Some(&digest(2)));
    assert!(past.retry(Some("again"), &"b2".into()));
    past.boots_without_berth(&running(1, 2), Some(&digest(2)));
    assert!(past.failed_digests.is_empty(), "{past:?}");
}

#[test]
fn a_turn_that_others_closed_licensed_its_boot() {
    for (outcome, is_outside) in [
        (None, false),
        (Some(TurnOutcome::TakenAway), false),
        (Some(TurnOutcome::Revoked), true),
    ] {
        let mut past = known();
        past.turns = vec![TurnRecord {
            berth: "workers-0".to_owned(),
            node_uid: "u1".to_owned(),
            from: Some(digest(2)),
            to: digest(3),
            boot_id_before: "b1".to_owned(),
            start_time: Time(jiff::Timestamp::UNIX_EPOCH),
            drain_seconds: None,
            proof: None,
            end_time: None,
            outcome,
            reason: None,
        }];
        past.boots_without_berth(&running(3, 2), Some(&digest(4)));
        assert_eq!(past.outside_boot.is_some(), is_outside, "{outcome:?}");
    }
}

#[test]
fn a_record_of_another_version_is_read() {
    let old: Past = serde_json::from_str(r#"{"failedDigests":[]}"#).unwrap();
    assert_eq!(old, Past::default());
    let new = serde_json::json!({
        "fellBack": { "digest": digest(2), "bootId": "b2", "cause": "a newer field" },
        "lastBooted": { "digest": digest(1) },
        "outsideBoot": { "digest": digest(1), "left": digest(2) },
    });
    let new: Past = serde_json::from_value(new).unwrap();
    assert!(new.fell_back.is_some() && new.last_booted.is_some() && new.outside_boot.is_some());
}
