use std::time::Duration;

use berth_api::BootId;
use berth_api::berth::Offer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::json;

use super::*;

#[test]
fn only_writes_of_the_holder_count_as_heard() {
    let at = |seconds| Timestamp::from_second(seconds).unwrap();
    let target = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    let offer = Offer {
        node: "n1".into(),
        uid: "u".into(),
        target,
        open_until: Some(at(9)),
    };
    let boot = || BootId::from("b");
    let offered = Berth::new("p".into(), 0, 1).offered(offer).unwrap();
    let taken = offered.taken(&"n1".into(), &"u".into(), None, boot()).unwrap();
    let view = |berth: &Berth, renewed: i64, version: &str| {
        let mut lease = berth::lease::create(berth, "ns", Duration::from_secs(1), at(1));
        lease.metadata.resource_version = Some(version.into());
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime::from(at(renewed)));
        LeaseView::of(lease)
    };
    let before = view(&taken, 1, "1");
    let ours = [
        taken.clone(),
        taken.stamped(2),
        taken.revoked(Some("Paused".into())).unwrap(),
    ];
    for berth in ours {
        assert!(!view(&berth, 1, "2").has_spoken(&before), "{berth:?}");
    }
    assert!(view(&taken, 2, "2").has_spoken(&before), "a renewal");
    assert!(view(&taken.committed(boot()).unwrap(), 1, "2").has_spoken(&before));
    assert!(before.has_spoken(&view(&offered, 1, "0")));
}

#[test]
fn a_missing_guard_is_reported_besides_other_troubles() {
    let unguarded = |conditions: &[(&str, &str, &str)]| {
        let mut node = BootcNode::new("n1", BootcNodeSpec::default());
        let mut status = berth_api::node::BootcNodeStatus::default();
        for (type_, is, reason) in conditions {
            let reason = condition::Word::stored(reason);
            let verdict = match *is {
                "True" => condition::Verdict::yes(reason, ""),
                _ => condition::Verdict::no(reason, ""),
            };
            condition::set(&mut status.conditions, type_, verdict, None, Timestamp::UNIX_EPOCH);
        }
        node.status = Some(status);
        let view = BootcNodeView::of(DeserializeGuard(Ok(node)));
        view.content.unwrap().report.unguarded
    };
    let (degraded, guarded) = (condition::node::NODE_DEGRADED, condition::node::GUARDED);
    let disk = (degraded, "True", "DiskFull");
    assert!(unguarded(&[disk, (guarded, "False", "Unguarded")]));
    assert!(!unguarded(&[disk, (guarded, "True", "AsExpected")]));
    assert!(!unguarded(&[disk]));
    assert!(
        unguarded(&[(degraded, "True", "Unguarded")]),
        "as an agent of an earlier version says it"
    );
}

#[test]
fn decisions_read_the_conditions_of_a_report_and_not_its_phase() {
    let report = |phase: &str, conditions: serde_json::Value, failure: serde_json::Value| {
        let object = json!({
            "metadata": { "name": "n1", "generation": 3 }, "spec": {},
            "status": { "observedGeneration": 3, "phase": phase, "conditions": conditions, "failure": failure },
        });
        let view = BootcNodeView::of(DeserializeGuard(Ok(serde_json::from_value(object).unwrap())));
        let report = view.report().unwrap().clone();
        (report.pulling, report.blocked, view.is_released())
    };
    let condition = |type_: &str, status: &str, reason: &str| {
        json!([{
            "type": type_, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }])
    };
    let pulled = |status: &str, reason: &str| condition("ImagePulledFromRegistry", status, reason);
    let of = |phase: &str, conditions: serde_json::Value| report(phase, conditions, json!(null));
    assert_eq!(of("Staging", json!([])), (false, false, false));
    assert_eq!(of("Degraded", json!([])), (false, false, false));
    assert_eq!(of("Proving", pulled("Unknown", "Pulling")), (true, false, false));
    assert_eq!(of("Pending", pulled("Unknown", "Blocked")), (false, true, false));
    assert_eq!(
        of("Pending", pulled("False", "RegistryNotAllowed")),
        (false, true, false)
    );
    let failure = json!({
        "reason": "ImageNotFound", "message": "", "attempts": 2, "nextTryTime": "2026-01-01T00:00:00Z",
    });
    let failing = report("Pending", pulled("False", "ImageNotFound"), failure);
    assert_eq!(failing, (false, false, false), "it is tried again");
    assert_eq!(
        of("Idle", condition("Released", "True", "Released")),
        (false, false, true)
    );
    assert_eq!(
        of("Released", condition("Released", "False", "NotYet")),
        (false, false, false)
    );
    assert_eq!(
        of("Released", json!([])),
        (false, false, true),
        "an agent of an earlier version"
    );
}

