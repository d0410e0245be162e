//! Hosts that change their image without Berth, on simulated hosts: boots that fall back, rollbacks and other boots without
//! a berth.

use anyhow::{Context, Result, ensure};
use berth_api::node::BootSafeguard;
use berth_api::node::timeline::ChapterName;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Published, has_condition, soon};
use berth_tests::hosts::sim::{SimHost, Updaters};
use serde_json::json;

async fn until_degraded(cluster: &Cluster, host: &SimHost, reason: &str, words: &str) -> Result<()> {
    soon(cluster, reason, || async {
        let conditions = cluster.node_status(host.name()).await?.conditions;
        Ok(has_condition(&conditions, ("NodeDegraded", "True", reason, words)))
    })
    .await
}

/// The boots of the new image hang: the boot loader of the first node falls back, and the rollout halts.
async fn falls_back(updaters: Updaters) -> Result<()> {
    let options = ClusterOptions {
        updaters: vec![updaters; 3],
        ..ClusterOptions::of(3)
    };
    let cluster = Cluster::start(options).await?;
    let body = async {
        let bad = cluster.publish("2.0.0").await?;
        cluster.settings(|s| s.hanging = [bad.digest.to_string()].into());
        let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%" });
        cluster.pool("workers", &bad.reference, rollout).await?;
        let halted = ("RolloutHalted", "True", "TooManyFailures", "");
        cluster.until_says("workers", halted, LONG).await?;
        let first = cluster.boots().into_iter().find(|(_, boots)| *boots == 2);
        let (name, _) = first.context("no node rebooted once")?;
        let host = cluster.fleet.hosts.iter().find(|host| host.name() == name);
        let host = host.context("its host is gone")?;
        until_degraded(
            &cluster,
            host,
            "FellBack",
            "was finalized, but the host booted the previous image",
        )
        .await?;
        until_degraded(&cluster, host, "FellBack", "the next boot would take").await?;
        ensure!(host.facts().booted != bad.digest.to_string(), "{:?}", host.facts());
        soon(&cluster, "the berth is given back", || async {
            Ok(cluster.held().await?.is_empty())
        })
        .await?;
        ensure!(!cluster.is_cordoned(&name).await?, "{name} is still cordoned");
        let told = cluster.node_status(&name).await?;
        ensure!(told.failed_digests == [bad.digest.clone()], "{told:?}");
        let update = told.timeline.updates.first().context("the timeline is empty")?;
        ensure!(update.chapter(ChapterName::RolledBack).is_some(), "{update:?}");
        let safeguards = told
            .boot_safeguards
            .context("the agent has not read what guards the boots")?;
        let expected = [BootSafeguard::GrubBootCounter, BootSafeguard::HardwareWatchdog];
        ensure!(safeguards == expected, "{safeguards:?}");
        let good = cluster.publish("3.0.0").await?;
        cluster.set_image("workers", &good.reference).await?;
        cluster.until_all_run(&good, LONG).await?;
        let boots: Vec<_> = cluster.boots().into_iter().collect();
        let expected = |(node, n): &(String, usize)| *n == if *node == name { 3 } else { 2 };
        ensure!(
            boots.iter().all(expected),
            "only {name} tried the bad image, once: {boots:?}"
        );
        Ok(())
    };
    let result = body.await;
    cluster.judged(result).await
}

#[tokio::test]
async fn a_boot_that_falls_back_fails_its_image() -> Result<()> {
    falls_back(Updaters::Bootc).await
}

#[tokio::test]
async fn a_boot_of_rpm_ostree_falls_back() -> Result<()> {
    falls_back(Updaters::RpmOstree).await
}

/// The cause was not in the image: after a retry the image is applied, although it is already first in the host's boot
/// order.
#[tokio::test]
async fn an_image_that_fell_back_is_retried() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions::of(1)).await?;
    let body = async {
        let host = cluster.host(1);
        let image = cluster.publish("2.0.0").await?;
        cluster.settings(|s| s.hanging = [image.digest.to_string()].into());
        cluster.pool("workers", &image.reference, json!({})).await?;
        let halted = ("RolloutHalted", "True", "TooManyFailures", "");
        cluster.until_says("workers", halted, LONG).await?;
        soon(&cluster, "the berth is given back", || async {
            Ok(cluster.held().await?.is_empty())
        })
        .await?;
        cluster.settings(|s| s.hanging.clear());
        cluster
            .patch_pool("workers", json!({ "rollout": { "retryToken": "again" } }))
            .await?;
        cluster.until_all_run(&image, LONG).await?;
        ensure!(cluster.boots_of(host) == 3, "{:?}", cluster.boots());
        Ok(())
    };
    let result = body.await;
    cluster.judged(result).await
}

