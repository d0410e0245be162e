//! The controller's decisions without I/O, for 5,000 and for 65,000 nodes. Builds `core/examples/plan.rs` with the shipped
//! settings and runs it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::json;
use tokio::process::Command;

use super::figure::{Figure, median};
use super::progress::Progress;
use super::settings::Selection;
use crate::programs;

/// The figures of this module.
pub const BENCHES: [&str; 3] = ["planner", "planner-one-pool", "planner-racks"];
/// For each figure: nodes, how they are spread, and the target in milliseconds.
const WORLDS: [(&str, &str, f64); 3] = [
    ("5000", "100 pools", 20.0),
    ("5000", "1 pool", 20.0),
    ("65000", "1625 racks", 250.0),
];

/// A line of the program's output.
#[derive(Deserialize)]
struct Line {
    /// Such as `plan, 100 pools`.
    name: String,
    milliseconds: Vec<f64>,
}

/// Measures all figures.
pub async fn measure(selection: &Selection, progress: Progress) -> Result<()> {
    progress.say("building the planner with the shipped settings");
    let program = tokio::task::spawn_blocking(programs::planner).await??;
    progress.say("planning for 5000 and for 65000 nodes");
    let output = Command::new(&program)
        .output()
        .await
        .with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        bail!("the planner failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout).context("the planner's output is not text")?;
    let lines = text
        .lines()
        .map(serde_json::from_str::<Line>)
        .collect::<Result<Vec<_>, _>>()?;
    let times: BTreeMap<String, Vec<f64>> = lines.into_iter().map(|line| (line.name, line.milliseconds)).collect();
    for (bench, world) in BENCHES.into_iter().zip(WORLDS) {
        if selection.wants(bench) {
            figure(bench, world, &times)?.print();
        }
    }
    Ok(())
}

/// Figure for the plans of all pools; the details have the steps before planning.
fn figure(
    bench: &'static str,
    (nodes, spread, aim): (&str, &str, f64),
    times: &BTreeMap<String, Vec<f64>>,
) -> Result<Figure> {
    let of = |what: &str| {
        let name = format!("{what}, {spread}");
        times
            .get(&name)
            .with_context(|| format!("the planner's output has no {name:?}"))
    };
    let least = |runs: &[f64]| runs.iter().copied().fold(f64::INFINITY, f64::min);
    let mut figure = Figure::new(bench, "ms", of("plan")?)
        .aim(aim)
        .detail("nodes", json!([nodes, spread]));
    figure = figure.detail("fastest", json!(least(of("plan")?)));
    for what in ["facts", "membership"] {
        let runs = of(what)?;
        figure = figure.detail(what, json!({ "median": median(runs), "fastest": least(runs) }));
    }
    Ok(figure)
}
