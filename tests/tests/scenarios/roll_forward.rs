//! Nodes that are stuck under a boot that cannot be proven, on simulated hosts: how they recover.

use anyhow::{Context, Result, ensure};
use berth_api::berth::{BerthState, lease};
use berth_api::keys;
use berth_api::node::BootcNodeStatus;
use berth_api::node::timeline::ChapterName;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Published, SOON};
use berth_tests::golden;
use berth_tests::hosts::sim::{Inhibitor, SimHost};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

/// Starts hosts that never become Ready with the image; one of them is stuck under it with a berth.
async fn stuck(hosts: usize, rollout: serde_json::Value) -> Result<(Cluster, Published, SimHost)> {
    let cluster = Cluster::start(ClusterOptions {
        hosts,
        ..ClusterOptions::default()
    })
    .await?;
    cluster.deploy("web", hosts).await?;
    let bad = cluster.publish("2.0.0").await?;
    for host in &cluster.fleet.hosts {
        host.settings(|s| s.never_ready = [bad.digest.to_string()].into());
    }
    cluster.pool("workers", &bad.reference, rollout).await?;
    let digest = bad.digest.to_string();
    let runs = |h: &&SimHost| h.facts().booted == digest;
    cluster
        .until("a node is stuck under the bad image", LONG, || async {
            let Some(host) = cluster.fleet.hosts.iter().find(runs) else {
                return Ok(false);
            };
            Ok(cluster.phase(host.name()).await? == "Proving")
        })
        .await?;
    let host = cluster
        .fleet
        .hosts
        .iter()
        .find(runs)
        .context("no node is stuck")?
        .clone();
    Ok((cluster, bad, host))
}

async fn finish(name: &str, cluster: &Cluster, result: Result<()>) -> Result<()> {
    if let Err(error) = result {
        let violations = cluster.violations()?;
        eprintln!(
            "{name} failed; violations: {violations:#?}\n{}",
            cluster.describe().await
        );
        return Err(error);
    }
    cluster.judge()
}

async fn status(cluster: &Cluster, node: &str) -> Result<BootcNodeStatus> {
    Ok(cluster.bootc_nodes().get(node).await?.status.unwrap_or_default())
}

fn boots(cluster: &Cluster, host: &SimHost) -> usize {
    cluster.boots().get(host.name()).copied().unwrap_or_default()
}

#[tokio::test]
async fn a_stuck_node_keeps_its_berth_for_the_next_image() -> Result<()> {
    let (cluster, _, host) = stuck(3, json!({ "maxUnavailable": 1, "maxStaging": "100%" })).await?;
    let body = async {
        // An inhibitor delays the reboot for a while: the node waits, locked, with the berth.
        host.settings(|s| s.inhibitors = vec![Inhibitor::block("backup", "copies the disk")]);
        let good = cluster.publish("3.0.0").await?;
        cluster
            .patch_pool("workers", json!({ "image": { "ref": good.reference } }))
            .await?;
        cluster
            .until("the stuck node names the inhibitor", SOON, || async {
                let conditions = status(&cluster, host.name()).await?.conditions;
                let updated = berth_api::condition::find(&conditions, "Updated");
                Ok(updated.is_some_and(|c| c.reason == "Inhibited" && c.message.contains("backup")))
            })
            .await?;
        ensure!(
            host.facts().locked,
            "the staged image is locked meanwhile: {:?}",
            host.facts()
        );
        ensure!(
            cluster.held().await? == [host.name()],
            "the node keeps its berth: {:?}",
            cluster.held().await?
        );
        host.settings(|s| s.inhibitors.clear());
        cluster.until_all_run(&good, LONG).await?;
        ensure!(
            boots(&cluster, &host) == 3,
            "1.0.0, 2.0.0, 3.0.0 and no other: {:?}",
            cluster.boots()
        );
        let told = status(&cluster, host.name()).await?;
        ensure!(told.timeline.measured().reboot.is_some(), "{told:?}");
        let [went_on, replaced] = told.timeline.updates.as_slice() else {
            anyhow::bail!("{:?}", told.timeline)
        };
        ensure!(went_on.chapter(ChapterName::Completed).is_some(), "{went_on:?}");
        golden::ensure_walk(&cluster.control_plane.audit_log(), host.name(), "bad-image")?;
        ensure!(replaced.chapter(ChapterName::Replaced).is_some(), "{replaced:?}");
        Ok(())
    };
    let result = body.await;
    finish("roll forward", &cluster, result).await
}

