//! Workloads of all namespaces: what the doctor reads of pods, Deployments, StatefulSets and disruption budgets.

use std::collections::BTreeMap;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use serde::Deserialize;

use super::seen::Seen;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A disruption budget.
pub type Budget = PodDisruptionBudget;

/// Namespace and name of an object.
pub type Key = (String, String);

/// Returns namespace and name of a budget.
pub(crate) fn key(budget: &Budget) -> Key {
    (budget.namespace().unwrap_or_default(), budget.name_any())
}

/// Returns the selector of a budget. `None` if it selects no pods or is invalid.
pub(crate) fn selector(budget: &Budget) -> Option<Selector> {
    let selector = budget.spec.as_ref()?.selector.clone()?;
    Selector::try_from(selector).ok()
}

/// A Deployment or StatefulSet.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "Stored")]
pub struct Workload {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Number of pods that it should have.
    pub replicas: i32,
    /// Selector of its pods.
    pub selector: LabelSelector,
    /// Labels of its pods.
    pub labels: Labels,
}

#[derive(Deserialize)]
struct Stored {
    metadata: Meta,
    spec: StoredSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Meta {
    namespace: String,
    name: String,
    labels: Labels,
}

#[derive(Deserialize)]
struct StoredSpec {
    replicas: Option<i32>,
    #[serde(default)]
    selector: LabelSelector,
    template: Template,
}

#[derive(Deserialize)]
struct Template {
    #[serde(default)]
    metadata: Meta,
}

impl From<Stored> for Workload {
    fn from(stored: Stored) -> Self {
        Self {
            namespace: stored.metadata.namespace,
            name: stored.metadata.name,
            replicas: stored.spec.replicas.unwrap_or(1),
            selector: stored.spec.selector,
            labels: stored.spec.template.metadata.labels,
        }
    }
}

/// A pod that is assigned to a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "StoredPod")]
pub struct PodPlace {
    /// Namespace.
    pub namespace: String,
    /// Name of its node; empty while it has none.
    pub node: String,
    /// Labels.
    pub labels: Labels,
}

#[derive(Deserialize)]
struct StoredPod {
    metadata: Meta,
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: String,
}

impl From<StoredPod> for PodPlace {
    fn from(stored: StoredPod) -> Self {
        Self {
            namespace: stored.metadata.namespace,
            node: stored.spec.node_name,
            labels: stored.metadata.labels,
        }
    }
}

/// Pods, and whether they are all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pods {
    /// The pods that were read.
    pub pods: Vec<PodPlace>,
    /// True if the cluster has more pods than were read.
    pub is_partial: bool,
}

/// Pods that the checks of workloads need.
#[derive(Debug, Clone)]
pub struct PodPlaces {
    /// Pods of the budgets that never allow a disruption.
    pub of_budgets: BTreeMap<Key, Seen<Pods>>,
    /// Pods of all namespaces. Read only if a workload has a single replica.
    pub all: Seen<Pods>,
}

impl Workload {
    /// True if the budget selects the pods of this workload.
    pub(crate) fn is_of(&self, budget: &Budget) -> bool {
        let is_near = budget.namespace().as_deref() == Some(self.namespace.as_str());
        is_near && selector(budget).is_some_and(|selector| selector.matches(&self.labels))
    }

    /// True if this workload has a single replica and no budget.
    pub(crate) fn is_single(&self, budgets: &[Budget]) -> bool {
        self.replicas == 1 && !budgets.iter().any(|budget| self.is_of(budget))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn workloads_and_pods_are_read_without_their_other_fields() {
        let workload: Workload = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "db", "managedFields": [{"time": "10000-01-01T00:00:00Z"}]},
            "spec": {"selector": {"matchLabels": {"app": "db"}}, "template": {"metadata": {"labels": {"app": "db"}}}},
        }))
        .unwrap();
        assert_eq!((workload.replicas, workload.labels["app"].as_str()), (1, "db"));
        let budget: Budget = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "db"}, "spec": {"selector": {"matchLabels": {"app": "db"}}},
        }))
        .unwrap();
        assert!(workload.is_of(&budget) && !workload.is_single(&[budget]) && workload.is_single(&[]));
        let pod: PodPlace = serde_json::from_value(json!({"metadata": {"namespace": "shop"}, "spec": {}})).unwrap();
        assert_eq!(pod.node, "");
    }
}
