//! A controller with a thousand Nodes: its memory, and the time until a new digest is published to all of them, compared with a
//! client that only sends the patches.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_api::Digest;
use berth_api::node::BootcNode;
use berth_api::platform::{Platform, Variant};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::Api;
use kube::api::{ListParams, Patch};
use serde_json::json;

use super::figure::Figure;
use super::fleet::{POOL, by_controller, manager};
use super::memory::{self, CONTROLLER, Memory, relist};
use super::progress::Progress;
use super::settings::{Run, idle_time, runs, setting};
use super::thousand;
use crate::audit::AuditLog;
use crate::cluster::{Cluster, ClusterOptions, Published};

const AMD64: Platform<'static> = Platform {
    architecture: "amd64",
    variant: Variant::NotReported,
};

pub(super) const BENCHES: [&str; 5] = [
    "controller-memory",
    "controller-memory-anonymous",
    "controller-memory-relist",
    "publish-new-digest",
    "publish-first",
];

/// Timeout for publishing to a thousand Nodes or fewer; scaled up for more.
const TIMEOUT: Duration = Duration::from_secs(300);
const PAGE: u32 = 500;

struct Bench {
    cluster: Cluster,
    nodes: usize,
    progress: Progress,
}

/// Measures all figures. `BERTH_BENCH_NODES` sets the number of Nodes.
pub(super) async fn measure(run: &Run) -> Result<()> {
    let progress = run.progress;
    let nodes = usize::try_from(setting("BERTH_BENCH_NODES", 1000))?;
    ensure!(
        (1..=thousand::MAX_NODES).contains(&nodes),
        "BERTH_BENCH_NODES is {nodes}; ask for 1 to {}",
        thousand::MAX_NODES
    );
    let cluster = Cluster::start(ClusterOptions::without_hosts()).await?;
    progress.say(&format!("creating {nodes} Nodes"));
    thousand::make(&cluster.client(), nodes).await?;
    let bench = Bench {
        cluster,
        nodes,
        progress,
    };
    let before = bench.memory()?;
    let first = bench.publish(&bench.cluster.publish("2.0.0").await?).await?;
    progress.say(&format!(
        "the first publish took {first:.2} s; leaving the controller idle"
    ));
    tokio::time::sleep(idle_time()).await;
    let after = bench.memory()?;
    if run.wants_one(&BENCHES[..3]) {
        let resident = Figure::new(BENCHES[0], "MiB", &[after.resident]).peer(110.0);
        resident
            .detail("now", after.json())
            .detail("before a pool", before.json())
            .print();
        Figure::new(BENCHES[1], "MiB", &[after.anonymous]).print();
        let figure = Figure::new(BENCHES[2], "MiB", &[relist(&bench.cluster, bench.limit()).await?]);
        figure.detail("nodes", json!(nodes)).print();
    }
    if run.wants("publish-first") {
        Figure::new("publish-first", "s", &[first])
            .peer(9.3)
            .detail("nodes", json!(nodes))
            .print();
    }
    if run.wants("publish-new-digest") {
        bench.new_digests().await?;
    }
    Ok(())
}

impl Bench {
    fn api(&self) -> Api<BootcNode> {
        self.cluster.bootc_nodes()
    }

    fn memory(&self) -> Result<Memory> {
        memory::of_controller(&self.cluster)
    }

    fn limit(&self) -> Duration {
        let thousands = u32::try_from(self.nodes.div_ceil(1000)).unwrap_or(u32::MAX);
        TIMEOUT.saturating_mul(thousands)
    }

