//! A change of leader while a thousand nodes wait, each for its own reason: what the new leader writes to them, and how soon a
//! pool makes its first offer after its pause ends.

use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::condition::{find_true, is_true, node, pool};
use berth_api::keys;
use berth_api::node::BootcNode;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::figure::Figure;
use super::fleet::{POOL, by_controller};
use super::progress::Progress;
use super::settings::{Run, runs, setting};
use super::thousand;
use crate::audit::{AuditLog, Record};
use crate::cluster::{Cluster, ClusterOptions, Published};

pub(super) const BENCHES: [&str; 2] = ["leader-writes", "unpause-to-offer"];

const TIMEOUT: Duration = Duration::from_secs(600);
/// How long to count the writes of a new leader. Later writes have other causes than the change of the leader.
const SETTLE_TIME: Duration = Duration::from_secs(15);

struct Bench {
    cluster: Cluster,
    /// Number of nodes that wait for the canary wave. The wave is never proven, because its only node never reports.
    waiting: usize,
    progress: Progress,
}

/// Measures both figures. `BERTH_BENCH_NODES` sets the number of waiting nodes.
pub(super) async fn measure(run: &Run) -> Result<()> {
    let progress = run.progress;
    let waiting = usize::try_from(setting("BERTH_BENCH_NODES", 1000))?;
    let cluster = Cluster::start(ClusterOptions::without_hosts()).await?;
    let bench = Bench {
        cluster,
        waiting,
        progress,
    };
    bench.gather().await?;
    let writes = bench.log()?.records().iter().filter(|r| is_bootc_node_write(r)).count();
    progress.say("all wait reasons are written; changing the leader");
    let leader = bench.change_leader().await?;
    if run.wants(BENCHES[0]) {
        let figure = Figure::new(BENCHES[0], "writes of BootcNodes", &[leader as f64]).aim(0.0);
        let figure = figure.detail("nodes that wait", json!(waiting));
        figure
            .detail("writes until all reasons were written", json!(writes))
            .print();
    }
    if run.wants(BENCHES[1]) {
        let (mut times, mut writes) = (vec![], vec![]);
        for _ in 0..runs() {
            writes.push(bench.pause().await?);
            times.push(bench.unpause().await?);
        }
        let figure = Figure::new(BENCHES[1], "ms", &times).aim(100.0);
        figure
            .detail("nodes that wait", json!(waiting))
            .detail("writes of BootcNodes by each pause", json!(writes))
            .print();
    }
    Ok(())
}

fn is_bootc_node_write(record: &Record) -> bool {
    record.is_write() && record.succeeded() && by_controller(record) && record.resource == "bootcnodes"
}

/// Returns a list with one wave, which has the canary node. All waiting nodes come after this wave.
fn waves() -> Value {
    json!([{ "name": "canary", "nodeSelector": { "matchLabels": { "tier": "canary" } } }])
}

impl Bench {
    fn log(&self) -> Result<AuditLog> {
        AuditLog::read(&self.cluster.control_plane.audit_log())
    }

    fn writes_since(&self, begin: Timestamp) -> Result<usize> {
        let log = self.log()?;
        Ok(log
            .records()
            .iter()
            .filter(|r| is_bootc_node_write(r) && r.received >= begin)
            .count())
    }

    async fn nodes(&self) -> Result<Vec<BootcNode>> {
        Ok(self.cluster.bootc_nodes().list(&ListParams::default()).await?.items)
    }

