//! A write to a BootcNode, and its request body.

use berth_api::keys;
use berth_api::node::{BootcNode, BootcNodeSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

/// A write to a BootcNode.
#[derive(Debug, Clone, PartialEq)]
pub enum BootcNodeWrite {
    /// Creates the BootcNode of a node.
    Create {
        /// Name of the Node.
        name: String,
        /// New spec.
        spec: BootcNodeSpec,
        /// Pool label of the BootcNode.
        label: Option<String>,
    },
    /// Changes the spec, pool label or finalizers.
    Update {
        /// Name of the Node.
        name: String,
        /// UID of the BootcNode.
        uid: String,
        /// resourceVersion that was read.
        version: String,
        /// Spec before the write.
        before: Box<BootcNodeSpec>,
        /// New spec.
        spec: BootcNodeSpec,
        /// Pool label after the write.
        label: Option<String>,
        /// All finalizers after the write.
        finalizers: Vec<String>,
    },
    /// Deletes the BootcNode of a node that is gone, is released, or has missed the release deadline.
    Delete {
        /// Name of the Node.
        name: String,
        /// UID of the BootcNode.
        uid: String,
    },
    /// Removes Berth's finalizer from a BootcNode that is being deleted.
    Release {
        /// Name of the Node.
        name: String,
        /// UID of the BootcNode.
        uid: String,
        /// resourceVersion that was read.
        version: String,
        /// Finalizers after the write: only the finalizers of other programs.
        finalizers: Vec<String>,
        /// True if the release deadline has passed and the agent has not reported that Berth's changes are undone.
        late: bool,
    },
}

impl BootcNodeWrite {
    /// Returns the name of the BootcNode, which is the name of its Node.
    pub fn name(&self) -> &str {
        match self {
            Self::Create { name, .. }
            | Self::Update { name, .. }
            | Self::Delete { name, .. }
            | Self::Release { name, .. } => name,
        }
    }
}

fn owner(name: &str, node_uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: node_uid.to_owned(),
        ..OwnerReference::default()
    }
}

/// Returns the object for [`BootcNodeWrite::Create`].
pub fn object(name: &str, spec: &BootcNodeSpec, label: Option<&str>) -> BootcNode {
    let labels = label.map(|l| [(keys::LABEL_POOL.to_owned(), l.to_owned())].into());
    BootcNode {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels,
            finalizers: Some(vec![keys::FINALIZER_NODE.to_owned()]),
            owner_references: Some(vec![owner(name, &spec.node_uid)]),
            ..ObjectMeta::default()
        },
        spec: spec.clone(),
        status: None,
    }
}

/// Returns the merge patch for [`BootcNodeWrite::Update`]. UID and resourceVersion make the patch a compare-and-swap.
/// Unlike a PUT, the patch keeps labels and annotations that others wrote.
///
/// # Errors
/// If a spec cannot be serialized, which does not happen.
pub fn patch(
    name: &str,
    (uid, version): (&str, &str),
    (before, spec): (&BootcNodeSpec, &BootcNodeSpec),
    label: Option<&str>,
    finalizers: &[String],
) -> serde_json::Result<Value> {
    Ok(json!({
        "metadata": {
            "uid": uid,
            "resourceVersion": version,
            "labels": { keys::LABEL_POOL: label },
            "finalizers": finalizers,
            "ownerReferences": [owner(name, &spec.node_uid)],
        },
        "spec": changes(&serde_json::to_value(before)?, &serde_json::to_value(spec)?),
    }))
}

/// Returns the merge patch (RFC 7386) from one value to another. A removed key is null in the patch, because a missing
/// key would keep its old value.
fn changes(before: &Value, after: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return after.clone();
    };
    let removed = old
        .keys()
        .filter(|key| !new.contains_key(*key))
        .map(|key| (key.clone(), Value::Null));
    let changed = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
    let changed = changed.map(|(key, value)| (key.clone(), old.get(key).map_or(value.clone(), |o| changes(o, value))));
    Value::Object(removed.chain(changed).collect())
}

