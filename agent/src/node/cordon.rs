//! Cordons this agent's Node, and records on the Node that the cordon is Berth's (invariant I4).
//!
//! Every write carries the Node's UID and resourceVersion. A write fails if the Node has changed since it was read, or
//! was deleted and re-created under the same name.

use std::collections::BTreeMap;

use berth_api::keys::{
    ANNOTATION_CORDON, ANNOTATION_RELEASED, LABEL_EXCLUDE, LABEL_KARPENTER_NODEPOOL, TAINT_READINESS,
};
use berth_api::seeded::Bug;
use berth_api::waves::is_control_plane;
use berth_api::{BootId, NodeUid};
use berth_core::agent::lifecycle::Lifecycle;
use berth_core::agent::node::{CordonRecord, GUARDED, Guard, GuardChange, Guarded, NodeFacts, Signs};
use kube::Client;
use kube::core::Status;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{request, send};
use crate::clients::RequestError;

/// Value of a guard's mark. A guard is an annotation that keeps an autoscaler away from the node. The mark is a second
/// annotation, and its presence shows that the agent has set the guard.
const MARK: &str = "disabled";

/// Error of a read or write of the Node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Another client has written the Node since it was read. The caller must read the Node again.
    #[error("the Node changed since it was read")]
    Conflict,
    /// The Node does not exist.
    #[error("the Node does not exist")]
    Gone,
    /// The API server does not permit the request to the kubelet's identity.
    #[error("the API server refuses this request with the kubelet's identity: {}", .0.message)]
    Forbidden(Box<Status>),
    /// The API server failed or is unreachable.
    #[error(transparent)]
    Failed(#[from] RequestError),
}

