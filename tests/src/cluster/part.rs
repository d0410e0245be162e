//! A part of a simulated cluster: some of its hosts, selected by a pool of their own. Scenarios on different parts do not affect
//! each other, so they can run at the same time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_api::berth::{Berth, Holding, lease};
use berth_api::condition;
use berth_api::node::{BootcNode, BootcNodeStatus};
use berth_api::pool::BootcNodePoolStatus;
use futures::future::{LocalBoxFuture, join_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::limits::SOON;
use super::simulated::Cluster;
use super::site::{ConditionWords, Published};
use crate::audit::AuditLog;
use crate::hosts::HostChange;
use crate::hosts::sim::SimHost;

const LABEL: &str = "part";

/// True if the node is ready for an offer: its agent has read the published spec and reports that the node is prepared.
pub fn is_prepared(object: &BootcNode) -> bool {
    object.status.as_ref().is_some_and(|status| {
        status.observed_generation == object.metadata.generation
            && condition::is_true(&status.conditions, condition::node::UPDATE_PREPARED)
    })
}

/// Hosts of a cluster, and the pool of the same name that selects them.
#[derive(Debug)]
pub struct Part<'a> {
    /// The whole cluster.
    pub cluster: &'a Cluster,
    /// Name of the part and of its pool.
    pub name: String,
    /// Hosts of the part, sorted by name.
    pub hosts: Vec<&'a SimHost>,
}

impl<'a> Part<'a> {
    /// Makes a part with this name from hosts of the cluster, numbered from 1. Labels the hosts, but creates no pool.
    pub async fn new(cluster: &'a Cluster, name: &str, hosts: impl IntoIterator<Item = usize>) -> Result<Self> {
        let part = Self {
            cluster,
            name: name.to_owned(),
            hosts: hosts.into_iter().map(|n| cluster.host(n)).collect(),
        };
        for host in &part.hosts {
            part.join(host).await?;
        }
        Ok(part)
    }