/// The former target is set again before the stuck node has moved on. It is proven when the node becomes Ready.
#[tokio::test]
async fn a_paused_stuck_node_proves_the_former_target() -> Result<()> {
    let (cluster, bad, host) = stuck(2, json!({ "maxUnavailable": 1, "maxStaging": "100%" })).await?;
    let body = async {
        let other = cluster.publish("3.0.0").await?;
        cluster
            .patch_pool("workers", json!({ "rollout": { "paused": true } }))
            .await?;
        cluster
            .patch_pool("workers", json!({ "image": { "ref": other.reference } }))
            .await?;
        cluster
            .until("the stuck node has staged the next image, and waits", SOON, || async {
                let conditions = status(&cluster, host.name()).await?.conditions;
                let updated = berth_api::condition::find(&conditions, "Updated");
                Ok(updated.is_some_and(|c| c.reason == "Revoked") && host.facts().locked)
            })
            .await?;
        host.settings(|s| s.never_ready.clear());
        cluster
            .patch_pool("workers", json!({ "image": { "ref": bad.reference } }))
            .await?;
        // Its admin fixes the cause and reboots the node: the reboot does not apply the image that was staged and locked.
        cluster.excuse(host.name());
        host.reboot_now().await?;
        cluster
            .until("the berth is given back", SOON, || async {
                Ok(cluster.held().await?.is_empty())
            })
            .await?;
        ensure!(host.facts().booted == bad.digest.to_string(), "{:?}", host.facts());
        ensure!(
            boots(&cluster, &host) == 3,
            "1.0.0, 2.0.0 and its admin's reboot: {:?}",
            cluster.boots()
        );
        Ok(())
    };
    let result = body.await;
    finish("back to the former target", &cluster, result).await
}

#[tokio::test]
async fn an_excluded_node_gives_back_and_its_digest_has_failed() -> Result<()> {
    let (cluster, bad, host) = stuck(2, json!({ "maxUnavailable": 1, "maxStaging": "100%" })).await?;
    let body = async {
        let label = Patch::Merge(json!({ "metadata": { "labels": { keys::LABEL_EXCLUDE: "lost" } } }));
        cluster
            .nodes()
            .patch(host.name(), &PatchParams::default(), &label)
            .await?;
        cluster
            .until("the berth is given back", SOON, || async {
                Ok(cluster.held().await?.is_empty())
            })
            .await?;

        let of_pool = ListParams::default().labels(keys::LABEL_POOL);
        let berth = cluster
            .berths()
            .list(&of_pool)
            .await?
            .items
            .into_iter()
            .next()
            .context("the pool has no berth")?;
        let read = lease::read(&berth)?;
        ensure!(
            matches!(&read.state, BerthState::Closed(c) if c.last_target == Some(bad.digest.clone())),
            "{read:?}"
        );
        cluster
            .until("the image has failed maxFailures times", SOON, || async {
                let status = cluster.pools().get("workers").await?.status.unwrap_or_default();
                Ok(berth_api::condition::is_true(&status.conditions, "RolloutHalted"))
            })
            .await?;
        ensure!(
            cluster.fleet.running(&bad.digest.to_string()) == 1,
            "no other node gets the image"
        );
        Ok(())
    };
    let result = body.await;
    finish("exclude", &cluster, result).await
}
