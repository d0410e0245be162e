//! Traces of Berth on a Node, and the patches that remove them. Pure.

use berth_api::condition::lifecycle;
use berth_api::keys;
use berth_core::agent::node::{CordonRecord, GUARDED, Guard};
use serde_json::{Map, Value, json};

/// Changes that remove Berth's traces from a Node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Traces {
    /// Name of the Node.
    pub(super) name: String,
    /// Merge patch of the Node; `None` if only its status has traces.
    pub(super) patch: Option<Value>,
    /// Strategic merge patch of the Node's status; `None` if its status has no traces.
    pub(super) status: Option<Value>,
    /// True if Berth cordoned the Node and it was schedulable before.
    pub(super) is_uncordoned: bool,
}

/// Finds Berth's traces on a Node; `None` if there are none.
///
/// A Node with Berth's cordon gets the state that the cordon's record has. Annotations of other tools that an agent set
/// are removed if they still have the agent's value.
pub(super) fn traces(node: &Value) -> Option<Traces> {
    let metadata = &node["metadata"];
    let annotations = annotations(&metadata["annotations"]);
    let labels = nulls(&metadata["labels"], &keys::NODE_LABELS);
    let mut changes = json!({});
    if !annotations.is_empty() {
        changes["metadata"]["annotations"] = Value::Object(annotations);
    }
    if !labels.is_empty() {
        changes["metadata"]["labels"] = Value::Object(labels);
    }
    let record = metadata["annotations"][keys::ANNOTATION_CORDON].as_str();
    let is_cordoned = node["spec"]["unschedulable"].as_bool() == Some(true);
    let is_uncordoned = is_cordoned && record.is_some_and(|record| !was_cordoned(record));
    if is_uncordoned {
        changes["spec"]["unschedulable"] = Value::Null;
    }
    if let Some(taints) = other_taints(&node["spec"]["taints"]) {
        changes["spec"]["taints"] = taints;
    }
    let status = status(node);
    let has_changes = changes.as_object().is_some_and(|changes| !changes.is_empty());
    if !has_changes && status.is_none() {
        return None;
    }
    let patch = has_changes.then(|| {
        changes["metadata"]["uid"] = metadata["uid"].clone();
        // Without this, a change of the cordon or the taints by another client would be lost.
        changes["metadata"]["resourceVersion"] = metadata["resourceVersion"].clone();
        changes
    });
    Some(Traces {
        name: metadata["name"].as_str().unwrap_or_default().to_owned(),
        patch,
        status,
        is_uncordoned,
    })
}

/// Returns a merge patch that removes Berth's annotations, and the annotations of other tools that an agent has set.
fn annotations(found: &Value) -> Map<String, Value> {
    let mut removed = nulls(found, &keys::NODE_ANNOTATIONS);
    for guard in Guard::ALL {
        if removed.contains_key(guard.mark()) && found[guard.key()].as_str() == Some(GUARDED) {
            removed.insert(guard.key().to_owned(), Value::Null);
        }
    }
    removed
}

fn nulls(found: &Value, keys: &[&str]) -> Map<String, Value> {
    let mut removed = Map::new();
    for key in keys {
        if found.get(key).is_some() {
            removed.insert((*key).to_owned(), Value::Null);
        }
    }
    removed
}

/// True if the Node was cordoned before Berth cordoned it. An invalid record counts as schedulable, as for the agent.
fn was_cordoned(record: &str) -> bool {
    let record: CordonRecord = serde_json::from_str(record).unwrap_or_default();
    record.unschedulable
}

/// Returns the taints without Berth's; `None` if there are none of Berth.
fn other_taints(taints: &Value) -> Option<Value> {
    let all = taints.as_array()?;
    let mut others = vec![];
    for taint in all {
        let is_ours = keys::NODE_TAINTS.iter().any(|key| taint["key"] == *key);
        if !is_ours {
            others.push(taint.clone());
        }
    }
    (others.len() < all.len()).then(|| json!(others))
}

