//! Classifies pods for a drain, by the rules of `kubectl drain --ignore-daemonsets`.
//!
//! Some pods must not be moved: no controller would create them again, or the data in their emptyDir volumes would be
//! lost, and the pool's drain rules do not allow that. kubectl fails at such a pod before it moves anything; here the
//! pod blocks the drain and is reported. One rule differs from kubectl's: the kubelet's identity may not read
//! DaemonSets, so pods of a deleted DaemonSet stay, like other DaemonSet pods.

use std::collections::BTreeMap;

use kube::core::SelectorExt;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::settings::Settings;

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// The parts of a pod that the drain reads.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Pod {
    /// Name, namespace, UID, owners and so on.
    pub metadata: PodMetadata,
    /// Volumes and tolerations.
    #[serde(default)]
    pub spec: PodSpec,
    /// Phase.
    #[serde(default)]
    pub status: PodStatus,
}

/// The metadata of a [`Pod`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMetadata {
    /// Name.
    pub name: String,
    /// Namespace.
    #[serde(default)]
    pub namespace: String,
    /// UID. A re-created pod of the same name has another UID.
    #[serde(default)]
    pub uid: String,
    /// Time when the deleted pod's grace period ends; `None` if the pod is not being deleted.
    pub deletion_timestamp: Option<String>,
    /// Grace period of the deletion, in seconds.
    pub deletion_grace_period_seconds: Option<i64>,
    /// Labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Owners of the pod.
    pub owner_references: Option<Vec<Owner>>,
}

/// The owner of a pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Owner {
    /// API group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// True for the owner that would re-create the pod.
    pub controller: Option<bool>,
}

/// The spec of a [`Pod`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct PodSpec {
    /// Volumes.
    pub volumes: Option<Vec<Volume>>,
    /// Tolerations.
    pub tolerations: Option<Vec<Toleration>>,
}

/// A toleration of a [`Pod`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Toleration {
    /// Taint key; `None` for every key.
    pub key: Option<String>,
    /// `Exists` matches every value.
    pub operator: Option<String>,
    /// Taint value, unless the operator matches every value.
    pub value: Option<String>,
    /// Taint effect; `None` for every effect.
    pub effect: Option<String>,
}

impl Toleration {
    /// True if this toleration matches the taint of a cordoned node. That taint has no value.
    fn is_for_cordon(&self) -> bool {
        let any_value = self.operator.as_deref() == Some("Exists");
        let key = match self.key.as_deref() {
            None | Some("") => any_value,
            Some(key) => key == UNSCHEDULABLE && (any_value || self.value.as_deref().is_none_or(str::is_empty)),
        };
        key && matches!(self.effect.as_deref(), None | Some("" | "NoSchedule"))
    }
}

/// A volume of a [`Pod`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Volume {
    /// Name in the pod.
    pub name: String,
    /// Set for an emptyDir, whose data is deleted with the pod.
    pub empty_dir: Option<IgnoredAny>,
    /// Claim that the volume uses.
    pub persistent_volume_claim: Option<Claim>,
    /// Set for a volume whose claim Kubernetes creates together with the pod.
    pub ephemeral: Option<IgnoredAny>,
}

/// The claim of a [`Volume`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Claim {
    /// Name, in the pod's namespace.
    pub claim_name: String,
}

/// The status of a [`Pod`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: Option<String>,
}

/// Class of a pod in a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The pod is not moved: it belongs to a DaemonSet (as the agent's own pod does), is static, or is not selected by
    /// the settings.
    Stays,
    /// The pod is terminating.
    Terminating,
    /// The pod's containers have ended. The drain tries to move the pod. If the move fails, the drain continues without
    /// the pod.
    Finished,
    /// Moving the pod would lose data or the pod itself, so an admin must decide.
    Blocked(Obstacle),
    /// The drain moves the pod.
    Moves,
}

impl Class {
    /// True if an admin must decide about the pod.
    pub fn is_blocked(self) -> bool {
        matches!(self, Self::Blocked(_))
    }
}

/// Why an admin must decide before a pod is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// No controller would re-create the pod.
    Unmanaged,
    /// The pod has data in emptyDir volumes.
    EmptyDir,
    /// No controller would re-create the pod, and it has data in emptyDir volumes.
    UnmanagedEmptyDir,
}

impl Obstacle {
    /// Returns the message for admins: the problem, and the ways to solve it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unmanaged => {
                "Unmanaged: no controller would create the pod again; delete the pod, let a controller own it, or set drain.force in the node's pool"
            }
            Self::EmptyDir => {
                "EmptyDir: the data in the pod's emptyDir volumes would be lost; delete the pod, or set drain.deleteEmptyDirData in the node's pool"
            }
            Self::UnmanagedEmptyDir => {
                "Unmanaged, with EmptyDir: no controller would create the pod again, and the data in its emptyDir volumes would be lost; delete the pod, or set drain.force and drain.deleteEmptyDirData in the node's pool"
            }
        }
    }
}

