//! Unit tests of a pool, and a pool for other tests.

use berth_api::Digest;
use berth_api::fleet::BootcFleetSpec;
use berth_api::membership::Membership;
use berth_api::pool::{BootcNodePoolSpec, DigestFailures, PoolImage, Target};

use super::*;
use crate::controller::publish::terms;
use crate::controller::snapshot::Entry;

pub(in crate::controller) fn pool(reference: &str, resolved: Option<&str>) -> Pool {
    let image = PoolImage {
        reference: Some(reference.into()),
        ..PoolImage::default()
    };
    let mut object = BootcNodePool::new(
        "a",
        BootcNodePoolSpec {
            image: Some(image),
            ..Default::default()
        },
    );
    let target = resolved.map(|image| Target {
        image: image.into(),
        digest: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
        version: None,
        metadata: None,
        platforms: vec![],
        publish_time: None,
    });
    object.status = Some(BootcNodePoolStatus {
        target,
        ..Default::default()
    });
    pool_of(object)
}

pub(in crate::controller) fn pool_of(object: BootcNodePool) -> Pool {
    Pool {
        name: "a".into(),
        object: Some(object),
        deleting: false,
        refused: None,
    }
}

#[test]
fn a_removed_retry_token_forgets_nothing() {
    let mut pool = pool("r.io/os:1", Some("r.io/os:1"));
    let failed: Digest = format!("sha256:{}", "1".repeat(64)).parse().unwrap();
    for (asked, obeyed, remembers) in [
        (None, None, true),
        (Some("a"), Some("a"), true),
        (None, Some("a"), true),
        (Some("b"), Some("a"), false),
        (Some("a"), None, false),
    ] {
        let object = pool.object.as_mut().unwrap();
        let rollout = berth_api::pool::Rollout {
            retry_token: asked.map(str::to_owned),
            ..Default::default()
        };
        object.spec.rollout = Some(rollout);
        let status = object.status.as_mut().unwrap();
        status.retry_token = obeyed.map(str::to_owned);
        status.failures = vec![DigestFailures {
            digest: failed.clone(),
            nodes: vec!["n1".into()],
            count: 1,
        }];
        let failures = pool.failures();
        assert_eq!(failures.contains_key(&failed), remembers, "{asked:?} {obeyed:?}");
        assert_eq!(pool.is_retried(), !remembers);
    }
}

#[test]
fn a_withdrawn_target_stays_published() {
    assert!(!pool("r.io/os:2", Some("r.io/os:2")).is_unresolved());
    assert!(!pool("r.io/os:2", None).is_unresolved(), "no target to withdraw");
    let reverted = pool("r.io/os:1", Some("r.io/os:2"));
    assert!(reverted.is_unresolved() && reverted.target().is_some());
    assert!(!Pool::orphaned("a".into()).is_unresolved());
    assert!(pool("nonsense", Some("nonsense")).is_unresolved());
    let terms = terms(&[reverted], &Membership::default(), &BTreeSet::new());
    let terms = &terms[&"a".into()];
    assert!(terms.unresolved && terms.target.is_some());
}

fn allowing(registries: &[&str]) -> BootcFleetSpec {
    BootcFleetSpec {
        allowed_registries: registries.iter().map(ToString::to_string).collect(),
        ..BootcFleetSpec::default()
    }
}

#[test]
fn a_forbidden_registry_withdraws_the_target() {
    let pool = pool("r.io/a/os:1", Some("r.io/a/os:1"));
    for list in [&[][..], &["r.io"], &["q.io", "r.io/a"]] {
        let guarded = pool.clone().guarded(Some(&allowing(list)));
        assert!(guarded.refused.is_none() && !guarded.is_unresolved(), "{list:?}");
    }
    let refused = pool.guarded(Some(&allowing(&["q.io", "r.io/b"])));
    let words = refused.refused.clone().unwrap();
    assert!(
        words.contains("r.io/a/os:1") && words.contains("q.io, r.io/b"),
        "{words}"
    );
    assert!(refused.is_unresolved() && refused.target().is_some());
    assert!(
        refused.guarded(Some(&allowing(&[]))).refused.is_none(),
        "the list has changed"
    );
    assert!(
        Pool::orphaned("a".into())
            .guarded(Some(&allowing(&["q.io"])))
            .refused
            .is_none()
    );
}

#[test]
fn estimates_are_capped_by_pool_and_timeout() {
    for (median, own_minutes, minutes) in [
        (None, Some(2), 2),
        // The machine was repaired during its reboot, which took a day. The timeout is the upper bound.
        (None, Some(24 * 60), 15),
        (Some(180), Some(10), 3),
        // The node's own measurement counts if it is lower. Otherwise the median could never fall.
        (Some(180), Some(2), 2),
        (Some(180), None, 3),
        // An older controller recorded a median above the timeout.
        (Some(86_400), None, 15),
    ] {
        let mut pool = pool("r.io/os:1", Some("r.io/os:1"));
        let status = pool.object.as_mut().unwrap().status.as_mut().unwrap();
        status.phase_durations.reboot_seconds = median;
        let mut report = Report::default();
        report.measured.reboot = own_minutes.map(|minutes: u64| Duration::from_secs(minutes * 60));
        let estimate = pool.estimate_of(&report).reboot;
        assert_eq!(
            estimate,
            Duration::from_secs(minutes * 60),
            "{median:?} {own_minutes:?}"
        );
    }
}

