//! Idle agents: their size, and their requests to the API server.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::json;

use super::figure::{Figure, median};
use super::fleet::{Fleet, HOSTS, by_agent};
use super::memory::Memory;
use super::progress::Progress;
use super::settings::{Run, idle_time, setting};
use crate::audit::Record;

pub(super) const BENCHES: [&str; 3] = ["agent-memory", "agent-memory-anonymous", "idle-requests"];
/// Name of the figure that [`size`] prints.
pub const SIZE: &str = "agent-size";

pub(super) fn size(agent: &Path) -> Result<()> {
    let bytes = std::fs::metadata(agent)
        .with_context(|| format!("cannot read {}", agent.display()))?
        .len();
    let figure = Figure::new(SIZE, "MiB", &[bytes as f64 / f64::from(1 << 20)]);
    figure.aim(7.25).peer(32.3).print();
    Ok(())
}

/// Leaves the agents idle, then measures.
pub(super) async fn measure(fleet: &Fleet, run: &Run) -> Result<()> {
    let progress = run.progress;
    progress.say(&format!("leaving {HOSTS} agents idle for {} s", idle_time().as_secs()));
    let begin = Instant::now();
    tokio::time::sleep(idle_time()).await;
    if run.wants_one(&["agent-memory", "agent-memory-anonymous"]) {
        memory(fleet)?;
    }
    if run.wants("idle-requests") {
        requests(fleet, begin, progress).await?;
    }
    Ok(())
}

fn memory(fleet: &Fleet) -> Result<()> {
    let pids = fleet.cluster.fleet.hosts.iter().flat_map(|host| host.agent_pids());
    let all = pids.map(Memory::of).collect::<Result<Vec<_>>>()?;
    let (resident, anonymous) = (column(&all, |m| m.resident), column(&all, |m| m.anonymous));
    let of = Memory {
        resident: median(&resident),
        anonymous: median(&anonymous),
        file: median(&column(&all, |m| m.file)),
        peak: median(&column(&all, |m| m.peak)),
    };
    let figure = Figure::new(BENCHES[0], "MiB", &resident).aim(7.0).peer(30.3);
    figure.detail("medians", of.json()).print();
    let figure = Figure::new(BENCHES[1], "MiB", &anonymous).aim(1.5);
    figure.peer(7.8).print();
    Ok(())
}

fn column(all: &[Memory], field: fn(&Memory) -> f64) -> Vec<f64> {
    all.iter().map(field).collect()
}

/// After this time, each idle agent has sent its first heartbeat, and has read all its objects again at that heartbeat.
const FIRST_HEARTBEAT: Duration = Duration::from_secs(130);

/// Counts the requests of idle agents. The interval is long enough for two heartbeats, the agents' rarest requests.
async fn requests(fleet: &Fleet, since: Instant, progress: Progress) -> Result<()> {
    let window = Duration::from_secs(setting("BERTH_BENCH_IDLE_REQUESTS", 240));
    tokio::time::sleep(FIRST_HEARTBEAT.saturating_sub(since.elapsed())).await;
    progress.say(&format!(
        "counting the requests of idle agents for {} s",
        window.as_secs()
    ));
    let begin = Timestamp::now();
    tokio::time::sleep(window).await;
    let minutes = Timestamp::now().duration_since(begin).as_secs_f64() / 60.0;
    let records = fleet.requests(begin, Timestamp::now())?;
    let asked: Vec<&Record> = records
        .iter()
        .filter(|r| by_agent(r) && r.stage == "ResponseComplete")
        .collect();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for record in &asked {
        *counts
            .entry(format!("{} {}", record.verb, record.target()))
            .or_default() += 1;
    }
    let runs: Vec<f64> = fleet
        .cluster
        .fleet
        .hosts
        .iter()
        .map(|host| {
            let own = asked.iter().filter(|r| r.verb != "watch" && is_by(r, host.name()));
            own.count() as f64 / minutes
        })
        .collect();
    let figure = Figure::new("idle-requests", "requests per node and minute", &runs).aim(0.5);
    figure
        .detail("of all nodes", json!(counts))
        .detail("minutes", json!((minutes * 10.0).round() / 10.0))
        .print();
    Ok(())
}

fn is_by(record: &Record, node: &str) -> bool {
    record.node_claim.as_deref() == Some(node) || record.user == format!("system:node:{node}")
}
