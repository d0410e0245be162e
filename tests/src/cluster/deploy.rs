//! Pods to drain: a Deployment and a disruption budget, as a tenant of the cluster would have them.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::limits::SOON;
use super::site::Site;

impl Site {
    /// Creates a Deployment, spreads its replicas over the nodes, and waits until all are available.
    pub async fn deploy(&self, name: &str, replicas: usize) -> Result<()> {
        let labels = json!({ "app": name });
        let spread = json!([{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": self.workload.uneven,
            "labelSelector": { "matchLabels": labels },
        }]);
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": "default" },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "topologySpreadConstraints": spread,
                        "terminationGracePeriodSeconds": 1,
                        "automountServiceAccountToken": false,
                        "containers": [{ "name": "app", "image": self.workload.image }],
                    },
                },
            },
        });
        let api: Api<Deployment> = Api::namespaced(self.client(), "default");
        api.patch(name, &PatchParams::apply("tenant").force(), &Patch::Apply(&object))
            .await
            .context("cannot apply the Deployment")?;
        self.until(&format!("Deployment {name} is available"), SOON, || async {
            let status = api.get(name).await?.status.unwrap_or_default();
            Ok(status.available_replicas.unwrap_or(0) as usize == replicas)
        })
        .await
    }

    /// Creates or changes a disruption budget for a Deployment.
    pub async fn budget(&self, name: &str, min_available: usize) -> Result<()> {
        let object = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "minAvailable": min_available, "selector": { "matchLabels": { "app": name } } },
        });
        let api: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> = Api::namespaced(self.client(), "default");
        api.patch(name, &PatchParams::apply("tenant").force(), &Patch::Apply(&object))
            .await
            .context("cannot apply the budget")?;
        self.until(&format!("budget {name} is observed"), SOON, || async {
            let object = api.get(name).await?;
            let status = object.status.unwrap_or_default();
            Ok(status.observed_generation == object.metadata.generation && status.expected_pods > 0)
        })
        .await
    }

    /// Deletes a disruption budget.
    pub async fn remove_budget(&self, name: &str) -> Result<()> {
        let api: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> = Api::namespaced(self.client(), "default");
        api.delete(name, &DeleteParams::default())
            .await
            .context("cannot delete the budget")?;
        Ok(())
    }
}
