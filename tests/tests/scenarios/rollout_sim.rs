//! Rollouts over simulated hosts. The judge checks the actions of the hosts, and the audit log.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_api::node::Progress;
use berth_tests::audit::{AuditLog, Record};
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Published, SOON, soon, until_degraded, until_so};
use berth_tests::golden;
use berth_tests::hosts::HostChange;
use berth_tests::hosts::sim::{Inhibitor, RebootFault, Settings, SimHost};
use berth_tests::programs;
use berth_tests::walk::Walks;
use jiff::Timestamp;
use kube::api::DeleteParams;
use serde_json::{Value, json};

mod admins;
// First in the alphabet, since its tests take the longest and tests start in that order.
mod ailing;
mod columns;
mod composefs;
mod credentials;
mod events;
mod hosts;
mod impersonation;
mod processes;
mod pulls;
mod records;
mod rpm_ostree;
mod signs;
mod upgrade;
mod verify;
mod writes;

/// Waits for this number of heartbeats from a node's agent. The agent checks its host before each heartbeat.
async fn signs_of_life(cluster: &Cluster, node: &str, count: usize) -> Result<()> {
    for _ in 0..count {
        let before = cluster.node_status(node).await?.heartbeat_time;
        soon(cluster, &format!("a heartbeat of {node}"), async || {
            Ok(cluster.node_status(node).await?.heartbeat_time != before)
        })
        .await?;
    }
    Ok(())
}

/// Runs a scenario on a cluster of its own, asks the judge, and prints the duration.
async fn scenario(options: ClusterOptions, body: impl AsyncFnOnce(&Cluster) -> Result<()>) -> Result<()> {
    let start = Instant::now();
    let cluster = Cluster::start(options).await?;
    let ready = start.elapsed();
    cluster.judged(body(&cluster).await).await?;
    let took = start.elapsed() - ready;
    println!(
        "start {:>5.1} s, scenario {:>5.1} s",
        ready.as_secs_f64(),
        took.as_secs_f64()
    );
    Ok(())
}

fn hosts(hosts: usize) -> ClusterOptions {
    ClusterOptions::of(hosts)
}

fn hosts_with(count: usize, change: impl FnOnce(&mut Settings)) -> ClusterOptions {
    let mut options = hosts(count);
    change(&mut options.settings);
    options
}

