use kube::ResourceExt;
use kube::core::{ObjectList, WatchEvent};
use serde_json::{Value, json};

use super::part::MAX_ERROR;
use super::*;

/// A time that Go accepts and jiff does not.
const BAD: &str = "9999-12-31T23:59:59Z";

fn read<K: Decode>(object: Value) -> Decoded<K> {
    // As in a response of the API server: from text.
    serde_json::from_str(&object.to_string()).unwrap()
}

fn metadata() -> Value {
    json!({
        "name": "n1", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 2, "labels": { "a": "b" },
        "annotations": { "c": "d" }, "finalizers": ["f"], "creationTimestamp": "2026-01-01T00:00:00Z",
        "generateName": "n", "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u2" }],
    })
}

#[test]
fn metadata_is_kept_without_its_managed_fields() {
    let expected: ObjectMeta = serde_json::from_value(metadata()).unwrap();
    let mut object = json!({ "metadata": metadata(), "spec": {} });
    object["metadata"]["managedFields"] = json!([{ "manager": "x", "time": BAD, "fieldsV1": { "f:status": {} } }]);
    assert_eq!(read::<BootcNode>(object.clone()).whole().unwrap().metadata, expected);
    assert_eq!(read::<Node>(object.clone()).whole().unwrap().metadata, expected);
    let stored: StoredBootcNode = serde_json::from_value(object).unwrap();
    assert_eq!(stored.metadata, expected);
}

#[test]
fn managed_fields_may_be_nested_deeply() {
    let (open, close) = ("{\"f:a\":".repeat(500), "}".repeat(500));
    let text = format!(
        r#"{{"metadata": {{"name": "n1", "managedFields": [{{"fieldsV1": {open}{{}}{close}}}]}}, "spec": {{}}}}"#
    );
    let node: Decoded<Node> = serde_json::from_str(&text).unwrap();
    assert_eq!((node.name_any().as_str(), node.error()), ("n1", None));
}

#[test]
fn times_of_the_metadata_fail_nothing() {
    let mut object = json!({ "metadata": metadata(), "spec": {} });
    object["metadata"]["creationTimestamp"] = json!(BAD);
    let node: Decoded<Node> = read(object.clone());
    assert_eq!((node.error(), node.creation_timestamp()), (None, None));
    assert_eq!(node.metadata.deletion_timestamp, None);
    object["metadata"]["deletionTimestamp"] = json!(BAD);
    let deleted = read::<Node>(object).object.metadata.deletion_timestamp;
    assert_eq!(deleted, Some(DELETED_LATE), "being deleted");
}

#[test]
fn each_part_of_a_node_is_decoded_separately() {
    let whole = json!({
        "metadata": metadata(),
        "spec": { "unschedulable": true, "podCIDR": "10.0.0.0/24", "taints": [{ "key": "t", "effect": "NoSchedule", "timeAdded": BAD }] },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
            "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": null }],
            "nodeInfo": { "architecture": "amd64", "bootID": "b" },
            "images": [{ "names": ["a"], "sizeBytes": 7 }], "capacity": { "cpu": "4" },
        },
    });
    let node: Decoded<Node> = read(whole.clone());
    let expected = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": metadata(), "spec": { "unschedulable": true },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
            "conditions": [{ "type": "Ready", "status": "True" }],
            "nodeInfo": {
                "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
            },
        },
    });
    assert_eq!((serde_json::to_value(&node).unwrap(), node.error()), (expected, None));
    for (pointer, value, field) in [
        (
            "/status/conditions/0/lastHeartbeatTime",
            json!(BAD),
            "status.conditions: ",
        ),
        ("/status/conditions", json!("x"), "status.conditions: "),
        ("/status/addresses", json!(7), "status.addresses: "),
        ("/status/nodeInfo/bootID", json!([]), "status.nodeInfo: "),
        ("/spec/unschedulable", json!("x"), "spec.unschedulable: "),
    ] {
        let mut bad = whole.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        let node: Decoded<Node> = read(bad);
        assert!(
            node.error().unwrap().starts_with(field),
            "{pointer}: {:?}",
            node.error()
        );
        assert_eq!(node.metadata, serde_json::from_value(metadata()).unwrap());
    }
}

