//! Two pools of one fleet: the limit that they share, and the order of their updates.

use anyhow::{Result, ensure};
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, Published, Scenarios};
use berth_tests::hosts::HostChange;
use berth_tests::hosts::sim::Updaters;
use jiff::Timestamp;
use serde_json::json;

#[tokio::test]
async fn fleet() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions {
        hosts: 4,
        // A host of each pool has rpm-ostree.
        updaters: vec![Updaters::Bootc, Updaters::RpmOstree],
        ..ClusterOptions::default()
    })
    .await?;
    Scenarios::of(&cluster)
        .with(two_pools_under_one_limit_in_order)
        .run()
        .await
}

async fn two_pools_under_one_limit_in_order(cluster: &Cluster) -> Result<()> {
    let servers = Part::new(cluster, "servers", 1..=2).await?;
    let workers = Part::new(cluster, "workers", 3..=4).await?;
    cluster.limit_fleet(1).await?;
    let rollout = json!({ "maxUnavailable": 2, "after": ["workers", "infra"] });
    let v2 = servers.roll_to("2.0.0", rollout).await?;
    servers
        .until_true("Degraded", "UnknownPool", "names workers, infra")
        .await?;
    servers.rollout(json!({ "after": ["workers"] })).await?;
    // Either worker may be the first; its drain lasts until the checks below are done.
    for n in [1, 2] {
        workers.block(workers.node(n)).await?;
    }
    let w2 = workers.publish("2.0.0").await?;
    workers.roll_once_staged(&w2, json!({ "maxUnavailable": 2 })).await?;
    workers
        .soon("one worker drains", || async {
            Ok(workers.holders().await?.len() == 1)
        })
        .await?;
    servers
        .until_false("Progressing", "EarlierPool", "all nodes of workers")
        .await?;
    for n in [1, 2] {
        workers.unblock(workers.node(n)).await?;
    }
    workers.until_all_run(&w2, LONG).await?;
    servers.until_all_run(&v2, LONG).await?;
    let (workers, servers) = (boots(cluster, &w2), boots(cluster, &v2));
    // The last worker booted its image before the first server did.
    ensure!(workers.iter().max() < servers.iter().min(), "{workers:?}, {servers:?}");
    Ok(())
}

fn boots(cluster: &Cluster, image: &Published) -> Vec<Timestamp> {
    let mut events = cluster.log.events();
    let wanted = image.digest.to_string();
    events.retain(|e| matches!(&e.change, HostChange::Up { digest, .. } if *digest == wanted));
    events.into_iter().map(|e| e.at).collect()
}
