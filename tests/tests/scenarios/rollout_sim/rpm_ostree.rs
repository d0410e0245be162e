//! Hosts that rpm-ostree updates, beside hosts that bootc updates.

use berth_api::backend::Backend;
use berth_tests::hosts::sim::Updaters;
use berth_tests::rpmostreed::client::Client;

use super::*;

fn updated_by(updaters: &[Updaters], change: impl FnOnce(&mut Settings)) -> ClusterOptions {
    ClusterOptions {
        updaters: updaters.to_vec(),
        ..hosts_with(updaters.len(), change)
    }
}

/// Hosts of all kinds are updated one after another. A daemon dies during one pull, and an agent is killed during
/// another. On a third host, an admin has installed a package, which the update keeps.
#[tokio::test]
async fn hosts_of_all_kinds_are_updated_and_keep_their_packages() -> Result<()> {
    let kinds = [Updaters::Bootc, Updaters::RpmOstree, Updaters::Both, Updaters::Layered];
    let options = updated_by(&kinds, |s| s.pull_time = Duration::from_secs(1));
    scenario(options, async |cluster| {
        cluster.host(2).rpm_ostree(|f| f.dies_in_transaction = 1);
        let foreign = cluster.host(3).rpm_ostree_client().await?;
        foreign.install(&["vim"]).await?;
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        until_so(cluster, "node4 pulls", || pulls(cluster, "node4") > 0).await?;
        cluster.host(4).kill_agent();
        cluster.until_all_run(&v2, LONG).await?;
        for (n, packages) in [(1, vec![]), (2, vec![]), (3, vec!["vim"]), (4, vec!["htop"])] {
            let facts = cluster.host(n).facts();
            ensure!(facts.packages == packages, "node{n}: {facts:?}");
        }
        let pulled = ["node1", "node2", "node3", "node4"].map(|node| pulls(cluster, node));
        ensure!(pulled == [1, 2, 1, 1], "node2's daemon died once: {pulled:?}");
        let boots = cluster.boots();
        ensure!(boots.values().all(|&n| n == 2), "each host boots once more: {boots:?}");
        for n in 1..=4 {
            let backend = cluster.node_status(cluster.host(n).name()).await?.backend;
            let tool = if n == 1 { Backend::Bootc } else { Backend::RpmOstree };
            ensure!(backend.as_ref().is_some_and(|b| b.name == tool), "node{n}: {backend:?}");
        }
        let layered = cluster.node_status("node4").await?.backend.unwrap_or_default();
        ensure!(layered.layered_packages == ["htop"], "{layered:?}");
        for n in 2..=4 {
            let commands = cluster.host(n).commands();
            let switch = commands
                .iter()
                .find(|c| c.starts_with("/usr/bin/bootc switch ") && c.contains("@sha256:"));
            ensure!(switch.is_none(), "no update uses both programs: {switch:?} on node{n}");
        }
        Ok(())
    })
    .await
}

/// If ostree cannot unlock, rpm-ostree unlocks and reboots in one call, under the same commit. A host also leaves an
/// unproven image with this call.
#[tokio::test]
async fn rpm_ostree_finalizes_where_ostree_cannot_unlock() -> Result<()> {
    let options = updated_by(&[Updaters::RpmOstree, Updaters::Layered], |s| s.old_ostree = true);
    scenario(options, async |cluster| {
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        cluster.until_all_run(&v2, LONG).await?;
        cluster.judge()?;
        let v3 = cluster.publish("3.0.0").await?;
        cluster.settings(|s| s.never_ready = [v3.digest.to_string()].into());
        let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%" });
        cluster.pool("workers", &v3.reference, rollout.clone()).await?;
        cluster
            .until("one host runs the bad image", LONG, async || {
                Ok(cluster.running(&v3) == 1)
            })
            .await?;
        cluster.pool("workers", &v2.reference, rollout).await?;
        cluster.until_all_run(&v2, LONG).await?;
        ensure!(cluster.host(2).facts().packages == ["htop"]);
        let boots: usize = cluster.boots().values().sum();
        ensure!(boots == 2 + 2 + 2, "one host goes there and back: {boots} boots");
        Ok(())
    })
    .await
}

