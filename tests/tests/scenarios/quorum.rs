//! I11 with three control plane nodes in two pools: at most one is updated at a time, a change of the leader during a
//! drain does not end the turn, and a node that is not Ready goes first.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, Scenarios};
use berth_tests::hosts::sim::Updaters;
use serde_json::json;

const LABEL: &str = "node-role.kubernetes.io/control-plane";

#[tokio::test]
async fn quorum() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions {
        hosts: 3,
        // A host of the first pool has rpm-ostree.
        updaters: vec![Updaters::Bootc, Updaters::RpmOstree, Updaters::Bootc],
        agent_args: vec!["--heartbeat=10".to_owned()],
        ..ClusterOptions::default()
    })
    .await?;
    Scenarios::of(&cluster)
        .with(one_control_plane_node_at_a_time)
        .run()
        .await
}

async fn one_control_plane_node_at_a_time(cluster: &Cluster) -> Result<()> {
    let first = Part::new(cluster, "cp-a", 1..=2).await?;
    let second = Part::new(cluster, "cp-b", 3..=3).await?;
    let (c1, c2, c3) = (first.node(1), first.node(2), second.node(1));
    for (part, node) in [(&first, c1), (&first, c2), (&second, c3)] {
        part.label(node, LABEL, Some("")).await?;
    }
    // The node that stages first goes first, and stays in its drain.
    first.block(c1).await?;
    first.block(c2).await?;
    let v2 = first.roll_to("2.0.0", json!({ "maxUnavailable": 2 })).await?;
    first
        .soon("one of the two holds a berth", || async {
            Ok(first.holdings().await?.len() == 1)
        })
        .await?;
    let holder = first.holdings().await?.remove(0).node;
    let other = if holder.as_str() == c1 { c2 } else { c1 };
    second.pool(&v2, json!({ "maxUnavailable": 1 })).await?;
    first.until_waiting(&[other], "OtherControlPlaneNode", "").await?;
    second.until_waiting(&[c3], "OtherControlPlaneNode", "").await?;

    let before = epoch(&first).await?;
    first.cluster.controllers.start(1)?;
    first.cluster.controllers.kill(0);
    first
        .soon("a new leader has stamped the berths", || async {
            Ok(epoch(&first).await? > before)
        })
        .await?;
    let stamped = Instant::now();
    while stamped.elapsed() < Duration::from_secs(2) {
        let holdings = first.holdings().await?;
        let [holding] = holdings.as_slice() else {
            anyhow::bail!("{holdings:?}")
        };
        ensure!(holding.node == holder && holding.revoke.is_none(), "{holding:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    // Another node is not Ready: it needs the repair, so it goes first.
    second.not_ready(c3).await?;
    second.until_run(&v2, &[1], LONG).await?;
    ensure!(first.boots(1) == 1 && first.boots(2) == 1, "the others wait meanwhile");
    first.unblock(c1).await?;
    first.unblock(c2).await?;
    first.until_all_run(&v2, LONG).await
}

async fn epoch(part: &Part<'_>) -> Result<u64> {
    let berths = part.berths().await?;
    berths.iter().map(|b| b.epoch).min().context("there are berths")
}
