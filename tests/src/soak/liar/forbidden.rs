//! Writes that the API server must refuse: of other nodes' objects, of the controller's fields, of admins' decisions.

use berth_api::keys;
use serde_json::{Value, json};

use super::berths::{close, held, holder, is_berth, name, offered, put};
use super::request::{BOOTC_NODES, Identity, LEASES, NODE_LEASES, NODES, PODS, POOLS, Request};
use super::values::Draw;

/// A forbidden write.
pub(super) fn any(draw: &mut Draw<'_>) -> Vec<Request> {
    let request = match draw.random.within(0..=3) {
        0 => of_berths(draw),
        1 => of_nodes(draw),
        2 => of_pods(draw),
        _ => of_others(draw),
    };
    vec![request.forbidden()]
}

/// Writes of Leases. Without a berth of its own, the liar tries berths of others.
fn of_berths(draw: &mut Draw<'_>) -> Request {
    let own = held(draw).or_else(|| offered(draw));
    match own {
        Some(lease) if draw.coin() => put(&forged(draw, lease)),
        _ => of_foreign_berths(draw),
    }
}

/// The liar's own berth, with a change that the protocol forbids.
fn forged(draw: &mut Draw<'_>, mut lease: Value) -> Value {
    let other = draw.other_node();
    let notes = [
        (keys::ANNOTATION_EPOCH, "999999".to_owned()),
        (keys::ANNOTATION_NODE_UID, draw.hex(32)),
        (keys::ANNOTATION_REVOKE, draw.hex(4)),
        (keys::ANNOTATION_OPEN_UNTIL, draw.time()),
        (keys::ANNOTATION_LAST_NODE, other.clone()),
        (keys::ANNOTATION_BOOT_ID, "x".repeat(129)),
        ("example.com/filler", "x".repeat(100)),
    ];
    match draw.random.within(0..=11) {
        0..=6 => {
            let (key, value) = &notes[draw.random.below(notes.len())];
            lease["metadata"]["annotations"][*key] = json!(value);
            lease["spec"]["holderIdentity"] = json!(draw.view.node);
        }
        7 => lease["spec"]["holderIdentity"] = json!(other),
        8 => lease["spec"]["holderIdentity"] = json!(format!("offered:{other}")),
        9 => lease["metadata"]["labels"][keys::LABEL_POOL] = json!("other"),
        10 => lease["metadata"]["finalizers"] = json!(["example.com/never"]),
        _ => {
            if draw.coin() {
                lease["spec"]["holderIdentity"] = json!(draw.view.node);
            } else {
                close(draw, &mut lease);
            }
            lease["spec"]["renewTime"] = json!("9999-12-31T23:59:59.000000Z");
        }
    }
    lease
}

fn of_foreign_berths(draw: &mut Draw<'_>) -> Request {
    let own = [draw.view.node.clone(), format!("offered:{}", draw.view.node)];
    let foreign: Vec<_> = draw
        .view
        .leases
        .iter()
        .filter(|lease| !own.iter().any(|own| own == holder(lease)))
        .collect();
    let at = draw.random.below(foreign.len());
    let Some(lease) = foreign.get(at).copied().cloned() else {
        return Request::delete(Identity::Agent, LEASES.to_owned());
    };
    let path = format!("{LEASES}/{}", name(&lease));
    match draw.random.within(0..=4) {
        0 => Request::delete(Identity::Agent, path),
        1 => Request::patch(
            Identity::Agent,
            path,
            json!({ "spec": { "holderIdentity": draw.view.node } }),
        ),
        2 => Request::patch(
            Identity::Kubelet,
            path,
            json!({ "spec": { "leaseDurationSeconds": 1 } }),
        ),
        3 if is_berth(&lease) => {
            let mut created = lease;
            created["metadata"] = json!({ "name": format!("workers-{}", draw.random.within(50..=99)) });
            Request::post(Identity::Agent, LEASES, created)
        }
        _ => {
            let mut taken = lease;
            taken["spec"]["holderIdentity"] = json!(draw.view.node);
            taken["metadata"]["annotations"][keys::ANNOTATION_PHASE] = json!("Taken");
            put(&taken)
        }
    }
}

