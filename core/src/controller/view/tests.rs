use std::time::Duration;

use berth_api::berth::{self, Offer};
use berth_api::pool::DEFAULT_REBOOT_TIMEOUT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::{Value, json};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn offered() -> Berth {
    let offer = Offer {
        node: "n1".into(),
        uid: "u".into(),
        target: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
        open_until: Some(at(9)),
    };
    Berth::new("p".into(), 0, 1).offered(offer).unwrap()
}

fn taken() -> Berth {
    offered().taken(&"n1".into(), &"u".into(), None, "b".into()).unwrap()
}

fn lease_view(berth: &Berth, renewed: i64, version: &str) -> LeaseView {
    let mut lease = berth::lease::create(berth, "ns", Duration::from_secs(1), at(1));
    lease.metadata.resource_version = Some(version.into());
    lease.metadata.uid = Some("l".to_owned());
    lease.spec.as_mut().unwrap().renew_time = Some(MicroTime::from(at(renewed)));
    LeaseView::of(lease)
}

#[test]
fn only_writes_of_the_holder_count_as_heard() {
    let taken = taken();
    let before = lease_view(&taken, 1, "1");
    let ours = [
        taken.clone(),
        taken.stamped(2),
        taken.revoked(Some("Paused".into())).unwrap(),
    ];
    for berth in ours {
        assert!(!lease_view(&berth, 1, "2").has_spoken(&before), "{berth:?}");
    }
    assert!(lease_view(&taken, 2, "2").has_spoken(&before), "a renewal");
    let committed = taken.committed("b".into()).unwrap();
    assert!(lease_view(&committed, 1, "2").has_spoken(&before));
    assert!(before.has_spoken(&lease_view(&offered(), 1, "0")));
}

#[test]
fn a_missing_guard_is_reported_besides_other_troubles() {
    let disk = reported("NodeDegraded", "True", "DiskFull");
    for (conditions, is_unguarded) in [
        (json!([disk, reported("Guarded", "False", "Unguarded")]), true),
        (json!([disk, reported("Guarded", "True", "AsExpected")]), false),
        (json!([disk]), false),
        // Older agents report a missing guard only as `NodeDegraded`.
        (json!([reported("NodeDegraded", "True", "Unguarded")]), true),
    ] {
        let view = BootcNodeView::of(read(json!({
            "metadata": { "name": "n1" }, "spec": {}, "status": { "conditions": conditions },
        })));
        let report = view.content.unwrap().report;
        assert_eq!(report.unguarded, is_unguarded, "{conditions}");
    }
}

#[test]
fn decisions_read_conditions_not_phases() {
    let none = json!(null);
    let failure = json!({
        "reason": "ImageNotFound", "message": "", "attempts": 2, "nextTryTime": "2026-01-01T00:00:00Z",
    });
    let pulled = "ImagePulledFromRegistry";
    for (phase, condition, failure, expected) in [
        ("Staging", None, &none, (false, false, false)),
        ("Degraded", None, &none, (false, false, false)),
        (
            "Proving",
            Some((pulled, "Unknown", "Pulling")),
            &none,
            (true, false, false),
        ),
        (
            "Pending",
            Some((pulled, "Unknown", "Blocked")),
            &none,
            (false, true, false),
        ),
        (
            "Pending",
            Some((pulled, "False", "RegistryNotAllowed")),
            &none,
            (false, true, false),
        ),
        (
            "Pending",
            Some((pulled, "False", "ImageNotFound")),
            &failure,
            (false, false, false),
        ),
        (
            "Idle",
            Some(("Released", "True", "Released")),
            &none,
            (false, false, true),
        ),
        (
            "Released",
            Some(("Released", "False", "NotYet")),
            &none,
            (false, false, false),
        ),
        // Older agents report a release only as a phase.
        ("Released", None, &none, (false, false, true)),
    ] {
        let conditions = condition.map(|(type_, status, reason)| reported(type_, status, reason));
        let conditions = Vec::from_iter(conditions);
        let view = BootcNodeView::of(read(json!({
            "metadata": { "name": "n1", "generation": 3 }, "spec": {},
            "status": { "observedGeneration": 3, "phase": phase, "conditions": conditions, "failure": failure },
        })));
        let report = view.report().unwrap();
        let found = (report.pull.pulling, report.pull.blocked, view.is_released());
        assert_eq!(found, expected, "{phase} {condition:?}");
    }
}

