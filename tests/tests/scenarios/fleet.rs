//! Two pools of one fleet: the limit that they share, and the order of their updates. The control plane, the controller and the
//! agents are real, the hosts are simulated.

use anyhow::{Result, ensure};
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, SOON, together};
use berth_tests::hosts::HostChange;
use berth_tests::hosts::sim::Updaters;
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
    let servers = Part::new(&cluster, "servers", 1..=2).await?;
    let workers = Part::new(&cluster, "workers", 3..=4).await?;
    together(
        &cluster,
        vec![(
            "two_pools_under_one_limit_in_order",
            Box::pin(two_pools(&servers, &workers)),
        )],
    )
    .await
}

async fn two_pools(servers: &Part<'_>, workers: &Part<'_>) -> Result<()> {
    let cluster = servers.cluster;
    cluster.limit_fleet(1).await?;
    let rollout = json!({ "maxUnavailable": 2, "after": ["workers", "infra"] });
    let v2 = servers.roll_to("2.0.0", rollout).await?;
    servers
        .until_says("Degraded", "True", "UnknownPool", "names workers, infra", SOON)
        .await?;
    servers.rollout(json!({ "after": ["workers"] })).await?;
    // Either worker may be the first; its drain lasts until the checks below are done.
    for n in [1, 2] {
        workers.block(workers.node(n)).await?;
    }
    let w2 = workers.publish("2.0.0").await?;
    workers.roll_once_staged(&w2, json!({ "maxUnavailable": 2 })).await?;
    workers
        .until("one worker drains", SOON, || async {
            Ok(workers.holders().await?.len() == 1)
        })
        .await?;
    servers
        .until_says("Progressing", "False", "EarlierPool", "all nodes of workers", SOON)
        .await?;
    for n in [1, 2] {
        workers.unblock(workers.node(n)).await?;
    }
    workers.until_all_run(&w2, LONG).await?;
    servers.until_all_run(&v2, LONG).await?;
    workers_before_servers(cluster, &w2.digest.to_string(), &v2.digest.to_string())
}

/// Fails unless the last worker booted its image before the first server did.
fn workers_before_servers(cluster: &Cluster, workers: &str, servers: &str) -> Result<()> {
    let booted = |wanted: &str| -> Vec<_> {
        let events = cluster.log.events().into_iter();
        let of = events.filter(|e| matches!(&e.change, HostChange::Up { digest, .. } if digest == wanted));
        of.map(|e| e.at).collect()
    };
    let (workers, servers) = (booted(workers), booted(servers));
    ensure!(workers.iter().max() < servers.iter().min(), "{workers:?}, {servers:?}");
    Ok(())
}