    /// Returns the `n`th host, from 1.
    pub fn host(&self, n: usize) -> &'a SimHost {
        self.hosts[n - 1]
    }

    /// Returns the name of the `n`th host, from 1.
    pub fn node(&self, n: usize) -> &'a str {
        self.host(n).name()
    }

    /// Makes a node a member of the pool.
    pub async fn join(&self, host: &SimHost) -> Result<()> {
        self.label(host.name(), LABEL, Some(&self.name)).await
    }

    /// Removes a node from the pool.
    pub async fn leave(&self, host: &SimHost) -> Result<()> {
        self.label(host.name(), LABEL, None).await
    }

    /// Sets or removes a label of a Node.
    pub async fn label(&self, node: &str, key: &str, value: Option<&str>) -> Result<()> {
        self.cluster.label(node, key, value).await
    }

    /// Cordons or uncordons a Node, as its admin does.
    pub async fn cordon(&self, node: &str, unschedulable: bool) -> Result<()> {
        self.cluster.cordon(node, unschedulable).await
    }

    /// True if the Node is unschedulable.
    pub async fn is_cordoned(&self, node: &str) -> Result<bool> {
        self.cluster.is_cordoned(node).await
    }

    /// Makes a Node NotReady, until its kubelet starts again and reports Ready.
    pub async fn not_ready(&self, node: &str) -> Result<()> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition = json!({
            "type": "Ready", "status": "False", "reason": "Broken", "message": "by the test", "lastTransitionTime": now,
        });
        let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
        self.cluster
            .nodes()
            .patch_status(node, &PatchParams::default(), &patch)
            .await
            .context("cannot write a Node")?;
        Ok(())
    }

    /// Creates a pod without an owner on a node: no drain evicts it, because nothing would re-create it.
    pub async fn block(&self, node: &str) -> Result<()> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": format!("block-{node}") },
            "spec": {
                "nodeName": node,
                "automountServiceAccountToken": false,
                "containers": [{ "name": "app", "image": "registry.test/app:1" }],
            },
        }))?;
        self.pods()
            .create(&Default::default(), &pod)
            .await
            .context("cannot create a pod")?;
        Ok(())
    }

    /// Deletes the pod of [`Self::block`].
    pub async fn unblock(&self, node: &str) -> Result<()> {
        let name = format!("block-{node}");
        self.pods()
            .delete(&name, &DeleteParams::default().grace_period(0))
            .await
            .context("cannot delete a pod")?;
        Ok(())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), "default")
    }

    /// Pushes an image for this part only.
    pub async fn publish(&self, version: &str) -> Result<Published> {
        self.cluster.publish(&format!("{version}-{}", self.name)).await
    }

    /// Pushes an image and creates or changes the pool to use it. All members may stage at once.
    pub async fn roll_to(&self, version: &str, rollout: Value) -> Result<Published> {
        let image = self.publish(version).await?;
        self.pool(&image, rollout).await?;
        Ok(image)
    }

    /// Like [`Self::roll_to`], but offers no berth before all members have staged the image, so that the order of their turns is
    /// known.
    pub async fn roll_once_staged(&self, image: &Published, mut rollout: Value) -> Result<()> {
        rollout["paused"] = json!(true);
        self.pool(image, rollout).await?;
        self.soon("all members wait", || async {
            let status = self.status().await?;
            let is_target = status.target.is_some_and(|t| t.image.as_str() == image.reference);
            Ok(is_target && status.nodes.staged == status.nodes.total && self.are_prepared().await?)
        })
        .await?;
        self.rollout(json!({ "paused": false })).await
    }

    /// True if [`is_prepared`] is true for every host's BootcNode.
    async fn are_prepared(&self) -> Result<bool> {
        for host in &self.hosts {
            if !is_prepared(&self.bootc_node(host.name()).await?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Creates the pool or changes its spec. All members may stage at once.
    pub async fn pool(&self, image: &Published, mut rollout: Value) -> Result<()> {
        rollout["maxStaging"] = json!("100%");
        self.cluster
            .pool_of(&self.name, json!({ LABEL: self.name }), &image.reference, rollout)
            .await
    }

    /// Changes the pool's `spec.rollout` by a merge patch.
    pub async fn rollout(&self, rollout: Value) -> Result<()> {
        if let Some(most) = rollout.get("maxUnavailable").and_then(Value::as_u64) {
            self.cluster.allow(&self.name, usize::try_from(most)?);
        }
        self.cluster.patch_pool(&self.name, json!({ "rollout": rollout })).await
    }

    /// Reads the pool's status.
    pub async fn status(&self) -> Result<BootcNodePoolStatus> {
        self.cluster.pool_status(&self.name).await
    }

    /// Changes the pool's spec by a merge patch.
    pub async fn patch(&self, spec: Value) -> Result<()> {
        self.cluster.patch_pool(&self.name, spec).await
    }

    /// Reads the status of a BootcNode. Returns the default status if there is none.
    pub async fn node_status(&self, node: &str) -> Result<BootcNodeStatus> {
        self.cluster.node_status(node).await
    }

    /// Reads the BootcNode of a node.
    pub async fn bootc_node(&self, node: &str) -> Result<BootcNode> {
        Ok(self.cluster.bootc_nodes().get(node).await?)
    }

    /// Reads the pool's berths, sorted by number.
    pub async fn berths(&self) -> Result<Vec<Berth>> {
        let list = ListParams::default().labels(&format!("berth.dev/pool={}", self.name));
        let leases = self.cluster.berths().list(&list).await?;
        let mut berths = leases
            .items
            .iter()
            .map(lease::read)
            .collect::<Result<Vec<_>, _>>()
            .context("cannot parse a berth")?;
        berths.sort_by_key(|b| b.index);
        Ok(berths)
    }

    /// Reads the pool's held berths.
    pub async fn holdings(&self) -> Result<Vec<Holding>> {
        Ok(self
            .berths()
            .await?
            .into_iter()
            .filter_map(|b| b.holding().cloned())
            .collect())
    }

    /// Names of the nodes that hold a berth.
    pub async fn holders(&self) -> Result<Vec<String>> {
        let mut names: Vec<_> = self.holdings().await?.into_iter().map(|h| h.node.to_string()).collect();
        names.sort();
        Ok(names)
    }

    /// Every value that the holder in the berth's Lease ever had: a node name, or a value such as `closed:gone`.
    pub fn ever(&self, index: u32) -> Result<Vec<String>> {
        let audit = AuditLog::read(&self.cluster.control_plane.audit_log())?;
        let name = format!("{}-{index}", self.name);
        let writes = audit.writes().filter(|r| r.target() == "leases" && r.name == name);
        let holders = writes.filter_map(|r| r.response.as_ref()?.pointer("/spec/holderIdentity")?.as_str());
        Ok(holders.map(str::to_owned).collect())
    }

    /// Waits until a query returns true.
    pub async fn until<F: Future<Output = Result<bool>>>(
        &self,
        what: &str,
        limit: Duration,
        ask: impl FnMut() -> F,
    ) -> Result<()> {
        self.cluster.until(&format!("{}: {what}", self.name), limit, ask).await
    }

    /// Waits until a query returns true, with the timeout for a single change ([`SOON`]).
    pub async fn soon<F: Future<Output = Result<bool>>>(&self, what: &str, ask: impl FnMut() -> F) -> Result<()> {
        self.until(what, SOON, ask).await
    }

    /// Waits until a condition of the pool has this status and reason, and its message contains these words.
    async fn until_says(&self, type_: &str, status: &str, reason: &str, words: &str) -> Result<()> {
        self.cluster
            .until_says(&self.name, (type_, status, reason, words), SOON)
            .await
    }

    /// Waits until a condition of the pool is true for this reason, and its message contains these words.
    pub async fn until_true(&self, type_: &str, reason: &str, words: &str) -> Result<()> {
        self.until_says(type_, "True", reason, words).await
    }

    /// Waits until a condition of the pool is false for this reason, and its message contains these words.
    pub async fn until_false(&self, type_: &str, reason: &str, words: &str) -> Result<()> {
        self.until_says(type_, "False", reason, words).await
    }

    /// Waits until a condition of a node has this status and reason, and its message contains these words.
    pub async fn until_node_says(&self, node: &str, said: ConditionWords<'_>) -> Result<()> {
        self.cluster.until_node_says(node, said, SOON).await
    }

    /// Waits until the `Waiting` condition of each of these nodes is true for this reason, and its message contains
    /// these words.
    pub async fn until_waiting(&self, nodes: &[&str], reason: &str, words: &str) -> Result<()> {
        for node in nodes {
            self.until_node_says(node, (condition::node::WAITING, "True", reason, words))
                .await?;
        }
        Ok(())
    }

    /// Fails if one of these nodes reports a wait reason. Reasons for the whole pool belong only in the pool's status.
    pub async fn is_said_of_none(&self, nodes: &[&str]) -> Result<()> {
        for node in nodes {
            let conditions = self.node_status(node).await?.conditions;
            if let Some(waiting) = condition::find_true(&conditions, condition::node::WAITING) {
                bail!("{node} reports a wait reason: {waiting:?}");
            }
        }
        Ok(())
    }

    /// Waits until a node is in the given phase.
    pub async fn until_phase(&self, node: &str, phase: &str) -> Result<()> {
        self.cluster.until_phase(node, phase).await
    }

    /// Waits until exactly these nodes hold a berth.
    pub async fn until_hold(&self, nodes: &[&str]) -> Result<()> {
        let mut wanted: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        wanted.sort();
        self.soon(&format!("{wanted:?} hold berths"), || async {
            Ok(self.holders().await? == wanted)
        })
        .await
    }

    /// Waits until these hosts run an image, their BootcNodes report it, and none of them holds a berth.
    pub async fn until_run(&self, image: &Published, hosts: &[usize], limit: Duration) -> Result<()> {
        let digest = image.digest.to_string();
        self.until(&format!("{hosts:?} run {}", image.reference), limit, || async {
            let holders = self.holders().await?;
            for host in hosts.iter().map(|n| self.host(*n)) {
                let facts = host.facts();
                let up = facts.boot_id.is_some() && facts.booted == digest;
                if !up
                    || holders.contains(&host.name().to_owned())
                    || self.cluster.phase(host.name()).await? != "Updated"
                {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }

    /// Waits until all hosts run an image and the pool reports the end of the rollout.
    pub async fn until_all_run(&self, image: &Published, limit: Duration) -> Result<()> {
        let all: Vec<_> = (1..=self.hosts.len()).collect();
        self.until_run(image, &all, limit).await?;
        self.cluster
            .until_says(&self.name, ("Progressing", "False", "Updated", ""), limit)
            .await
    }

    /// Names of the hosts, in the order of their first boot of an image.
    pub fn order(&self, image: &Published) -> Vec<String> {
        let digest = image.digest.to_string();
        let mut order = vec![];
        for event in self.cluster.log.events() {
            let booted = matches!(&event.change, HostChange::Up { digest: d, .. } if *d == digest);
            if booted && !order.contains(&event.host) {
                order.push(event.host);
            }
        }
        order
    }

    /// Number of boots of a host so far.
    pub fn boots(&self, n: usize) -> usize {
        self.cluster.boots().get(self.node(n)).copied().unwrap_or_default()
    }

    /// Fails unless the Node is schedulable and the host has booted this many times.
    pub async fn is_untouched(&self, n: usize, boots: usize) -> Result<()> {
        let (node, now) = (self.node(n), self.boots(n));
        ensure!(now == boots, "{node} booted {now} times, not {boots}");
        ensure!(!self.is_cordoned(node).await?, "{node} is still cordoned");
        Ok(())
    }
}

/// Waits until a controller leads and has resolved the image of an empty pool. This takes a while with many starting
/// agents, and must not count as a scenario's time.
async fn until_a_controller_leads(cluster: &Cluster) -> Result<()> {
    let nobody = Part::new(cluster, "nobody", []).await?;
    nobody.roll_to("1.0.0", json!({})).await?;
    let resolved = ("ImageResolved", "True", "Resolved", "");
    cluster.until_says("nobody", resolved, Duration::from_secs(120)).await
}

/// Name of a function, without the modules above it.
pub fn name_of<F>(_: &F) -> &'static str {
    std::any::type_name::<F>().rsplit("::").next().unwrap_or_default()
}

/// Scenarios on different parts of one cluster, which run at the same time.
#[expect(missing_debug_implementations, reason = "a future has none")]
pub struct Scenarios<'a> {
    cluster: &'a Cluster,
    /// Number of hosts in the parts so far.
    taken: usize,
    all: Vec<(&'static str, LocalBoxFuture<'a, Result<()>>)>,
}

impl<'a> Scenarios<'a> {
    /// Starts without scenarios.
    pub fn of(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            taken: 0,
            all: vec![],
        }
    }

    /// Adds a scenario on a part with this name and the next `hosts` hosts. The scenario has the name of its function.
    pub fn on(mut self, part: &'a str, hosts: usize, body: impl AsyncFnOnce(&Part<'a>) -> Result<()> + 'a) -> Self {
        let (cluster, first) = (self.cluster, self.taken + 1);
        self.taken += hosts;
        let hosts = first..=self.taken;
        self.all.push((
            name_of(&body),
            Box::pin(async move { body(&Part::new(cluster, part, hosts).await?).await }),
        ));
        self
    }

    /// Adds a scenario that makes its own parts.
    pub fn with(mut self, body: impl AsyncFnOnce(&'a Cluster) -> Result<()> + 'a) -> Self {
        self.all.push((name_of(&body), Box::pin(body(self.cluster))));
        self
    }

    /// Runs the scenarios, prints their times, and fails if the judge finds a violation.
    ///
    /// # Errors
    /// With the failures of all scenarios.
    pub async fn run(self) -> Result<()> {
        let cluster = self.cluster;
        until_a_controller_leads(cluster).await?;
        let start = Instant::now();
        let timed = self.all.into_iter().map(|(name, scenario)| async move {
            let result = scenario.await;
            let word = if result.is_ok() { "ok" } else { "FAILED" };
            println!("{name:<44} {:>5.1} s {word}", start.elapsed().as_secs_f64());
            result.err().map(|error| format!("{name}: {error:#}"))
        });
        let failed: Vec<_> = join_all(timed).await.into_iter().flatten().collect();
        ensure!(
            failed.is_empty(),
            "{} scenarios failed\n{}\n{}",
            failed.len(),
            cluster.describe().await,
            failed.join("\n")
        );
        cluster.judge()
    }
}
