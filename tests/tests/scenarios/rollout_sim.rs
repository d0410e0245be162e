//! Rollouts over simulated hosts, with a real API server, registry, controller and agents. The judge checks the ground truth: the
//! actions of the hosts, and the audit log.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_api::node::Progress;
use berth_api::pool::DeployedImage;
use berth_tests::audit::{AuditLog, Record};
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Published, SOON};
use berth_tests::golden;
use berth_tests::hosts::HostChange;
use berth_tests::hosts::sim::{Inhibitor, RebootFault, Settings, SimHost};
use berth_tests::programs;
use berth_tests::walk::Walks;
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

mod admins;
// First in the alphabet, since its tests take the longest and tests start in that order.
mod ailing;
mod columns;
mod composefs;
mod events;
mod hosts;
mod processes;
mod pulls;
mod records;
mod rpm_ostree;
mod signs;
mod verify;
mod writes;

/// Waits for this number of heartbeats of a node's agent, which looks at its host again before each.
async fn signs_of_life(cluster: &Cluster, node: &str, count: usize) -> Result<()> {
    let beat = async || {
        let status = cluster.bootc_nodes().get(node).await?.status.unwrap_or_default();
        anyhow::Ok(status.heartbeat_time)
    };
    for _ in 0..count {
        let before = beat().await?;
        let lives = async || Ok(beat().await? != before);
        cluster.until(&format!("a heartbeat of {node}"), SOON, lives).await?;
    }
    Ok(())
}

type Scenario<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Runs a scenario on a cluster of its own, asks the judge, and prints the duration.
async fn scenario(
    name: &str,
    options: ClusterOptions,
    body: impl for<'a> FnOnce(&'a mut Cluster) -> Scenario<'a>,
) -> Result<()> {
    let start = Instant::now();
    let mut cluster = Cluster::start(options).await?;
    let ready = start.elapsed();
    if let Err(error) = body(&mut cluster).await {
        let violations = cluster.violations()?;
        eprintln!(
            "{name} failed; violations: {violations:#?}\n{}",
            cluster.describe().await
        );
        return Err(error);
    }
    cluster.judge()?;
    let took = start.elapsed() - ready;
    println!(
        "{name:<44} start {:>5.1} s, scenario {:>5.1} s",
        ready.as_secs_f64(),
        took.as_secs_f64()
    );
    Ok(())
}

fn hosts(hosts: usize) -> ClusterOptions {
    ClusterOptions {
        hosts,
        ..ClusterOptions::default()
    }
}

fn hosts_with(count: usize, change: impl FnOnce(&mut Settings)) -> ClusterOptions {
    let mut options = hosts(count);
    change(&mut options.settings);
    options
}

async fn until_phase(cluster: &Cluster, node: &str, phase: &str) -> Result<()> {
    cluster
        .until(&format!("{node} is {phase}"), SOON, || async {
            Ok(cluster.phase(node).await? == phase)
        })
        .await
}

/// Waits until some node is in a phase, and returns its number.
async fn some_in(cluster: &Cluster, phase: &str) -> Result<usize> {
    let found = std::cell::Cell::new(0);
    cluster
        .until(&format!("some node is {phase}"), SOON, || async {
            for n in 1..=cluster.fleet.hosts.len() {
                if cluster.phase(cluster.host(n).name()).await? == phase {
                    found.set(n);
                    return Ok(true);
                }
            }
            Ok(false)
        })
        .await?;
    Ok(found.get())
}

fn pulls(cluster: &Cluster, host: &str) -> usize {
    let pull = |e: &berth_tests::hosts::HostEvent| e.host == host && matches!(e.change, HostChange::PullStarted { .. });
    cluster.log.events().iter().filter(|e| pull(e)).count()
}

async fn roll_to(cluster: &Cluster, version: &str, most: usize) -> Result<Published> {
    let image = cluster.publish(version).await?;
    cluster
        .pool(
            "workers",
            &image.reference,
            json!({ "maxUnavailable": most, "maxStaging": "100%" }),
        )
        .await?;
    Ok(image)
}

