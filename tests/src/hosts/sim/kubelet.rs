//! A stand-in for the kubelet: updates its Node, and starts and ends its pods.
//!
//! It uses the kubelet's identity, so that the Node authorizer and NodeRestriction treat it like a real one. One watch per host
//! and no polling, so that a hundred of them fit into one process.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::BootId;
use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;

use super::settings::SharedSettings;
use crate::hosts::{HostChange, HostLog};
use crate::locked::locked;

/// Annotation of pods that never end after their deletion.
pub const NEVER_ENDS: &str = "berth.test/never-ends";

/// Identity and settings of the kubelet stand-in.
#[derive(Debug, Clone, Default)]
pub struct KubeletConfig {
    /// Credentials of `system:node:NAME` in the group `system:nodes`.
    pub kubeconfig: PathBuf,
    /// Labels of the Node at its registration. NodeRestriction rejects some, such as `node-role.kubernetes.io/…`, which only an
    /// admin may set.
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Boot {
    pub(super) boot_id: String,
    pub(super) digest: String,
    pub(super) version: String,
}

/// The kubelet of a host. Cheap to clone.
#[derive(Clone)]
pub(super) struct Kubelet {
    node: String,
    architecture: String,
    config: KubeletConfig,
    settings: SharedSettings,
    log: HostLog,
    client: Arc<OnceCell<Client>>,
    tasks: Arc<Mutex<Vec<AbortHandle>>>,
    /// Pods that are being started or ended, so that later events do not repeat the work.
    busy: Arc<Mutex<HashSet<(String, bool)>>>,
}

impl std::fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubelet")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Kubelet {
    pub(super) fn new(
        node: &str,
        architecture: &str,
        config: KubeletConfig,
        settings: SharedSettings,
        log: HostLog,
    ) -> Self {
        Self {
            node: node.to_owned(),
            architecture: architecture.to_owned(),
            config,
            settings,
            log,
            client: Arc::default(),
            tasks: Arc::default(),
            busy: Arc::default(),
        }
    }

    async fn client(&self) -> Result<Client> {
        let client = self.client.get_or_try_init(|| connect(&self.config.kubeconfig)).await?;
        Ok(client.clone())
    }

    /// Starts the kubelet as after a boot. It registers the Node, reports not ready and then ready, and watches the
    /// Node's pods.
    pub(super) fn start(&self, boot: Boot) {
        self.stop();
        let (node, pods, lease) = (self.clone(), self.clone(), self.clone());
        let started = vec![
            tokio::spawn(async move { forever(&node.node, || node.come_up(&boot)).await }).abort_handle(),
            tokio::spawn(async move { pods.look_after_pods().await }).abort_handle(),
            tokio::spawn(async move { lease.renew_lease().await }).abort_handle(),
        ];
        self.tasks().extend(started);
    }

    /// Stops the kubelet as in a power cut, without a last report.
    pub(super) fn stop(&self) {
        for task in self.tasks().drain(..) {
            task.abort();
        }
        self.busy().clear();
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, Vec<AbortHandle>> {
        locked(&self.tasks)
    }

    fn busy(&self) -> std::sync::MutexGuard<'_, HashSet<(String, bool)>> {
        locked(&self.busy)
    }

    async fn come_up(&self, boot: &Boot) -> Result<()> {
        let settings = self.settings.with(|s| s.kubelet.clone());
        tokio::time::sleep(settings.start_delay).await;
        self.register().await?;
        self.report(boot, false, "KubeletNotReady").await?;
        if !self.settings.with(|s| s.never_ready.contains(&boot.digest)) {
            tokio::time::sleep(settings.ready_delay).await;
            // Logged before the report, so that no reaction to the report is earlier than the log entry.
            self.log.record(
                &self.node,
                HostChange::Ready {
                    boot_id: boot.boot_id.clone(),
                },
            );
            self.report(boot, true, "KubeletReady").await?;
        }
        Ok(())
    }