fn reported(type_: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// Returns a copy of the object with another value at the JSON pointer.
fn with(object: &Value, pointer: &str, value: Value) -> Value {
    let mut object = object.clone();
    *object.pointer_mut(pointer).unwrap() = value;
    object
}

/// Checks that a change has these values of `differs` and `has_spoken`.
fn check<V: View>(before: &V, after: &V, (differs, spoken): (bool, bool), what: &str) {
    let found = (after.differs(before), after.has_spoken(before));
    assert_eq!(found, (differs, spoken), "{what}");
    let news = if differs { Some(Urgency::Soon) } else { None };
    assert_eq!(after.urgency(before), news, "{what}");
}

/// Checks changes of an object, each with its JSON pointer and the new value.
fn check_changes<V: View>(object: &Value, view: fn(Value) -> V, changes: &[(&str, Value, (bool, bool))]) {
    for (pointer, value, expected) in changes {
        let changed = with(object, pointer, value.clone());
        check(&view(object.clone()), &view(changed), *expected, pointer);
    }
}

/// Makes the object unreadable at the JSON pointer, and checks that only another error then counts as a change.
fn check_unreadable<V: View>(object: &Value, view: fn(Value) -> V, pointer: &str) {
    let [number, list] = [json!(7), json!([])].map(|value| with(object, pointer, value));
    let before = view(number.clone());
    check(&before, &view(number), SAME, "unreadable as before");
    check(&before, &view(list), BOTH, "unreadable otherwise");
}

const SAME: (bool, bool) = (false, false);
/// (`differs`, `has_spoken`) of a change that affects plans and does not come from an agent.
const PLAN: (bool, bool) = (true, false);
/// (`differs`, `has_spoken`) of a heartbeat.
const PULSE: (bool, bool) = (false, true);
const BOTH: (bool, bool) = (true, true);

#[test]
fn a_node_differs_in_what_plans_read() {
    let node = json!({
        "metadata": { "name": "n1", "uid": "u", "labels": {}, "annotations": {}, "resourceVersion": "1" },
        "status": {
            "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z" }],
            "nodeInfo": { "bootID": "b1" },
        },
    });
    let changes = [
        ("/metadata/resourceVersion", json!("2"), SAME),
        ("/metadata/annotations", json!({ "example.com/other": "x" }), SAME),
        ("/metadata/annotations", json!({ keys::ANNOTATION_CORDON: "x" }), PLAN),
        ("/metadata/labels", json!({ "role": "worker" }), PLAN),
        // Another writer than the kubelet reports that the kubelet is silent.
        ("/status/conditions/0/status", json!("Unknown"), PLAN),
        (
            "/status/conditions/0/lastHeartbeatTime",
            json!("2026-01-01T00:05:00Z"),
            PULSE,
        ),
        ("/status/nodeInfo/bootID", json!("b2"), BOTH),
    ];
    check_changes(&node, |node| NodeView::of(&read(node)), &changes);
}

fn owner(kind: &str, uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": kind, "name": "n1", "uid": uid })
}

#[test]
fn our_own_conditions_are_not_a_report() {
    let host = json!({
        "metadata": {
            "name": "n1", "uid": "h", "generation": 1, "finalizers": [], "labels": {},
            "ownerReferences": [owner("Node", "u")], "deletionTimestamp": null, "resourceVersion": "1",
        },
        "spec": { "poolName": "a" },
        "status": { "bootID": "b", "heartbeatTime": "2026-01-01T00:00:00Z", "conditions": [] },
    });
    let changes = [
        ("/metadata/resourceVersion", json!("2"), SAME),
        (
            "/status/conditions",
            json!([reported(condition::node::WAITING, "True", "R")]),
            SAME,
        ),
        (
            "/status/conditions",
            json!([reported(condition::node::REBOOT_TIMED_OUT, "True", "R")]),
            PLAN,
        ),
        ("/spec/poolName", json!("b"), PLAN),
        ("/metadata/uid", json!("other"), PLAN),
        ("/metadata/generation", json!(2), PLAN),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), PLAN),
        ("/metadata/finalizers", json!(["berth.dev/cleanup"]), PLAN),
        ("/metadata/ownerReferences", json!([owner("Node", "other")]), PLAN),
        ("/metadata/labels", json!({ keys::LABEL_POOL: "a" }), PLAN),
        ("/status/heartbeatTime", json!("2026-01-01T00:02:00Z"), PULSE),
        ("/status/bootID", json!("another"), BOTH),
        ("/status/bootID", json!(7), BOTH),
    ];
    check_changes(&host, |host| BootcNodeView::of(read(host)), &changes);
    check_unreadable(&host, |host| BootcNodeView::of(read(host)), "/status/bootID");
}