/// Writes of pods of other nodes, of whole lists, and a request for the controller's token.
fn of_pods(draw: &mut Draw<'_>) -> Request {
    let identity = if draw.coin() {
        Identity::Agent
    } else {
        Identity::Kubelet
    };
    let lists = [LEASES, NODES, BOOTC_NODES, POOLS, PODS];
    let list = draw.one_of(&lists);
    let at = draw.random.below(draw.view.other_pods.len());
    let pod = draw.view.other_pods.get(at).cloned();
    match (draw.random.within(0..=7), pod) {
        (0 | 1, Some(pod)) => {
            let eviction = json!({
                "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": "default" },
            });
            Request::post(identity, &format!("{PODS}/{pod}/eviction"), eviction)
        }
        // Without a shorter grace period, deleting a pod that is already being deleted changes nothing, and the API server
        // accepts that from anyone.
        (2 | 3, Some(pod)) => Request::delete(identity, format!("{PODS}/{pod}?gracePeriodSeconds=0")),
        (4, Some(pod)) => {
            let labels = json!({ "metadata": { "labels": { "app": "liar" } } });
            Request::patch(identity, format!("{PODS}/{pod}"), labels)
        }
        (5, Some(pod)) => {
            let status = json!({ "status": { "phase": "Failed" } });
            Request::patch(identity, format!("{PODS}/{pod}/status"), status)
        }
        (6, _) => Request::delete(identity, list.to_owned()),
        _ => Request::post(
            identity,
            "/api/v1/namespaces/berth-system/serviceaccounts/berth-controller/token",
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "audiences": [] } }),
        ),
    }
}

/// Writes of Nodes, their Leases and BootcNodes.
fn of_nodes(draw: &mut Draw<'_>) -> Request {
    let (own, other) = (draw.view.node.clone(), draw.other_node());
    let labels = [
        keys::LABEL_EXCLUDE,
        keys::LABEL_HOLD,
        keys::LABEL_VARIANT,
        "node-role.kubernetes.io/control-plane",
        "node-restriction.kubernetes.io/x",
    ];
    let label = draw.one_of(&labels);
    let status = json!({ "status": { "conditions": [], "phase": "Updated", "bootID": draw.boot_id() } });
    match draw.random.within(0..=9) {
        0 | 1 => Request::patch(
            Identity::Kubelet,
            format!("{NODES}/{own}"),
            json!({ "metadata": { "labels": { label: draw.hex(4) } } }),
        ),
        2 => Request::patch(
            Identity::Kubelet,
            format!("{NODES}/{own}"),
            json!({ "spec": { "taints": [{ "key": "x", "effect": "NoExecute" }] } }),
        ),
        3 => Request::patch(
            Identity::Kubelet,
            format!("{NODES}/{other}"),
            json!({ "spec": { "unschedulable": draw.coin() } }),
        ),
        4 => Request::patch(Identity::Kubelet, format!("{NODES}/{other}/status"), status),
        5 => Request::delete(
            Identity::Kubelet,
            format!("{NODES}/{}", if draw.coin() { own } else { other }),
        ),
        6 => Request::patch(Identity::Agent, format!("{BOOTC_NODES}/{other}/status"), status),
        7 => Request::patch(
            Identity::Agent,
            format!("{BOOTC_NODES}/{own}"),
            json!({ "spec": { "poolName": draw.hex(4) } }),
        ),
        8 => Request::delete(Identity::Agent, format!("{BOOTC_NODES}/{own}")),
        _ => Request::patch(
            Identity::Kubelet,
            format!("{NODE_LEASES}/{other}"),
            json!({ "spec": { "holderIdentity": "x" } }),
        ),
    }
}

/// Writes of pools, the fleet, the policies and other pods.
fn of_others(draw: &mut Draw<'_>) -> Request {
    let identity = if draw.coin() {
        Identity::Agent
    } else {
        Identity::Kubelet
    };
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "liar", "namespace": "default" },
        "spec": { "nodeName": draw.other_node(), "containers": [{ "name": "main", "image": "example.com/none" }] },
    });
    let pool = json!({ "spec": { "rollout": { "paused": true } } });
    let status = json!({ "status": { "failures": [] } });
    let fleet = "/apis/berth.dev/v1alpha1/bootcfleets/cluster".to_owned();
    match draw.random.within(0..=6) {
        0 => Request::patch(identity, format!("{POOLS}/workers"), pool),
        1 => Request::patch(identity, format!("{POOLS}/workers/status"), status),
        2 => Request::delete(identity, format!("{POOLS}/workers")),
        3 => Request::patch(identity, fleet, json!({ "spec": { "paused": true } })),
        4 => Request::delete(identity, format!("{policies}/berth-agent-own-berth")),
        5 => Request::post(identity, PODS, pod),
        _ => Request::post(
            identity,
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            json!({
                "metadata": { "name": "liar" },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
                "subjects": [{ "kind": "User", "name": "liar" }],
            }),
        ),
    }
}