/// Waits until some node is in a phase, and returns its number.
async fn some_in(cluster: &Cluster, phase: &str) -> Result<usize> {
    let found = std::cell::Cell::new(0);
    soon(cluster, &format!("some node is {phase}"), || async {
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
    let events = cluster.log.events().into_iter().filter(|e| e.host == host);
    events
        .filter(|e| matches!(e.change, HostChange::PullStarted { .. }))
        .count()
}

/// Pushes an image, and creates or changes the pool to use it.
async fn roll_with(cluster: &Cluster, version: &str, rollout: Value) -> Result<Published> {
    let image = cluster.publish(version).await?;
    cluster.pool("workers", &image.reference, rollout).await?;
    Ok(image)
}

/// Calls [`roll_with`], and allows all members to stage at once.
async fn roll_to(cluster: &Cluster, version: &str, most: usize) -> Result<Published> {
    roll_with(
        cluster,
        version,
        json!({ "maxUnavailable": most, "maxStaging": "100%" }),
    )
    .await
}

/// Pushes an image, and changes the pool's image only.
async fn set_to(cluster: &Cluster, version: &str) -> Result<Published> {
    let image = cluster.publish(version).await?;
    cluster.set_image("workers", &image.reference).await?;
    Ok(image)
}

/// Agents that send a heartbeat and check their hosts every ten seconds.
fn lively(count: usize) -> ClusterOptions {
    ClusterOptions {
        agent_args: vec!["--heartbeat=10".to_owned()],
        ..hosts(count)
    }
}

/// Each image that the pool has deployed: its version, its number of nodes, and whether it was proven.
async fn history(cluster: &Cluster) -> Result<Vec<(String, u32, bool)>> {
    let images = cluster.pool_status("workers").await?.deploy_history.into_iter();
    Ok(images
        .map(|i| (i.version.unwrap_or_default(), i.node_count, i.last_deployed.is_some()))
        .collect())
}

#[tokio::test]
async fn one_at_a_time_then_two_then_back() -> Result<()> {
    let options = hosts_with(3, |s| s.pull_time = Duration::from_secs(2));
    scenario(options, async |cluster| {
        cluster.deploy("web", 3).await?;
        let walks = Walks::of(cluster.bootc_nodes());
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        cluster.until_all_run(&v2, LONG).await?;
        cluster.judge()?;
        let names: Vec<&str> = cluster.fleet.hosts.iter().map(|h| h.name()).collect();
        soon(cluster, "the watch shows the phases of all nodes", async || {
            walks.ensure(&names, &["Updating", "Pending", "Rebooting", "Updated"])?;
            Ok(true)
        })
        .await?;
        // A node without pods ends its drain before the next status write.
        let phases = ["Pending", "Draining", "Rebooting"];
        ensure!(
            names.iter().any(|name| walks.ensure(&[*name], &phases).is_ok()),
            "no node reports that it drains"
        );
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
        ensure!(boots.values().all(|&n| n == 3), "one boot for each version: {boots:?}");
        // Revert while some hosts are done: hosts that run 4.0.0 come back, the others never go.
        let v4 = roll_to(cluster, "4.0.0", 1).await?;
        cluster
            .until("one host runs 4.0.0", LONG, async || Ok(cluster.running(&v4) == 1))
            .await?;
        cluster
            .pool("workers", &v3.reference, json!({ "maxUnavailable": 1 }))
            .await?;
        cluster.until_all_run(&v3, LONG).await?;
        let none_staged = cluster.fleet.hosts.iter().all(|h| h.facts().staged.is_none());
        ensure!(none_staged, "the withdrawn image is not staged any more");
        let went: usize = cluster.boots().values().map(|n| n - 3).sum();
        ensure!(went <= 4, "at most two hosts go there and back: {went} boots");
        soon(
            cluster,
            "the history has the proven images, the last one first",
            || async {
                let history = history(cluster).await?;
                // A host that ran 4.0.0 may have been called back before 4.0.0 was proven.
                let second = ("2.0.0".to_owned(), 3, true);
                Ok(history.first() == Some(&("3.0.0".to_owned(), 3, true)) && history.contains(&second))
            },
        )
        .await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_budget_blocks_and_then_yields() -> Result<()> {
    scenario(hosts(2), async |cluster| {
        cluster.deploy("web", 2).await?;
        cluster.budget("web", 2).await?;
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        let n = some_in(cluster, "Draining").await?;
        let name = cluster.host(n).name().to_owned();
        soon(cluster, "the status names the pod and the budget", || async {
            let status = cluster.node_status(&name).await?;
            Ok(status
                .drain_blockers
                .iter()
                .any(|b| b.pod.starts_with("default/web-") && b.reason.contains("web")))
        })
        .await?;
        ensure!(cluster.boots().values().all(|&n| n == 1), "a node rebooted");
        columns::show_the_rollout(cluster, &name).await?;
        cluster.remove_budget("web").await?;
        cluster.until_all_run(&v2, LONG).await?;
        // A drain that can never end gives back, and names the pods in the way.
        cluster.budget("web", 2).await?;
        let v3 = cluster.publish("3.0.0").await?;
        let spec = json!({ "image": { "ref": v3.reference }, "drain": { "timeout": "2s" } });
        cluster.patch_pool("workers", spec).await?;
        soon(
            cluster,
            "a turn ends as DrainTimeout and the node is schedulable",
            || async {
                for host in &cluster.fleet.hosts {
                    let status = cluster.node_status(host.name()).await?;
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
    .await
}

#[tokio::test]
async fn staging_progress_is_rate_limited() -> Result<()> {
    let options = hosts_with(1, |s| s.pull_time = Duration::from_secs(8));
    scenario(options, async |cluster| {
        let v2 = cluster.publish("2.0.0").await?;
        let rollout = json!({ "maxStaging": 1, "progressInterval": "1s" });
        cluster.pool("workers", &v2.reference, rollout).await?;
        cluster.until_phase("node1", "Staging").await?;
        let begin = Instant::now();
        let mut seen = vec![];
        while cluster.phase("node1").await? == "Staging" {
            let status = cluster.node_status("node1").await?;
            // A report without new bytes has no rate.
            let before = seen.last().map_or(0, |last: &Progress| last.bytes);
            seen.extend(status.progress.filter(|p| p.bytes > before));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // A busy machine reports later, and so less often.
        let most = begin.elapsed().as_secs() + 2;
        ensure!(seen.len() >= 2 && u64::try_from(seen.len())? <= most, "{seen:?}");
        ensure!(seen.windows(2).all(|pair| pair[0].bytes < pair[1].bytes), "{seen:?}");
        let last = seen.last().context("no progress was seen")?;
        ensure!(
            last.bytes_total > 0 && last.bytes <= last.bytes_total && last.bytes_per_second > 0,
            "{last:?}"
        );
        cluster.until_all_run(&v2, LONG).await
    })
    .await
}

#[tokio::test]
async fn tags_digests_and_indexes() -> Result<()> {
    scenario(hosts(2), async |cluster| {
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
            cluster.set_image("workers", &same).await?;
            soon(cluster, &format!("{same} is the target"), || async {
                let status = cluster.pool_status("workers").await?;
                Ok(status.target.is_some_and(|t| t.image.as_str() == same) && status.nodes.updated == 2)
            })
            .await?;
        }
        cluster.until_all_run(&v2, LONG).await?;
        ensure!(cluster.boots() == boots, "rebooted: {:?}", cluster.boots());
        let v3 = cluster.publish("3.0.0").await?;
        cluster.set_image("workers", &v3.pinned).await?;
        cluster.until_all_run(&v3, LONG).await
    })
    .await
}