/// A transaction whose socket does not answer may last for hours: the agent reports it, and stays alive.
#[tokio::test]
async fn a_transaction_that_does_not_answer_is_reported() -> Result<()> {
    let options = ClusterOptions {
        agent_args: vec!["--heartbeat=10".to_owned()],
        ..updated_by(&[Updaters::RpmOstree], |s| s.pull_time = Duration::from_secs(3600))
    };
    scenario(options, async |cluster| {
        let host = cluster.host(1);
        roll_to(cluster, "2.0.0", 1).await?;
        until_so(cluster, "node1 pulls", || pulls(cluster, "node1") > 0).await?;
        cluster.until_phase("node1", "Staging").await?;
        host.rpm_ostree(|f| f.mute_sockets = true);
        host.kill_agent();
        until_degraded(cluster, "node1", "HostUnreachable", "rpm-ostreed").await?;
        signs_of_life(cluster, "node1", 2).await?;
        // The socket answers again: the agent joins the pull of the withdrawn image, and stops it.
        host.settings(|s| s.pull_time = Duration::from_millis(100));
        let v3 = set_to(cluster, "3.0.0").await?;
        host.rpm_ostree(|f| f.mute_sockets = false);
        cluster.until_all_run(&v3, LONG).await?;
        ensure!(host.facts().version == "3.0.0", "{:?}", host.facts());
        Ok(())
    })
    .await
}

/// An admin layers a package on the staged image, and locking the new deployment fails. The node reports that until the
/// admin removes the deployment.
async fn a_layer_that_cannot_be_locked(cluster: &Cluster, waits: &str) -> Result<()> {
    let host = cluster.host(1);
    host.settings(|s| s.lock_failures = u32::MAX);
    let foreign = host.rpm_ostree_client().await?;
    foreign.install(&["strace"]).await?;
    // The next agent looks at its host at once.
    host.kill_agent();
    until_degraded(cluster, "node1", "LockFailed", "any reboot applies it").await?;
    let facts = host.facts();
    ensure!(facts.staged.as_deref() == Some(waits) && !facts.locked, "{facts:?}");
    let dropping = foreign.os().await?.cleanup(&["pending-deploy"]).await?;
    let dropped = foreign.follow(&dropping).await?;
    ensure!(dropped.ok, "{}", dropped.words);
    host.settings(|s| s.lock_failures = 0);
    host.kill_agent();
    until_so(cluster, "the image is staged again, and locked", || host.facts().locked).await
}

/// Starts a transaction of rpm-ostree as another client. The transaction stays open until the returned client is
/// dropped.
async fn hold(cluster: &Cluster) -> Result<Client> {
    let host = cluster.host(1);
    let foreign = host.rpm_ostree_client().await?;
    soon(cluster, "another client has begun a transaction", async || {
        Ok(foreign.os().await?.cleanup(&["repomd"]).await.is_ok())
    })
    .await?;
    Ok(foreign)
}

/// A reboot outside of a turn applies nothing. A package layered on the staged image is applied with it in the turn.
#[tokio::test]
async fn an_unrelated_reboot_applies_nothing_of_rpm_ostree() -> Result<()> {
    let options = updated_by(&[Updaters::RpmOstree, Updaters::Both], |_| {});
    scenario(options, async |cluster| {
        let v2 = cluster.publish("2.0.0").await?;
        // The agent waits for a foreign transaction before it stages, locks and unlocks.
        let foreign = hold(cluster).await?;
        let rollout = json!({ "paused": true, "maxUnavailable": 1, "maxStaging": "100%" });
        cluster.pool("workers", &v2.reference, rollout).await?;
        until_degraded(cluster, "node1", "HostBusy", "").await?;
        drop(foreign);
        for node in ["node1", "node2"] {
            cluster.until_phase(node, "Waiting").await?;
        }
        cluster.unrelated_reboot(cluster.host(1)).await?;
        ensure!(cluster.host(1).facts().version == "1.0.0", "the image was locked");
        let v2_digest = v2.digest.to_string();
        until_so(cluster, "the image is staged again", || {
            cluster.host(1).facts().staged.as_ref() == Some(&v2_digest)
        })
        .await?;
        a_layer_that_cannot_be_locked(cluster, &v2_digest).await?;
        // An admin layers a package on the staged image: the turn applies it with the image.
        let host = cluster.host(1);
        host.rpm_ostree_client().await?.install(&["vim"]).await?;
        host.kill_agent();
        until_so(cluster, "the new deployment is locked", || host.facts().locked).await?;
        let foreign = hold(cluster).await?;
        cluster.pause("workers", false).await?;
        until_degraded(cluster, "node1", "HostBusy", "").await?;
        // Longer than three tries take.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let turn = cluster.node_status("node1").await?;
        ensure!(turn.berth.is_some() && turn.last_turn.is_none(), "{turn:?}");
        ensure!(host.facts().locked, "the node waits, drained and locked");
        drop(foreign);
        cluster.until_all_run(&v2, LONG).await?;
        ensure!(host.facts().packages == ["vim"]);
        // Packages for the running image wait for the next image.
        host.rpm_ostree_client().await?.install(&["strace"]).await?;
        host.kill_agent();
        until_degraded(cluster, "node1", "ForeignStaged", "other packages").await?;
        Ok(())
    })
    .await
}
