//! Admins who pause, cordon, delete and move in the middle of a rollout.

use super::*;

#[tokio::test]
async fn pause_holds_in_every_phase() -> Result<()> {
    let options = hosts_with(2, |s| {
        s.pull_time = Duration::from_secs(4);
        s.reboot_time = Duration::from_secs(5);
    });
    scenario(options, async |cluster| {
        cluster.deploy("web", 2).await?;
        cluster.budget("web", 2).await?;
        signs::annotate(cluster, "node2", "false").await?;
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        // While staging: staging continues, nothing is offered.
        some_in(cluster, "Staging").await?;
        cluster.pause("workers", true).await?;
        cluster.until_phase("node1", "Waiting").await?;
        cluster.until_phase("node2", "Waiting").await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        ensure!(cluster.held().await?.is_empty(), "a paused pool offers no berth");
        // While draining: the holder gives back.
        cluster.pause("workers", false).await?;
        let n = some_in(cluster, "Draining").await?;
        cluster.pause("workers", true).await?;
        let name = cluster.host(n).name().to_owned();
        cluster.until_phase(&name, "Waiting").await?;
        ensure!(cluster.held().await?.is_empty(), "an uncommitted holder gives back");
        ensure!(!cluster.is_cordoned(&name).await?, "and uncordons");
        golden::ensure_walk(&cluster.control_plane.audit_log(), &name, "taken-back")?;
        // After the commit: it finishes, and the next one does not start.
        cluster.remove_budget("web").await?;
        cluster.pause("workers", false).await?;
        some_in(cluster, "Rebooting").await?;
        cluster.pause("workers", true).await?;
        soon(cluster, "the committed node finishes", || async {
            Ok(cluster.held().await?.is_empty() && cluster.running(&v2) >= 1)
        })
        .await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        ensure!(cluster.running(&v2) == 1, "the other one goes");
        cluster.pause("workers", false).await?;
        cluster.until_all_run(&v2, LONG).await?;
        for node in ["node1", "node2"] {
            signs::ensure_shown(cluster, node, node == name, (node == "node2").then_some("false")).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_admins_cordon_stays() -> Result<()> {
    scenario(hosts(2), async |cluster| {
        cluster.cordon("node2", true).await?;
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        // A node that is already unavailable goes first, and uses up the capacity while it is unavailable.
        cluster.until_run(&v2, &[cluster.host(2)], LONG).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        ensure!(cluster.host(1).facts().version == "1.0.0", "node1 does not wait");
        cluster
            .until_says("workers", ("Progressing", "False", "Waiting", "node2"), SOON)
            .await?;
        cluster.allow("workers", 2);
        cluster
            .patch_pool("workers", json!({ "rollout": { "maxUnavailable": 2 } }))
            .await?;
        cluster.until_all_run(&v2, LONG).await?;
        ensure!(cluster.is_cordoned("node2").await?, "its admin's cordon is gone");
        ensure!(!cluster.is_cordoned("node1").await?, "node1 stays cordoned");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn nodes_go_and_come_back() -> Result<()> {
    scenario(hosts(3), async |cluster| {
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
        cluster.until_released(gone.name()).await?;
        // The node comes back under its name with another UID, and is treated like any other.
        gone.register().await?;
        cluster.renew_agent_token(gone).await?;
        gone.start_agent();
        cluster.until_all_run(&v2, LONG).await
    })
    .await
}

/// Creates or changes a pool of the nodes that have its name as their label.
async fn pool(cluster: &Cluster, name: &str, image: &Published, rollout: Value) -> Result<()> {
    let labels = json!({ "pool": name });
    cluster.pool_of(name, labels, &image.reference, rollout).await
}

#[tokio::test]
async fn a_node_moves_between_pools_in_its_turn() -> Result<()> {
    scenario(hosts(2), async |cluster| {
        cluster.label("node1", "pool", Some("a")).await?;
        cluster.label("node2", "pool", Some("b")).await?;
        cluster.deploy("web", 2).await?;
        cluster.budget("web", 2).await?;
        let v2 = cluster.publish("2.0.0").await?;
        let v3 = cluster.publish("3.0.0").await?;
        pool(cluster, "a", &v2, json!({ "maxUnavailable": 1 })).await?;
        cluster.until_phase("node1", "Draining").await?;
        pool(cluster, "b", &v3, json!({ "maxUnavailable": 1 })).await?;
        cluster.label("node1", "pool", Some("b")).await?;
        cluster.remove_budget("web").await?;
        cluster.until_all_run(&v3, LONG).await?;
        ensure!(!cluster.is_cordoned("node1").await?, "node1 is schedulable again");
        // Leaving every pool and deleting a pool leave the hosts as they are, and remove all of Berth's marks.
        let v4 = cluster.publish("4.0.0").await?;
        pool(cluster, "b", &v4, json!({ "paused": true, "maxStaging": 2 })).await?;
        cluster.until_phase("node1", "Waiting").await?;
        cluster.until_phase("node2", "Waiting").await?;
        cluster.label("node1", "pool", Some("none")).await?;
        soon(cluster, "node1 is released", || async {
            let released = cluster.bootc_nodes().get_opt("node1").await?.is_none();
            Ok(released && cluster.host(1).facts().staged.is_none())
        })
        .await?;
        cluster.pools().delete("b", &DeleteParams::default()).await?;
        soon(cluster, "the pool and node2 are released", || async {
            let gone = cluster.pools().get_opt("b").await?.is_none()
                && cluster.bootc_nodes().get_opt("node2").await?.is_none();
            Ok(gone && cluster.host(2).facts().staged.is_none())
        })
        .await
    })
    .await
}
