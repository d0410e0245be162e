//! Hosts that reboot unexpectedly, cannot stage, or fail during their turn.

use berth_api::node::timeline::TurnOutcome;

use super::*;

#[tokio::test]
async fn an_unrelated_reboot_applies_nothing() -> Result<()> {
    scenario("an_unrelated_reboot_applies_nothing", hosts(1), |cluster| {
        Box::pin(async move {
            let v2 = cluster.publish("2.0.0").await?;
            cluster
                .pool(
                    "workers",
                    &v2.reference,
                    json!({ "paused": true, "maxStaging": "100%" }),
                )
                .await?;
            until_phase(cluster, "node1", "Waiting").await?;
            let host = cluster.host(1);
            ensure!(host.facts().locked, "a staged image is locked");
            cluster.unrelated_reboot(host).await?;
            ensure!(
                host.facts().version == "1.0.0",
                "the reboot applied {}",
                host.facts().version
            );
            until_phase(cluster, "node1", "Waiting").await?;
            cluster.excuse("node1");
            host.power_cut().await?;
            ensure!(
                host.facts().version == "1.0.0",
                "the power cut applied {}",
                host.facts().version
            );
            cluster
                .patch_pool("workers", json!({ "rollout": { "paused": false } }))
                .await?;
            cluster.until_all_run(&v2, LONG).await
        })
    })
    .await
}

#[tokio::test]
async fn each_host_failure_has_its_own_reason() -> Result<()> {
    scenario("each_host_failure_has_its_own_reason", hosts(9), |cluster| {
        Box::pin(async move {
            let expected = [
                "NotBootcHost",
                "LayeredHost",
                "BootcMissing",
                "BootcTooOld",
                "RegistryUnavailable",
                "DiskFull",
                "RivalUpdater",
                "ImageNotFound",
            ];
            let change = |n: usize, f: fn(&mut Settings)| cluster.host(n).settings(f);
            change(1, |s| s.not_bootc = true);
            cluster.host(2).layer(&["htop"]);
            change(3, |s| s.bootc_missing = true);
            change(4, |s| s.bootc_version = "1.5.0".to_owned());
            change(5, |s| s.registry_down = true);
            change(6, |s| s.disk_full = true);
            change(7, |s| s.rivals.extend(["zincati.service".to_owned()]));
            for n in 1..=9 {
                cluster.host(n).kill_agent();
            }
            let v2 = roll_to(cluster, "2.0.0", 9).await?;
            let degraded = async |n: usize| {
                let name = format!("node{n}");
                let status = cluster
                    .bootc_nodes()
                    .get_opt(&name)
                    .await?
                    .and_then(|o| o.status)
                    .unwrap_or_default();
                let condition = berth_api::condition::find(&status.conditions, "NodeDegraded").cloned();
                anyhow::Ok(condition.filter(|c| c.status == "True").map(|c| (c.reason, c.message)))
            };
            for (i, reason) in expected.iter().enumerate().take(7) {
                let n = i + 1;
                cluster
                    .until(&format!("node{n} reports {reason}"), SOON, || async {
                        Ok(degraded(n)
                            .await?
                            .is_some_and(|(r, message)| r == *reason && !message.is_empty()))
                    })
                    .await?;
            }
            // The node with a rival and the two healthy nodes are updated nevertheless.
            let healthy = [cluster.host(7), cluster.host(8), cluster.host(9)];
            cluster
                .until("the healthy ones are updated", LONG, || async {
                    Ok(healthy.iter().all(|h| h.facts().booted == v2.digest.to_string()))
                })
                .await?;
            // A digest that the hosts cannot find.
            let v3 = cluster.publish("3.0.0").await?;
            cluster.forget(&v3);
            cluster
                .patch_pool("workers", json!({ "image": { "ref": v3.reference } }))
                .await?;
            cluster
                .until("node8 reports ImageNotFound", SOON, || async {
                    Ok(degraded(8)
                        .await?
                        .is_some_and(|(r, message)| r == "ImageNotFound" && message.contains("manifest unknown")))
                })
                .await?;
            // Repaired hosts continue automatically.
            for n in 5..=6 {
                change(n, |s| (s.registry_down, s.disk_full) = (false, false));
            }
            cluster
                .patch_pool("workers", json!({ "image": { "ref": v2.reference } }))
                .await?;
            let mended = [cluster.host(5), cluster.host(6)];
            cluster.until_run(&v2, &mended, LONG).await
        })
    })
    .await
}

