//! Time from "berth given back" to "the next node holds it", while a thousand nodes wait for a berth. Runs the shipped
//! controller, a real API server, and for each node the shipped waiting loop with two watches of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::figure::{Figure, median, round};
use super::fleet::POOL;
use super::handovers::{Measured, Start, percentile};
use super::progress::Progress;
use super::settings::{Run, setting};
use super::thousand;
use super::waiting::Waiting;
use crate::cluster::{Cluster, ClusterOptions};
use crate::controlplane::Bound;

pub(super) const BENCHES: [&str; 3] = ["handover", "handover-p99", "handover-conflicts"];

/// Number of berths in the second measurement. The first measurement uses one berth.
const MANY: usize = 10;
const TIMEOUT: Duration = Duration::from_secs(600);

struct Bench {
    cluster: Cluster,
    /// Number of nodes that wait at any time.
    waiting: usize,
    /// Number of turns to measure with one berth, and then again with [`MANY`] berths.
    turns: usize,
    done: Arc<AtomicUsize>,
    agents: JoinSet<Result<()>>,
    progress: Progress,
}

/// Measures all figures. `BERTH_BENCH_NODES` sets the number of waiting nodes, `BERTH_BENCH_TURNS` the number of turns
/// with one berth and again with ten.
pub(super) async fn measure(run: &Run) -> Result<()> {
    let waiting = usize::try_from(setting("BERTH_BENCH_NODES", 1000))?;
    let turns = usize::try_from(setting("BERTH_BENCH_TURNS", 300))?;
    let cluster = Cluster::start(ClusterOptions::without_hosts()).await?;
    let mut bench = Bench {
        cluster,
        waiting,
        turns,
        done: Arc::default(),
        agents: JoinSet::new(),
        progress: run.progress,
    };
    bench.gather().await?;
    bench.progress.say("handing over one berth");
    let one = bench.run(1, turns).await?;
    bench.progress.say(&format!("handing over {MANY} berths"));
    let many = bench.run(MANY, turns).await?;
    print(run, &one, &many, waiting);
    Ok(())
}

impl Bench {
    /// Creates the nodes, publishes an image to them and starts their agents. Creates one extra node for each turn,
    /// because a node stops waiting after its turn.
    async fn gather(&mut self) -> Result<()> {
        let nodes = self.waiting + 2 * self.turns;
        self.progress.say(&format!("creating {nodes} Nodes"));
        thousand::make(&self.cluster.client(), nodes + 1).await?;
        // Until the measurement begins, the last node is not Ready and so uses up the pool's only unit of
        // `maxUnavailable`. Pausing the pool instead would cause a write to every node when the pause ends.
        self.last_is_ready(false).await?;
        let image = self.cluster.publish("2.0.0").await?;
        let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%" });
        self.cluster.pool(POOL, &image.reference, rollout).await?;
        self.progress.say("starting their agents");
        let started: Vec<Waiting> = stream::iter(0..nodes)
            .map(|n| self.agent(n))
            .buffer_unordered(thousand::AT_ONCE)
            .try_collect()
            .await?;
        for agent in started {
            self.agents.spawn(agent.run(self.done.clone()));
        }
        self.cluster
            .until("the pool counts all nodes", TIMEOUT, || async {
                let status = self.cluster.pools().get(POOL).await?.status.unwrap_or_default();
                Ok(usize::try_from(status.nodes.staged)? == nodes)
            })
            .await?;
        self.progress.say("all agents wait");
        // Lets the remaining writes of the controller and the agents finish.
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    }

    async fn last_is_ready(&self, ready: bool) -> Result<()> {
        let name = thousand::name(self.waiting + 2 * self.turns);
        let condition = json!({ "type": "Ready", "status": if ready { "True" } else { "False" } });
        let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
        self.cluster
            .nodes()
            .patch_status(&name, &PatchParams::default(), &patch)
            .await
            .context("the last Node is missing")?;
        Ok(())
    }

    async fn agent(&self, number: usize) -> Result<Waiting> {
        let name = thousand::name(number);
        let plane = &self.cluster.control_plane;
        let identity = plane
            .service_account_kubeconfig("berth-system", "berth-agent", Bound::Node(&name))
            .await?;
        // Holding times differ, so that the turns do not synchronize.
        let hold = Duration::from_millis(50 + (number as u64 * 37) % 100);
        Waiting::start(&name, &identity.path, &self.cluster.client(), hold).await
    }

    async fn run(&mut self, berths: usize, turns: usize) -> Result<Measured> {
        let wanted = self.done.load(Ordering::Relaxed) + turns;
        let start = Start::now()?;
        self.cluster
            .patch_pool(POOL, json!({ "rollout": { "maxUnavailable": berths } }))
            .await?;
        self.last_is_ready(true).await?;
        self.until_done(wanted).await?;
        Measured::since(start, &self.cluster)
    }

    /// Waits until this number of agents have had their turn. Fails if an agent failed.
    async fn until_done(&mut self, wanted: usize) -> Result<()> {
        let start = Instant::now();
        loop {
            let done = self.done.load(Ordering::Relaxed);
            if done >= wanted {
                return Ok(());
            }
            if let Some(ended) = self.agents.try_join_next() {
                ended.context("an agent's task ended")??;
            }
            if start.elapsed() > TIMEOUT {
                bail!(
                    "only {done} of {wanted} turns ended within {TIMEOUT:?}\n{}",
                    self.cluster.controllers.tail(20)
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Milliseconds from each offer of a berth until the next node took it.
fn to_take(measured: &Measured) -> Vec<f64> {
    measured.handovers.iter().map(|h| h.to_take * 1000.0).collect()
}

fn detail(measured: &Measured) -> Value {
    let to_offer: Vec<f64> = measured.handovers.iter().map(|h| h.to_offer * 1000.0).collect();
    let to_take = to_take(measured);
    json!({
        "hand-overs": to_take.len(), "turns": measured.turns.len(),
        "until offered, median": round(median(&to_offer)), "median": round(median(&to_take)),
        "p90": round(percentile(&to_take, 0.9)), "p99": round(percentile(&to_take, 0.99)),
        "longest": round(percentile(&to_take, 1.0)), "processors busy": round(measured.busy),
        "conflicts": measured.conflicts,
    })
}

/// Prints the figures. The two times are from the run with one berth. The details show both runs.
fn print(run: &Run, one: &Measured, many: &Measured, waiting: usize) {
    let [name, p99, conflicts] = BENCHES;
    let with_many = format!("with {MANY} berths");
    if run.wants(name) {
        Figure::new(name, "ms", &[median(&to_take(one))])
            .aim(100.0)
            .detail("nodes that wait", json!(waiting))
            .detail("with one berth", detail(one))
            .detail(&with_many, detail(many))
            .print();
    }
    if run.wants(p99) {
        Figure::new(p99, "ms", &[percentile(&to_take(one), 0.99)])
            .aim(1000.0)
            .print();
    }
    if run.wants(conflicts) {
        let handovers = one.handovers.len() + many.handovers.len();
        Figure::new(
            conflicts,
            "per hand-over",
            &[share(one.lost() + many.lost(), handovers)],
        )
        .aim(0.1)
        .detail("with one berth", json!(share(one.lost(), one.handovers.len())))
        .detail(&with_many, json!(share(many.lost(), many.handovers.len())))
        .print();
    }
}

fn share(lost: usize, handovers: usize) -> f64 {
    round(lost as f64 / handovers.max(1) as f64)
}