    /// Measures how fast the controller and the naive client publish new digests. Both alternate, so that they meet the
    /// same API server.
    async fn new_digests(&self) -> Result<()> {
        let (mut ours, mut naive) = (vec![], vec![]);
        for run in 0..runs() {
            ours.push(
                self.publish(&self.cluster.publish(&format!("3.{run}.0")).await?)
                    .await?,
            );
            // The controller reverts the naive client's patches when it runs again, so the next run starts from the
            // pool's image.
            self.cluster.controllers.stop(CONTROLLER);
            naive.push(self.naive(run).await?);
            self.cluster.controllers.start(CONTROLLER)?;
            let target = self.cluster.pools().get(POOL).await?.status.and_then(|s| s.target);
            let digest = target
                .and_then(|t| t.digest_for(AMD64).cloned())
                .context("the pool has no target")?;
            self.until_all(&digest).await?;
            self.progress.say(&format!(
                "published in {:?} s, bare patches in {:?} s",
                ours.last(),
                naive.last()
            ));
        }
        let figure = Figure::new("publish-new-digest", "s", &ours).floor(&naive).peer(2.9);
        let memory = self.memory()?;
        figure
            .detail("nodes", json!(self.nodes))
            .detail("floor of peer", json!(2.4))
            .detail("memory after", memory.json())
            .print();
        Ok(())
    }

    /// Changes the pool. Returns the seconds until every BootcNode was written for the first time, from the audit log.
    /// Later writes do not count: the nodes have no agents, so pull permits move from one silent node to the next.
    async fn publish(&self, image: &Published) -> Result<f64> {
        let begin = Timestamp::now();
        self.cluster.pool(POOL, &image.reference, json!({})).await?;
        self.until_all(&image.digest).await?;
        let log = AuditLog::read(&self.cluster.control_plane.audit_log())?;
        let writes = log
            .writes()
            .filter(|r| r.received >= begin && by_controller(r) && r.resource == "bootcnodes");
        let mut first: BTreeMap<String, Timestamp> = BTreeMap::new();
        let mut count = 0;
        for write in writes {
            let at = first.entry(write.name.clone()).or_insert(write.at);
            *at = write.at.min(*at);
            count += 1;
        }
        self.progress
            .say(&format!("{count} writes to {} BootcNodes", first.len()));
        let last = first.into_values().max().context("no BootcNode was written")?;
        Ok(last.duration_since(begin).as_secs_f64())
    }

    /// Waits until the digest is published to all Nodes. Polls slowly, because listing all BootcNodes is expensive for
    /// the server.
    async fn until_all(&self, digest: &Digest) -> Result<()> {
        let (start, limit) = (Instant::now(), self.limit());
        let mut pause = Duration::from_secs(2);
        while start.elapsed() < limit {
            tokio::time::sleep(pause).await;
            let asked = Instant::now();
            if self.count(digest).await? == self.nodes {
                return Ok(());
            }
            pause = pause.max(asked.elapsed() * 4);
        }
        bail!(
            "{digest} was not published to all Nodes within {limit:?}\n{}",
            self.cluster.controllers.tail(20)
        )
    }

    async fn count(&self, digest: &Digest) -> Result<usize> {
        let mut params = ListParams::default().limit(PAGE);
        let mut count = 0;
        loop {
            let list = self.api().list(&params).await?;
            let images = list.items.iter().filter_map(|n| n.spec.image.as_ref());
            count += images.filter(|image| image.digest == *digest).count();
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(count),
            }
        }
    }

    /// Patches the same field of each BootcNode, with as many concurrent requests as the controller sends. Returns the
    /// seconds.
    async fn naive(&self, run: u64) -> Result<f64> {
        let digest = format!("sha256:{:064x}", run + 1);
        let reference = format!("registry.example.com/os@{digest}");
        let body = json!({ "spec": { "image": { "ref": reference, "digest": digest, "indexDigest": digest } } });
        let (api, params) = (self.api(), manager("berth-bench"));
        let start = Instant::now();
        stream::iter(0..self.nodes)
            .map(|number| {
                let (api, params, body) = (api.clone(), params.clone(), body.clone());
                async move {
                    api.patch(&thousand::name(number), &params, &Patch::Merge(body))
                        .await
                        .map(drop)
                }
            })
            .buffer_unordered(thousand::AT_ONCE)
            .try_collect::<()>()
            .await
            .context("a bare patch failed")?;
        Ok(start.elapsed().as_secs_f64())
    }
}
