//! The overlays of `manifests/`: each says when to use it, is in the documentation, and is accepted by a real API server.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use berth_agent::cli::Args;
use berth_api::pool::BootcNodePool;
use berth_controller::cli::Cli;
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::manifests::{self, foreign_kinds, kustomize, overlay, overlays};
use berth_tests::programs::{read, workspace_root};
use clap::Parser;
use serde_json::{Value, json};

/// Registry and path of the published images.
pub const IMAGES: &str = "ghcr.io/berth-dev";
pub use berth_tests::dist::VERSION;

pub fn kustomization(name: &str) -> Result<String> {
    read(&format!("manifests/overlays/{name}/kustomization.yaml"))
}

/// Containers of all workloads, each with the name of its workload.
pub fn containers(objects: &[Value]) -> Vec<(&str, &Value)> {
    let mut containers = Vec::new();
    for object in objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let list = object["spec"]["template"]["spec"]["containers"].as_array();
        containers.extend(list.into_iter().flatten().map(|container| (name, container)));
    }
    containers
}

fn arguments(container: &Value) -> Vec<&str> {
    container["args"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

#[test]
fn every_overlay_says_when_to_use_it_and_is_in_the_documentation() -> Result<()> {
    let page = read("docs/overlays.md")?;
    for name in overlays()? {
        let text = kustomization(&name)?;
        ensure!(
            text.starts_with("# For ") || text.starts_with("# The overlay "),
            "{name}: its first comment must say which clusters it is for"
        );
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.with_context(|| format!("docs/overlays.md has no row for {name}"))?;
        for component in text.lines().filter_map(|line| line.strip_prefix("- ../../components/")) {
            ensure!(row.contains(&format!("`{component}`")), "{name}: {row}");
        }
        let values = text
            .lines()
            .find_map(|line| line.strip_prefix("# Helm: --set "))
            .with_context(|| format!("{name}: no comment with Helm values"))?;
        ensure!(row.contains(&format!("| `{values}` |")), "{name}: {row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    ensure!(rows == overlays()?.len(), "docs/overlays.md has {rows} rows");
    Ok(())
}

/// Pods name the published images of this version, and arguments that the programs know.
#[test]
fn every_overlay_runs_the_published_programs() -> Result<()> {
    for name in overlays()? {
        let objects = overlay(&name)?;
        let containers = containers(&objects);
        let expected: &[&str] = match name.as_str() {
            "systemd-agent" => &["berth-controller"],
            _ => &["berth-controller", "berth-agent"],
        };
        for workload in expected {
            let (_, container) = containers
                .iter()
                .find(|(name, _)| name == workload)
                .with_context(|| format!("{name}: no {workload}"))?;
            let image = format!("{IMAGES}/{workload}:{VERSION}");
            ensure!(container["image"] == image.as_str(), "{name}: {}", container["image"]);
            let arguments = [&[*workload], arguments(container).as_slice()].concat();
            match *workload {
                "berth-agent" => drop(Args::try_parse_from(arguments).context(name.clone())?),
                _ => drop(Cli::try_parse_from(arguments).context(name.clone())?),
            }
        }
        ensure!(containers.len() == expected.len(), "{name}: {containers:?}");
    }
    Ok(())
}

fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> Result<&'a Value> {
    objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
        .with_context(|| format!("no {kind} {name}"))
}

/// Fields that the CRD of OpenShift requires in SecurityContextConstraints.
const REQUIRED: [&str; 12] = [
    "allowHostDirVolumePlugin",
    "allowHostIPC",
    "allowHostNetwork",
    "allowHostPID",
    "allowHostPorts",
    "allowPrivilegedContainer",
    "allowedCapabilities",
    "defaultAddCapabilities",
    "priority",
    "readOnlyRootFilesystem",
    "requiredDropCapabilities",
    "volumes",
];

/// The SecurityContextConstraints permit what the agent's pod asks for. No other pod may use them.
#[test]
fn openshift_permits_the_agents_pod() -> Result<()> {
    let objects = overlay("openshift")?;
    let rules = object(&objects, "SecurityContextConstraints", "berth-agent")?;
    for field in REQUIRED {
        ensure!(!rules[field].is_null(), "OpenShift requires {field}");
    }
    ensure!(rules["users"] == json!(["system:serviceaccount:berth-system:berth-agent"]));
    ensure!(rules["groups"] == json!([]) && rules["allowPrivilegedContainer"] == false);
    let agent = object(&objects, "DaemonSet", "berth-agent")?;
    let pod = &agent["spec"]["template"]["spec"];
    ensure!(pod["hostNetwork"] == true && rules["allowHostNetwork"] == true);
    ensure!(pod["securityContext"]["runAsUser"] == rules["runAsUser"]["uid"]);
    for volume in pod["volumes"].as_array().into_iter().flatten() {
        let kinds = volume.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        for kind in kinds.filter(|kind| *kind != "name") {
            let permitted = rules["volumes"].as_array().into_iter().flatten();
            ensure!(permitted.clone().any(|one| one == kind), "a volume of the kind {kind}");
        }
    }
    let controller = object(&objects, "Deployment", "berth-controller")?;
    let pod = &controller["spec"]["template"]["spec"];
    ensure!(pod["securityContext"]["runAsUser"].is_null() && pod["securityContext"]["runAsNonRoot"] == true);
    let mut tolerations = pod["tolerations"].as_array().into_iter().flatten();
    ensure!(tolerations.any(|toleration| toleration["key"] == "node-role.kubernetes.io/master"));
    Ok(())
}

/// The sample pools of the overlays wait for the admin, and set what their cluster needs.
#[test]
fn sample_pools_of_overlays_are_paused() -> Result<()> {
    for name in ["single-node-pool", "openshift-pool"] {
        let text = read(&format!("manifests/samples/{name}.yaml"))?;
        let pool: BootcNodePool = serde_saphyr::from_str(&text)?;
        ensure!(pool.spec.is_paused(), "{name} is not paused");
        match name {
            "single-node-pool" => ensure!(text.contains("enabled: false")),
            _ => ensure!(pool.spec.tolerated_updaters == ["machine-config-daemon"]),
        }
    }
    Ok(())
}

/// A repository with the manifests as they are now, at the tag of the release.
fn repository(directory: &Path) -> Result<()> {
    let script = "
        cp -r \"$1/manifests\" .
        git init --quiet . && git add .
        git -c user.name=test -c user.email=test@example.com commit --quiet --message test
        git tag \"$2\"";
    let status = Command::new("bash")
        .args(["-euc", script, "bash"])
        .arg(workspace_root())
        .arg(format!("v{VERSION}"))
        .current_dir(directory)
        .status()?;
    ensure!(status.success(), "git fails");
    Ok(())
}

/// The kustomization that docs/overlays.md has to copy builds, with a copy of the repository in place of GitHub.
#[test]
fn the_documented_kustomization_uses_remote_directories() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let origin = directory.path().join("berth");
    fs::create_dir(&origin)?;
    repository(&origin)?;
    let page = read("docs/overlays.md")?;
    let mut blocks = page
        .split("```\n")
        .filter(|block| block.contains("kind: Kustomization"));
    let text = blocks.next().context("docs/overlays.md has no kustomization")?;
    let origin = format!("file://{}", origin.display());
    let text = text.replace("https://github.com/berth-dev/berth", &origin);
    fs::write(directory.path().join("kustomization.yaml"), text)?;
    let objects = manifests::objects(&kustomize(directory.path())?)?;
    let agent = object(&objects, "DaemonSet", "berth-agent")?;
    let container = &agent["spec"]["template"]["spec"]["containers"][0];
    ensure!(
        container["image"] == format!("registry.example.com/berth/berth-agent:{VERSION}"),
        "{container}"
    );
    let path = "--kubelet-kubeconfig=/host/var/lib/rancher/k3s/agent/kubelet.kubeconfig";
    ensure!(arguments(container).contains(&path), "{container}");
    object(&objects, "PrometheusRule", "berth")?;
    Ok(())
}

/// A real API server accepts each object of each overlay, one overlay over the other.
#[tokio::test]
async fn the_api_server_accepts_every_overlay() -> Result<()> {
    let options = Options {
        controller_manager: false,
        ..Options::simulated_nodes()
    };
    let plane = ControlPlane::start(options).await?;
    for kind in foreign_kinds() {
        plane.apply_yaml(&kind.to_string()).await?;
    }
    for name in overlays()? {
        let directory = workspace_root().join("manifests/overlays");
        plane.apply_manifests(&directory.join(&name)).await?;
    }
    Ok(())
}
