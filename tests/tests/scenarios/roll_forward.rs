//! Nodes that are stuck under a boot that cannot be proven, on simulated hosts: how they recover.

use anyhow::{Context, Result, ensure};
use berth_api::berth::{BerthState, lease};
use berth_api::keys;
use berth_api::node::timeline::ChapterName;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Published, has_condition, soon};
use berth_tests::golden;
use berth_tests::hosts::sim::{Inhibitor, SimHost, Updaters};
use kube::api::ListParams;
use serde_json::json;

/// Returns a host that runs the image, if there is one.
fn runs<'a>(cluster: &'a Cluster, image: &Published) -> Option<&'a SimHost> {
    let digest = image.digest.to_string();
    let mut hosts = cluster.fleet.hosts.iter();
    hosts.find(|host| host.facts().booted == digest)
}

/// Starts hosts that never become Ready with the image. Returns one that is stuck under the image and holds a berth.
async fn stuck(hosts: usize, rollout: serde_json::Value) -> Result<(Cluster, Published, SimHost)> {
    let cluster = Cluster::start(ClusterOptions::of(hosts)).await?;
    cluster.deploy("web", hosts).await?;
    let bad = cluster.publish("2.0.0").await?;
    cluster.settings(|s| s.never_ready = [bad.digest.to_string()].into());
    cluster.pool("workers", &bad.reference, rollout).await?;
    cluster
        .until("a node is stuck under the bad image", LONG, || async {
            let Some(host) = runs(&cluster, &bad) else {
                return Ok(false);
            };
            Ok(cluster.phase(host.name()).await? == "Proving")
        })
        .await?;
    let host = runs(&cluster, &bad).context("no node is stuck")?.clone();
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

fn boots(cluster: &Cluster, host: &SimHost) -> usize {
    cluster.boots().get(host.name()).copied().unwrap_or_default()
}

#[tokio::test]
async fn a_stuck_node_keeps_its_berth_for_the_next_image() -> Result<()> {
    let (cluster, _, host) = stuck(3, json!({ "maxUnavailable": 1, "maxStaging": "100%" })).await?;
    let body = async {
        // An inhibitor blocks the reboot for a while: the node keeps its berth, and its staged image stays locked.
        host.settings(|s| s.inhibitors = vec![Inhibitor::block("backup", "copies the disk")]);
        let good = cluster.publish("3.0.0").await?;
        cluster.set_image("workers", &good.reference).await?;
        soon(&cluster, "the stuck node names the inhibitor", || async {
            let conditions = cluster.node_status(host.name()).await?.conditions;
            Ok(has_condition(&conditions, ("Updated", "False", "Inhibited", "backup")))
        })
        .await?;
        ensure!(host.facts().locked, "{:?}", host.facts());
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
        let told = cluster.node_status(host.name()).await?;
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

/// The former target is set again before the stuck node reboots into the next image. The node is proven when it becomes
/// Ready.
#[tokio::test]
async fn a_paused_stuck_node_proves_the_former_target() -> Result<()> {
    let (cluster, bad, host) = stuck(2, json!({ "maxUnavailable": 1, "maxStaging": "100%" })).await?;
    let body = async {
        let other = cluster.publish("3.0.0").await?;
        cluster.pause("workers", true).await?;
        cluster.set_image("workers", &other.reference).await?;
        soon(
            &cluster,
            "the stuck node has staged the next image, and waits",
            || async {
                let conditions = cluster.node_status(host.name()).await?.conditions;
                let updated = berth_api::condition::find(&conditions, "Updated");
                Ok(updated.is_some_and(|c| c.reason == "Revoked") && host.facts().locked)
            },
        )
        .await?;
        host.settings(|s| s.never_ready.clear());
        cluster.set_image("workers", &bad.reference).await?;
        // Its admin fixes the cause and reboots the node: the reboot does not apply the staged and locked image.
        cluster.excuse(host.name());
        host.reboot_now().await?;
        soon(&cluster, "the berth is given back", || async {
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
        cluster.label(host.name(), keys::LABEL_EXCLUDE, Some("lost")).await?;
        soon(&cluster, "the berth is given back", || async {
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
        soon(&cluster, "the image has failed maxFailures times", || async {
            let status = cluster.pool_status("workers").await?;
            Ok(berth_api::condition::is_true(&status.conditions, "RolloutHalted"))
        })
        .await?;
        ensure!(cluster.running(&bad) == 1, "another node has it");
        Ok(())
    };
    let result = body.await;
    finish("exclude", &cluster, result).await
}

/// Starts three hosts with these updaters, and waits until one has rolled back from an image that never becomes Ready.
async fn rolled_back(updaters: Vec<Updaters>) -> Result<(Cluster, Published, SimHost)> {
    let options = ClusterOptions {
        updaters,
        ..ClusterOptions::of(3)
    };
    let cluster = Cluster::start(options).await?;
    let bad = cluster.publish("2.0.0").await?;
    cluster.settings(|s| s.never_ready = [bad.digest.to_string()].into());
    let paused = json!({ "maxUnavailable": 1, "maxStaging": "100%", "paused": true });
    cluster.pool("workers", &bad.reference, paused).await?;
    let health = json!({ "health": { "deadline": "2s" }, "rollout": { "paused": false } });
    cluster.patch_pool("workers", health).await?;
    let halted = ("RolloutHalted", "True", "TooManyFailures", "");
    cluster.until_says("workers", halted, LONG).await?;
    let first = cluster.boots().into_iter().find(|(_, boots)| *boots == 3);
    let (name, _) = first.context("no node booted the bad image and then the previous one")?;
    let host = cluster.fleet.hosts.iter().find(|host| host.name() == name);
    let host = host.context("its host is gone")?.clone();
    Ok((cluster, bad, host))
}

async fn is_rolled_back_once(updaters: Updaters) -> Result<()> {
    let (cluster, bad, host) = rolled_back(vec![updaters; 3]).await?;
    let body = async {
        ensure!(host.facts().booted != bad.digest.to_string(), "{:?}", host.facts());
        ensure!(cluster.held().await?.is_empty(), "the berth is given back");
        let words = ("NodeDegraded", "True", "DigestFailed", "rolled the host back");
        soon(&cluster, "the node names the cause", || async {
            Ok(has_condition(
                &cluster.node_status(host.name()).await?.conditions,
                words,
            ))
        })
        .await?;
        let told = cluster.node_status(host.name()).await?;
        ensure!(told.failed_digests == [bad.digest.clone()], "{told:?}");
        let update = told.timeline.updates.first().context("the timeline is empty")?;
        ensure!(update.chapter(ChapterName::RolledBack).is_some(), "{update:?}");
        let others: Vec<_> = cluster.boots().into_values().filter(|boots| *boots == 1).collect();
        ensure!(others.len() == 2, "no other node tried it: {:?}", cluster.boots());
        let good = cluster.publish("3.0.0").await?;
        cluster.set_image("workers", &good.reference).await?;
        cluster.until_all_run(&good, LONG).await?;
        ensure!(boots(&cluster, &host) == 4, "{:?}", cluster.boots());
        Ok(())
    };
    let result = body.await;
    finish("rollback", &cluster, result).await
}

/// The first failure halts the rollout, the others keep their image, and the next image reaches all.
#[tokio::test]
async fn an_unproven_boot_is_rolled_back_once() -> Result<()> {
    is_rolled_back_once(Updaters::Bootc).await
}

#[tokio::test]
async fn rpm_ostree_rolls_an_unproven_boot_back() -> Result<()> {
    is_rolled_back_once(Updaters::RpmOstree).await
}