fn read<T: serde::de::DeserializeOwned>(object: serde_json::Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// A copy of an object with another value at this JSON pointer.
fn with(object: &serde_json::Value, pointer: &str, value: serde_json::Value) -> serde_json::Value {
    let mut object = object.clone();
    *object.pointer_mut(pointer).unwrap() = value;
    object
}

/// Checks whether a change may change a plan, and whether someone other than the controller made it.
fn check<V: View>(before: &V, after: &V, (differs, spoken): (bool, bool), what: &str) {
    let found = (after.differs(before), after.has_spoken(before));
    assert_eq!(found, (differs, spoken), "{what}");
    let news = if differs { Some(Urgency::Soon) } else { None };
    assert_eq!(after.urgency(before), news, "{what}");
}

/// Checks an unreadable object with this value: only another error is a change.
fn check_unreadable<V: View>(view: impl Fn(serde_json::Value) -> V) {
    let (number, list) = (serde_json::json!(7), serde_json::json!([]));
    check(
        &view(number.clone()),
        &view(number.clone()),
        SAME,
        "unreadable as before",
    );
    check(&view(number), &view(list), BOTH, "unreadable otherwise");
}

const SAME: (bool, bool) = (false, false);
/// Plans may differ, and the controller may have written it.
const PLAN: (bool, bool) = (true, false);
/// A heartbeat that changes no plan.
const PULSE: (bool, bool) = (false, true);
const BOTH: (bool, bool) = (true, true);

#[test]
fn a_node_differs_in_what_plans_read() {
    let node = json!({
        "metadata": { "name": "n1", "uid": "u", "labels": {}, "annotations": {}, "resourceVersion": "1" },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    let view = |node: &serde_json::Value| NodeView::of(&read(node.clone()));
    for (pointer, value, expected) in [
        ("/metadata/resourceVersion", json!("2"), SAME),
        ("/metadata/annotations", json!({ "example.com/other": "x" }), SAME),
        ("/metadata/annotations", json!({ keys::ANNOTATION_CORDON: "x" }), BOTH),
        ("/metadata/labels", json!({ "role": "worker" }), BOTH),
        ("/status/conditions/0/status", json!("Unknown"), BOTH),
    ] {
        check(&view(&node), &view(&with(&node, pointer, value)), expected, pointer);
    }
}

#[test]
fn our_own_conditions_are_not_a_report() {
    let condition = |type_: &str, status: &str| json!({ "type": type_, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let owner = |uid: &str| json!([{ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid }]);
    let host = json!({
        "metadata": {
            "name": "n1", "uid": "h", "generation": 1, "finalizers": [], "labels": {}, "ownerReferences": owner("u"),
            "deletionTimestamp": null, "resourceVersion": "1",
        },
        "spec": { "poolName": "a" },
        "status": { "bootID": "b", "heartbeatTime": "2026-01-01T00:00:00Z", "conditions": [] },
    });
    let view = |host: &serde_json::Value| BootcNodeView::of(read(host.clone()));
    for (pointer, value, expected) in [
        ("/metadata/resourceVersion", json!("2"), SAME),
        (
            "/status/conditions",
            json!([condition(condition::node::WAITING, "True")]),
            SAME,
        ),
        (
            "/status/conditions",
            json!([condition(condition::node::REBOOT_TIMED_OUT, "True")]),
            PLAN,
        ),
        ("/spec/poolName", json!("b"), PLAN),
        ("/metadata/uid", json!("other"), PLAN),
        ("/metadata/generation", json!(2), PLAN),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), PLAN),
        ("/metadata/finalizers", json!(["berth.dev/cleanup"]), PLAN),
        ("/metadata/ownerReferences", owner("other"), PLAN),
        ("/metadata/labels", json!({ keys::LABEL_POOL: "a" }), PLAN),
        ("/status/heartbeatTime", json!("2026-01-01T00:02:00Z"), PULSE),
        ("/status/bootID", json!("another"), BOTH),
        ("/status/bootID", json!(7), BOTH),
    ] {
        check(&view(&host), &view(&with(&host, pointer, value)), expected, pointer);
    }
    check_unreadable(|value| view(&with(&host, "/status/bootID", value)));
}

#[test]
fn a_bootcnode_is_owned_by_its_node_alone() {
    let owner = |kind: &str, uid: &str| json!({ "apiVersion": "v1", "kind": kind, "name": "n1", "uid": uid });
    let owners = json!([owner("Machine", "m"), owner("Node", "n")]);
    let host = json!({ "metadata": { "name": "n1", "ownerReferences": owners }, "spec": {} });
    let view = BootcNodeView::of(read(host));
    assert_eq!(view.owner.as_deref(), Some("n"));
}

#[test]
fn a_report_counts_for_its_node_and_generation() {
    let observed = |generation: Option<i64>, observed: Option<i64>, node: &str| {
        let view = BootcNodeView::of(read(json!({
            "metadata": { "name": "n1", "generation": generation },
            "spec": { "nodeUID": "u" },
            "status": { "observedGeneration": observed, "nodeUID": node },
        })));
        view.is_observed()
    };
    assert!(observed(Some(2), Some(2), "u"));
    assert!(!observed(Some(2), Some(1), "u"), "something else was published since");
    assert!(!observed(Some(2), None, "u"), "nothing is reported");
    assert!(
        !observed(Some(2), Some(2), "v"),
        "another Node of this name has reported"
    );
    assert!(!observed(None, None, "u"), "the published generation is unknown");
}

#[test]
fn a_boot_image_note_is_kept() {
    let view = BootcNodeView::of(read(json!({
        "metadata": { "name": "n1" }, "spec": {},
        "status": { "bootImage": {
            "version": "9.6", "provisionedTime": "1970-01-01T00:01:00Z", "source": "/etc/aleph", "error": "torn",
        } },
    })));
    let expected = BootImageNote {
        version: Some("9.6".to_owned()),
        provisioned: Some(60),
        error: Some("torn".to_owned()),
    };
    assert_eq!(view.report().unwrap().boot_image, expected);
}

#[test]
fn only_a_closed_berth_is_urgent() {
    let target = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    let offer = Offer {
        node: "n1".into(),
        uid: "u".into(),
        target,
        open_until: None,
    };
    let boot = || BootId::from("b");
    let closed = Berth::new("p".into(), 0, 1);
    let shrunk = closed.closed(berth::ClosedReason::Shrunk).unwrap();
    let offered = closed.offered(offer).unwrap();
    let held = offered.taken(&"n1".into(), &"u".into(), None, boot()).unwrap();
    let committed = held.committed(boot()).unwrap();
    let releasing = held.releasing(berth::Outcome::Withdrawn, boot()).unwrap();
    let given_back = releasing.given_back().unwrap();
    let view = |berth: &Berth, uid: &str, renewed: i64| {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut lease = berth::lease::create(berth, "ns", Duration::from_secs(1), at(1));
        lease.metadata.uid = Some(uid.to_owned());
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime::from(at(renewed)));
        LeaseView::of(lease)
    };
    for (before, after, expected) in [
        (&releasing, &given_back, Some(Urgency::Now)),
        (&offered, &closed, Some(Urgency::Now)),
        (&closed, &shrunk, Some(Urgency::Later)),
        (&closed, &offered, Some(Urgency::Later)),
        (&offered, &held, Some(Urgency::Later)),
        (&held, &committed, Some(Urgency::Later)),
        (&held, &held, None),
    ] {
        let (before, after) = (view(before, "l", 1), view(after, "l", 2));
        assert_eq!(
            after.urgency(&before),
            expected,
            "{:?} after {:?}",
            after.berth,
            before.berth
        );
    }
    let anew = view(&held, "another", 1);
    assert!(anew.differs(&view(&held, "l", 1)), "the Lease was created again");
    let unreadable = |error: &str| LeaseView {
        berth: Err(error.to_owned()),
        ..view(&held, "l", 1)
    };
    assert!(!unreadable("no phase").has_spoken(&unreadable("no phase")));
    assert!(unreadable("no phase").has_spoken(&unreadable("no target")));
}

#[test]
fn a_pool_differs_in_what_plans_read() {
    let pool = json!({
        "metadata": {
            "name": "a", "uid": "u", "finalizers": [], "annotations": {}, "deletionTimestamp": null, "resourceVersion": "1",
        },
        "spec": { "nodeSelector": {}, "image": { "ref": "r/os:1" } },
        "status": { "observedGeneration": 1 },
    });
    let view = |pool: &serde_json::Value| PoolView::of(read(pool.clone()));
    for (pointer, value, expected) in [
        ("/metadata/resourceVersion", json!("2"), SAME),
        ("/metadata/annotations", json!({ "example.com/other": "x" }), SAME),
        (
            "/metadata/annotations",
            json!({ keys::ANNOTATION_POLL_REQUESTED_AT: "x" }),
            BOTH,
        ),
        ("/metadata/uid", json!("other"), BOTH),
        ("/metadata/finalizers", json!(["example.com/mine"]), BOTH),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), BOTH),
        ("/spec/image/ref", json!("r/os:2"), BOTH),
        ("/spec/image/ref", json!(7), BOTH),
        ("/status/observedGeneration", json!(2), BOTH),
    ] {
        check(&view(&pool), &view(&with(&pool, pointer, value)), expected, pointer);
    }
    check_unreadable(|value| view(&with(&pool, "/spec/image/ref", value)));
}