fn object(uid: &str, generation: i64, deleted: Option<&str>) -> BootcNodePool {
    let metadata =
        serde_json::json!({ "name": "a", "uid": uid, "generation": generation, "deletionTimestamp": deleted });
    serde_json::from_value(serde_json::json!({ "metadata": metadata, "spec": {} })).unwrap()
}

#[test]
fn a_pool_is_as_shown_until_its_spec_changes() {
    let shown = Pool {
        object: Some(object("u", 1, None)),
        ..pool("r.io/os:1", None)
    };
    let mut reported = object("u", 1, None);
    reported.status = Some(BootcNodePoolStatus::default());
    assert!(is_as_shown(&shown, Some(&reported)), "a new status is not a change");
    assert!(!is_as_shown(&shown, Some(&object("other", 1, None))));
    assert!(!is_as_shown(&shown, Some(&object("u", 2, None))));
    assert!(!is_as_shown(
        &shown,
        Some(&object("u", 1, Some("2026-01-01T00:00:00Z")))
    ));
    assert!(!is_as_shown(&shown, None));
    assert!(is_as_shown(&Pool::orphaned("a".into()), None));
}

#[test]
fn a_poll_request_must_fit_into_the_status() {
    let (longest, too_long) = ("x".repeat(64), "x".repeat(65));
    for (text, request) in [
        (None, None),
        (Some(""), None),
        (Some("now"), Some("now")),
        (Some(&longest), Some(&*longest)),
        (Some(&too_long), None),
    ] {
        let mut pool = pool("r.io/os:1", None);
        let annotations = text.map(|text| [(keys::ANNOTATION_POLL_REQUESTED_AT.to_owned(), text.to_owned())].into());
        pool.object.as_mut().unwrap().metadata.annotations = annotations;
        assert_eq!(pool.poll_request(), request);
    }
}

#[test]
fn a_pool_that_goes_has_no_capacity() {
    let mut pool = pool("r.io/os:1", None);
    assert_eq!(pool.capacity(5), 1);
    pool.deleting = true;
    assert_eq!(pool.capacity(5), 0);
    assert_eq!(Pool::orphaned("a".into()).capacity(5), 0);
}

#[test]
fn a_window_must_fit_drain_and_reboot() {
    let mut pool = pool("r.io/os:1", Some("r.io/os:1"));
    let object = pool.object.as_mut().unwrap();
    let spec = serde_json::json!({ "drain": { "timeout": "60s" }, "rollout": { "rebootTimeout": "300s" } });
    object.spec = serde_json::from_value(spec).unwrap();
    for (drain, reboot, needed) in [
        (20, 100, 120),
        // The drain counts for at most drain.timeout.
        (600, 100, 160),
        // The reboot counts for at most rollout.rebootTimeout.
        (20, 600, 320),
    ] {
        let status = pool.object.as_mut().unwrap().status.as_mut().unwrap();
        status.phase_durations.drain_seconds = Some(drain);
        status.phase_durations.reboot_seconds = Some(reboot);
        let inputs = pool.gate_inputs(None, true, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(inputs.needed.as_secs(), needed);
    }
    let gone = Pool::orphaned("a".into());
    assert!(gone.gate_inputs(None, true, Timestamp::UNIX_EPOCH).is_none());
}

#[test]
fn each_wave_soaks_for_its_own_time() {
    let mut pool = pool("r.io/os:1", Some("r.io/os:1"));
    let object = pool.object.as_mut().unwrap();
    let canary = serde_json::json!({ "name": "canary", "nodeSelector": {}, "soakTime": "60s" });
    let late = serde_json::json!({ "name": "late", "nodeSelector": {} });
    let rollout = serde_json::json!({ "soakTime": "10s", "waves": [canary, late] });
    object.spec = serde_json::from_value(serde_json::json!({ "rollout": rollout })).unwrap();
    let told =
        serde_json::json!({ "name": "canary", "total": 1, "updated": 1, "state": "Soaking", "soakedSeconds": 30 });
    object.status.as_mut().unwrap().waves = vec![serde_json::from_value(told).unwrap()];
    let found: Vec<_> = pool
        .waves(&Soaks::default())
        .into_iter()
        .map(|wave| (wave.name, wave.soak.as_secs(), wave.soaked.as_secs()))
        .collect();
    let expected = [
        ("canary", 60, 30),
        ("late", 10, 0),
        (waves::REST, 10, 0),
        (waves::CONTROL_PLANE, 10, 0),
    ]
    .map(|(name, soak, soaked)| (name.to_owned(), soak, soaked));
    assert_eq!(found, expected);
}

#[test]
fn a_pool_lasts_unless_it_is_deleted() {
    let mut pools = Objects::new();
    let broken = serde_json::json!({ "nodeSelector": 7 });
    for (name, deleted, spec) in [
        ("lasts", None, serde_json::json!({})),
        ("goes", Some("2026-01-01T00:00:00Z"), serde_json::json!({})),
        ("unreadable", None, broken),
    ] {
        let metadata = serde_json::json!({ "name": name, "deletionTimestamp": deleted });
        let object = serde_json::json!({ "metadata": metadata, "spec": spec });
        let view = PoolView::of(serde_json::from_value(object).unwrap());
        pools.insert(name.to_owned(), Entry::new(view));
    }
    assert_eq!(lasting(&pools), ["lasts".into(), "unreadable".into()].into());
}