/// A time that the API server accepts, but that is out of the range of `Timestamp`.
const LATE: &str = "9999-12-31T23:59:59Z";

#[test]
fn a_node_that_cannot_be_decoded_is_not_ready() {
    let mut node = json!({
        "metadata": { "name": "n1", "uid": "u", "labels": { "role": "worker" }, "annotations": { keys::ANNOTATION_CORDON: "x" } },
        "spec": { "unschedulable": true },
        "status": {
            "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z" }],
            "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }], "nodeInfo": { "architecture": "arm64" },
        },
    });
    let before = NodeView::of(&read(node.clone()));
    assert!(before.ready && before.error.is_none());
    node["status"]["conditions"][0]["lastHeartbeatTime"] = json!(LATE);
    let view = NodeView::of(&read(node));
    assert!(
        view.error.as_deref().unwrap().starts_with("status.conditions: "),
        "{view:?}"
    );
    assert!(view.differs(&before));
    let expected = NodeView {
        ready: false,
        error: view.error.clone(),
        kubelet: KubeletReport::default(),
        ..before
    };
    assert_eq!(view, expected, "everything else is known");
}

#[test]
fn a_status_that_cannot_be_decoded_is_an_empty_report() {
    for pool in ["a", ""] {
        let mut host = json!({
            "metadata": { "name": "n1", "generation": 1 }, "spec": { "poolName": pool, "nodeUID": "u" },
            "status": { "observedGeneration": 1, "nodeUID": "u", "conditions": [reported("Released", "True", "R")] },
        });
        let before = BootcNodeView::of(read(host.clone()));
        assert!(before.is_observed() && before.is_released() && before.readable().is_some());
        host["status"]["failure"] = json!({ "reason": "R", "message": "", "attempts": 5_000_000_000_u64, "nextTryTime": "2026-01-01T00:00:00Z" });
        let view = BootcNodeView::of(read(host));
        assert_eq!((is_leaving(&view), made_for(&view)), (pool.is_empty(), Some("u")));
        assert!(!view.is_observed() && !view.is_released() && view.readable().is_none());
        assert!(view.differs(&before) && view.error().unwrap().starts_with("status: "));
        assert!(view.report().unwrap().degraded.is_none());
        let content = view.content.as_ref().unwrap();
        let finding = content.trouble(&"n1".into()).unwrap();
        assert_eq!(content.trouble_reason(), Some("UnreadableObjects"));
        assert!(
            finding.reason == "UnreadableObjects"
                && finding.subject.name() == "n1"
                && finding.message.contains("status: "),
            "{finding:?}"
        );
    }
}

#[test]
fn reported_texts_are_cut() {
    let long = "x\ny".repeat(1_000_000);
    let condition = |type_: &str| {
        let mut condition = reported(type_, "True", &long);
        condition["message"] = json!(long);
        condition
    };
    let turn = json!({
        "outcome": long, "message": long, "digest": format!("sha256:{}", "0".repeat(64)), "attempts": 1,
        "nextTryTime": "2026-01-01T00:00:00Z",
    });
    let conditions = ["NodeDegraded", "Waiting"].map(condition);
    let content = BootcNodeView::of(read(json!({
        "metadata": { "name": "n1" }, "spec": {}, "status": { "conditions": conditions, "lastTurn": turn },
    })));
    let content = content.content.unwrap();
    assert_eq!(content.status_error, None);
    let finding = content.report.degraded.unwrap();
    let turn = content.report.last_turn.unwrap();
    let told = &content.told[0];
    for (reason, message) in [
        (&*finding.reason, &finding.message),
        (turn.outcome.as_str(), &turn.message),
        (told.reason.as_str(), &told.message),
    ] {
        assert_eq!(reason, "Other");
        assert!(message.chars().count() == condition::MAX_MESSAGE + 1 && !message.contains('\n'));
    }
}