    async fn gather(&self) -> Result<()> {
        self.progress.say(&format!("creating {} Nodes", self.waiting + 1));
        thousand::make(&self.cluster.client(), self.waiting + 1).await?;
        let canary = thousand::name(self.waiting);
        let label = Patch::Merge(json!({ "metadata": { "labels": { "tier": "canary" } } }));
        self.cluster
            .nodes()
            .patch(&canary, &PatchParams::default(), &label)
            .await?;
        let image = self.cluster.publish("2.0.0").await?;
        let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%", "waves": waves() });
        self.cluster.pool(POOL, &image.reference, rollout).await?;
        self.until_all("the image is published", |n| n.spec.image.is_some())
            .await?;
        self.progress.say("reporting for their agents");
        let nodes = self.nodes().await?;
        let agents = nodes.iter().filter(|n| n.name_any() != canary);
        stream::iter(agents)
            .map(|node| self.report(node, &image))
            .buffer_unordered(thousand::AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.until_all("the wait reason is written", |node| {
            let status = node.status.as_ref();
            let waiting = status.and_then(|s| find_true(&s.conditions, node::WAITING));
            node.name_any() == canary || waiting.is_some_and(|w| w.reason == "WaveWaiting")
        })
        .await?;
        // Lets the remaining writes of the controller finish.
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    }

    async fn until_all(&self, what: &str, is: impl Fn(&BootcNode) -> bool) -> Result<()> {
        self.cluster
            .until(&format!("all nodes: {what}"), TIMEOUT, || async {
                // Listing all BootcNodes is expensive for the server, so poll slowly.
                tokio::time::sleep(Duration::from_secs(2)).await;
                let nodes = self.nodes().await?;
                Ok(nodes.len() == self.waiting + 1 && nodes.iter().all(&is))
            })
            .await
    }

    async fn report(&self, node: &BootcNode, image: &Published) -> Result<()> {
        let now = Timestamp::now();
        let body = json!({
            "apiVersion": format!("{}/{}", keys::GROUP, keys::VERSION), "kind": "BootcNode",
            "status": {
                "observedGeneration": node.metadata.generation, "nodeUID": node.spec.node_uid,
                "heartbeatTime": now, "phaseStartTime": now, "phase": "Waiting",
                "booted": { "image": "registry.example.com/os:1", "digest": format!("sha256:{:064x}", 1) },
                "staged": { "image": image.reference, "digest": image.digest, "locked": true },
                "conditions": [{
                    "type": "UpdatePrepared", "status": "True", "reason": "Ready", "message": "",
                    "lastTransitionTime": now, "observedGeneration": node.metadata.generation,
                }],
            },
        });
        let params = PatchParams::apply("berth-agent").force();
        let api = self.cluster.bootc_nodes();
        api.patch_status(&node.name_any(), &params, &Patch::Apply(&body))
            .await
            .with_context(|| format!("the status of {}", node.name_any()))?;
        Ok(())
    }

    /// Kills the leader; returns the number of writes to BootcNodes until the next leader has settled.
    async fn change_leader(&self) -> Result<usize> {
        self.cluster.controllers.start(1)?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (before, begin) = (self.epoch().await?, Timestamp::now());
        self.cluster.controllers.kill(0);
        self.cluster
            .until("the next leader fences the berths", TIMEOUT, || async {
                Ok(self.epoch().await? != before)
            })
            .await?;
        tokio::time::sleep(SETTLE_TIME).await;
        self.writes_since(begin)
    }

    async fn epoch(&self) -> Result<Option<String>> {
        let berths = self.cluster.berths().list(&ListParams::default()).await?.items;
        let epochs = berths
            .iter()
            .filter_map(|b| b.annotations().get(keys::ANNOTATION_EPOCH));
        Ok(epochs.max().cloned())
    }

    /// Pauses the pool; returns the number of writes to BootcNodes that follow.
    async fn pause(&self) -> Result<usize> {
        let begin = Timestamp::now();
        let paused = json!({ "rollout": { "paused": true, "waves": waves() } });
        self.cluster.patch_pool(POOL, paused).await?;
        self.cluster
            .until("the pool is paused and no berth is offered", TIMEOUT, || async {
                let status = self.cluster.pools().get(POOL).await?.status.unwrap_or_default();
                Ok(is_true(&status.conditions, pool::PAUSED) && status.berths.offered == 0)
            })
            .await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        self.writes_since(begin)
    }

    /// Ends the pause and removes the waves, so that the wait reason of every node changes; returns the milliseconds until a
    /// berth was offered.
    async fn unpause(&self) -> Result<f64> {
        let begin = Timestamp::now();
        let rollout = json!({ "rollout": { "paused": false, "waves": null } });
        self.cluster.patch_pool(POOL, rollout).await?;
        self.cluster
            .until("a berth is offered", TIMEOUT, || async {
                let status = self.cluster.pools().get(POOL).await?.status.unwrap_or_default();
                Ok(status.berths.offered > 0)
            })
            .await?;
        // Waits only briefly, so that the next pause starts while the controller still writes wait reasons.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let log = self.log()?;
        let offers = log.records().iter().filter(|r| {
            r.is_write()
                && r.succeeded()
                && r.received >= begin
                && r.holder().is_some_and(|h| h.starts_with("offered:"))
        });
        let first = offers.map(|r| r.at).min().context("nothing was offered")?;
        Ok(first.duration_since(begin).as_secs_f64() * 1000.0)
    }
}
