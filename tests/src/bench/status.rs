//! The shipped `kubectl berth status` with 5,000 nodes: with and without the list requests to a real API server.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;
use tokio::process::Command;

use super::figure::Figure;
use super::many;
use super::settings::{Run, runs, setting};
use crate::programs;

pub(super) const BENCHES: [&str; 2] = ["status-text", "status-list"];

/// Line of the output of `cli/examples/status.rs`.
#[derive(Deserialize)]
struct Line {
    nodes: usize,
    milliseconds: Vec<f64>,
}

/// Measures both figures. `BERTH_BENCH_STATUS` sets the number of nodes in the cluster.
pub(super) async fn measure(run: &Run) -> Result<()> {
    let progress = run.progress;
    progress.say("building kubectl berth with the shipped settings");
    let (program, example) = tokio::task::spawn_blocking(programs::shipped_kubectl).await??;
    if run.wants(BENCHES[0]) {
        let line: Line = programs::lines_of(&example)
            .await?
            .pop()
            .context("the example prints nothing")?;
        let figure = Figure::new(BENCHES[0], "ms", &line.milliseconds).aim(100.0);
        figure.detail("nodes", json!(line.nodes)).print();
    }
    if run.wants(BENCHES[1]) {
        let nodes = usize::try_from(setting("BERTH_BENCH_STATUS", 5000))?;
        // Including the host that the others are copies of.
        let cluster = many::reporting(nodes.saturating_sub(1), progress).await?;
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
                "{counts} is missing in:\n{text}"
            );
        }
        let figure = Figure::new(BENCHES[1], "s", &seconds).aim(1.0);
        figure.detail("nodes", json!(nodes)).print();
    }
    Ok(())
}