/// Returns the merge patch for [`BootcNodeWrite::Release`].
pub fn release(uid: &str, version: &str, finalizers: &[String]) -> Value {
    json!({ "metadata": { "uid": uid, "resourceVersion": version, "finalizers": finalizers } })
}

#[cfg(test)]
mod tests {
    use berth_api::Written;
    use berth_api::pool::Drain;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

    use super::*;

    fn merged(mut target: Value, patch: &Value) -> Value {
        let Value::Object(patch) = patch else {
            return patch.clone();
        };
        if !target.is_object() {
            target = json!({});
        }
        let map = target.as_object_mut().unwrap();
        for (key, value) in patch {
            match value {
                Value::Null => drop(map.remove(key)),
                value => {
                    let old = map.remove(key).unwrap_or(Value::Null);
                    map.insert(key.clone(), merged(old, value));
                }
            }
        }
        target
    }

    #[test]
    fn a_patch_turns_one_spec_into_another() {
        let digest: berth_api::Digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        let [a, b] = ["a", "b"].map(|key| LabelSelector {
            match_labels: Some([(key.to_owned(), "x".to_owned())].into()),
            match_expressions: None,
        });
        let full = BootcNodeSpec {
            image: Some(berth_api::node::DesiredImage {
                reference: "r".into(),
                digest: digest.clone(),
                index_digest: digest,
                version: Some("1".into()),
                signature: berth_api::pool::SignatureRule::AsBooted,
            }),
            retry_token: Some("t".into()),
            drain: Drain {
                force: Some(true),
                pod_selector: Some(Written::new(a)),
                ..Drain::default()
            },
            ..BootcNodeSpec::default()
        };
        let other = BootcNodeSpec {
            drain: Drain {
                pod_selector: Some(Written::new(b)),
                ..Drain::default()
            },
            ..full.clone()
        };
        let none = BootcNodeSpec::default();
        for (before, after) in [
            (&full, &none),
            (&none, &full),
            (&full, &other),
            (&other, &none),
            (&full, &full),
        ] {
            let patched = patch("n", ("u", "1"), (before, after), None, &[]).unwrap();
            let before = serde_json::to_value(before).unwrap();
            assert_eq!(merged(before, &patched["spec"]), serde_json::to_value(after).unwrap());
            assert!(patched["metadata"]["labels"][keys::LABEL_POOL].is_null());
        }
    }

    #[test]
    fn a_bootcnode_belongs_to_its_node() {
        let spec = BootcNodeSpec {
            node_uid: "u".to_owned(),
            ..BootcNodeSpec::default()
        };
        let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u" });
        let created = serde_json::to_value(object("n1", &spec, Some("a"))).unwrap();
        let expected = json!({
            "name": "n1", "labels": { "berth.dev/pool": "a" }, "finalizers": ["berth.dev/cleanup"],
            "ownerReferences": [owner],
        });
        assert_eq!(created["metadata"], expected);
        assert_eq!(created["spec"], serde_json::to_value(&spec).unwrap());
        let finalizers = ["berth.dev/cleanup".to_owned()];
        let patched = patch("n1", ("h", "7"), (&spec, &spec), Some("a"), &finalizers).unwrap();
        let expected = json!({
            "uid": "h", "resourceVersion": "7", "labels": { "berth.dev/pool": "a" },
            "finalizers": ["berth.dev/cleanup"], "ownerReferences": [owner],
        });
        assert_eq!(patched["metadata"], expected);
    }

    #[test]
    fn a_release_takes_only_our_finalizer() {
        let others = ["example.com/mine".to_owned()];
        let metadata = json!({ "uid": "h", "resourceVersion": "7", "finalizers": others });
        assert_eq!(release("h", "7", &others), json!({ "metadata": metadata }));
    }
}