#[test]
fn a_bad_status_does_not_hide_the_spec() {
    let spec = json!({ "poolName": "p", "nodeUID": "u2" });
    let failure = json!({ "reason": "R", "message": "", "attempts": 5_000_000_000_u64, "nextTryTime": BAD });
    for status in [
        json!({ "failure": failure }),
        json!({ "heartbeatTime": BAD }),
        json!({ "heartbeatTime": "10000-01-01T00:00:00Z" }),
        json!([]),
    ] {
        let host: Decoded<BootcNode> = read(json!({ "metadata": metadata(), "spec": spec, "status": status.clone() }));
        assert_eq!((host.spec.pool_name.as_str(), &host.status), ("p", &None), "{status}");
        assert!(
            host.spec_error.is_none() && host.error().unwrap().starts_with("status: "),
            "{status}"
        );
    }
    let host: Decoded<BootcNode> = read(json!({ "metadata": metadata(), "status": { "bootID": "b" } }));
    assert_eq!(host.error(), Some("spec is missing"));
    assert_eq!(host.object.status.unwrap().boot_id.as_deref(), Some("b"));
}

#[test]
fn an_error_is_short() {
    let long = "x\n".repeat(1_000_000);
    let host: Decoded<BootcNode> = read(json!({ "metadata": metadata(), "spec": {}, "status": { "phase": long } }));
    let error = host.error().unwrap();
    assert!(
        error.chars().count() <= MAX_ERROR + 10 && !error.contains('\n'),
        "{error}"
    );
}

#[test]
fn the_holder_of_a_lease_with_a_bad_time_is_known() {
    for field in ["renewTime", "acquireTime"] {
        let mut spec =
            json!({ "holderIdentity": "n1", "leaseTransitions": 7, "renewTime": "2026-01-01T00:00:00.000000Z" });
        spec[field] = json!("9999-12-31T23:59:59.000000Z");
        let lease: Decoded<Lease> = read(json!({ "metadata": metadata(), "spec": spec }));
        let error = lease.berth().unwrap_err().to_string();
        assert!(
            error.contains(&format!("Lease n1 is not a valid berth: spec.{field}: ")),
            "{error}"
        );
        let spec = lease.object.spec.unwrap();
        assert_eq!(
            (spec.holder_identity.as_deref(), spec.lease_transitions),
            (Some("n1"), Some(7))
        );
    }
}

#[test]
fn a_lease_is_written_as_it_was_read() {
    let whole = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata(),
        "spec": {
            "holderIdentity": "n1", "leaseDurationSeconds": 7, "leaseTransitions": 1, "strategy": "OldestEmulationVersion",
            "preferredHolder": "n2", "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-02T00:00:00.000000Z",
        },
    });
    let lease: Decoded<Lease> = read(whole.clone());
    assert_eq!(lease.error(), None);
    assert_eq!(serde_json::to_value(lease).unwrap(), whole);
}

#[test]
fn one_object_fails_neither_a_list_nor_a_watch() {
    let good = json!({ "metadata": { "name": "n2", "resourceVersion": "8" }, "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    let bad = json!({
        "metadata": { "name": "n1", "resourceVersion": "9", "managedFields": [{ "time": BAD }] },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": BAD }] },
    });
    let list = json!({ "metadata": { "resourceVersion": "9" }, "items": [bad, good] }).to_string();
    let list: ObjectList<Decoded<Node>> = serde_json::from_str(&list).unwrap();
    let found: Vec<_> = list
        .items
        .iter()
        .map(|node| (node.name_any(), node.error().is_none()))
        .collect();
    assert_eq!(found, [("n1".to_owned(), false), ("n2".to_owned(), true)]);
    // The API server sends the type first. In the other order, serde buffers the object.
    for text in [
        format!(r#"{{"type": "MODIFIED", "object": {bad}}}"#),
        format!(r#"{{"object": {bad}, "type": "MODIFIED"}}"#),
    ] {
        let event: WatchEvent<Decoded<Node>> = serde_json::from_str(&text).unwrap();
        let WatchEvent::Modified(node) = event else {
            panic!("{event:?}")
        };
        assert_eq!(
            (node.name_any().as_str(), node.resource_version().as_deref()),
            ("n1", Some("9"))
        );
        assert!(node.error().is_some());
    }
}

#[test]
fn a_stored_status_is_not_decoded() {
    let status = json!({ "heartbeatTime": BAD, "ofALaterVersion": { "x": [1] } });
    let mut object = json!({ "metadata": metadata(), "spec": 7, "status": status });
    object["metadata"]["managedFields"] = json!([{ "time": BAD }]);
    let stored: StoredBootcNode = serde_json::from_value(object).unwrap();
    assert_eq!((stored.name_any().as_str(), &stored.status), ("n1", &status));
    let stored: StoredBootcNode = serde_json::from_value(json!({ "metadata": metadata() })).unwrap();
    assert_eq!(stored.status, Value::Null);
}
