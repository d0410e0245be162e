//! The parts of every cluster, with simulated or real hosts: a control plane, a registry, the log of host events, and queries for
//! scenarios.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_api::BootId;
use berth_api::fleet::{self, BootcFleet, BootcFleetStatus};
use berth_api::node::{BootcNode, BootcNodeStatus};
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus};
use berth_api::{Digest, condition, keys};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::controllers::Controllers;
use super::limits::{LONG, SOON};
use super::workload::Workload;
use crate::audit::AuditLog;
use crate::controlplane::ControlPlane;
use crate::hosts::{HostChange, HostLog};
use crate::locked::locked;
use crate::registry::Registry;
use berth_judge::{Evidence, Truth};

/// Longest delay that a scenario causes for a request or watch.
const LAG: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);

pub(super) const REPOSITORY: &str = "os";

/// A pushed image.
#[derive(Debug, Clone)]
pub struct Published {
    /// `registry/os:version`.
    pub reference: String,
    /// `registry/os@digest`, with the digest that the tag resolves to.
    pub pinned: String,
    /// Digest that hosts of the image's platform report.
    pub digest: Digest,
}

impl Published {
    /// Describes the image behind this tag. The tag resolves to `pinned`, the digest of the image or of its index.
    pub(super) fn new(registry: &Registry, tag: &str, pinned: &Digest, digest: Digest) -> Self {
        let repository = format!("{}/{REPOSITORY}", registry.host());
        Self {
            reference: format!("{repository}:{tag}"),
            pinned: format!("{repository}@{pinned}"),
            digest,
        }
    }
}

/// Lists all objects of an API; empty if the API server does not answer.
pub(super) async fn all<K>(api: &Api<K>) -> Vec<K>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let list = api.list(&ListParams::default()).await;
    list.map(|list| list.items).unwrap_or_default()
}

/// The parts of a cluster that do not depend on its hosts.
#[derive(Debug)]
pub struct Site {
    /// The controllers; dropped first. Empty if the controller runs on the cluster's hosts.
    pub controllers: Controllers,
    /// The registry.
    pub registry: Registry,
    /// API server, etcd and controller manager.
    pub control_plane: ControlPlane,
    /// Log of the hosts' events.
    pub log: HostLog,
    pub(super) workload: Workload,
    excused: Mutex<Vec<(String, Timestamp)>>,
    swapped: Mutex<Vec<(String, Timestamp)>>,
    capacity: Mutex<BTreeMap<String, usize>>,
    /// The fleet's limit, if it has one.
    fleet: Mutex<Option<usize>>,
    reboots_seen: Mutex<usize>,
}

impl Site {
    pub(super) fn new(controllers: Controllers, registry: Registry, control_plane: ControlPlane, log: HostLog) -> Self {
        Self {
            controllers,
            registry,
            control_plane,
            log,
            workload: Workload::default(),
            excused: Mutex::default(),
            swapped: Mutex::default(),
            capacity: Mutex::default(),
            fleet: Mutex::default(),
            reboots_seen: Mutex::default(),
        }
    }

    /// The admin's client.
    pub fn client(&self) -> Client {
        self.control_plane.admin_client()
    }

    /// Creates a pool of all hosts, or changes its spec. `rollout` is its `spec.rollout`.
    pub async fn pool(&self, name: &str, reference: &str, rollout: Value) -> Result<()> {
        self.pool_of(name, json!({}), reference, rollout).await
    }