#[test]
fn times_that_no_status_can_hold_are_replaced() {
    let mut conditions = ["Waiting", "RebootTimedOut"].map(|type_| reported(type_, "True", "X"));
    conditions[0]["lastTransitionTime"] = json!("0000-01-01T00:00:00+23:59");
    conditions[1]["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
    let content = BootcNodeView::of(read(json!({
        "metadata": { "name": "n1" }, "spec": {}, "status": {
            "conditions": conditions, "phaseStartTime": "0000-01-01T00:00:00+23:59",
        },
    })));
    let content = content.content.unwrap();
    let times: Vec<_> = content
        .told
        .iter()
        .map(|c| c.last_transition_time.0.to_string())
        .collect();
    assert_eq!(times, ["1970-01-01T00:00:00Z", "2026-01-01T00:00:00Z"]);
    assert_eq!(content.report.phase_start, None);
}

#[test]
fn a_bootcnode_is_owned_by_its_node_alone() {
    let owners = json!([owner("Machine", "m"), owner("Node", "n")]);
    let host = json!({ "metadata": { "name": "n1", "ownerReferences": owners }, "spec": {} });
    let view = BootcNodeView::of(read(host));
    assert_eq!(view.owner.as_deref(), Some("n"));
}

#[test]
fn a_report_counts_for_its_node_and_generation() {
    for (what, generation, observed, node, is_observed) in [
        ("current", Some(2), Some(2), "u", true),
        ("something else was published since", Some(2), Some(1), "u", false),
        ("nothing is reported", Some(2), None, "u", false),
        (
            "another Node with the same name has reported",
            Some(2),
            Some(2),
            "v",
            false,
        ),
        ("the published generation is unknown", None, None, "u", false),
    ] {
        let view = BootcNodeView::of(read(json!({
            "metadata": { "name": "n1", "generation": generation },
            "spec": { "nodeUID": "u" },
            "status": { "observedGeneration": observed, "nodeUID": node },
        })));
        assert_eq!(view.is_observed(), is_observed, "{what}");
    }
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
    assert_eq!(view.report().unwrap().host.boot_image, expected);
}

#[test]
fn only_a_closed_berth_is_urgent() {
    let closed = Berth::new("p".into(), 0, 1);
    let shrunk = closed.closed(berth::ClosedReason::Shrunk).unwrap();
    let (offered, held) = (offered(), taken());
    let committed = held.committed("b".into()).unwrap();
    let releasing = held.releasing(berth::Outcome::Withdrawn, "b".into()).unwrap();
    let given_back = releasing.given_back().unwrap();
    for (before, after, expected) in [
        (&releasing, &given_back, Some(Urgency::Now)),
        (&offered, &closed, Some(Urgency::Now)),
        (&closed, &shrunk, Some(Urgency::Later)),
        (&closed, &offered, Some(Urgency::Later)),
        (&offered, &held, Some(Urgency::Later)),
        (&held, &committed, Some(Urgency::Later)),
        (&held, &held, None),
    ] {
        let (before, after) = (lease_view(before, 1, "1"), lease_view(after, 2, "1"));
        assert_eq!(
            after.urgency(&before),
            expected,
            "{:?} after {:?}",
            after.berth,
            before.berth
        );
    }
    let before = lease_view(&held, 1, "1");
    let mut again = before.clone();
    again.lease.metadata.uid = Some("another".to_owned());
    assert!(again.differs(&before), "the Lease was created again");
    let [phase, target] = ["no phase", "no target"].map(|error| LeaseView {
        berth: Err(error.to_owned()),
        ..before.clone()
    });
    assert!(!phase.has_spoken(&phase));
    assert!(phase.has_spoken(&target));
}

#[test]
fn a_pool_differs_in_what_plans_read() {
    let pool = json!({
        "metadata": {
            "name": "a", "uid": "u", "finalizers": [], "annotations": {}, "deletionTimestamp": null, "resourceVersion": "1",
        },
        "spec": { "nodeSelector": {}, "image": { "ref": "r.io/os:1" } },
        "status": { "observedGeneration": 1 },
    });
    let changes = [
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
        ("/spec/image/ref", json!("r.io/os:2"), BOTH),
        ("/spec/image/ref", json!(7), BOTH),
        ("/status/observedGeneration", json!(2), BOTH),
    ];
    check_changes(&pool, |pool| PoolView::of(read(pool)), &changes);
    check_unreadable(&pool, |pool| PoolView::of(read(pool)), "/spec/image/ref");
}

#[test]
fn invalid_texts_leave_objects_readable() {
    let bad = "no such thing";
    let selector = json!({ "matchExpressions": [{ "key": "a", "operator": bad }] });
    let pool = json!({
        "metadata": { "name": "a" },
        "spec": {
            "nodeSelector": selector,
            "image": { "ref": bad, "pollInterval": bad, "minimumAge": bad },
            "drain": { "timeout": bad, "podSelector": selector },
            "rollout": {
                "soakTime": bad, "rebootTimeout": bad, "progressInterval": bad,
                "waves": [{ "name": "w", "nodeSelector": selector, "soakTime": bad }],
                "windows": [{ "schedule": bad, "duration": bad, "splay": bad }],
            },
        },
        "status": { "target": { "image": bad, "digest": format!("sha256:{}", "0".repeat(64)), "platforms": [] } },
    });
    let object = PoolView::of(read(pool.clone())).object.unwrap();
    assert!(object.spec.image_ref().get().is_err() && object.spec.selector().unwrap_err().contains(bad));
    assert_eq!(object.spec.reboot_timeout(), DEFAULT_REBOOT_TIMEOUT);
    let again = serde_json::to_value(&object).unwrap();
    assert_eq!(
        (&again["spec"]["drain"], &again["spec"]["image"]),
        (&pool["spec"]["drain"], &pool["spec"]["image"])
    );
    assert_eq!(
        again["status"]["target"], pool["status"]["target"],
        "the target is not lost"
    );
    let digest = &pool["status"]["target"]["digest"];
    let host = json!({
        "metadata": { "name": "n" },
        "spec": {
            "poolName": "a", "rebootTimeout": bad, "progressInterval": "",
            "image": { "ref": bad, "digest": digest, "indexDigest": digest },
        },
        "status": {},
    });
    let host = BootcNodeView::of(read(host));
    assert!(host.spec().unwrap().image.as_ref().unwrap().reference.get().is_err());
}

#[test]
fn a_fleet_differs_in_what_plans_read() {
    let fleet = json!({
        "metadata": { "name": "cluster", "uid": "u", "generation": 1, "annotations": {}, "resourceVersion": "1" },
        "spec": { "paused": false },
        "status": { "observedGeneration": 1 },
    });
    let changes = [
        ("/metadata/resourceVersion", json!("2"), SAME),
        ("/metadata/uid", json!("other"), BOTH),
        ("/metadata/generation", json!(2), BOTH),
        ("/spec/paused", json!(true), BOTH),
        ("/spec/paused", json!("perhaps"), BOTH),
        ("/status/observedGeneration", json!(2), BOTH),
    ];
    check_changes(&fleet, |fleet| FleetView::of(read(fleet)), &changes);
    check_unreadable(&fleet, |fleet| FleetView::of(read(fleet)), "/spec/paused");
}

#[test]
fn only_the_dismissed_annotation_matters() {
    let [bare, dismissed, other] = [
        json!({}),
        json!({ "berth.dev/dismissed-machines": "m7@2026-01-01T00:00:00Z" }),
        json!({ "example.com/other": "x" }),
    ]
    .map(|annotations| {
        let metadata = json!({ "name": "cluster", "annotations": annotations });
        FleetView::of(read(json!({ "metadata": metadata, "spec": {} })))
    });
    let kept = dismissed.object.as_ref().unwrap().metadata.annotations.clone().unwrap();
    assert_eq!(
        kept.get("berth.dev/dismissed-machines").unwrap(),
        "m7@2026-01-01T00:00:00Z"
    );
    assert!(dismissed.differs(&bare));
    assert!(!other.differs(&bare));
}

#[test]
fn texts_of_an_agent_are_one_line() {
    let odd = "a\nb\u{1b}[2J\u{202e}";
    let digest = format!("sha256:{}", "01".repeat(32));
    let condition = json!({
        "type": "NodeDegraded", "status": "True", "reason": "X", "message": odd, "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let turn = json!({
        "outcome": odd, "message": odd, "digest": digest, "attempts": 1, "nextTryTime": "2026-01-01T00:00:00Z",
    });
    let node = json!({
        "metadata": { "name": "n1" }, "spec": {},
        "status": {
            "agentVersion": odd, "platformVariant": odd, "lastTurn": turn, "conditions": [condition],
            "bootImage": { "version": odd, "error": odd, "source": "s" },
            "deployments": [{ "pool": "p", "digest": digest, "manifest": digest, "version": odd }],
        },
    });
    let view = BootcNodeView::of(read(node));
    let report = view.report().unwrap();
    let turn = report.last_turn.as_ref().unwrap();
    let boot_image = &report.host.boot_image;
    for text in [
        report.agent_version.as_deref(),
        report.host.platform_variant.as_deref(),
        report.degraded.as_ref().map(|found| found.message.as_str()),
        report.images.deployments[0].version.as_deref(),
        boot_image.version.as_deref(),
        boot_image.error.as_deref(),
        Some(&turn.message),
    ] {
        assert_eq!(text, Some("a b [2J"));
    }
    assert_eq!(turn.outcome, "Other");
}
