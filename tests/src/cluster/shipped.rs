//! How Berth is installed on a cluster of real hosts: by an overlay of `manifests/`, or by the Helm charts.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use crate::controlplane::ControlPlane;
use crate::hosts::real::NodeIdentity;
use crate::manifests::{helm, overlay};

/// Kinds that the harness does not apply: it runs the controllers itself, deploys the agents last, and has no servers for the
/// others.
const NOT_APPLIED: [&str; 5] = [
    "Deployment",
    "DaemonSet",
    "SecurityContextConstraints",
    "PodMonitor",
    "PrometheusRule",
];
/// More logging than the default of the agent.
const LOG: &str = "info,berth_agent=debug,kube_client=off";
const AGENT: &str = "berth-agent";

/// A shipped way to install Berth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shipped {
    /// The overlay of this name.
    Overlay(&'static str),
    /// Both Helm charts.
    Helm,
}

/// The agent's image in the registry of the hosts.
#[derive(Debug)]
pub(super) struct AgentImage {
    /// Address of the registry.
    pub(super) registry: String,
    /// Digest of the image.
    pub(super) digest: String,
}

impl Shipped {
    /// True if agents run as pods of a DaemonSet.
    pub fn has_daemon_set(self) -> bool {
        self != Self::Overlay("systemd-agent")
    }

    /// Installs everything that must exist before the agents run.
    pub(super) async fn prepare(self, plane: &ControlPlane) -> Result<()> {
        match self {
            Self::Overlay(name) => {
                let objects = tokio::task::spawn_blocking(move || overlay(name)).await??;
                for object in objects {
                    if NOT_APPLIED.iter().all(|kind| object["kind"] != *kind) {
                        plane.apply_yaml(&object.to_string()).await?;
                    }
                }
                Ok(())
            }
            Self::Helm => {
                run_helm(
                    plane,
                    &["install", "berth-crds", "berth-crds", "--namespace", "kube-system"],
                )
                .await
            }
        }
    }

    /// Deploys the agents: as shipped, but with the image that was just built, and with more logging.
    pub(super) async fn deploy(self, plane: &ControlPlane, image: &AgentImage) -> Result<()> {
        match self {
            Self::Overlay(name) => {
                let objects = tokio::task::spawn_blocking(move || overlay(name)).await??;
                match objects.into_iter().find(|object| object["kind"] == "DaemonSet") {
                    Some(object) => apply_daemon_set(plane, object, image).await,
                    None => Ok(()),
                }
            }
            // No node has the label of control plane nodes, so no controller's pod is placed.
            Self::Helm => {
                let registry = format!("images.registry={}", image.registry);
                let digest = format!("agent.image.digest={}", image.digest);
                let name = "agent.extraEnv[0].name=BERTH_LOG";
                let value = format!("agent.extraEnv[0].value={}", LOG.replace(',', "\\,"));
                let values = [
                    "--set",
                    "onControlPlane=true",
                    "--set",
                    &registry,
                    "--set",
                    &digest,
                    "--set",
                    name,
                    "--set",
                    &value,
                ];
                let install = ["install", "berth", "berth", "--namespace", "berth-system"];
                run_helm(plane, &[&install[..], &values].concat()).await
            }
        }
    }

    /// Files of the kubelet at the places where this installer's kubelet has them: path, permissions and content.
    pub(super) fn kubelet_files(self, identity: &NodeIdentity) -> Result<Vec<(String, u32, Vec<u8>)>> {
        match self {
            Self::Overlay(name @ ("k3s" | "rke2")) => of_rancher(&format!("var/lib/rancher/{name}/agent"), identity),
            Self::Overlay("openshift" | "eks") => Ok(vec![(
                "var/lib/kubelet/kubeconfig".to_owned(),
                0o600,
                identity.kubeconfig.clone().into_bytes(),
            )]),
            _ => Ok(vec![]),
        }
    }
}

/// The directory of k3s or RKE2: a kubeconfig that names the files beside it.
fn of_rancher(directory: &str, identity: &NodeIdentity) -> Result<Vec<(String, u32, Vec<u8>)>> {
    let parsed = Kubeconfig::from_yaml(&identity.kubeconfig).context("the kubelet's kubeconfig")?;
    let text: Value = serde_saphyr::from_str(&identity.kubeconfig).context("the kubelet's kubeconfig")?;
    let server = parsed
        .clusters
        .first()
        .and_then(|named| named.cluster.as_ref()?.server.clone())
        .context("the kubelet's kubeconfig has no server")?;
    let user = &text["users"][0]["user"];
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "local", "cluster": {
            "server": server, "certificate-authority": format!("/{directory}/server-ca.crt"),
        }}],
        "users": [{ "name": "user", "user": {
            "client-certificate": format!("/{directory}/client-kubelet.crt"),
            "client-key": format!("/{directory}/client-kubelet.key"),
        }}],
        "contexts": [{ "name": "Default", "context": { "cluster": "local", "user": "user" } }],
        "current-context": "Default",
    });
    let file = |name: &str, bytes: Vec<u8>| (format!("{directory}/{name}"), 0o600, bytes);
    Ok(vec![
        file("kubelet.kubeconfig", kubeconfig.to_string().into_bytes()),
        file("server-ca.crt", identity.ca.clone().into_bytes()),
        file("client-kubelet.crt", decoded(&user["client-certificate-data"])?),
        file("client-kubelet.key", decoded(&user["client-key-data"])?),
    ])
}

fn decoded(data: &Value) -> Result<Vec<u8>> {
    use base64::Engine as _;
    let text = data.as_str().context("the kubelet's kubeconfig has no certificate")?;
    base64::prelude::BASE64_STANDARD
        .decode(text)
        .context("the kubelet's certificate")
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

async fn run_helm(plane: &ControlPlane, arguments: &[&str]) -> Result<()> {
    let admin = plane.kubeconfig_for("admin", &["system:masters"])?;
    let home = plane.directory().to_owned();
    let command = tokio::task::spawn_blocking(move || helm(Path::new(&home))).await??;
    let mut command = tokio::process::Command::from(command);
    command
        .args(arguments)
        .arg("--kubeconfig")
        .arg(&admin.path)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = command.output().await.context("running helm")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "helm {}: {said}", arguments.join(" "));
    Ok(())
}
