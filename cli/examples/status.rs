//! Measures how long it takes to render the status of a large cluster from objects in memory, and prints one JSON line.
//! `make bench` runs this example as a release build.

use std::time::Instant;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use kubectl_berth::{Detail, Look, Snapshot, render};
use serde_json::{Value, json};

/// Number of nodes in the cluster.
const NODES: usize = 5000;
/// Number of nodes in each pool.
const POOL: usize = 500;
/// Number of runs.
const RUNS: usize = 10;

fn main() -> Result<()> {
    let now = Timestamp::now();
    let snapshot = cluster(now).context("the cluster is malformed")?;
    let (look, all) = (
        Look::default(),
        Detail {
            nodes: true,
            health: true,
        },
    );
    let mut milliseconds = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        let text = render(&snapshot, now, look, all);
        milliseconds.push(start.elapsed().as_secs_f64() * 1000.0);
        anyhow::ensure!(text.lines().count() > NODES, "a node is missing");
    }
    println!(
        "{}",
        json!({ "nodes": NODES, "pools": NODES / POOL, "milliseconds": milliseconds })
    );
    Ok(())
}

/// Returns a cluster in the middle of a rollout: a third of the nodes are updated, some are being updated, and some
/// have problems.
fn cluster(now: Timestamp) -> Result<Snapshot> {
    let digest = |c: char| format!("sha256:{}", c.to_string().repeat(64));
    let ago = |minutes: i64| (now - SignedDuration::from_mins(minutes)).to_string();
    let pool = |number: usize| {
        json!({
            "metadata": { "name": format!("pool-{number}"), "uid": format!("uid-{number}"), "generation": 1 },
            "spec": { "nodeSelector": { "matchLabels": { "pool": number.to_string() } }, "image": { "ref": "quay.io/example/os:stable" } },
            "status": {
                "observedGeneration": 1,
                "target": { "image": "quay.io/example/os:stable", "digest": digest('2'), "version": "4.2", "platforms": [] },
            },
        })
    };
    let bootc_node = |number: usize| {
        let name = format!("worker-{number:04}.example.internal");
        let (phase, runs) = match number % 12 {
            0..4 => ("Updated", '2'),
            4 => ("Staging", '1'),
            5 => ("Draining", '1'),
            6 => ("Rebooting", '1'),
            _ => ("Waiting", '1'),
        };
        let condition = |kind: &str, reason: &str, message: &str| json!([{ "type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": ago(20) }]);
        let conditions = match number % 24 {
            5 => condition("NodeDegraded", "DrainTimeout", "failed to drain for 1h"),
            7..12 => condition(
                "Waiting",
                "WaveWaiting",
                "waits until all nodes of wave canary are updated and Ready",
            ),
            _ => json!([]),
        };
        json!({
            "metadata": { "name": name, "uid": format!("host-{number}") },
            "spec": {
                "poolName": format!("pool-{}", number / POOL), "nodeUID": format!("node-{number}"),
                "image": { "ref": "quay.io/example/os", "digest": digest('2'), "indexDigest": digest('2'), "version": "4.2" },
            },
            "status": {
                "phase": phase, "phaseStartTime": ago(3), "heartbeatTime": ago(1), "conditions": conditions,
                "booted": { "image": "quay.io/example/os", "digest": digest(runs), "version": "4.1", "architecture": "amd64" },
            },
        })
    };
    let node = |number: usize| {
        json!({
            "metadata": { "name": format!("worker-{number:04}.example.internal"), "labels": { "pool": (number / POOL).to_string() } },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": ago(60) }] },
        })
    };
    let all = |of: &dyn Fn(usize) -> Value, count: usize| (0..count).map(of).collect::<Vec<_>>();
    Ok(serde_json::from_value(json!({
        "pools": all(&pool, NODES / POOL), "bootcNodes": all(&bootc_node, NODES), "nodes": all(&node, NODES),
    }))?)
}