/// Starts a cluster of three hosts, and waits until all run the image of this version.
async fn updated(version: &str) -> Result<(Cluster, Published)> {
    let cluster = Cluster::start(ClusterOptions::of(3)).await?;
    let image = cluster.publish(version).await?;
    let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%" });
    cluster.pool("workers", &image.reference, rollout).await?;
    cluster.until_all_run(&image, LONG).await?;
    for host in &cluster.fleet.hosts {
        cluster.until_phase(host.name(), "Updated").await?;
    }
    Ok((cluster, image))
}

/// Berth reports the rollback and does not undo it. The image returns only after a retry, and with a berth.
#[tokio::test]
async fn a_rollback_by_others_is_reported() -> Result<()> {
    let (cluster, v2) = updated("2.0.0").await?;
    let body = async {
        let host = cluster.host(1);
        cluster.excuse_swap(host.name());
        host.roll_back_behind_the_agent()?;
        host.reboot_now().await?;
        until_degraded(&cluster, host, "RolledBackExternally", "without a berth").await?;
        ensure!(host.facts().staged.is_none(), "{:?}", host.facts());
        let told = cluster.node_status(host.name()).await?;
        ensure!(told.failed_digests == [v2.digest.clone()], "{told:?}");
        ensure!(cluster.held().await?.is_empty(), "nothing is disturbed");
        cluster
            .patch_pool("workers", json!({ "rollout": { "retryToken": "again" } }))
            .await?;
        cluster.until_all_run(&v2, LONG).await?;
        cluster.until_phase(host.name(), "Updated").await?;
        ensure!(
            cluster.boots_of(host) == 4,
            "1.0.0, 2.0.0, 1.0.0, 2.0.0: {:?}",
            cluster.boots()
        );
        let others = cluster.fleet.hosts.iter().skip(1);
        ensure!(
            others.map(|host| cluster.boots_of(host)).all(|n| n == 2),
            "{:?}",
            cluster.boots()
        );
        Ok(())
    };
    let result = body.await;
    cluster.judged(result).await
}

/// An admin rolls one host back and boots a foreign image on another. The pool's next image reaches both as usual.
#[tokio::test]
async fn a_host_that_was_changed_by_hand_gets_the_next_image() -> Result<()> {
    let (cluster, _) = updated("2.0.0").await?;
    let body = async {
        let [rolled, switched] = [cluster.host(1), cluster.host(2)];
        let foreign = cluster.publish("7.0.0").await?;
        for host in [rolled, switched] {
            cluster.excuse_swap(host.name());
            host.stop_agent().await;
        }
        rolled.roll_back_behind_the_agent()?;
        switched.stage_behind_the_agent(&foreign.reference, &foreign.digest.to_string());
        cluster.pause("workers", true).await?;
        for host in [rolled, switched] {
            host.reboot_now().await?;
            host.start_agent();
        }
        until_degraded(&cluster, rolled, "RolledBackExternally", "").await?;
        until_degraded(&cluster, switched, "BootedUnexpectedImage", "without a berth").await?;
        let told = cluster.node_status(switched.name()).await?;
        ensure!(told.failed_digests.is_empty(), "{told:?}");
        let good = cluster.publish("3.0.0").await?;
        cluster.set_image("workers", &good.reference).await?;
        cluster.pause("workers", false).await?;
        cluster.until_all_run(&good, LONG).await?;
        for host in &cluster.fleet.hosts {
            soon(&cluster, "nothing is left to report", || async {
                let conditions = cluster.node_status(host.name()).await?.conditions;
                Ok(has_condition(&conditions, ("NodeDegraded", "False", "AsExpected", "")))
            })
            .await?;
        }
        Ok(())
    };
    let result = body.await;
    cluster.judged(result).await
}