#[tokio::test]
async fn one_at_a_time_then_two_then_back() -> Result<()> {
    let options = hosts_with(3, |s| s.pull_time = Duration::from_secs(2));
    scenario("one_at_a_time_then_two_then_back", options, |cluster| {
        Box::pin(async move {
            cluster.deploy("web", 3).await?;
            let walks = Walks::of(cluster.bootc_nodes());
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            cluster.until_all_run(&v2, LONG).await?;
            cluster.judge()?;
            let names: Vec<&str> = cluster.fleet.hosts.iter().map(|h| h.name()).collect();
            let has_walked = async || {
                walks.ensure(&names, &["Updating", "Pending", "Rebooting", "Updated"])?;
                Ok(true)
            };
            cluster
                .until("the watch shows the phases of all nodes", SOON, has_walked)
                .await?;
            // If a node's pods were gone already, its drain is over between two writes.
            let drains = |name: &&str| walks.ensure(&[*name], &["Pending", "Draining", "Rebooting"]).is_ok();
            ensure!(names.iter().any(drains), "some node reports that it drains");
            for name in names {
                records::until_proven_turn(cluster, name, &v2).await?;
                golden::ensure_walk(&cluster.control_plane.audit_log(), name, "whole")?;
            }
            events::until_told_of_the_first_rollout(cluster).await?;
            verify::the_log_is_judged_alike(cluster, 3).await?;
            let v3 = roll_to(cluster, "3.0.0", 2).await?;
            cluster.until_all_run(&v3, LONG).await?;
            cluster.judge()?;
            let boots = cluster.boots();
            ensure!(
                boots.values().all(|&n| n == 3),
                "each host boots once for each version: {boots:?}"
            );
            // Revert while some hosts are done: hosts that run 4.0.0 come back, the others never go.
            let v4 = roll_to(cluster, "4.0.0", 1).await?;
            cluster
                .until("one host runs 4.0.0", LONG, || async {
                    Ok(cluster.fleet.running(&v4.digest.to_string()) == 1)
                })
                .await?;
            cluster
                .pool("workers", &v3.reference, json!({ "maxUnavailable": 1 }))
                .await?;
            cluster.until_all_run(&v3, LONG).await?;
            let none_staged = cluster.fleet.hosts.iter().all(|h| h.facts().staged.is_none());
            ensure!(none_staged, "the withdrawn image is not staged any more");
            let went: usize = cluster.boots().values().map(|n| n - 3).sum();
            ensure!(
                went <= 4,
                "at most two hosts went to 4.0.0 and back, counted {went} boots"
            );
            let history = async || {
                let status = cluster.pools().get("workers").await?.status.unwrap_or_default();
                let line = |i: DeployedImage| (i.version.unwrap_or_default(), i.node_count, i.last_deployed.is_some());
                Ok::<_, anyhow::Error>(status.deploy_history.into_iter().map(line).collect::<Vec<_>>())
            };
            cluster
                .until(
                    "the history has the proven images, the last one first",
                    SOON,
                    || async {
                        let history = history().await?;
                        // A host that ran 4.0.0 may have been called back before 4.0.0 was proven.
                        let second = ("2.0.0".to_owned(), 3, true);
                        Ok(history.first() == Some(&("3.0.0".to_owned(), 3, true)) && history.contains(&second))
                    },
                )
                .await?;
            Ok(())
        })
    })
    .await
}

#[tokio::test]
async fn a_budget_blocks_and_then_yields() -> Result<()> {
    scenario("a_budget_blocks_and_then_yields", hosts(2), |cluster| {
        Box::pin(async move {
            cluster.deploy("web", 2).await?;
            cluster.budget("web", 2).await?;
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            let n = some_in(cluster, "Draining").await?;
            let name = cluster.host(n).name().to_owned();
            cluster
                .until("the status names the pod and the budget", SOON, || async {
                    let status = cluster.bootc_nodes().get(&name).await?.status.unwrap_or_default();
                    Ok(status
                        .drain_blockers
                        .iter()
                        .any(|b| b.pod.starts_with("default/web-") && b.reason.contains("web")))
                })
                .await?;
            ensure!(
                cluster.boots().values().all(|&n| n == 1),
                "a blocked drain reboots nothing"
            );
            columns::show_the_rollout(cluster, &name).await?;
            cluster.remove_budget("web").await?;
            cluster.until_all_run(&v2, LONG).await?;
            // A drain that can never end gives back, and names the pods in the way.
            cluster.budget("web", 2).await?;
            let v3 = cluster.publish("3.0.0").await?;
            let spec = json!({ "image": { "ref": v3.reference }, "drain": { "timeout": "2s" } });
            cluster.patch_pool("workers", spec).await?;
            cluster
                .until(
                    "a turn ends as DrainTimeout and the node is schedulable",
                    SOON,
                    || async {
                        for host in &cluster.fleet.hosts {
                            let status = cluster.bootc_nodes().get(host.name()).await?.status.unwrap_or_default();
                            let timed_out = status
                                .last_turn
                                .is_some_and(|t| t.outcome == "DrainTimeout" && t.message.contains("default/web-"));
                            if timed_out && !cluster.is_cordoned(host.name()).await? {
                                return Ok(true);
                            }
                        }
                        Ok(false)
                    },
                )
                .await
        })
    })
    .await
}

