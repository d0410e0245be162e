//! Lies in the liar's Node, with the kubelet's certificate.

use berth_api::keys;
use serde_json::{Value, json};

use super::request::{Identity, NODE_LEASES, NODES, Request};
use super::values::Draw;
use crate::soak::pools::LABEL_SPARE;

fn metadata(draw: &Draw<'_>, body: Value) -> Vec<Request> {
    let path = format!("{NODES}/{}", draw.view.node);
    vec![Request::patch(Identity::Kubelet, path, body)]
}

fn status(draw: &Draw<'_>, status: Value) -> Vec<Request> {
    let path = format!("{NODES}/{}/status", draw.view.node);
    vec![Request::patch(Identity::Kubelet, path, json!({ "status": status }))]
}

pub(super) fn labels(draw: &mut Draw<'_>) -> Vec<Request> {
    let spare = if draw.coin() { json!("true") } else { Value::Null };
    let labels = json!({
        LABEL_SPARE: spare, "topology.kubernetes.io/zone": draw.one_of(&["a", "b", "c"]),
        "kubernetes.io/arch": draw.one_of(&["amd64", "arm64", "x"]), "example.com/x": draw.hex(8),
        "kubernetes.io/os": draw.one_of(&["linux", "linux", "windows"]), "kubernetes.io/hostname": draw.other_node(),
        keys::LABEL_KARPENTER_NODEPOOL: draw.hex(4),
    });
    let labels = draw.some_of(labels);
    metadata(draw, json!({ "metadata": { "labels": labels } }))
}

pub(super) fn annotations(draw: &mut Draw<'_>) -> Vec<Request> {
    let length = if draw.random.one_in(8) { 200_000 } else { 100 };
    let records = ["{\"unschedulable\":true}", "{\"unschedulable\":false}", "{", "", "null"];
    let annotations = json!({
        keys::ANNOTATION_CORDON: draw.one_of(&records), keys::ANNOTATION_RELEASED: draw.hex(8),
        keys::ANNOTATION_SCALE_DOWN: draw.word(), keys::ANNOTATION_SCALE_DOWN_DISABLED: draw.word(),
        keys::ANNOTATION_DO_NOT_DISRUPT: draw.word(), keys::ANNOTATION_DO_NOT_REPAIR_MARK: draw.word(),
        "example.com/filler": draw.text(length),
    });
    let annotations = draw.some_of(annotations);
    metadata(draw, json!({ "metadata": { "annotations": annotations } }))
}

pub(super) fn cordon(draw: &mut Draw<'_>) -> Vec<Request> {
    let unschedulable = draw.coin();
    metadata(draw, json!({ "spec": { "unschedulable": unschedulable } }))
}

fn condition(draw: &mut Draw<'_>, type_: &str, time: String) -> Value {
    let status = draw.one_of(&["True", "True", "False", "Unknown"]);
    json!({
        "type": type_, "status": status, "reason": draw.word(), "message": draw.text(2_000),
        "lastHeartbeatTime": draw.time(), "lastTransitionTime": time,
    })
}

/// Conditions of the Node. Sometimes `Ready` is missing.
pub(super) fn ready(draw: &mut Draw<'_>) -> Vec<Request> {
    let mut conditions = vec![];
    let others = [
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "NetworkUnavailable",
        "Drained",
        "X",
    ];
    for type_ in others {
        if draw.random.one_in(4) {
            let time = draw.time();
            conditions.push(condition(draw, type_, time));
        }
    }
    if !draw.random.one_in(6) {
        let time = draw.time();
        conditions.push(condition(draw, "Ready", time));
    }
    status(draw, json!({ "conditions": conditions }))
}

pub(super) fn times(draw: &mut Draw<'_>) -> Vec<Request> {
    let time = draw.extreme_time();
    let ready = condition(draw, "Ready", time);
    let mut requests = status(draw, json!({ "conditions": [ready] }));
    if draw.random.one_in(4) {
        let owners = draw.field_owners("v1");
        requests.extend(metadata(draw, json!({ "metadata": { "managedFields": owners } })));
    }
    if draw.coin() {
        let path = format!("{NODE_LEASES}/{}", draw.view.node);
        let body = json!({ "spec": { "renewTime": "9999-12-31T23:59:59.000000Z" } });
        requests.push(Request::patch(Identity::Kubelet, path, body));
    }
    requests
}

pub(super) fn info(draw: &mut Draw<'_>) -> Vec<Request> {
    let fields = json!({
        "bootID": draw.boot_id(), "machineID": draw.other_node(), "systemUUID": draw.hex(32),
        "kernelVersion": draw.text(200), "osImage": draw.text(500),
        "architecture": draw.one_of(&["amd64", "amd64", "arm64", "x"]),
        "operatingSystem": draw.one_of(&["linux", "linux", "windows"]), "kubeletVersion": draw.word(),
        "containerRuntimeVersion": draw.word(),
    });
    let mut fields = draw.some_of(fields);
    if let Value::Object(fields) = &mut fields {
        // The API server requires all fields.
        fields.retain(|_, value| !value.is_null());
    }
    status(draw, json!({ "nodeInfo": fields }))
}

/// Addresses of the Node: a server's, names of others, and more.
pub(super) fn addresses(draw: &mut Draw<'_>) -> Vec<Request> {
    let mut addresses = vec![json!({ "type": "Hostname", "address": draw.other_node() })];
    for type_ in ["InternalIP", "ExternalIP"] {
        let address = match draw.random.within(0..=3) {
            0 | 1 => "127.0.0.1".to_owned(),
            2 => "::1".to_owned(),
            _ => draw.text(60),
        };
        addresses.push(json!({ "type": type_, "address": address }));
    }
    status(draw, json!({ "addresses": addresses }))
}

/// A status of nearly a megabyte: each watch event of the Node carries it.
pub(super) fn bulk(draw: &mut Draw<'_>) -> Vec<Request> {
    let images: Vec<_> = (0..2_000)
        .map(|_| json!({ "names": [format!("x/{}", "y".repeat(400))], "sizeBytes": draw.number() }))
        .collect();
    status(draw, json!({ "images": images }))
}
