//! A rollout of a hundred simulated nodes, ten at a time, compared with ten times the turn of a single node.
//!
//! All images are staged before the first berth is offered, so that turns are measured, not pulls.

use std::time::Duration;

use anyhow::Result;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::figure::{Figure, median, round};
use super::handovers::{Measured, Start, Turn, percentile};
use super::progress::Progress;
use super::settings::{Run, runs, setting};
use crate::cluster::{Cluster, ClusterOptions, Published};
use crate::hosts::sim::Settings;

pub(super) const BENCHES: [&str; 1] = ["rollout-hundred"];

/// Names of the two pools. `MANY` has all hosts except one, `SINGLE` has the remaining host.
const MANY: &str = "many";
const SINGLE: &str = "single";
const LABEL: &str = "bench.berth.dev/pool";
const AT_ONCE: usize = 10;
/// Number of turns of the single node. Their median is the ideal length of a turn.
const SINGLE_TURNS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(900);

struct Bench {
    cluster: Cluster,
    hosts: usize,
    progress: Progress,
}

/// Measures the figure. `BERTH_BENCH_HUNDRED` sets the number of nodes, `BERTH_BENCH_REBOOT` the length of a reboot in
/// seconds. Reboots must be long enough that this machine can simulate ten at a time and still have idle time.
pub(super) async fn measure(run: &Run) -> Result<()> {
    let progress = run.progress;
    let hosts = usize::try_from(setting("BERTH_BENCH_HUNDRED", 100))?;
    let reboot = Duration::from_secs(setting("BERTH_BENCH_REBOOT", 10));
    progress.say(&format!("starting {} simulated hosts", hosts + 1));
    let settings = Settings {
        reboot_time: reboot,
        ..Settings::default()
    };
    let options = ClusterOptions {
        hosts: hosts + 1,
        settings,
        scheduler: false,
        ..ClusterOptions::default()
    };
    let bench = Bench {
        cluster: Cluster::start(options).await?,
        hosts,
        progress,
    };
    for (number, host) in bench.cluster.fleet.hosts.iter().enumerate() {
        let pool = if number < hosts { MANY } else { SINGLE };
        let labels = Patch::Merge(json!({ "metadata": { "labels": { LABEL: pool } } }));
        bench
            .cluster
            .nodes()
            .patch(host.name(), &PatchParams::default(), &labels)
            .await?;
    }
    bench.run(reboot).await
}

impl Bench {
    async fn run(&self, reboot: Duration) -> Result<()> {
        let mut alone = vec![];
        for run in 0..SINGLE_TURNS {
            let rolled = self.roll(SINGLE, 1, 1, &format!("2.{run}.0")).await?;
            self.progress
                .say(&format!("one node alone took {:.2} s", rolled.seconds));
            alone.push(rolled.seconds);
        }
        let ideal = median(&alone) * self.hosts.div_ceil(AT_ONCE) as f64;
        let (mut ratios, mut details) = (vec![], vec![]);
        for run in 0..runs() {
            let rolled = self.roll(MANY, self.hosts, AT_ONCE, &format!("3.{run}.0")).await?;
            self.progress.say(&format!(
                "{} nodes took {:.1} s; ideal: {ideal:.1} s",
                self.hosts, rolled.seconds
            ));
            ratios.push(rolled.seconds / ideal);
            details.push(detail(&rolled));
        }
        Figure::new(BENCHES[0], "times the ideal", &ratios)
            .aim(1.15)
            .detail("nodes", json!(self.hosts))
            .detail("maxUnavailable", json!(AT_ONCE))
            .detail("simulated reboot, s", json!(reboot.as_secs_f64()))
            .detail("one node alone, s", json!(round(median(&alone))))
            .detail("ideal, s", json!(round(ideal)))
            .detail("each run", json!(details))
            .print();
        Ok(())
    }

    /// Stages an image on every member while the pool is paused, ends the pause, and measures until the last berth is given back.
    async fn roll(&self, pool: &str, members: usize, at_once: usize, version: &str) -> Result<Measured> {
        let image = self.cluster.publish(version).await?;
        let rollout = json!({ "maxUnavailable": at_once, "maxStaging": "100%", "paused": true });
        self.cluster
            .pool_of(pool, json!({ LABEL: pool }), &image.reference, rollout)
            .await?;
        self.until(pool, &image, "staged", members).await?;
        // Lets the writes caused by the staging finish.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let start = Start::now()?;
        self.cluster
            .patch_pool(pool, json!({ "rollout": { "paused": false } }))
            .await?;
        self.until(pool, &image, "updated", members).await?;
        Measured::since(start, &self.cluster)
    }

    /// Waits until the pool's status counts this many members in the given state, and no held berth.
    async fn until(&self, pool: &str, image: &Published, state: &str, members: usize) -> Result<()> {
        let what = format!("all nodes of {pool} are {state}");
        self.cluster
            .until(&what, TIMEOUT, || async {
                // Polls slowly, so as not to load the API server.
                tokio::time::sleep(Duration::from_millis(200)).await;
                let status = self.cluster.pools().get(pool).await?.status.unwrap_or_default();
                let here = status.target.is_some_and(|t| t.image.as_str() == image.reference);
                let count = match state {
                    "staged" => status.nodes.staged,
                    _ => status.nodes.updated,
                };
                Ok(here && usize::try_from(count)? == members && status.berths.held == 0)
            })
            .await
    }
}

/// Details that explain the result: the lengths of turns, to compare with the single node's, and the gaps between
/// turns.
fn detail(rolled: &Measured) -> Value {
    let lengths: Vec<f64> = rolled.turns.iter().map(Turn::seconds).collect();
    let offered: Vec<f64> = rolled.handovers.iter().map(|h| h.to_offer).collect();
    let taken: Vec<f64> = rolled.handovers.iter().map(|h| h.to_take).collect();
    json!({
        "seconds": round(rolled.seconds), "turns": lengths.len(), "median turn, s": round(median(&lengths)),
        "longest turn, s": round(percentile(&lengths, 1.0)),
        "given back to offered, median, s": round(median(&offered)),
        "given back to taken, median, s": round(median(&taken)),
        "processors busy": round(rolled.busy), "conflicts": rolled.conflicts,
    })
}
