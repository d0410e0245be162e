//! A write to a BootcNode, and the request body that makes it.

use berth_api::keys;
use berth_api::node::{BootcNode, BootcNodeSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

/// One write to a BootcNode.
#[derive(Debug, Clone, PartialEq)]
pub enum HostWrite {
    /// A node gets its BootcNode.
    Create {
        /// Name of the Node.
        name: String,
        /// What is published.
        spec: BootcNodeSpec,
        /// The pool label.
        label: Option<String>,
    },
    /// Something else is published.
    Update {
        /// Name of the Node.
        name: String,
        /// UID of the BootcNode.
        uid: String,
        /// resourceVersion that the decision was made from.
        version: String,
        /// What is published.
        spec: BootcNodeSpec,
        /// The pool label.
        label: Option<String>,
        /// All finalizers that it shall have.
        finalizers: Vec<String>,
    },
    /// The node is released, or gone.
    Delete {
        /// Name of the Node.
        name: String,
        /// UID of the BootcNode.
        uid: String,
    },
    /// The BootcNode is being deleted and may go.
    Release {
        /// Name of the Node.
        name: String,
        /// UID of the BootcNode.
        uid: String,
        /// resourceVersion that the decision was made from.
        version: String,
        /// The finalizers of others.
        finalizers: Vec<String>,
        /// The agent has not said that everything is undone.
        late: bool,
    },
}

impl HostWrite {
    /// Name of the object.
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

/// The object for [`HostWrite::Create`].
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

/// The merge patch for [`HostWrite::Update`]. With UID and resourceVersion in it, it is a compare-and-swap; unlike
/// a PUT it leaves alone the labels and annotations that others have put there.
pub fn patch(
    name: &str,
    uid: &str,
    version: &str,
    spec: &BootcNodeSpec,
    label: Option<&str>,
    finalizers: &[String],
) -> Value {
    // A field that is absent in the typed value must be null in a merge patch, or the old value stays.
    let image = spec.image.as_ref().map(
        |i| json!({ "ref": i.reference, "digest": i.digest, "indexDigest": i.index_digest, "version": i.version }),
    );
    let hold = spec.hold.as_ref().map(|h| json!({ "reason": h.reason, "message": h.message }));
    json!({
        "metadata": {
            "uid": uid,
            "resourceVersion": version,
            "labels": { keys::LABEL_POOL: label },
            "finalizers": finalizers,
            "ownerReferences": [owner(name, &spec.node_uid)],
        },
        "spec": {
            "poolName": spec.pool_name,
            "nodeUID": spec.node_uid,
            "image": image,
            "staging": spec.staging,
            "hold": hold,
            "drainTimeout": spec.drain_timeout,
            "rebootTimeout": spec.reboot_timeout,
            "progressInterval": spec.progress_interval,
        },
    })
}

/// The merge patch for [`HostWrite::Release`].
pub fn release(uid: &str, version: &str, finalizers: &[String]) -> Value {
    json!({ "metadata": { "uid": uid, "resourceVersion": version, "finalizers": finalizers } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_every_field_of_the_spec() {
        let digest: berth_api::Digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        let full = BootcNodeSpec {
            image: Some(berth_api::node::DesiredImage {
                reference: "r".into(),
                digest: digest.clone(),
                index_digest: digest,
                version: Some("1".into()),
            }),
            hold: Some(berth_api::node::Hold { reason: "R".into(), message: "m".into() }),
            ..BootcNodeSpec::default()
        };
        let patched = patch("n", "u", "1", &full, None, &[]);
        assert_eq!(patched["spec"], serde_json::to_value(&full).unwrap());
        let empty = patch("n", "u", "1", &BootcNodeSpec::default(), None, &[]);
        assert!(empty["spec"]["image"].is_null() && empty["spec"]["hold"].is_null());
        assert!(empty["metadata"]["labels"][keys::LABEL_POOL].is_null());
    }
}