#[test]
fn a_fleet_differs_in_what_plans_read() {
    let fleet = json!({
        "metadata": { "name": "cluster", "uid": "u", "generation": 1, "annotations": {}, "resourceVersion": "1" },
        "spec": { "paused": false },
        "status": { "observedGeneration": 1 },
    });
    let view = |fleet: &serde_json::Value| FleetView::of(read(fleet.clone()));
    for (pointer, value, expected) in [
        ("/metadata/resourceVersion", json!("2"), SAME),
        ("/metadata/uid", json!("other"), BOTH),
        ("/metadata/generation", json!(2), BOTH),
        ("/spec/paused", json!(true), BOTH),
        ("/spec/paused", json!("perhaps"), BOTH),
        ("/status/observedGeneration", json!(2), BOTH),
    ] {
        check(&view(&fleet), &view(&with(&fleet, pointer, value)), expected, pointer);
    }
    let unreadable = |value| view(&with(&fleet, "/spec/paused", value));
    check(
        &unreadable(json!("x")),
        &unreadable(json!("x")),
        SAME,
        "unreadable as before",
    );
    check(
        &unreadable(json!("x")),
        &unreadable(json!("y")),
        BOTH,
        "unreadable otherwise",
    );
}

#[test]
fn only_the_dismissed_annotation_matters() {
    let fleet = |annotations: serde_json::Value| {
        let object = json!({ "metadata": { "name": "cluster", "annotations": annotations }, "spec": {} });
        FleetView::of(serde_json::from_value(object).unwrap())
    };
    let bare = fleet(json!({}));
    let dismissed = fleet(json!({ "berth.dev/dismissed-machines": "m7@2026-01-01T00:00:00Z" }));
    let kept = dismissed.object.as_ref().unwrap().metadata.annotations.clone().unwrap();
    assert_eq!(
        kept.get("berth.dev/dismissed-machines").unwrap(),
        "m7@2026-01-01T00:00:00Z"
    );
    assert!(dismissed.differs(&bare));
    assert!(!fleet(json!({ "example.com/other": "x" })).differs(&bare));
}
