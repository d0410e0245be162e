//! The container runtime of the simulated hosts, for the pods that matter to an uninstall. It runs the program of each
//! pod that removes Berth from its host, and ends the controller and the agents with their pods.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_api::keys;
use berth_tests::cluster::Cluster;
use berth_tests::hosts::sim::SimHost;
use berth_tests::process::with_parent;
use berth_tests::programs;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::process::{Child, Command};

const INTERVAL: Duration = Duration::from_millis(200);

/// The runtime of all hosts of a cluster. Dropping it kills the programs.
pub struct Runtime<'a> {
    cluster: &'a Cluster,
    /// Programs that remove Berth from a host, by the pod's name.
    programs: BTreeMap<String, Child>,
}

impl<'a> Runtime<'a> {
    pub fn of(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            programs: BTreeMap::new(),
        }
    }

    /// Runs pods until an error.
    pub async fn run(mut self) -> Result<()> {
        loop {
            self.look().await?;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn look(&mut self) -> Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.cluster.client(), keys::NAMESPACE);
        if deployments.get_opt("berth-controller").await?.is_none() {
            self.cluster.controllers.stop(0);
        }
        let api: Api<Pod> = Api::namespaced(self.cluster.client(), keys::NAMESPACE);
        let pods = api.list(&ListParams::default()).await?.items;
        self.programs
            .retain(|name, _| pods.iter().any(|pod| pod.name_any() == *name));
        for pod in pods {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let Some(host) = node.and_then(|node| self.cluster.fleet.host(node)) else {
                continue;
            };
            let removes = arguments(&pod).first().is_some_and(|word| word == "remove");
            let is_done = is_ready(&pod) && !self.programs.contains_key(&pod.name_any());
            if !removes || is_done || host.facts().boot_id.is_none() || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            self.run_removal(&api, &pod, host).await?;
        }
        Ok(())
    }

    /// Starts the program of the pod, or marks the pod as ready when its readiness probe would succeed.
    async fn run_removal(&mut self, api: &Api<Pod>, pod: &Pod, host: &SimHost) -> Result<()> {
        let name = pod.name_any();
        let ready = host.dir().join("ready");
        let runs = self.programs.contains_key(&name);
        if !runs {
            // The agent's pod on this host has ended.
            host.stop_agent().await;
            ensure!(
                arguments(pod) == ["remove", "--host-root=/host"],
                "{:?}",
                arguments(pod)
            );
            let _ = std::fs::remove_file(&ready);
            self.programs.insert(name, remove(host, Some(&ready))?);
        } else if ready.exists() {
            let condition = json!({ "type": "Ready", "status": "True" });
            let status = json!({ "status": { "phase": "Running", "conditions": [condition] } });
            match api
                .patch_status(&name, &PatchParams::default(), &Patch::Strategic(status))
                .await
            {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                patched => drop(patched?),
            }
        }
        Ok(())
    }
}

/// True if the pod is ready: a runtime of an earlier command has run its program.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|c| c.type_ == "Ready" && c.status == "True")
}

fn arguments(pod: &Pod) -> Vec<String> {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container
        .and_then(|container| container.args.clone())
        .unwrap_or_default()
}

fn remove(host: &SimHost, ready: Option<&Path>) -> Result<Child> {
    let mut command = std::process::Command::new(programs::programs()?.agent);
    command
        .arg("remove")
        .arg("--host-root")
        .arg(host.root())
        .arg("--bus")
        .arg(host.bus_address());
    if let Some(ready) = ready {
        command.arg("--ready-file").arg(ready);
    }
    let log = std::fs::File::create(host.dir().join("remove.log"))?;
    let mut command = Command::from(with_parent(&command));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.kill_on_drop(true).spawn().context("cannot start the removal")
}

/// Runs `berth-agent remove` on a host, as its admin does.
pub async fn remove_by_hand(host: &SimHost) -> Result<()> {
    let status = remove(host, None)?.wait().await?;
    let log = std::fs::read_to_string(host.dir().join("remove.log"))?;
    ensure!(status.success(), "{log}");
    Ok(())
}