impl Pod {
    /// Returns `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    fn controller(&self) -> Option<&Owner> {
        self.metadata
            .owner_references
            .as_deref()?
            .iter()
            .find(|owner| owner.controller == Some(true))
    }

    /// True if the pod's containers have ended and will not start again.
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    fn has_empty_dir(&self) -> bool {
        self.spec
            .volumes
            .iter()
            .flatten()
            .any(|volume| volume.empty_dir.is_some())
    }

    /// True if the pod can be scheduled to a cordoned node.
    pub fn tolerates_cordon(&self) -> bool {
        self.spec.tolerations.iter().flatten().any(Toleration::is_for_cordon)
    }

    /// Returns the names of the PersistentVolumeClaims that the pod's volumes use.
    pub fn claims(&self) -> Vec<String> {
        let volumes = self.spec.volumes.iter().flatten();
        let names = volumes.filter_map(|volume| self.claim(volume));
        names.filter(|name| !name.is_empty()).collect()
    }

    fn claim(&self, volume: &Volume) -> Option<String> {
        match (&volume.persistent_volume_claim, volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            // Kubernetes' name for the claim of an ephemeral volume.
            (None, Some(_)) => Some(format!("{}-{}", self.metadata.name, volume.name)),
            (None, None) => None,
        }
    }

    /// Classifies the pod under these settings.
    pub fn class(&self, settings: &Settings) -> Class {
        let is_mirror = self
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|a| a.contains_key("kubernetes.io/config.mirror"));
        let is_daemon = self
            .controller()
            .is_some_and(|o| o.kind == "DaemonSet" && o.api_version.starts_with("apps/"));
        let no_labels = BTreeMap::new();
        let labels = self.metadata.labels.as_ref().unwrap_or(&no_labels);
        let is_selected = settings
            .pod_selector
            .as_ref()
            .is_none_or(|selector| selector.matches(labels));
        if is_mirror || !is_selected || (is_daemon && !self.is_finished()) {
            Class::Stays
        } else if self.metadata.deletion_timestamp.is_some() {
            // This also holds if the pod's containers have ended: its volumes stay in use until the kubelet releases
            // the pod.
            Class::Terminating
        } else if self.is_finished() {
            Class::Finished
        } else {
            self.obstacle(settings).map_or(Class::Moves, Class::Blocked)
        }
    }

    fn obstacle(&self, settings: &Settings) -> Option<Obstacle> {
        let unmanaged = !settings.force && self.controller().is_none();
        let empty_dir = !settings.delete_empty_dir_data && self.has_empty_dir();
        match (unmanaged, empty_dir) {
            (true, true) => Some(Obstacle::UnmanagedEmptyDir),
            (true, false) => Some(Obstacle::Unmanaged),
            (false, true) => Some(Obstacle::EmptyDir),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::{Expression, Selector};
    use serde_json::{Value, json};

    fn pod(change: Value, volumes: Value, phase: &str) -> Pod {
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "x", "controller": true}]);
        let mut metadata = json!({"name": "p", "namespace": "d", "uid": "u", "ownerReferences": owner});
        for (key, value) in change.as_object().unwrap() {
            metadata[key] = value.clone();
        }
        let pod = json!({"metadata": metadata, "spec": {"volumes": volumes}, "status": {"phase": phase}});
        serde_json::from_value(pod).unwrap()
    }

    fn owned(api_version: &str, kind: &str, controller: bool) -> Value {
        json!({"ownerReferences": [{"apiVersion": api_version, "kind": kind, "controller": controller}]})
    }

    #[test]
    fn sorts_pods() {
        let mirror = json!({"annotations": {"kubernetes.io/config.mirror": "h"}, "ownerReferences": null});
        let terminating = json!({"deletionTimestamp": "2026-11-01T00:00:00Z"});
        let orphan = json!({"ownerReferences": null});
        let ending_orphan = json!({"ownerReferences": null, "deletionTimestamp": "2026-11-01T00:00:00Z"});
        for (change, phase, expected) in [
            (json!({}), "Running", Class::Moves),
            (json!({}), "Pending", Class::Moves),
            (json!({}), "Succeeded", Class::Finished),
            (json!({}), "Failed", Class::Finished),
            (owned("apps/v1", "DaemonSet", true), "Running", Class::Stays),
            (owned("apps/v1", "DaemonSet", true), "Pending", Class::Stays),
            (owned("apps/v1", "DaemonSet", true), "Failed", Class::Finished),
            (owned("example.com/v1", "DaemonSet", true), "Running", Class::Moves),
            (
                owned("apps/v1", "DaemonSet", false),
                "Running",
                Class::Blocked(Obstacle::Unmanaged),
            ),
            (owned("apps/v1", "StatefulSet", true), "Running", Class::Moves),
            (owned("v1", "Node", true), "Running", Class::Moves),
            (mirror.clone(), "Running", Class::Stays),
            (mirror, "Failed", Class::Stays),
            (terminating.clone(), "Running", Class::Terminating),
            (terminating, "Failed", Class::Terminating),
            (orphan.clone(), "Running", Class::Blocked(Obstacle::Unmanaged)),
            (orphan, "Succeeded", Class::Finished),
            (ending_orphan, "Running", Class::Terminating),
        ] {
            assert_eq!(
                pod(change.clone(), json!([]), phase).class(&Settings::default()),
                expected,
                "{change} {phase}"
            );
        }
    }

    #[test]
    fn the_settings_decide_on_obstacles() {
        let (none, data) = (
            json!([{"name": "c", "configMap": {}}]),
            json!([{"name": "tmp", "emptyDir": {}}]),
        );
        let orphan = json!({"ownerReferences": null});
        let blocked = Class::Blocked;
        use Obstacle::{EmptyDir, Unmanaged, UnmanagedEmptyDir};
        let each = [
            Class::Moves,
            blocked(EmptyDir),
            blocked(Unmanaged),
            blocked(UnmanagedEmptyDir),
        ];
        // Settings (force, deleteEmptyDirData, forced), then the classes of four pods: managed, managed with emptyDir,
        // unmanaged, unmanaged with emptyDir.
        for ((force, delete_empty_dir_data, forced), expected) in [
            ((false, false, false), each),
            (
                (true, false, false),
                [Class::Moves, blocked(EmptyDir), Class::Moves, blocked(EmptyDir)],
            ),
            (
                (false, true, false),
                [Class::Moves, Class::Moves, blocked(Unmanaged), blocked(Unmanaged)],
            ),
            ((true, true, false), [Class::Moves; 4]),
            // After the timeout, Force overrules budgets, but no obstacle.
            ((false, false, true), each),
        ] {
            let settings = Settings {
                force,
                delete_empty_dir_data,
                forced,
                ..Settings::default()
            };
            let pods = [
                (json!({}), &none),
                (json!({}), &data),
                (orphan.clone(), &none),
                (orphan.clone(), &data),
            ];
            for ((change, volumes), expected) in pods.into_iter().zip(expected) {
                let running = pod(change.clone(), volumes.clone(), "Running");
                assert_eq!(running.class(&settings), expected, "{change} {volumes} {settings:?}");
                let finished = pod(change, volumes.clone(), "Succeeded");
                assert_eq!(
                    finished.class(&settings),
                    Class::Finished,
                    "an ended pod has no obstacles"
                );
            }
        }
    }

    #[test]
    fn a_selector_leaves_all_others() {
        let selector = Selector::from_iter([Expression::Equal("tier".to_owned(), "web".to_owned())]);
        let settings = Settings {
            pod_selector: Some(selector),
            ..Settings::default()
        };
        fn web(settings: &Settings, extra: Value) -> Class {
            let mut change = json!({"labels": {"tier": "web"}});
            change
                .as_object_mut()
                .unwrap()
                .extend(extra.as_object().unwrap().clone());
            pod(change, json!([]), "Running").class(settings)
        }
        assert_eq!(web(&settings, json!({})), Class::Moves);
        assert_eq!(web(&settings, owned("apps/v1", "DaemonSet", true)), Class::Stays);
        assert_eq!(
            web(&settings, json!({"ownerReferences": null})),
            Class::Blocked(Obstacle::Unmanaged)
        );
        for labels in [json!(null), json!({}), json!({"tier": "db"})] {
            let other = pod(json!({"labels": labels, "ownerReferences": null}), json!([]), "Running");
            assert_eq!(
                other.class(&settings),
                Class::Stays,
                "not even an unmanaged one is in the way: {labels}"
            );
        }
    }

    #[test]
    fn tolerations_decide_whether_a_cordon_counts() {
        for (toleration, tolerates) in [
            (json!({"operator": "Exists"}), true),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (
                json!({"key": UNSCHEDULABLE, "operator": "Exists", "effect": "NoSchedule"}),
                true,
            ),
            (json!({"key": UNSCHEDULABLE}), true),
            (json!({"key": UNSCHEDULABLE, "value": "x"}), false),
            (
                json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists"}),
                false,
            ),
        ] {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"tolerations": [{"key": "a"}, toleration]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(pod.tolerates_cordon(), tolerates, "{pod:?}");
        }
    }

    #[test]
    fn reads_the_barest_pod_and_its_claims() {
        let bare: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}})).unwrap();
        let class = bare.class(&Settings::default());
        assert_eq!(
            (class, bare.full_name().as_str()),
            (Class::Blocked(Obstacle::Unmanaged), "/p")
        );
        let volumes = json!([
            {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
            {"name": "c", "emptyDir": {"medium": "Memory"}},
        ]);
        assert_eq!(pod(json!({}), volumes, "Running").claims(), ["data", "p-b"]);
    }
}