#[tokio::test]
async fn staging_progress_is_rate_limited() -> Result<()> {
    let options = hosts_with(1, |s| s.pull_time = Duration::from_secs(8));
    scenario("staging_shows_its_progress", options, |cluster| {
        Box::pin(async move {
            let v2 = cluster.publish("2.0.0").await?;
            let rollout = json!({ "maxStaging": 1, "progressInterval": "1s" });
            cluster.pool("workers", &v2.reference, rollout).await?;
            until_phase(cluster, "node1", "Staging").await?;
            let begin = Instant::now();
            let mut seen = vec![];
            while cluster.phase("node1").await? == "Staging" {
                let status = cluster.bootc_nodes().get("node1").await?.status.unwrap_or_default();
                // A report without new bytes has no rate.
                let before = seen.last().map_or(0, |last: &Progress| last.bytes);
                seen.extend(status.progress.filter(|p| p.bytes > before));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            // A busy machine reports later, and so less often.
            let most = begin.elapsed().as_secs() + 2;
            ensure!(
                seen.len() >= 2 && u64::try_from(seen.len())? <= most,
                "at most one report a second: {seen:?}"
            );
            ensure!(
                seen.windows(2).all(|pair| pair[0].bytes < pair[1].bytes),
                "the progress increases: {seen:?}"
            );
            let last = seen.last().context("no progress was seen")?;
            ensure!(
                last.bytes_total > 0 && last.bytes <= last.bytes_total && last.bytes_per_second > 0,
                "{last:?}"
            );
            cluster.until_all_run(&v2, LONG).await
        })
    })
    .await
}

#[tokio::test]
async fn tags_digests_and_indexes() -> Result<()> {
    scenario("tags_digests_and_indexes", hosts(2), |cluster| {
        Box::pin(async move {
            let v2 = cluster.publish_index("2.0.0").await?;
            cluster
                .pool(
                    "workers",
                    &v2.reference,
                    json!({ "maxUnavailable": 2, "maxStaging": 2 }),
                )
                .await?;
            cluster.until_all_run(&v2, LONG).await?;
            let boots = cluster.boots();
            // Identical content by the index's digest, by the manifest's digest and under another tag: no reboot.
            let by_manifest = v2
                .pinned
                .split('@')
                .next()
                .map(|r| format!("{r}@{}", v2.digest))
                .context("no repository")?;
            for same in [
                v2.pinned.clone(),
                by_manifest,
                format!("{}@{}", v2.reference, v2.digest),
            ] {
                cluster
                    .patch_pool("workers", json!({ "image": { "ref": same } }))
                    .await?;
                cluster
                    .until(&format!("{same} is the target"), SOON, || async {
                        let status = cluster.pools().get("workers").await?.status.unwrap_or_default();
                        Ok(status.target.is_some_and(|t| t.image == same) && status.nodes.updated == 2)
                    })
                    .await?;
            }
            cluster.until_all_run(&v2, LONG).await?;
            ensure!(
                cluster.boots() == boots,
                "no reboot for identical content: {:?}",
                cluster.boots()
            );
            let v3 = cluster.publish("3.0.0").await?;
            cluster
                .patch_pool("workers", json!({ "image": { "ref": v3.pinned } }))
                .await?;
            cluster.until_all_run(&v3, LONG).await
        })
    })
    .await
}
