//! Lies in other objects, with the kubelet's certificate: its Lease, pods of its node, events.

use berth_api::firstboot::{EVENT_HOLDS, EVENT_REFUSED};
use serde_json::{Value, json};

use super::request::{EVENTS, Identity, NODE_LEASES, PODS, Request};
use super::values::Draw;

pub(super) fn node_lease(draw: &mut Draw<'_>) -> Vec<Request> {
    let path = format!("{NODE_LEASES}/{}", draw.view.node);
    let spec = json!({
        "holderIdentity": draw.other_node(), "leaseDurationSeconds": draw.random.within(1..=100_000),
        "renewTime": draw.time().replace('Z', ".000000Z"),
    });
    vec![Request::patch(Identity::Kubelet, path, json!({ "spec": spec }))]
}

/// A mirror pod with labels of other pods: of the tenant's, or of Berth's.
pub(super) fn mirror_pod(draw: &mut Draw<'_>) -> Vec<Request> {
    let owner = json!({
        "apiVersion": "v1", "kind": "Node", "name": draw.view.node, "uid": draw.view.uid, "controller": true,
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("liar-{}", draw.hex(6)), "namespace": "default", "ownerReferences": [owner],
            "annotations": { "kubernetes.io/config.mirror": "x" },
            "labels": { "app": draw.one_of(&["web", "berth-controller", "berth-agent"]) },
        },
        "spec": { "nodeName": draw.view.node, "containers": [{ "name": "main", "image": "example.com/none" }] },
    });
    vec![Request::post(Identity::Kubelet, PODS, pod)]
}

pub(super) fn delete_pod(draw: &mut Draw<'_>) -> Vec<Request> {
    let at = draw.random.below(draw.view.pods.len());
    let Some(pod) = draw.view.pods.get(at) else {
        return vec![];
    };
    vec![Request::delete(Identity::Kubelet, format!("{PODS}/{pod}"))]
}

/// An event about any machine, such as one that is held back on its first boot.
fn of_machine(draw: &mut Draw<'_>, time: &str) -> Value {
    let machine = match draw.random.within(0..=2) {
        0 => draw.view.node.clone(),
        1 => draw.other_node(),
        _ => format!("machine-{}", draw.hex(4)),
    };
    let is_refusal = !draw.random.one_in(4);
    let (reason, action) = if is_refusal {
        (EVENT_REFUSED, EVENT_HOLDS)
    } else {
        ("Rebooted", "Reboot")
    };
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": { "name": format!("liar.{}", draw.hex(12)), "namespace": "default" },
        "eventTime": time, "reportingController": "berth.dev/agent", "reportingInstance": draw.view.node,
        "action": action, "reason": reason, "type": "Warning", "note": draw.text(900),
        "regarding": { "apiVersion": "v1", "kind": "Node", "name": machine, "uid": draw.view.uid },
    })
}

pub(super) fn event(draw: &mut Draw<'_>) -> Vec<Request> {
    let time = draw.time().replace('Z', ".000000Z");
    vec![Request::post(Identity::Kubelet, EVENTS, of_machine(draw, &time))]
}

pub(super) fn event_times(draw: &mut Draw<'_>) -> Vec<Request> {
    let time = draw.one_of(&["9999-12-31T23:59:59.000000Z", "0001-01-01T00:00:01.000000Z"]);
    vec![Request::post(Identity::Kubelet, EVENTS, of_machine(draw, time))]
}