    /// Creates the Node if it does not exist. A Node that was deleted gets another UID.
    pub(super) async fn register(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        if nodes
            .get_opt(&self.node)
            .await
            .context("cannot read the Node")?
            .is_some()
        {
            return Ok(());
        }
        let mut labels = self.config.labels.clone();
        labels.insert("kubernetes.io/hostname".to_owned(), self.node.clone());
        labels.insert("kubernetes.io/arch".to_owned(), self.architecture.clone());
        labels.insert("kubernetes.io/os".to_owned(), "linux".to_owned());
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": self.node, "labels": labels},
            "spec": {},
        });
        let node: Node = serde_json::from_value(node).context("the Node of a simulated host is malformed")?;
        match nodes.create(&PostParams::default(), &node).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            created => created.map(drop).context("cannot create the Node"),
        }
    }

    /// Writes the Node's status for this boot.
    pub(super) async fn report(&self, boot: &Boot, ready: bool, reason: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        let before = nodes.get(&self.node).await.context("cannot read the Node")?;
        let status = node_status(&self.node, &self.architecture, boot, condition(&before, ready, reason));
        let patch = Patch::Strategic(json!({ "status": status }));
        let patched = nodes.patch_status(&self.node, &PatchParams::default(), &patch).await;
        patched.context("cannot write the status of the Node")?;
        Ok(())
    }

    async fn look_after_pods(&self) {
        let client = match self.client().await {
            Ok(client) => client,
            Err(error) => {
                tracing::error!(node = self.node, error = format!("{error:#}"), "cannot watch pods");
                return;
            }
        };
        let pods: Api<Pod> = Api::all(client.clone());
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.node));
        let mut stream = pin!(watcher(pods, config).default_backoff().applied_objects());
        loop {
            match stream.try_next().await {
                Ok(Some(pod)) => self.pod_changed(&client, pod),
                Ok(None) => return,
                // The stream retries automatically after a while.
                Err(error) => tracing::debug!(node = self.node, %error, "the watch of pods failed"),
            }
        }
    }

    fn pod_changed(&self, client: &Client, pod: Pod) {
        let ending = pod.metadata.deletion_timestamp.is_some();
        let phase = pod
            .status
            .as_ref()
            .and_then(|s| s.phase.as_deref())
            .unwrap_or("Pending");
        if (!ending && phase != "Pending") || (ending && pod.annotations().contains_key(NEVER_ENDS)) {
            return;
        }
        if !ending && first_argument(&pod).is_some_and(|word| self.settings.with(|s| s.kubelet.not_run.contains(word)))
        {
            return;
        }
        let key = (pod.uid().unwrap_or_default(), ending);
        if !self.busy().insert(key.clone()) {
            return;
        }
        let (kubelet, client) = (self.clone(), client.clone());
        let task = tokio::spawn(async move {
            let settings = kubelet.settings.with(|s| s.kubelet.clone());
            tokio::time::sleep(if ending { settings.pod_stop } else { settings.pod_start }).await;
            if ending {
                forever(&kubelet.node, || end_pod(&client, &pod)).await;
            } else {
                forever(&kubelet.node, || run_pod(&client, &pod)).await;
            }
            kubelet.busy().remove(&key);
        });
        let mut tasks = self.tasks();
        tasks.retain(|t| !t.is_finished());
        tasks.push(task.abort_handle());
    }

    async fn renew_lease(&self) {
        loop {
            let every = self.settings.with(|s| s.kubelet.renew_lease);
            if every.is_some()
                && let Err(error) = self.write_lease().await
            {
                tracing::debug!(node = self.node, error = format!("{error:#}"), "cannot renew the lease");
            }
            // Checks the setting again from time to time.
            tokio::time::sleep(every.unwrap_or(Duration::from_secs(5)).max(Duration::from_secs(1))).await;
        }
    }

    async fn write_lease(&self) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client().await?, "kube-node-lease");
        let spec = json!({
            "holderIdentity": self.node, "leaseDurationSeconds": 40, "renewTime": format!("{:.6}", Timestamp::now()),
        });
        let patch = Patch::Merge(json!({ "spec": spec }));
        match leases.patch(&self.node, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let lease: Lease = serde_json::from_value(json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.node}, "spec": spec,
                }))?;
                leases.create(&PostParams::default(), &lease).await?;
            }
            patched => drop(patched?),
        }
        Ok(())
    }
}

