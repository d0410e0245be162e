//! Installs Berth on a cluster of real hosts by the overlay `kubeadm`, without the controller, which is a process of the harness.

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::controlplane::ControlPlane;
use crate::manifests::overlay;

const OVERLAY: &str = "kubeadm";
/// Kinds that are not applied at first: the harness runs the controllers itself, and deploys the agents last.
const NOT_APPLIED: [&str; 2] = ["Deployment", "DaemonSet"];
/// More logging than the default of the agent.
const LOG: &str = "info,berth_agent=debug,kube_client=off";
const AGENT: &str = "berth-agent";

/// The agent's image in the registry of the hosts.
#[derive(Debug)]
pub(super) struct AgentImage {
    /// Address of the registry.
    pub(super) registry: String,
    /// Digest of the image.
    pub(super) digest: String,
}

/// Installs everything that must exist before the agents run.
pub(super) async fn prepare(plane: &ControlPlane) -> Result<()> {
    for object in objects().await? {
        if NOT_APPLIED.iter().all(|kind| object["kind"] != *kind) {
            plane.apply_yaml(&object.to_string()).await?;
        }
    }
    Ok(())
}

/// Deploys the agents: as shipped, but with the image that was just built, and with more logging.
pub(super) async fn deploy(plane: &ControlPlane, image: &AgentImage) -> Result<()> {
    let object = objects()
        .await?
        .into_iter()
        .find(|object| object["kind"] == "DaemonSet");
    apply_daemon_set(plane, object.context("the overlay has no DaemonSet")?, image).await
}

async fn objects() -> Result<Vec<Value>> {
    tokio::task::spawn_blocking(|| overlay(OVERLAY)).await?
}

async fn apply_daemon_set(plane: &ControlPlane, mut object: Value, image: &AgentImage) -> Result<()> {
    let container = object
        .pointer_mut("/spec/template/spec/containers/0")
        .context("the DaemonSet has no containers")?;
    container["image"] = json!(format!("{}/{AGENT}@{}", image.registry, image.digest));
    match container["env"].as_array_mut() {
        Some(env) => env.push(json!({ "name": "BERTH_LOG", "value": LOG })),
        None => bail!("the DaemonSet has no variables"),
    }
    let sets: Api<DaemonSet> = Api::namespaced(plane.admin_client(), "berth-system");
    let params = PatchParams::apply("admin").force();
    sets.patch(AGENT, &params, &Patch::Apply(&object))
        .await
        .context("cannot apply the DaemonSet")?;
    Ok(())
}
