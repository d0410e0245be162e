//! Rollouts over simulated hosts, with a real API server, registry, controller and agents. The judge is the ground
//! truth: what the hosts did, and what the audit log saw.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::audit::{AuditLog, Record};
use berth_tests::cluster::{Cluster, ClusterOptions, Published};
use berth_tests::hosts::HostChange;
use berth_tests::hosts::sim::{Inhibitor, RebootFault, Settings, SimHost};
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(90);

type Scenario<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Runs one scenario on a cluster of its own, lets the judge speak, and prints how long it took.
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

/// Waits until some node is in a phase, and says which.
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

async fn cordon(cluster: &Cluster, node: &str, unschedulable: bool) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "unschedulable": unschedulable } }));
    cluster.nodes().patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn is_cordoned(cluster: &Cluster, node: &str) -> Result<bool> {
    Ok(cluster
        .nodes()
        .get(node)
        .await?
        .spec
        .and_then(|s| s.unschedulable)
        .unwrap_or(false))
}

fn pulls(cluster: &Cluster, host: &str) -> usize {
    let pull = |e: &berth_tests::hosts::HostEvent| e.host == host && matches!(e.change, HostChange::PullStarted { .. });
    cluster.log.events().iter().filter(|e| pull(e)).count()
}

/// CPU time of a process so far, in the kernel's ticks of 10 ms.
fn cpu_ticks(pid: u32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses; user and system time are the 14th and 15th.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
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
    scenario("one_at_a_time_then_two_then_back", hosts(3), |cluster| {
        Box::pin(async move {
            cluster.deploy("web", 3).await?;
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            cluster.until_all_run(&v2, LONG).await?;
            cluster.judge()?;
            let v3 = roll_to(cluster, "3.0.0", 2).await?;
            cluster.until_all_run(&v3, LONG).await?;
            cluster.judge()?;
            let boots = cluster.boots();
            ensure!(
                boots.values().all(|&n| n == 3),
                "each host boots once for each version: {boots:?}"
            );
            // Revert while some are done: whoever runs v4 comes back, the others never go.
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
            ensure!(none_staged, "what is no longer wanted is not staged any more");
            let went: usize = cluster.boots().values().map(|n| n - 3).sum();
            ensure!(went <= 4, "at most two hosts went to 4.0.0 and back, not {went} boots");
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
            cluster.remove_budget("web").await?;
            cluster.until_all_run(&v2, LONG).await?;
            // A drain that never can end gives back, and says who is in the way.
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
                            if timed_out && !is_cordoned(cluster, host.name()).await? {
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
async fn the_agent_is_killed_in_every_phase() -> Result<()> {
    let options = hosts_with(2, |s| s.pull_time = Duration::from_secs(2));
    scenario("the_agent_is_killed_in_every_phase", options, |cluster| {
        Box::pin(async move {
            cluster.deploy("web", 2).await?;
            cluster.budget("web", 2).await?;
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            // Each as soon as it pulls: one of them may be published seconds before the other.
            let kill = async |host: &SimHost| {
                until_phase(cluster, host.name(), "Staging").await?;
                host.kill_agent();
                anyhow::Ok(())
            };
            futures::try_join!(kill(cluster.host(1)), kill(cluster.host(2)))?;
            let n = some_in(cluster, "Draining").await?;
            for host in &cluster.fleet.hosts {
                ensure!(
                    pulls(cluster, host.name()) == 1,
                    "{}: the running pull is adopted, not repeated",
                    host.name()
                );
            }
            let host = cluster.host(n);
            host.kill_agent();
            tokio::time::sleep(Duration::from_millis(500)).await;
            // The reboot takes long enough to kill the agent between request and shutdown.
            host.settings(|s| s.shutdown_time = Duration::from_secs(2));
            cluster.remove_budget("web").await?;
            until_phase(cluster, host.name(), "Rebooting").await?;
            host.kill_agent();
            cluster.until_all_run(&v2, LONG).await?;
            let boots = cluster.boots();
            ensure!(boots.values().all(|&n| n == 2), "one reboot for each host: {boots:?}");
            Ok(())
        })
    })
    .await
}

/// A host is committed, its agent goes away, the admin uncordons the node, pods come. Answers the host, its agent still
/// away.
async fn committed_and_away(cluster: &Cluster) -> Result<&SimHost> {
    let reboots = |fault: &RebootFault| {
        for host in &cluster.fleet.hosts {
            host.settings(|s| s.reboot = fault.clone());
        }
    };
    reboots(&RebootFault::Lost);
    roll_to(cluster, "2.0.0", 1).await?;
    let host = cluster.host(some_in(cluster, "Rebooting").await?);
    host.stop_agent().await;
    reboots(&Settings::default().reboot);
    cordon(cluster, host.name(), false).await?;
    cluster.deploy("web", cluster.fleet.hosts.len()).await?;
    // Longer than the judge believes that a reboot which was licensed before is still on its way.
    tokio::time::sleep(Duration::from_secs(20)).await;
    Ok(host)
}

/// What was true when a host was committed may not be when its agent comes back: the node goes its way from the start.
#[tokio::test]
async fn a_commit_whose_agent_was_away() -> Result<()> {
    scenario("a_commit_whose_agent_was_away", hosts(2), |cluster| {
        Box::pin(async move {
            committed_and_away(cluster).await?.start_agent();
            let updated = || async { Ok(cluster.fleet.hosts.iter().all(|h| h.facts().version == "2.0.0")) };
            cluster.until("all hosts run 2.0.0", LONG, updated).await
        })
    })
    .await
}

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
            ensure!(host.facts().locked, "staged means locked");
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
async fn staging_shows_its_progress_no_more_often_than_asked() -> Result<()> {
    let options = hosts_with(1, |s| s.pull_time = Duration::from_secs(4));
    scenario("staging_shows_its_progress", options, |cluster| {
        Box::pin(async move {
            let v2 = cluster.publish("2.0.0").await?;
            let rollout = json!({ "maxStaging": 1, "progressInterval": "1s" });
            cluster.pool("workers", &v2.reference, rollout).await?;
            until_phase(cluster, "node1", "Staging").await?;
            let mut seen = vec![];
            while cluster.phase("node1").await? == "Staging" {
                let status = cluster.bootc_nodes().get("node1").await?.status.unwrap_or_default();
                seen.extend(status.progress.filter(|p| seen.last() != Some(p)));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            ensure!(
                (2..=5).contains(&seen.len()),
                "about one report a second in four seconds: {seen:?}"
            );
            ensure!(
                seen.windows(2).all(|pair| pair[0].bytes < pair[1].bytes),
                "it goes forward: {seen:?}"
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
async fn an_idle_agent_shows_that_it_lives_and_looks_after_its_host() -> Result<()> {
    let options = ClusterOptions {
        agent_args: vec!["--heartbeat=10".to_owned()],
        ..hosts(1)
    };
    scenario("an_idle_agent_shows_that_it_lives", options, |cluster| {
        Box::pin(async move {
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            cluster.until_all_run(&v2, LONG).await?;
            let beat = async || {
                let status = cluster.bootc_nodes().get("node1").await?.status.unwrap_or_default();
                anyhow::Ok(status.heartbeat_time)
            };
            let (first, start) = (beat().await?, Timestamp::now());
            // Somebody stages another image, unlocked, while nobody looks.
            let v9 = cluster.publish("9.0.0").await?;
            cluster
                .host(1)
                .stage_behind_the_agent(&v9.pinned, &v9.digest.to_string());
            cluster
                .until("the agent has removed it and lives", SOON, || async {
                    Ok(cluster.host(1).facts().staged.is_none() && beat().await? != first)
                })
                .await?;
            let busy = cpu_ticks(cluster.host(1).agent_pids()[0])?;
            tokio::time::sleep(Duration::from_secs(12)).await;
            let busy = cpu_ticks(cluster.host(1).agent_pids()[0])? - busy;
            ensure!(
                busy < 50,
                "an idle agent does next to nothing, not {busy} hundredths of a second of work in 12 s"
            );
            let audit = AuditLog::read(&cluster.control_plane.audit_log())?;
            let ours = |r: &&Record| r.program() == "berth-agent" && r.verb != "watch" && r.received > start;
            let requests: Vec<_> = audit
                .records()
                .iter()
                .filter(ours)
                .map(|r| (r.verb.as_str(), r.target()))
                .collect();
            // Two or three heartbeats of ten seconds: a list and a status each, and what the image gave to do.
            ensure!(requests.len() <= 10, "an idle agent asks little: {requests:?}");
            Ok(())
        })
    })
    .await
}

#[tokio::test]
async fn the_api_server_is_away_for_a_while() -> Result<()> {
    scenario("the_api_server_is_away_for_a_while", hosts(3), |cluster| {
        Box::pin(async move {
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            some_in(cluster, "Rebooting").await?;
            cluster.control_plane.stop_apiserver().await?;
            tokio::time::sleep(Duration::from_secs(10)).await;
            let down = cluster
                .log
                .events()
                .iter()
                .filter(|e| e.change == HostChange::Down)
                .count();
            ensure!(
                down <= 1,
                "without the API server nobody takes a new turn: {down} hosts went down"
            );
            cluster.control_plane.start_apiserver().await?;
            cluster.until_all_run(&v2, LONG).await
        })
    })
    .await
}

#[tokio::test]
async fn tags_digests_and_indexes_and_content_that_is_there() -> Result<()> {
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
            // The same content by the index's digest, by the manifest's digest and under another tag: no reboot.
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
                "the same content is not rebooted into: {:?}",
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

#[tokio::test]
async fn pause_holds_in_every_phase() -> Result<()> {
    let options = hosts_with(2, |s| s.pull_time = Duration::from_secs(1));
    scenario("pause_holds_in_every_phase", options, |cluster| {
        Box::pin(async move {
            let pause = |paused: bool| cluster.patch_pool("workers", json!({ "rollout": { "paused": paused } }));
            cluster.deploy("web", 2).await?;
            cluster.budget("web", 2).await?;
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            // While staging: staging goes on, nothing is offered.
            some_in(cluster, "Staging").await?;
            pause(true).await?;
            until_phase(cluster, "node1", "Waiting").await?;
            until_phase(cluster, "node2", "Waiting").await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            ensure!(cluster.held().await?.is_empty(), "a paused pool offers nothing");
            // While draining: the holder gives back.
            pause(false).await?;
            let n = some_in(cluster, "Draining").await?;
            pause(true).await?;
            let name = cluster.host(n).name().to_owned();
            until_phase(cluster, &name, "Waiting").await?;
            ensure!(cluster.held().await?.is_empty(), "an uncommitted holder gives back");
            ensure!(!is_cordoned(cluster, &name).await?, "and uncordons");
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
            cluster.until_all_run(&v2, LONG).await
        })
    })
    .await
}

#[tokio::test]
async fn controllers_come_and_go() -> Result<()> {
    scenario("controllers_come_and_go", hosts(4), |cluster| {
        Box::pin(async move {
            cluster.controllers.start(1)?;
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            let started = Instant::now();
            // The leader is killed again and again, or frozen past its lease and woken up.
            let mut turn = 0;
            while cluster.fleet.running(&v2.digest.to_string()) < 4 {
                ensure!(
                    started.elapsed() < LONG * 2,
                    "the rollout ends all the same\n{}",
                    cluster.describe().await
                );
                let victim = turn % 2;
                match turn % 4 {
                    0 | 1 => cluster.controllers.kill(victim),
                    _ => cluster.controllers.freeze(victim, true),
                }
                tokio::time::sleep(Duration::from_millis(4500)).await;
                cluster.controllers.freeze(victim, false);
                cluster.controllers.start(victim)?;
                cluster.controllers.start(1 - victim)?;
                turn += 1;
            }
            cluster.until_all_run(&v2, LONG).await
        })
    })
    .await
}

#[tokio::test]
async fn an_admins_cordon_stays() -> Result<()> {
    scenario("an_admins_cordon_stays", hosts(2), |cluster| {
        Box::pin(async move {
            cordon(cluster, "node2", true).await?;
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            // Who is unavailable already goes first, and uses up the capacity for as long as it is.
            cluster.until_run(&v2, &[cluster.host(2)], LONG).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            ensure!(
                cluster.host(1).facts().version == "1.0.0",
                "node1 waits while node2 is cordoned by its admin"
            );
            let status = cluster.pools().get("workers").await?.status.unwrap_or_default();
            let said = berth_api::condition::find(&status.conditions, "Progressing").map(|c| c.message.clone());
            ensure!(
                said.is_some_and(|m| m.contains("node2")),
                "the pool names who uses up its capacity: {status:?}"
            );
            cluster.allow("workers", 2);
            cluster
                .patch_pool("workers", json!({ "rollout": { "maxUnavailable": 2 } }))
                .await?;
            cluster.until_all_run(&v2, LONG).await?;
            ensure!(
                is_cordoned(cluster, "node2").await?,
                "who was cordoned before is cordoned after"
            );
            ensure!(!is_cordoned(cluster, "node1").await?, "who was not is not");
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
            // A holder whose Node is deleted frees its berth; the others go on.
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
            // It comes back under its name with another UID, and is a node like any other.
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
            ensure!(!is_cordoned(cluster, "node1").await?, "it is schedulable again");
            // Leaving every pool and deleting a pool leave the hosts as they are, with nothing of ours.
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

#[tokio::test]
async fn two_agents_on_one_node() -> Result<()> {
    scenario("two_agents_on_one_node", hosts(2), |cluster| {
        Box::pin(async move {
            for host in &cluster.fleet.hosts {
                host.second_agent();
            }
            let v2 = roll_to(cluster, "2.0.0", 1).await?;
            some_in(cluster, "Staging").await.ok();
            cluster.host(1).kill_agent();
            cluster.until_all_run(&v2, LONG).await?;
            for host in &cluster.fleet.hosts {
                ensure!(pulls(cluster, host.name()) == 1, "one pull, whoever watches it");
            }
            ensure!(cluster.boots().values().all(|&n| n == 2), "one reboot each");
            Ok(())
        })
    })
    .await
}

#[tokio::test]
async fn every_trouble_of_a_host_has_its_own_reason() -> Result<()> {
    scenario("every_trouble_of_a_host_has_its_own_reason", hosts(9), |cluster| {
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
            change(2, |s| s.layered = true);
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
                    .until(&format!("node{n} says {reason}"), SOON, || async {
                        Ok(degraded(n)
                            .await?
                            .is_some_and(|(r, message)| r == *reason && !message.is_empty()))
                    })
                    .await?;
            }
            // The node with a rival and the two without trouble are updated all the same.
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
                .until("node8 says ImageNotFound", SOON, || async {
                    Ok(degraded(8)
                        .await?
                        .is_some_and(|(r, message)| r == "ImageNotFound" && message.contains("manifest unknown")))
                })
                .await?;
            // Mended hosts go on by themselves.
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
            cluster
                .host(8)
                .stage_behind_the_agent(&v9.pinned, &v9.digest.to_string());
            let rollout = json!({ "maxUnavailable": 8, "maxStaging": 8, "rebootTimeout": "3s" });
            cluster.pool("workers", &v2.reference, rollout).await?;
            until_phase(cluster, "node7", "Staging").await.ok();
            cluster.host(7).restart_bus().await?;
            // Those whose trouble passes end updated; node6 only once it has pulled again what came without its bound image.
            let mended: Vec<_> = [4, 6, 7, 8].map(|n| cluster.host(n)).into();
            cluster
                .until("nodes 4, 6, 7 and 8 run 2.0.0", LONG, || async {
                    Ok(mended.iter().all(|h| h.facts().booted == digest))
                })
                .await?;
            ensure!(
                pulls(cluster, "node6") == 2,
                "what a failed pull has staged is not booted, but pulled again"
            );
            let status = async |n: usize| {
                let object = cluster.bootc_nodes().get(&format!("node{n}")).await?;
                anyhow::Ok(object.status.unwrap_or_default())
            };
            cluster
                .until("node2 says that its reboot was refused", SOON, || async {
                    let turn = status(2).await?.last_turn;
                    Ok(turn.is_some_and(|t| t.outcome == "RebootBlocked" && t.message.contains("not today")))
                })
                .await?;
            cluster
                .until("node3 says who inhibits it", SOON, || async {
                    let conditions = status(3).await?.conditions;
                    let prepared = berth_api::condition::find(&conditions, "UpdatePrepared");
                    Ok(prepared.is_some_and(|c| c.reason == "Inhibited" && c.message.contains("backup")))
                })
                .await?;
            cluster
                .until("node5 is not proven, says why and keeps its berth", SOON, || async {
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
                        Ok(
                            turn.is_some_and(|t| t.outcome == "RebootBlocked")
                                && !is_cordoned(cluster, "node1").await?,
                        )
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
            // The inhibitor goes, and the node goes on by itself.
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

/// A cluster whose agents have a deliberate bug.
async fn rogues(bug: &str, count: usize) -> Result<Cluster> {
    let options = ClusterOptions {
        agent: Some(berth_tests::programs::seeded_agent()?),
        agent_env: vec![("BERTH_SEEDED_BUG".to_owned(), bug.to_owned())],
        ..hosts(count)
    };
    Cluster::start(options).await
}

/// The judge must name a violation.
fn blames(cluster: &Cluster, invariant: &str, what: &str) -> Result<()> {
    let violations = cluster.violations()?;
    let named = violations.iter().any(|v| v.starts_with(invariant) && v.contains(what));
    ensure!(named, "the judge must name {invariant}, {what}: {violations:?}");
    Ok(())
}

/// The judge is worth something only if it finds a break: an agent that does not ask for a berth must be caught.
#[tokio::test]
async fn the_judge_finds_an_agent_without_a_berth() -> Result<()> {
    let cluster = rogues("skip-berth", 2).await?;
    let v2 = roll_to(&cluster, "2.0.0", 1).await?;
    let gone = || async { Ok(cluster.fleet.running(&v2.digest.to_string()) == 2) };
    cluster.until("the rogue agents have rebooted", LONG, gone).await?;
    blames(&cluster, "I2", "without a committed berth")
}

/// Likewise one that uses an old commit although the node is neither cordoned nor drained any more.
#[tokio::test]
async fn the_judge_finds_an_old_commit() -> Result<()> {
    let cluster = rogues("old-commit-used", 1).await?;
    let host = committed_and_away(&cluster).await?;
    host.start_agent();
    let gone = || async { Ok(host.facts().version == "2.0.0") };
    cluster.until("the rogue agent has rebooted", LONG, gone).await?;
    blames(&cluster, "I1", "was not cordoned since")?;
    blames(&cluster, "I1", "on it")
}
