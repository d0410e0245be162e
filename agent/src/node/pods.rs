//! What becomes of each pod when its node is drained.

use serde::Deserialize;

/// What matters of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pod {
    /// Name, namespace, UID, owners.
    pub metadata: PodMetadata,
    /// Its phase.
    #[serde(default)]
    pub status: PodStatus,
}

/// The metadata of a [`Pod`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMetadata {
    /// Name.
    pub name: String,
    /// Namespace.
    #[serde(default)]
    pub namespace: String,
    /// UID: a pod that comes again under its name is another one.
    #[serde(default)]
    pub uid: String,
    /// Set when it is being deleted.
    #[serde(default)]
    pub deletion_timestamp: Option<String>,
    /// Annotations.
    #[serde(default)]
    pub annotations: Option<std::collections::BTreeMap<String, String>>,
    /// Who owns it.
    #[serde(default)]
    pub owner_references: Option<Vec<Owner>>,
}

/// The owner of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// API group and version.
    #[serde(default)]
    pub api_version: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
    /// The one owner that would create it again.
    #[serde(default)]
    pub controller: Option<bool>,
}

/// The status of a [`Pod`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    #[serde(default)]
    pub phase: Option<String>,
}

/// What becomes of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It stays: a DaemonSet's, a static one, or one that does not run any more.
    Left,
    /// It is on its way out.
    Terminating,
    /// Nobody would create it again: that is for a person to decide.
    Unmanaged,
    /// It is evicted.
    Evicted,
}

impl Pod {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    fn controller(&self) -> Option<&Owner> {
        self.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
    }

    /// What becomes of it.
    pub fn class(&self) -> Class {
        let is_mirror =
            self.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("kubernetes.io/config.mirror"));
        let is_over = matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let is_daemon = self.controller().is_some_and(|o| o.kind == "DaemonSet" && o.api_version.starts_with("apps/"));
        if is_mirror || is_daemon {
            Class::Left
        } else if self.metadata.deletion_timestamp.is_some() {
            // Also one whose containers have ended: until the kubelet lets it go, its volumes are in use.
            Class::Terminating
        } else if is_over {
            Class::Left
        } else if self.controller().is_none() {
            Class::Unmanaged
        } else {
            Class::Evicted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn class(change: Value, phase: &str) -> Class {
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "x", "controller": true}]);
        let mut metadata = json!({"name": "p", "namespace": "d", "uid": "u", "ownerReferences": owner});
        for (key, value) in change.as_object().unwrap() {
            metadata[key] = value.clone();
        }
        let pod: Pod =
            serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": {"phase": phase}})).unwrap();
        pod.class()
    }

    fn owned(api_version: &str, kind: &str, controller: bool) -> Value {
        json!({"ownerReferences": [{"apiVersion": api_version, "kind": kind, "controller": controller}]})
    }

    #[test]
    fn sorts_pods() {
        let mirror = json!({"annotations": {"kubernetes.io/config.mirror": "h"}, "ownerReferences": null});
        let terminating = json!({"deletionTimestamp": "2026-11-01T00:00:00Z"});
        for (change, phase, expected) in [
            (json!({}), "Running", Class::Evicted),
            (json!({}), "Pending", Class::Evicted),
            (json!({}), "Succeeded", Class::Left),
            (json!({}), "Failed", Class::Left),
            (owned("apps/v1", "DaemonSet", true), "Running", Class::Left),
            (owned("example.com/v1", "DaemonSet", true), "Running", Class::Evicted),
            (owned("apps/v1", "DaemonSet", false), "Running", Class::Unmanaged),
            (owned("apps/v1", "StatefulSet", true), "Running", Class::Evicted),
            (mirror, "Running", Class::Left),
            (terminating.clone(), "Running", Class::Terminating),
            (terminating, "Failed", Class::Terminating),
            (json!({"ownerReferences": null}), "Running", Class::Unmanaged),
            (json!({"ownerReferences": null}), "Succeeded", Class::Left),
            (
                json!({"ownerReferences": null, "deletionTimestamp": "2026-11-01T00:00:00Z"}),
                "Running",
                Class::Terminating,
            ),
        ] {
            assert_eq!(class(change.clone(), phase), expected, "{change} {phase}");
        }
    }

    #[test]
    fn reads_the_barest_pod() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}})).unwrap();
        assert_eq!((pod.class(), pod.full_name().as_str()), (Class::Unmanaged, "/p"));
    }
}
