//! Admins who pause, cordon, delete and move in the middle of a rollout.

use super::*;

#[tokio::test]
async fn pause_holds_in_every_phase() -> Result<()> {
    let options = hosts_with(2, |s| {
        s.pull_time = Duration::from_secs(4);
        s.reboot_time = Duration::from_secs(5);
    });
    scenario("pause_holds_in_every_phase", options, |cluster| {
        Box::pin(async move {
            let pause = |paused: bool| cluster.patch_pool("workers", json!({ "rollout": { "paused": paused } }));
            cluster.deploy("web", 2).await?;
            cluster.budget("web", 2).await?;
            signs::annotate(cluster, "node2", "false").await?;
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            // While staging: staging continues, nothing is offered.
            some_in(cluster, "Staging").await?;
            pause(true).await?;
            until_phase(cluster, "node1", "Waiting").await?;
            until_phase(cluster, "node2", "Waiting").await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            ensure!(cluster.held().await?.is_empty(), "a paused pool offers no berth");
            // While draining: the holder gives back.
            pause(false).await?;
            let n = some_in(cluster, "Draining").await?;
            pause(true).await?;
            let name = cluster.host(n).name().to_owned();
            until_phase(cluster, &name, "Waiting").await?;
            ensure!(cluster.held().await?.is_empty(), "an uncommitted holder gives back");
            ensure!(!cluster.is_cordoned(&name).await?, "and uncordons");
            golden::ensure_walk(&cluster.control_plane.audit_log(), &name, "taken-back")?;
            // After the commit: it finishes, and the next one does not start.
            cluster.remove_budget("web").await?;
            pause(false).await?;
            some_in(cluster, "Rebooting").await?;
            pause(true).await?;
            cluster
                .until("the committed node finishes", SOON, || async {
                    Ok(cluster.held().await?.is_empty() && cluster.fleet.running(&v2.digest.to_string()) >= 1)
                })
                .await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            ensure!(
                cluster.fleet.running(&v2.digest.to_string()) == 1,
                "the other one waits"
            );
            pause(false).await?;
            cluster.until_all_run(&v2, LONG).await?;
            for node in ["node1", "node2"] {
                signs::ensure_shown(cluster, node, node == name, (node == "node2").then_some("false")).await?;
            }
            Ok(())
        })
    })
    .await
}

#[tokio::test]
async fn an_admins_cordon_stays() -> Result<()> {
    scenario("an_admins_cordon_stays", hosts(2), |cluster| {
        Box::pin(async move {
            cluster.cordon("node2", true).await?;
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            // A node that is already unavailable goes first, and uses up the capacity while it is unavailable.
            cluster.until_run(&v2, &[cluster.host(2)], LONG).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            ensure!(
                cluster.host(1).facts().version == "1.0.0",
                "node1 waits while node2 is cordoned by its admin"
            );
            cluster
                .until("the pool names the node that uses up its capacity", SOON, || async {
                    let status = cluster.pool_status("workers").await?;
                    let said = berth_api::condition::find(&status.conditions, "Progressing");
                    Ok(said.is_some_and(|condition| condition.message.contains("node2")))
                })
                .await?;
            cluster.allow("workers", 2);
            cluster
                .patch_pool("workers", json!({ "rollout": { "maxUnavailable": 2 } }))
                .await?;
            cluster.until_all_run(&v2, LONG).await?;
            ensure!(
                cluster.is_cordoned("node2").await?,
                "a node cordoned before its turn stays cordoned"
            );
            ensure!(
                !cluster.is_cordoned("node1").await?,
                "the other node is schedulable again"
            );
            Ok(())
        })
    })
    .await
}

#[tokio::test]
async fn nodes_go_and_come_back() -> Result<()> {
    scenario("nodes_go_and_come_back", hosts(3), |cluster| {
        Box::pin(async move {
            cluster.deploy("web", 3).await?;
            cluster.budget("web", 3).await?;
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            // A holder whose Node is deleted frees its berth; the others continue.
            let n = some_in(cluster, "Draining").await?;
            let gone = cluster.host(n);
            gone.stop_agent().await;
            gone.stop_kubelet();
            cluster.nodes().delete(gone.name(), &DeleteParams::default()).await?;
            cluster.remove_budget("web").await?;
            let others: Vec<_> = cluster.fleet.hosts.iter().filter(|h| h.name() != gone.name()).collect();
            cluster.until_run(&v2, &others, LONG).await?;
            cluster
                .until("the BootcNode of the deleted Node is gone", SOON, || async {
                    Ok(cluster.bootc_nodes().get_opt(gone.name()).await?.is_none())
                })
                .await?;
            // The node comes back under its name with another UID, and is treated like any other.
            gone.register().await?;
            cluster.renew_agent_token(gone).await?;
            gone.start_agent();
            cluster.until_all_run(&v2, LONG).await
        })
    })
    .await
}

#[tokio::test]
async fn a_node_moves_between_pools_in_its_turn() -> Result<()> {
    scenario("a_node_moves_between_pools", hosts(2), |cluster| {
        Box::pin(async move {
            let label = |node: &'static str, pool: &'static str| {
                let patch = Patch::Merge(json!({ "metadata": { "labels": { "pool": pool } } }));
                let nodes = cluster.nodes();
                async move { nodes.patch(node, &PatchParams::default(), &patch).await.map(drop) }
            };
            label("node1", "a").await?;
            label("node2", "b").await?;
            cluster.deploy("web", 2).await?;
            cluster.budget("web", 2).await?;
            let v2 = cluster.publish("2.0.0").await?;
            let v3 = cluster.publish("3.0.0").await?;
            cluster
                .pool_of(
                    "a",
                    json!({ "pool": "a" }),
                    &v2.reference,
                    json!({ "maxUnavailable": 1 }),
                )
                .await?;
            until_phase(cluster, "node1", "Draining").await?;
            cluster
                .pool_of(
                    "b",
                    json!({ "pool": "b" }),
                    &v3.reference,
                    json!({ "maxUnavailable": 1 }),
                )
                .await?;
            label("node1", "b").await?;
            cluster.remove_budget("web").await?;
            cluster.until_all_run(&v3, LONG).await?;
            ensure!(!cluster.is_cordoned("node1").await?, "node1 is schedulable again");
            // Leaving every pool and deleting a pool leave the hosts as they are, and remove all of Berth's marks.
            let v4 = cluster.publish("4.0.0").await?;
            cluster
                .pool_of(
                    "b",
                    json!({ "pool": "b" }),
                    &v4.reference,
                    json!({ "paused": true, "maxStaging": 2 }),
                )
                .await?;
            until_phase(cluster, "node1", "Waiting").await?;
            until_phase(cluster, "node2", "Waiting").await?;
            label("node1", "none").await?;
            cluster
                .until("node1 is released", SOON, || async {
                    let released = cluster.bootc_nodes().get_opt("node1").await?.is_none();
                    Ok(released && cluster.host(1).facts().staged.is_none())
                })
                .await?;
            cluster.pools().delete("b", &DeleteParams::default()).await?;
            cluster
                .until("the pool and node2 are released", SOON, || async {
                    let gone = cluster.pools().get_opt("b").await?.is_none()
                        && cluster.bootc_nodes().get_opt("node2").await?.is_none();
                    Ok(gone && cluster.host(2).facts().staged.is_none())
                })
                .await
        })
    })
    .await
}