fn first_argument(pod: &Pod) -> Option<&str> {
    let container = pod.spec.as_ref()?.containers.first()?;
    container.args.as_ref()?.first().map(String::as_str)
}

/// Retries until a step succeeds: the API server may be restarting.
async fn forever<F: Future<Output = Result<()>>>(node: &str, mut step: impl FnMut() -> F) {
    while let Err(error) = step().await {
        tracing::debug!(node, error = format!("{error:#}"), "the kubelet stand-in retries");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn connect(kubeconfig: &PathBuf) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig).with_context(|| format!("cannot read {}", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("cannot use {}", kubeconfig.display()))?;
    // The caller retries: a hidden retry could outlive a simulated reboot.
    config.default_retry = false;
    Client::try_from(config).context("cannot make a client for the kubelet stand-in")
}

/// The Ready condition; its transition time changes only with its status.
fn condition(node: &Node, ready: bool, reason: &str) -> Value {
    let status = if ready { "True" } else { "False" };
    let conditions = node
        .status
        .as_ref()
        .and_then(|s| s.conditions.as_deref())
        .unwrap_or_default();
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let same = conditions.iter().find(|c| c.type_ == "Ready" && c.status == status);
    let since = same
        .and_then(|c| c.last_transition_time.as_ref())
        .map_or_else(|| now.clone(), |t| t.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    json!({
        "type": "Ready", "status": status, "reason": reason, "message": "reported by a stand-in",
        "lastHeartbeatTime": now, "lastTransitionTime": since,
    })
}

fn node_status(node: &str, architecture: &str, boot: &Boot, ready: Value) -> Value {
    let resources = json!({"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"});
    json!({
        "conditions": [ready],
        "capacity": resources,
        "allocatable": resources,
        "addresses": [{"type": "Hostname", "address": node}],
        "images": [{"names": ["registry.test/pause:1"], "sizeBytes": 700_000}],
        "nodeInfo": {
            "bootID": BootId::new(boot.boot_id.as_str()).kernel(), "machineID": node, "systemUUID": node, "kernelVersion": "6.12.0",
            "osImage": format!("Simulated OS {}", boot.version), "operatingSystem": "linux", "architecture": architecture,
            "containerRuntimeVersion": "simulated://1", "kubeletVersion": "v1.36.3", "kubeProxyVersion": "",
        },
    })
}

async fn run_pod(client: &Client, pod: &Pod) -> Result<()> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let conditions = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ];
    let conditions: Vec<_> = conditions
        .iter()
        .map(|c| json!({"type": c, "status": "True", "lastTransitionTime": now}))
        .collect();
    let containers = pod.spec.as_ref().map(|s| s.containers.as_slice()).unwrap_or_default();
    let containers: Vec<_> = containers
        .iter()
        .map(|c| {
            json!({
                "name": c.name, "image": c.image, "imageID": "simulated", "ready": true, "started": true,
                "restartCount": 0, "state": {"running": {"startedAt": now}},
            })
        })
        .collect();
    let status = json!({
        "phase": "Running", "conditions": conditions, "containerStatuses": containers, "startTime": now,
        "podIP": "192.0.2.2", "podIPs": [{"ip": "192.0.2.2"}],
    });
    let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid()}, "status": status}));
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    match pods
        .patch_status(&pod.name_any(), &PatchParams::default(), &patch)
        .await
    {
        // Deleted, or replaced by another pod of that name.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        patched => patched.map(drop).context("cannot write the status of the pod"),
    }
}

async fn end_pod(client: &Client, pod: &Pod) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: pod.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match pods.delete(&pod.name_any(), &parameters).await {
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        deleted => deleted.map(drop).context("cannot delete the pod"),
    }
}