    /// Like [`Self::pool`], for the hosts with these labels.
    pub async fn pool_of(&self, name: &str, labels: Value, reference: &str, rollout: Value) -> Result<()> {
        let most = rollout.get("maxUnavailable").and_then(Value::as_u64).unwrap_or(1);
        self.allow(name, usize::try_from(most)?);
        let mut selector = json!({});
        if labels != selector {
            selector["matchLabels"] = labels;
        }
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": name },
            "spec": { "nodeSelector": selector, "image": { "ref": reference }, "rollout": rollout },
        });
        let params = PatchParams::apply("admin").force();
        self.pools()
            .patch(name, &params, &Patch::Apply(&object))
            .await
            .context("cannot apply the pool")?;
        Ok(())
    }

    /// Asks the controller to resolve the pool's tag now, as `kubectl berth poll` does.
    pub async fn request_poll(&self, pool: &str) -> Result<()> {
        let now = Timestamp::now().to_string();
        let request = json!({ "metadata": { "annotations": { keys::ANNOTATION_POLL_REQUESTED_AT: now } } });
        let patch = Patch::Merge(&request);
        self.pools()
            .patch(pool, &PatchParams::default(), &patch)
            .await
            .context("cannot request a poll")?;
        Ok(())
    }

    /// Sets or removes the fleet's limit. The judge applies the last limit to the whole test.
    pub async fn limit_fleet(&self, most: impl Into<Option<usize>>) -> Result<()> {
        let most = most.into();
        *locked(&self.fleet) = most;
        let mut fleet = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcFleet", "metadata": { "name": fleet::NAME },
            "spec": { "paused": false },
        });
        if let Some(most) = most {
            fleet["spec"]["maxUnavailable"] = json!(most);
        }
        Api::<BootcFleet>::all(self.client())
            .patch(fleet::NAME, &PatchParams::apply("admin").force(), &Patch::Apply(&fleet))
            .await
            .context("cannot apply the BootcFleet")?;
        Ok(())
    }

    /// Reads the status of the BootcFleet. Returns the default status if there is none.
    pub async fn fleet_status(&self) -> Result<BootcFleetStatus> {
        let fleet = Api::<BootcFleet>::all(self.client()).get_opt(fleet::NAME).await?;
        Ok(fleet.and_then(|fleet| fleet.status).unwrap_or_default())
    }

    /// Pauses or resumes the fleet, and waits until the status of the BootcFleet shows the change.
    pub async fn pause_fleet(&self, paused: bool) -> Result<()> {
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcFleet", "metadata": { "name": fleet::NAME },
            "spec": { "paused": paused },
        });
        let fleets = Api::<BootcFleet>::all(self.client());
        let params = PatchParams::apply("admin").force();
        let generation = fleets
            .patch(fleet::NAME, &params, &Patch::Apply(&object))
            .await
            .context("cannot apply the BootcFleet")?
            .metadata
            .generation;
        self.soon(&format!("the BootcFleet reports paused: {paused}"), || async {
            let status = self.fleet_status().await?;
            let is_read = status.observed_generation == generation;
            Ok(is_read && condition::is_true(&status.conditions, "Paused") == paused)
        })
        .await
    }

    /// Sets the maximum number of holders that the judge accepts in a pool, for the whole test. The highest number
    /// counts.
    pub fn allow(&self, pool: &str, most: usize) {
        let mut capacity = locked(&self.capacity);
        let known = capacity.entry(pool.to_owned()).or_default();
        *known = most.max(*known);
    }

    /// Changes a pool's spec by a merge patch.
    pub async fn patch_pool(&self, name: &str, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.pools()
            .patch(name, &PatchParams::default(), &patch)
            .await
            .context("cannot change the pool")?;
        Ok(())
    }

    /// The API of pools.
    pub fn pools(&self) -> Api<BootcNodePool> {
        Api::all(self.client())
    }

    /// Reads a pool's status.
    pub async fn pool_status(&self, pool: &str) -> Result<BootcNodePoolStatus> {
        Ok(self.pools().get(pool).await?.status.unwrap_or_default())
    }

    /// Sets the image of a pool.
    pub async fn set_image(&self, pool: &str, reference: &str) -> Result<()> {
        self.patch_pool(pool, json!({ "image": { "ref": reference } })).await
    }

    /// Pauses a pool, or resumes it.
    pub async fn pause(&self, pool: &str, paused: bool) -> Result<()> {
        self.patch_pool(pool, json!({ "rollout": { "paused": paused } })).await
    }

    /// Waits until a condition of a pool has this status and reason, and its message contains these words.
    pub async fn until_says(&self, pool: &str, said: ConditionWords<'_>, limit: Duration) -> Result<()> {
        self.until(&format!("pool {pool} reports {said:?}"), limit, || async {
            Ok(has_condition(&self.pool_status(pool).await?.conditions, said))
        })
        .await
    }

    /// Waits until a condition of a node has this status and reason, and its message contains these words.
    pub async fn until_node_says(&self, node: &str, said: ConditionWords<'_>, limit: Duration) -> Result<()> {
        self.until(&format!("{node} reports {said:?}"), limit, || async {
            Ok(has_condition(&self.node_status(node).await?.conditions, said))
        })
        .await
    }

    /// Waits until a node is in the given phase.
    pub async fn until_phase(&self, node: &str, phase: &str) -> Result<()> {
        self.soon(&format!("{node} is {phase}"), || async {
            Ok(self.phase(node).await? == phase)
        })
        .await
    }

    /// Waits until the node's BootcNode is deleted. By then, the controller has removed Berth's marks from the Node.
    pub async fn until_released(&self, node: &str) -> Result<()> {
        self.soon(&format!("{node} is released"), || async {
            Ok(self.bootc_nodes().get_opt(node).await?.is_none())
        })
        .await
    }

    /// Changes a Node by a merge patch, as its admin does.
    pub async fn patch_node(&self, node: &str, patch: Value) -> Result<()> {
        let params = PatchParams::default();
        let patched = self.nodes().patch(node, &params, &Patch::Merge(patch)).await;
        patched.with_context(|| format!("cannot change Node {node}"))?;
        Ok(())
    }

    /// Sets or removes a label of a Node.
    pub async fn label(&self, node: &str, key: &str, value: Option<&str>) -> Result<()> {
        self.patch_node(node, json!({ "metadata": { "labels": { key: value } } }))
            .await
    }

    /// Cordons or uncordons a Node, as its admin does.
    pub async fn cordon(&self, node: &str, unschedulable: bool) -> Result<()> {
        self.patch_node(node, json!({ "spec": { "unschedulable": unschedulable } }))
            .await
    }

    /// True if the Node is cordoned.
    pub async fn is_cordoned(&self, node: &str) -> Result<bool> {
        let spec = self.nodes().get(node).await?.spec;
        Ok(spec.and_then(|spec| spec.unschedulable).unwrap_or(false))
    }

    /// The API of BootcNodes.
    pub fn bootc_nodes(&self) -> Api<BootcNode> {
        Api::all(self.client())
    }

    /// The API of Nodes.
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client())
    }

    /// The API of berths.
    pub fn berths(&self) -> Api<Lease> {
        Api::namespaced(self.client(), "berth-system")
    }

    /// Reads the status of a BootcNode. Returns the default status if there is none.
    pub async fn node_status(&self, node: &str) -> Result<BootcNodeStatus> {
        let object = self.bootc_nodes().get_opt(node).await?;
        Ok(object.and_then(|object| object.status).unwrap_or_default())
    }

    /// Phase in a BootcNode's status; empty if there is none.
    pub async fn phase(&self, node: &str) -> Result<String> {
        let phase = self.node_status(node).await?.phase;
        Ok(phase.map(|p| p.as_str().to_owned()).unwrap_or_default())
    }

    /// Waits until a query returns true.
    pub async fn until<F: Future<Output = Result<bool>>>(
        &self,
        what: &str,
        limit: Duration,
        mut ask: impl FnMut() -> F,
    ) -> Result<()> {
        let start = Instant::now();
        let mut last = String::new();
        while start.elapsed() < limit {
            match ask().await {
                Ok(true) => return Ok(()),
                Ok(false) => last.clear(),
                // The scenario itself may have stopped the API server.
                Err(error) => last = format!("{error:#}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("timed out after {limit:?}: {what} {last}\n{}", self.describe().await)
    }

    /// Waits until a query returns true, with the timeout for a single change ([`SOON`]).
    pub async fn soon<F: Future<Output = Result<bool>>>(&self, what: &str, ask: impl FnMut() -> F) -> Result<()> {
        self.until(what, SOON, ask).await
    }

    /// Names of the nodes that hold a berth.
    pub async fn held(&self) -> Result<Vec<String>> {
        let leases = self
            .berths()
            .list(&ListParams::default().labels("berth.dev/pool"))
            .await?;
        let holders = leases.items.into_iter().filter_map(|l| l.spec?.holder_identity);
        Ok(holders.filter(|h| !h.contains(':')).collect())
    }

    /// Makes the judge accept one reboot of this host from now on, because the test causes it.
    pub fn excuse(&self, host: &str) {
        locked(&self.excused).push((host.to_owned(), Timestamp::now()));
    }

    /// Makes the judge accept one reboot of this host into another image from now on, because the test causes it.
    pub fn excuse_swap(&self, host: &str) {
        self.excuse(host);
        locked(&self.swapped).push((host.to_owned(), Timestamp::now()));
    }

    /// Reboots that the test caused: host and time.
    pub fn excused(&self) -> Vec<(String, Timestamp)> {
        locked(&self.excused).clone()
    }

    /// Fails if the judge finds a violation, or if no licensed reboot happened since the last call.
    pub fn judge(&self) -> Result<()> {
        let violations = self.violations()?;
        if !violations.is_empty() {
            bail!(
                "the ground truth has {} violations:\n  {}",
                violations.len(),
                violations.join("\n  ")
            );
        }
        let reboots = self.with_truth(|t| t.licensed_reboots())?;
        let mut seen = locked(&self.reboots_seen);
        if reboots <= *seen {
            bail!("no licensed reboot happened: the scenario proves nothing");
        }
        *seen = reboots;
        Ok(())
    }

    /// Returns the violations that the judge finds.
    pub fn violations(&self) -> Result<Vec<String>> {
        self.with_truth(|t| t.violations().iter().map(ToString::to_string).collect())
    }

    fn with_truth<T>(&self, ask: impl Fn(&Truth<'_>) -> T) -> Result<T> {
        let audit = AuditLog::read(&self.control_plane.audit_log())?;
        let hosts = self.log.events();
        let excused = locked(&self.excused).clone();
        let swapped = locked(&self.swapped).clone();
        let capacity = locked(&self.capacity).clone();
        Ok(ask(&Truth {
            hosts: &hosts,
            audit: audit.records(),
            excused: &excused,
            swapped: &swapped,
            liars: &[],
            earlier_liars: &[],
            capacity,
            fleet: *locked(&self.fleet),
            evidence: &Evidence::of_harness(),
            lag: LAG,
        }))
    }

    /// Number of boots of each host so far.
    pub fn boots(&self) -> BTreeMap<String, usize> {
        let mut boots = BTreeMap::new();
        for event in self.log.events() {
            if matches!(event.change, HostChange::Up { .. }) {
                *boots.entry(event.host).or_default() += 1;
            }
        }
        boots
    }

    /// State of everything, for the output of a failed test.
    pub async fn describe(&self) -> String {
        let mut text = String::new();
        for pool in all(&self.pools()).await {
            let name = pool.metadata.name.unwrap_or_default();
            text += &format!("pool {name}: {}\n", json!(pool.status));
        }
        for node in all(&self.bootc_nodes()).await {
            let name = node.metadata.name.unwrap_or_default();
            text += &format!(
                "bootcnode {name}: spec {} status {}\n",
                json!(node.spec),
                json!(node.status)
            );
        }
        for lease in all(&self.berths()).await {
            let (name, annotations) = (lease.metadata.name.unwrap_or_default(), lease.metadata.annotations);
            text += &format!("lease {name}: {} {}\n", json!(annotations), json!(lease.spec));
        }
        text + &self.controllers.tail(25)
    }
}

/// True if the Node is Ready in the boot with this ID.
pub fn is_ready(node: Node, boot_id: &str) -> bool {
    let status = node.status.unwrap_or_default();
    let mut conditions = status.conditions.iter().flatten();
    let is_ready = conditions.any(|c| c.type_ == "Ready" && c.status == "True");
    let boot_id = BootId::new(boot_id);
    is_ready && status.node_info.is_some_and(|info| info.boot_id == boot_id.kernel())
}

/// Type, status and reason of a condition, and a part of its message.
pub type ConditionWords<'a> = (&'a str, &'a str, &'a str, &'a str);

/// True if one of the conditions has this type, status and reason, and its message contains these words.
pub fn has_condition(conditions: &[Condition], (type_, status, reason, words): ConditionWords<'_>) -> bool {
    condition::find(conditions, type_)
        .is_some_and(|c| c.status == status && c.reason == reason && c.message.contains(words))
}

/// Waits until `is_so` returns true, with the timeout for a single change ([`SOON`]).
pub async fn until_so(site: &Site, what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    site.soon(what, || std::future::ready(Ok(is_so()))).await
}

/// Waits until `NodeDegraded` of a node is true for this reason, and its message contains these words.
pub async fn until_degraded(site: &Site, node: &str, reason: &str, words: &str) -> Result<()> {
    let said = (condition::node::NODE_DEGRADED, "True", reason, words);
    site.until_node_says(node, said, LONG).await
}

/// Waits until a query returns true, with the timeout for a single change ([`SOON`]).
pub async fn soon<F: Future<Output = Result<bool>>>(site: &Site, what: &str, ask: impl FnMut() -> F) -> Result<()> {
    site.soon(what, ask).await
}
