//! Hosts that reboot unexpectedly, cannot stage, or fail during their turn.

use berth_api::node::timeline::TurnOutcome;

use super::*;

#[tokio::test]
async fn an_unrelated_reboot_applies_nothing() -> Result<()> {
    scenario(hosts(1), async |cluster| {
        let v2 = cluster.publish("2.0.0").await?;
        cluster
            .pool(
                "workers",
                &v2.reference,
                json!({ "paused": true, "maxStaging": "100%" }),
            )
            .await?;
        cluster.until_phase("node1", "Waiting").await?;
        let host = cluster.host(1);
        ensure!(host.facts().locked, "a staged image is locked");
        cluster.unrelated_reboot(host).await?;
        ensure!(host.facts().version == "1.0.0", "the reboot applied it");
        cluster.until_phase("node1", "Waiting").await?;
        cluster.excuse("node1");
        host.power_cut().await?;
        ensure!(host.facts().version == "1.0.0", "the power cut applied it");
        cluster.pause("workers", false).await?;
        cluster.until_all_run(&v2, LONG).await
    })
    .await
}

#[tokio::test]
async fn each_host_failure_has_its_own_reason() -> Result<()> {
    scenario(hosts(9), async |cluster| {
        cluster.host(1).settings(|s| s.not_bootc = true);
        cluster.host(2).layer(&["htop"]);
        cluster.host(3).settings(|s| s.bootc_missing = true);
        cluster.host(4).settings(|s| s.bootc_version = "1.5.0".to_owned());
        cluster.host(5).settings(|s| s.registry_down = true);
        cluster.host(6).settings(|s| s.disk_full = true);
        cluster
            .host(7)
            .settings(|s| s.rivals.extend(["zincati.service".to_owned()]));
        cluster.kill_agents();
        let v2 = roll_to(cluster, "2.0.0", 9).await?;
        for (node, reason) in [
            ("node1", "NotBootcHost"),
            ("node2", "LayeredHost"),
            ("node3", "BootcMissing"),
            ("node4", "BootcTooOld"),
            ("node5", "RegistryUnavailable"),
            ("node6", "DiskFull"),
            ("node7", "RivalUpdater"),
        ] {
            until_degraded(cluster, node, reason, "").await?;
            let conditions = cluster.node_status(node).await?.conditions;
            let said = berth_api::condition::find(&conditions, "NodeDegraded");
            ensure!(said.is_some_and(|c| !c.message.is_empty()), "{node}: {said:?}");
        }
        // The node with a rival and the two healthy nodes are updated nevertheless.
        cluster.until_booted(&v2, &[7, 8, 9]).await?;
        // A digest that the hosts cannot find.
        let v3 = cluster.publish("3.0.0").await?;
        cluster.forget(&v3);
        cluster.set_image("workers", &v3.reference).await?;
        let words = "manifest unknown";
        until_degraded(cluster, "node8", "ImageNotFound", words).await?;
        // Repaired hosts continue automatically.
        for n in 5..=6 {
            cluster
                .host(n)
                .settings(|s| (s.registry_down, s.disk_full) = (false, false));
        }
        cluster.set_image("workers", &v2.reference).await?;
        let mended = [cluster.host(5), cluster.host(6)];
        cluster.until_run(&v2, &mended, LONG).await
    })
    .await
}

/// Waits until the node's last turn has this outcome, with these words, and the node is schedulable.
async fn until_turn_ends(cluster: &Cluster, node: &str, outcome: &str, words: &str, limit: Duration) -> Result<()> {
    cluster
        .until(&format!("the turn of {node} ends as {outcome}"), limit, || async {
            let turn = cluster.node_status(node).await?.last_turn;
            let has_ended = turn.is_some_and(|t| t.outcome == outcome && t.message.contains(words));
            Ok(has_ended && !cluster.is_cordoned(node).await?)
        })
        .await
}

#[tokio::test]
async fn hosts_that_misbehave_in_their_turn() -> Result<()> {
    scenario(hosts(8), async |cluster| {
        let v2 = cluster.publish("2.0.0").await?;
        let v9 = cluster.publish("9.0.0").await?;
        let digest = v2.digest.to_string();
        cluster.host(1).settings(|s| s.reboot = RebootFault::Lost);
        cluster.host(2).settings(|s| {
            s.reboot = RebootFault::Refused {
                name: "org.freedesktop.DBus.Error.AccessDenied".to_owned(),
                message: "not today".to_owned(),
            }
        });
        let inhibitor = Inhibitor::block("backup", "copies the disk");
        cluster.host(3).settings(|s| s.inhibitors = vec![inhibitor]);
        cluster.host(4).settings(|s| s.finalization_failures = 1);
        cluster.host(5).settings(|s| s.never_ready = [digest].into());
        cluster.host(6).settings(|s| s.staged_then_fails = 1);
        cluster.host(7).settings(|s| s.pull_time = Duration::from_secs(5));
        let host = cluster.host(8);
        host.stage_behind_the_agent(&v9.pinned, &v9.digest.to_string());
        let rollout = json!({ "maxUnavailable": 8, "maxStaging": 8, "rebootTimeout": "3s" });
        cluster.pool("workers", &v2.reference, rollout).await?;
        cluster.until_phase("node7", "Staging").await?;
        cluster.host(7).restart_bus().await?;
        // Hosts with a temporary fault end updated; node6 only after another pull of the image with its bound image.
        cluster.until_booted(&v2, &[4, 6, 7, 8]).await?;
        // Rebooted into the previous image; then a second turn.
        let turns = [TurnOutcome::Proven, TurnOutcome::NotApplied];
        for turn in records::until_outcomes(cluster, "node4", &turns).await? {
            records::ensure_followed(cluster, "node4", &turn)?;
        }
        ensure!(pulls(cluster, "node6") == 2, "node6 did not pull again");
        let words = "not today";
        until_turn_ends(cluster, "node2", "RebootBlocked", words, SOON).await?;
        let said = ("UpdatePrepared", "False", "Inhibited", "backup");
        cluster.until_node_says("node3", said, SOON).await?;
        // node5 is not proven, reports why and keeps its berth.
        until_degraded(cluster, "node5", "NodeNotReady", "").await?;
        soon(cluster, "node5 holds a berth", async || {
            Ok(cluster.held().await?.contains(&"node5".to_owned()))
        })
        .await?;
        // A reboot that never begins: node1 locks again and gives back.
        until_turn_ends(cluster, "node1", "RebootBlocked", "", LONG).await?;
        for n in 1..=3 {
            let facts = cluster.host(n).facts();
            ensure!(facts.version == "1.0.0" && facts.locked, "node{n}: {facts:?}");
        }
        // After the inhibitor is gone, the node continues automatically.
        cluster.host(3).settings(|s| s.inhibitors.clear());
        cluster.until_booted(&v2, &[3]).await
    })
    .await
}