#[tokio::test]
async fn hosts_that_misbehave_in_their_turn() -> Result<()> {
    scenario("hosts_that_misbehave_in_their_turn", hosts(8), |cluster| {
        Box::pin(async move {
            let v2 = cluster.publish("2.0.0").await?;
            let v9 = cluster.publish("9.0.0").await?;
            let digest = v2.digest.to_string();
            let change = |n: usize, f: &dyn Fn(&mut Settings)| cluster.host(n).settings(f);
            change(1, &|s| s.reboot = RebootFault::Lost);
            let name = "org.freedesktop.DBus.Error.AccessDenied".to_owned();
            change(2, &|s| {
                s.reboot = RebootFault::Refused {
                    name: name.clone(),
                    message: "not today".to_owned(),
                }
            });
            change(3, &|s| {
                s.inhibitors = vec![Inhibitor::block("backup", "copies the disk")]
            });
            change(4, &|s| s.finalization_failures = 1);
            change(5, &|s| s.never_ready = [digest.clone()].into());
            change(6, &|s| s.staged_then_fails = 1);
            change(7, &|s| s.pull_time = Duration::from_secs(5));
            cluster
                .host(8)
                .stage_behind_the_agent(&v9.pinned, &v9.digest.to_string());
            let rollout = json!({ "maxUnavailable": 8, "maxStaging": 8, "rebootTimeout": "3s" });
            cluster.pool("workers", &v2.reference, rollout).await?;
            until_phase(cluster, "node7", "Staging").await?;
            cluster.host(7).restart_bus().await?;
            // Hosts with a temporary fault end updated; node6 only after it has pulled the image with its bound image again.
            let mended: Vec<_> = [4, 6, 7, 8].map(|n| cluster.host(n)).into();
            cluster
                .until("nodes 4, 6, 7 and 8 run 2.0.0", LONG, || async {
                    Ok(mended.iter().all(|h| h.facts().booted == digest))
                })
                .await?;
            // Rebooted into the previous image; then a second turn.
            let turns = [TurnOutcome::Proven, TurnOutcome::NotApplied];
            for turn in records::until_outcomes(cluster, "node4", &turns).await? {
                records::ensure_followed(cluster, "node4", &turn)?;
            }
            ensure!(
                pulls(cluster, "node6") == 2,
                "an incomplete image is not booted, but pulled again"
            );
            let status = async |n: usize| {
                let object = cluster.bootc_nodes().get(&format!("node{n}")).await?;
                anyhow::Ok(object.status.unwrap_or_default())
            };
            cluster
                .until("node2 reports that its reboot was refused", SOON, || async {
                    let turn = status(2).await?.last_turn;
                    Ok(turn.is_some_and(|t| t.outcome == "RebootBlocked" && t.message.contains("not today")))
                })
                .await?;
            cluster
                .until("node3 names the inhibitor", SOON, || async {
                    let conditions = status(3).await?.conditions;
                    let prepared = berth_api::condition::find(&conditions, "UpdatePrepared");
                    Ok(prepared.is_some_and(|c| c.reason == "Inhibited" && c.message.contains("backup")))
                })
                .await?;
            cluster
                .until("node5 is not proven, reports why and keeps its berth", SOON, || async {
                    let conditions = status(5).await?.conditions;
                    let degraded = berth_api::condition::find(&conditions, "NodeDegraded");
                    let said = degraded.is_some_and(|c| c.status == "True" && c.reason == "NodeNotReady");
                    Ok(said && cluster.held().await?.contains(&"node5".to_owned()))
                })
                .await?;
            cluster
                .until(
                    "node1 locks again and gives back after a reboot that never begins",
                    LONG,
                    || async {
                        let turn = status(1).await?.last_turn;
                        Ok(turn.is_some_and(|t| t.outcome == "RebootBlocked") && !cluster.is_cordoned("node1").await?)
                    },
                )
                .await?;
            for n in 1..=3 {
                let facts = cluster.host(n).facts();
                ensure!(
                    facts.version == "1.0.0" && facts.locked,
                    "node{n} still runs 1.0.0, with 2.0.0 locked: {facts:?}"
                );
            }
            // After the inhibitor is gone, the node continues automatically.
            change(3, &|s| s.inhibitors.clear());
            cluster
                .until("node3 runs 2.0.0", LONG, || async {
                    Ok(cluster.host(3).facts().booted == digest)
                })
                .await
        })
    })
    .await
}
