//! `kubectl berth status` over 5,000 nodes, as it is shipped: with the list from a real API server, and without.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::api::{ListParams, Patch};
use serde::Deserialize;
use serde_json::json;
use tokio::process::Command;

use super::fleet::{POOL, manager};
use super::{Figure, Progress, Selection, runs, setting, thousand};
use crate::cluster::{Cluster, ClusterOptions};
use crate::programs;

/// The figures of this module.
pub const BENCHES: [&str; 2] = ["status-text", "status-list"];
/// Longest time until the controller has published an image to all nodes.
const LIMIT: Duration = Duration::from_secs(600);

/// Output of `cli/examples/status.rs`.
#[derive(Deserialize)]
struct Line {
    nodes: usize,
    milliseconds: Vec<f64>,
}

/// Measures both. `BERTH_BENCH_STATUS` asks for another number of nodes in the cluster.
pub async fn measure(selection: &Selection, progress: Progress) -> Result<()> {
    progress.say("building kubectl berth as it is shipped");
    let (program, example) = tokio::task::spawn_blocking(programs::shipped_kubectl).await??;
    if selection.wants(BENCHES[0]) {
        let output = Command::new(&example)
            .output()
            .await
            .context("cannot run the example")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let line: Line = serde_json::from_slice(&output.stdout)?;
        let figure = Figure::new(BENCHES[0], "ms", &line.milliseconds).aim(100.0);
        figure.detail("nodes", json!(line.nodes)).print();
    }
    if selection.wants(BENCHES[1]) {
        let nodes = usize::try_from(setting("BERTH_BENCH_STATUS", 5000))?;
        let cluster = cluster(nodes, progress).await?;
        let config = cluster.control_plane.kubeconfig_for("tom", &["system:masters"])?;
        let mut seconds = vec![];
        for _ in 0..runs() {
            let start = Instant::now();
            let mut command = Command::new(&program);
            let output = command
                .arg("status")
                .arg("--kubeconfig")
                .arg(&config.path)
                .output()
                .await?;
            seconds.push(start.elapsed().as_secs_f64());
            let text = String::from_utf8_lossy(&output.stdout);
            let counts = format!("/{nodes})");
            ensure!(
                output.status.success() && text.contains(&counts),
                "{counts} is missing:\n{text}"
            );
        }
        let figure = Figure::new(BENCHES[1], "s", &seconds).aim(1.0);
        figure.detail("nodes", json!(nodes)).print();
    }
    Ok(())
}

/// A cluster of which every node has told its state.
async fn cluster(nodes: usize, progress: Progress) -> Result<Cluster> {
    let cluster = Cluster::start(ClusterOptions::without_hosts()).await?;
    progress.say(&format!("creating {nodes} Nodes"));
    thousand::make(&cluster.client(), nodes).await?;
    let image = cluster.publish("2.0.0").await?;
    cluster.pool(POOL, &image.reference, json!({ "paused": true })).await?;
    let hosts = cluster.bootc_nodes();
    let start = Instant::now();
    while hosts.list(&ListParams::default()).await?.items.len() < nodes {
        if start.elapsed() > LIMIT {
            bail!(
                "there is no BootcNode for each Node within {LIMIT:?}\n{}",
                cluster.controllers.tail(20)
            );
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    progress.say("every node tells its state");
    let (now, params) = (Timestamp::now(), manager());
    let status = json!({ "status": {
        "phase": "Waiting", "phaseStartTime": now.to_string(), "heartbeatTime": now.to_string(),
        "booted": { "image": image.reference, "digest": format!("sha256:{:064x}", 1), "version": "1.0.0", "architecture": "amd64" },
    } });
    stream::iter(0..nodes)
        .map(|number| {
            let (hosts, params, status) = (hosts.clone(), params.clone(), status.clone());
            async move {
                let name = thousand::name(number);
                hosts
                    .patch_status(&name, &params, &Patch::Merge(status))
                    .await
                    .map(drop)
            }
        })
        .buffer_unordered(thousand::AT_ONCE)
        .try_collect::<()>()
        .await
        .context("a status was not written")?;
    Ok(cluster)
}