#[derive(Deserialize)]
pub(super) struct RawNode {
    metadata: RawMetadata,
    #[serde(default)]
    spec: RawSpec,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMetadata {
    uid: String,
    resource_version: String,
    annotations: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
}

impl RawMetadata {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

#[derive(Deserialize, Default)]
struct RawSpec {
    unschedulable: Option<bool>,
    taints: Option<Vec<RawTaint>>,
}

#[derive(Deserialize)]
struct RawTaint {
    #[serde(default)]
    key: String,
    #[serde(default)]
    effect: String,
}

impl RawTaint {
    /// True if the Node Readiness Controller uses this taint to keep pods off the node.
    fn is_not_ready(&self) -> bool {
        self.key.starts_with(TAINT_READINESS) && matches!(self.effect.as_str(), "NoSchedule" | "NoExecute")
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawStatus {
    conditions: Option<Vec<RawCondition>>,
    node_info: Option<RawNodeInfo>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawCondition {
    #[serde(rename = "type", default)]
    type_: String,
    #[serde(default)]
    status: String,
    reason: Option<String>,
    /// Text, because the API server accepts times that cannot be parsed here.
    last_heartbeat_time: Option<String>,
}

#[derive(Deserialize)]
struct RawNodeInfo {
    #[serde(rename = "bootID", default)]
    boot_id: String,
}

impl From<RawNode> for NodeFacts {
    fn from(node: RawNode) -> Self {
        let metadata = &node.metadata;
        let conditions = node.status.conditions.as_deref().unwrap_or_default();
        let labels = metadata.labels.as_ref();
        let boot_id = node.status.node_info.map(|info| info.boot_id);
        let mut taints = node.spec.taints.iter().flatten();
        let not_ready = taints.find(|taint| taint.is_not_ready());
        let mut lifecycle = Lifecycle::default();
        for c in conditions {
            lifecycle.take_in(&c.type_, &c.status, c.reason.as_deref().unwrap_or_default());
        }
        Self {
            unschedulable: node.spec.unschedulable.unwrap_or(false),
            ready: conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"),
            boot_id: boot_id.filter(|id| !id.is_empty()).map(BootId::new),
            ready_reported: conditions
                .iter()
                .find(|c| c.type_ == "Ready")
                .and_then(|c| c.last_heartbeat_time.as_deref()?.parse().ok()),
            cordon: metadata.annotation(ANNOTATION_CORDON).map(record),
            excluded: labels.is_some_and(|labels| labels.contains_key(LABEL_EXCLUDE)),
            control_plane: labels.is_some_and(is_control_plane),
            not_ready_taint: not_ready.map(|taint| taint.key.clone()),
            conditions: conditions.iter().map(|c| (c.type_.clone(), c.status.clone())).collect(),
            signs: Signs {
                guards: Guard::ALL.map(|guard| Guarded {
                    value: metadata.annotation(guard.key()).map(str::to_owned),
                    is_ours: metadata.annotation(guard.mark()).is_some(),
                }),
                is_karpenters: labels.is_some_and(|labels| labels.contains_key(LABEL_KARPENTER_NODEPOOL)),
                lifecycle,
            },
            uid: NodeUid::new(node.metadata.uid),
            resource_version: node.metadata.resource_version,
        }
    }
}

/// Parses the record of our cordon. If the record is invalid, assumes that the node was schedulable before the cordon.
/// Otherwise the node would stay cordoned forever, without a report.
fn record(text: &str) -> CordonRecord {
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::warn!(text, %error, "cannot parse the record of Berth's cordon; assuming that the node was schedulable before the cordon");
        CordonRecord::default()
    })
}

pub(super) fn path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

/// Reads the Node from the API server's storage; `None` if it does not exist.
pub async fn read(client: &Client, name: &str) -> Result<Option<NodeFacts>, NodeError> {
    let request = request("GET", &path(name), vec![], "application/json")?;
    match send::<RawNode>(client, request).await.map_err(node_error) {
        Ok(node) => Ok(Some(node.into())),
        Err(NodeError::Gone) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Cordons the Node for this berth and returns the Node's new state. `seen` is the Node as it was read.
pub async fn cordon(client: &Client, name: &str, seen: &NodeFacts, berth: &str) -> Result<NodeFacts, NodeError> {
    patch(client, name, &cordon_patch(seen, berth)).await
}

/// Restores the Node to its state before our cordon, and writes `mark` into an annotation. Writes even if there is
/// nothing to restore, because the new resourceVersion makes a delayed cordon request of this agent fail. Each call
/// needs a new mark.
///
/// If the node was schedulable before our cordon, the node becomes schedulable again, even if an admin cordoned it
/// during the turn: the two cordons look the same. A node that an admin uncordoned during the turn stays uncordoned.
pub async fn restore(client: &Client, name: &str, seen: &NodeFacts, mark: &str) -> Result<NodeFacts, NodeError> {
    patch(client, name, &restore_patch(seen, mark)).await
}

/// Removes the annotations against autoscalers that an ended cordon has left. Returns the Node's new state.
pub async fn take_guards_off(client: &Client, name: &str, seen: &NodeFacts) -> Result<NodeFacts, NodeError> {
    patch(client, name, &guards_patch(seen)).await
}

async fn patch(client: &Client, name: &str, patch: &Value) -> Result<NodeFacts, NodeError> {
    let body = patch.to_string().into_bytes();
    let path = format!("{}?fieldManager=berth-agent", path(name));
    let request = request("PATCH", &path, body, "application/merge-patch+json")?;
    let node: RawNode = send(client, request).await.map_err(node_error)?;
    Ok(node.into())
}

fn cordon_patch(seen: &NodeFacts, berth: &str) -> Value {
    let record = seen.cordon_record(berth);
    let mut annotations = json!({ANNOTATION_CORDON: json!(record).to_string()});
    for (guard, guarded) in seen.guards() {
        match seen.guard_at_cordon(guard, guarded) {
            GuardChange::Stays => {}
            GuardChange::Set => {
                annotations[guard.key()] = json!(GUARDED);
                annotations[guard.mark()] = json!(MARK);
            }
            GuardChange::Theirs => annotations[guard.mark()] = Value::Null,
        }
    }
    json!({
        "metadata": {
            "uid": seen.uid.as_str(),
            "resourceVersion": seen.resource_version,
            "annotations": annotations,
        },
        "spec": {"unschedulable": true},
    })
}

fn restore_patch(seen: &NodeFacts, mark: &str) -> Value {
    let mut annotations = without_guards(seen);
    annotations[ANNOTATION_CORDON] = Value::Null;
    annotations[ANNOTATION_RELEASED] = json!(mark);
    let mut patch = json!({
        "metadata": {
            "uid": seen.uid.as_str(),
            "resourceVersion": seen.resource_version,
            "annotations": annotations,
        },
    });
    if let (Some(record), Some(patch)) = (&seen.cordon, patch.as_object_mut()) {
        // Kubernetes stores a schedulable Node without this field.
        let before = record.unschedulable && !Bug::UncordonAlways.is_awake();
        let unschedulable = if before && seen.unschedulable {
            json!(true)
        } else {
            Value::Null
        };
        patch.insert("spec".to_owned(), json!({"unschedulable": unschedulable}));
    }
    patch
}

fn guards_patch(seen: &NodeFacts) -> Value {
    json!({
        "metadata": {
            "uid": seen.uid.as_str(),
            "resourceVersion": seen.resource_version,
            "annotations": without_guards(seen),
        },
    })
}

/// Returns the changes that remove the agent's guards. A guard is an annotation that keeps the cluster autoscaler or
/// Karpenter away. A guard stays if another client has changed its value.
fn without_guards(seen: &NodeFacts) -> Value {
    let mut annotations = json!({});
    for (guard, guarded) in seen.guards() {
        if guarded.is_ours {
            annotations[guard.mark()] = Value::Null;
        }
        if guarded.is_kept() {
            annotations[guard.key()] = Value::Null;
        }
    }
    annotations
}

pub(super) fn node_error(error: RequestError) -> NodeError {
    let Some(status) = error.status() else {
        return NodeError::Failed(error);
    };
    match status.code {
        404 => NodeError::Gone,
        409 => NodeError::Conflict,
        403 | 401 => NodeError::Forbidden(Box::new(status.clone())),
        // The name now belongs to a re-created Node.
        422 if status.message.contains("metadata.uid") => NodeError::Conflict,
        _ => NodeError::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::keys::LABELS_CONTROL_PLANE;
    use berth_core::agent::lifecycle;

    use super::*;

    fn node(unschedulable: bool, annotation: Option<&str>) -> NodeFacts {
        node_with(unschedulable, annotation, false, None)
    }

    fn node_with(unschedulable: bool, annotation: Option<&str>, ours: bool, scale_down: Option<&str>) -> NodeFacts {
        let mut annotations = json!({"other": "x"});
        let mut all = vec![(ANNOTATION_CORDON, annotation)];
        for guard in Guard::ALL {
            all.push((guard.key(), scale_down));
            all.push((guard.mark(), ours.then_some("disabled")));
        }
        for (key, value) in all {
            if let Some(value) = value {
                annotations[key] = json!(value);
            }
        }
        let raw: RawNode = serde_json::from_value(json!({
            "metadata": {
                "uid": "u", "resourceVersion": "7", "name": "n",
                "annotations": annotations,
                "labels": {LABEL_EXCLUDE: "", "zone": "a", LABELS_CONTROL_PLANE[0]: "", "karpenter.sh/nodepool": "x"},
            },
            "spec": {
                "unschedulable": unschedulable, "podCIDR": "10.0.0.0/24",
                "taints": [
                    {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
                    {"key": "readiness.k8s.io/Hint", "effect": "PreferNoSchedule"},
                    {"key": "readiness.k8s.io/NetworkReady", "value": "pending", "effect": "NoSchedule"},
                ],
            },
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"},
                    {"type": "Drained", "status": "True", "reason": "BerthTurn"}],
                "nodeInfo": {"bootID": "b", "kernelVersion": "6"},
            },
        }))
        .unwrap();
        raw.into()
    }

    #[test]
    fn reads_what_matters() {
        let facts = node(true, Some(r#"{"berth":"workers-0","unschedulable":true}"#));
        assert!(
            facts.ready && facts.unschedulable && facts.excluded && facts.control_plane,
            "with any value, also none"
        );
        assert_eq!(facts.boot_id, Some(BootId::from("b")));
        assert_eq!(facts.not_ready_taint.as_deref(), Some("readiness.k8s.io/NetworkReady"));
        let signs = facts.signs.lifecycle.changes(lifecycle::NOTHING);
        assert_eq!(signs.len(), 1, "Drained is ours: {signs:?}");
        assert_eq!(
            facts.cordon.map(|c| (c.berth, c.unschedulable)),
            Some(("workers-0".to_owned(), true))
        );
        let bare: RawNode = serde_json::from_value(json!({"metadata": {"uid": "u", "resourceVersion": "1"}})).unwrap();
        let bare = NodeFacts::from(bare);
        assert!(
            !bare.ready
                && !bare.unschedulable
                && !bare.excluded
                && !bare.control_plane
                && bare.not_ready_taint.is_none()
                && !bare.signs.is_karpenters
                && bare.boot_id.is_none()
                && bare.cordon.is_none()
        );
        let odd = node(true, Some("by hand")).cordon.unwrap();
        assert!(!odd.unschedulable);
    }

    #[test]
    fn a_cordon_writes_everything_in_one_patch() {
        let patch = cordon_patch(&node(false, None), "workers-0");
        let annotations = patch["metadata"]["annotations"].as_object().unwrap();
        let text = annotations[ANNOTATION_CORDON].as_str().unwrap();
        assert_eq!(record(text), node(false, None).cordon_record("workers-0"));
        for guard in Guard::ALL {
            assert_eq!(annotations[guard.key()], json!("true"));
            assert!(annotations[guard.mark()].is_string(), "and whose it is");
        }
        assert_eq!(patch["spec"]["unschedulable"], json!(true));
        assert_eq!(
            (&patch["metadata"]["uid"], &patch["metadata"]["resourceVersion"]),
            (&json!("u"), &json!("7"))
        );
    }

    #[test]
    fn foreign_annotations_are_in_no_patch() {
        fn said(patch: &Value) -> [Option<Value>; 2] {
            let annotations = &patch["metadata"]["annotations"];
            let all = Guard::ALL.map(|guard| [guard.key(), guard.mark()].map(|key| annotations.get(key).cloned()));
            assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
            all[0].clone()
        }
        fn gone() -> Option<Value> {
            Some(Value::Null)
        }
        let cordoned = Some(r#"{"berth":"w-0","unschedulable":false}"#);
        let others = cordon_patch(&node_with(false, None, false, Some("false")), "w-0");
        assert_eq!(said(&others), [None, None]);
        let taken_over = cordon_patch(&node_with(true, cordoned, true, Some("false")), "w-0");
        assert_eq!(said(&taken_over), [None, gone()]);
        for (ours, value, removed) in [
            (false, "true", [None, None]),
            (true, "true", [gone(), gone()]),
            (true, "false", [None, gone()]),
        ] {
            let patch = restore_patch(&node_with(true, cordoned, ours, Some(value)), "turn-1");
            assert_eq!(said(&patch), removed, "{ours} {value}");
            // An older agent, without support for guards, has undone the cordon.
            let left = node_with(false, None, ours, Some(value));
            assert_eq!(left.has_left_guards(), ours);
            let patch = guards_patch(&left);
            assert_eq!(said(&patch), removed, "{ours} {value}");
            assert_eq!(patch["metadata"]["resourceVersion"], json!("7"));
            assert!(patch.get("spec").is_none(), "no cordon is touched");
        }
    }

    #[test]
    fn a_restore_follows_the_record_and_always_leaves_its_mark() {
        fn ours(before: bool) -> String {
            format!(r#"{{"berth":"w-0","unschedulable":{before}}}"#)
        }
        for (annotation, spec) in [
            (None, Value::Null),
            (Some(ours(false)), json!({"unschedulable": null})),
            (Some(ours(true)), json!({"unschedulable": true})),
        ] {
            let patch = restore_patch(&node(true, annotation.as_deref()), "turn-1");
            assert_eq!(patch["spec"], spec);
            let annotations = patch["metadata"]["annotations"].as_object().unwrap();
            assert_eq!(annotations[ANNOTATION_RELEASED], json!("turn-1"));
            assert!(annotations[ANNOTATION_CORDON].is_null());
            assert_eq!(patch["metadata"]["resourceVersion"], json!("7"));
        }
    }

    #[test]
    fn an_uncordon_during_our_turn_stays() {
        let seen = node(false, Some(r#"{"berth":"w-0","unschedulable":true}"#));
        assert_eq!(restore_patch(&seen, "turn-1")["spec"], json!({"unschedulable": null}));
    }

    #[test]
    fn errors_are_classified() {
        fn judged(code: u16, message: &str) -> NodeError {
            let status = kube::core::Status::failure(message, "").with_code(code);
            node_error(kube::Error::Api(status.boxed()).into())
        }
        assert!(matches!(judged(404, ""), NodeError::Gone));
        assert!(matches!(judged(409, ""), NodeError::Conflict));
        assert!(matches!(
            judged(422, "metadata.uid: Invalid value: field is immutable"),
            NodeError::Conflict
        ));
        assert!(matches!(judged(422, "spec.x: Invalid"), NodeError::Failed(_)));
        assert!(matches!(judged(403, "no"), NodeError::Forbidden(_)));
        assert!(matches!(judged(500, ""), NodeError::Failed(_)));
    }
}