/// Returns a patch that removes the lifecycle conditions that an agent wrote; `None` if there are none.
fn status(node: &Value) -> Option<Value> {
    let mut removed = vec![];
    for condition in node["status"]["conditions"].as_array().into_iter().flatten() {
        let type_ = condition["type"].as_str().unwrap_or_default();
        if lifecycle::ALL.contains(&type_) && condition["reason"] == lifecycle::REASON {
            removed.push(json!({ "type": type_, "$patch": "delete" }));
        }
    }
    if removed.is_empty() {
        return None;
    }
    Some(json!({ "metadata": { "uid": node["metadata"]["uid"] }, "status": { "conditions": removed } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(annotations: Value, spec: Value, conditions: Value) -> Value {
        json!({
            "metadata": { "name": "n1", "uid": "u1", "resourceVersion": "7", "annotations": annotations },
            "spec": spec, "status": { "conditions": conditions },
        })
    }

    #[test]
    fn a_node_without_traces_is_not_changed() {
        let ready = json!([{ "type": "Ready", "status": "True", "reason": "KubeletReady" }]);
        let taints = json!({ "taints": [{ "key": "gpu", "effect": "NoSchedule" }], "unschedulable": true });
        assert_eq!(traces(&node(json!({ "a": "b" }), taints, ready)), None);
        assert_eq!(traces(&json!({ "metadata": { "name": "n1" } })), None);
    }

    #[test]
    fn a_cordon_is_undone_as_its_record_says() {
        for (record, is_uncordoned) in [
            (r#"{"berth":"a-0","unschedulable":false}"#, true),
            (r#"{"berth":"a-0","unschedulable":true}"#, false),
            ("nonsense", true),
        ] {
            let cordoned = json!({ "unschedulable": true });
            let found = traces(&node(json!({ "berth.dev/cordon": record }), cordoned, json!([]))).unwrap();
            assert_eq!(found.is_uncordoned, is_uncordoned, "{record}");
            let patch = found.patch.unwrap();
            assert_eq!(patch["metadata"]["annotations"], json!({ "berth.dev/cordon": null }));
            assert_eq!(patch["metadata"]["resourceVersion"], "7");
            assert_eq!(patch.get("spec").is_some(), is_uncordoned, "{record}");
        }
        let open = traces(&node(json!({ "berth.dev/cordon": "{}" }), json!({}), json!([]))).unwrap();
        assert!(!open.is_uncordoned, "an admin has uncordoned it");
    }

    #[test]
    fn what_other_tools_or_people_wrote_stays() {
        let annotations = json!({
            "berth.dev/scale-down": "disabled",
            "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true",
            "berth.dev/do-not-disrupt": "disabled",
            "karpenter.sh/do-not-disrupt": "by-hand",
            "karpenter.sh/do-not-repair": "true",
        });
        let conditions = json!([
            { "type": "Drained", "status": "True", "reason": "BerthTurn" },
            { "type": "MaintenancePlanned", "status": "True", "reason": "Other" },
        ]);
        let found = traces(&node(annotations, json!({}), conditions)).unwrap();
        let removed = json!({
            "berth.dev/scale-down": null,
            "cluster-autoscaler.kubernetes.io/scale-down-disabled": null,
            "berth.dev/do-not-disrupt": null,
        });
        assert_eq!(found.patch.unwrap()["metadata"]["annotations"], removed);
        let conditions = &found.status.unwrap()["status"]["conditions"];
        assert_eq!(*conditions, json!([{ "type": "Drained", "$patch": "delete" }]));
    }

    #[test]
    fn the_labels_and_taints_that_admins_set_for_berth_go() {
        let mut one = node(json!({}), json!({}), json!([]));
        one["metadata"]["labels"] = json!({ "berth.dev/hold": "true", "berth.dev/exclude": "", "zone": "a" });
        one["spec"]["taints"] = json!([{ "key": "gpu" }, { "key": keys::SET_ASIDE, "effect": "NoSchedule" }]);
        let patch = traces(&one).unwrap().patch.unwrap();
        assert_eq!(
            patch["metadata"]["labels"],
            json!({ "berth.dev/hold": null, "berth.dev/exclude": null })
        );
        assert_eq!(patch["spec"]["taints"], json!([{ "key": "gpu" }]));
    }
}
