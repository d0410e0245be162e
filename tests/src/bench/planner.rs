//! The controller's decisions without I/O, for 5,000 and for 65,000 nodes. Builds `core/examples/plan.rs` with the shipped
//! settings and runs it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;

use super::figure::{Figure, median};
use super::settings::Run;
use crate::programs;

pub(super) const BENCHES: [&str; 3] = ["planner", "planner-one-pool", "planner-racks"];
/// For each figure: nodes, how they are spread, and the target in milliseconds.
const WORLDS: [(&str, &str, f64); 3] = [
    ("5000", "100 pools", 20.0),
    ("5000", "1 pool", 20.0),
    ("65000", "1625 racks", 250.0),
];

#[derive(Deserialize)]
struct Line {
    /// Such as `plan, 100 pools`.
    name: String,
    milliseconds: Vec<f64>,
}

pub(super) async fn measure(run: &Run) -> Result<()> {
    let progress = run.progress;
    progress.say("building the planner with the shipped settings");
    let program = tokio::task::spawn_blocking(programs::planner).await??;
    progress.say("planning for 5000 and for 65000 nodes");
    let lines: Vec<Line> = programs::lines_of(&program).await?;
    let times: BTreeMap<String, Vec<f64>> = lines.into_iter().map(|line| (line.name, line.milliseconds)).collect();
    for (bench, world) in BENCHES.into_iter().zip(WORLDS) {
        if run.wants(bench) {
            figure(bench, world, &times)?.print();
        }
    }
    Ok(())
}

/// Figure for planning all pools. Its details have the time of the steps before planning.
fn figure(
    bench: &'static str,
    (nodes, spread, aim): (&str, &str, f64),
    times: &BTreeMap<String, Vec<f64>>,
) -> Result<Figure> {
    let mut measured = vec![];
    for what in ["plan", "facts", "membership"] {
        let name = format!("{what}, {spread}");
        let runs = times.get(&name);
        measured.push(runs.with_context(|| format!("the planner's output has no {name:?}"))?);
    }
    let mut figure = Figure::new(bench, "ms", measured[0])
        .aim(aim)
        .detail("nodes", json!([nodes, spread]))
        .detail("fastest", json!(least(measured[0])));
    for (what, runs) in ["facts", "membership"].iter().zip(&measured[1..]) {
        figure = figure.detail(what, json!({ "median": median(runs), "fastest": least(runs) }));
    }
    Ok(figure)
}

fn least(runs: &[f64]) -> f64 {
    runs.iter().copied().fold(f64::INFINITY, f64::min)
}
