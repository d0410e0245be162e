//! The gates: what keeps the berths of a pool closed, how the pool and its nodes show it, how an uncommitted holder
//! gives back, and that all continues automatically after the gate opens. All scenarios but one share a cluster, each
//! on hosts of its own.

use anyhow::{Context, Result, ensure};
use berth_api::berth::{BerthState, Outcome};
use berth_api::pool::WaveState;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, SOON, Scenarios};
use berth_tests::hosts::HostChange;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

mod windows;

fn options(hosts: usize) -> ClusterOptions {
    ClusterOptions {
        hosts,
        // The clock of the machine that runs the tests may be unsynchronized.
        controller_env: vec![("BERTH_TRUST_CLOCK".to_owned(), "true".to_owned())],
        agent_args: vec!["--heartbeat=10".to_owned()],
        ..ClusterOptions::default()
    }
}

#[tokio::test]
async fn gates() -> Result<()> {
    let cluster = Cluster::start(options(27)).await?;
    Scenarios::of(&cluster)
        .on("pause", 3, a_paused_pool_takes_back_and_resumes)
        .on("window", 1, windows::a_window_opens)
        .on("shutting", 1, windows::a_window_shuts_over_a_drain)
        .on("invalid", 1, windows::a_window_that_means_nothing)
        .on("clock", 3, windows::a_host_without_the_time)
        .on("waves", 4, wave_after_wave)
        .on("zones", 4, zone_beside_zone)
        .on("budget", 4, an_image_that_fails_halts)
        .on("splay", 1, windows::a_splay_delays_the_start)
        .on("short", 3, windows::a_window_that_is_too_short)
        .on("halt", 2, a_halt_takes_back_from_who_drains)
        .run()
        .await
}

/// Here the controller tests the clock with its machine's kernel, which is the default.
#[tokio::test]
async fn fleet() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions {
        controller_env: vec![],
        ..options(3)
    })
    .await?;
    Scenarios::of(&cluster)
        .on("fleet", 2, a_paused_fleet_takes_back_and_resumes)
        .run()
        .await?;
    Scenarios::of(&cluster)
        .with(windows::the_clock_of_the_controller)
        .run()
        .await
}

/// Waits until no berth is held. The node's turn must have ended with this outcome, without a reboot or a cordon.
async fn until_taken_back(part: &Part<'_>, n: usize, outcome: Outcome) -> Result<()> {
    part.until_hold(&[]).await?;
    let berths = part.berths().await?;
    let ended = berths.iter().any(|berth| match &berth.state {
        BerthState::Closed(c) => {
            c.outcome == Some(outcome) && c.last_node.as_ref().is_some_and(|l| l.as_str() == part.node(n))
        }
        _ => false,
    });
    ensure!(ended, "the berth has the turn's outcome: {berths:?}");
    part.is_untouched(n, 1).await
}

async fn a_paused_pool_takes_back_and_resumes(part: &Part<'_>) -> Result<()> {
    let nodes = [part.node(1), part.node(2), part.node(3)];
    part.block(nodes[0]).await?;
    let v2 = part
        .roll_to("2.0.0", json!({ "maxUnavailable": 1, "paused": true }))
        .await?;
    for node in nodes {
        part.until_phase(node, "Waiting").await?;
    }
    part.until_true("Paused", "PausedByAdmin", "").await?;
    part.until_false("Progressing", "Paused", "rollout.paused").await?;
    ensure!(part.holders().await?.is_empty(), "a paused pool has no holders");
    part.is_said_of_none(&nodes).await?;
    part.rollout(json!({ "paused": false })).await?;
    part.until_phase(nodes[0], "Draining").await?;
    ensure!(part.is_cordoned(nodes[0]).await?, "a draining node is cordoned");
    part.rollout(json!({ "paused": true })).await?;
    until_taken_back(part, 1, Outcome::Revoked).await?;
    part.until_false("Progressing", "Paused", "rollout.paused").await?;
    part.is_said_of_none(&nodes).await?;
    part.rollout(json!({ "paused": false })).await?;
    part.until_hold(&nodes[..1]).await?;
    part.unblock(nodes[0]).await?;
    part.until_all_run(&v2, LONG).await?;
    part.until_false("Paused", "NotPaused", "").await
}

/// Waits until a single node holds a berth and drains, and returns its number: the node that stages first.
async fn drains(part: &Part<'_>) -> Result<usize> {
    part.soon("a node drains", || async {
        let holders = part.holders().await?;
        let [holder] = holders.as_slice() else { return Ok(false) };
        Ok(part.cluster.phase(holder).await? == "Draining")
    })
    .await?;
    let holder = part.holders().await?.pop().context("no node holds a berth")?;
    let at = part.hosts.iter().position(|host| host.name() == holder);
    Ok(at.context("the holder is an unknown host")? + 1)
}

async fn a_paused_fleet_takes_back_and_resumes(part: &Part<'_>) -> Result<()> {
    let nodes = [part.node(1), part.node(2)];
    part.cluster.pause_fleet(true).await?;
    for node in nodes {
        part.block(node).await?;
    }
    let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 1 })).await?;
    part.until_true("Paused", "PausedByFleet", "BootcFleet cluster").await?;
    part.until_false("Progressing", "FleetPaused", "BootcFleet cluster")
        .await?;
    ensure!(part.hosts.iter().all(|h| h.facts().staged.is_none()), "a node pulls");
    part.cluster.pause_fleet(false).await?;
    let first = drains(part).await?;
    part.cluster.pause_fleet(true).await?;
    until_taken_back(part, first, Outcome::Revoked).await?;
    part.until_false("Progressing", "FleetPaused", "BootcFleet cluster")
        .await?;
    part.is_said_of_none(&nodes).await?;
    part.cluster.pause_fleet(false).await?;
    drains(part).await?;
    for node in nodes {
        part.unblock(node).await?;
    }
    part.until_all_run(&v2, LONG).await?;
    part.until_false("Paused", "NotPaused", "").await
}

fn canary_wave(soak: &str) -> Value {
    let selector = json!({ "matchLabels": { "tier": "canary" } });
    json!([{ "name": "first", "nodeSelector": selector, "soakTime": soak }])
}

/// Time of a host's last change that matches `is_it`.
fn last_time(part: &Part<'_>, host: &str, is_it: fn(&HostChange) -> bool) -> Result<Timestamp> {
    let mut events = part.cluster.log.events();
    events.retain(|e| e.host == host && is_it(&e.change));
    Ok(events.last().context("the host has not rebooted")?.at)
}

async fn wave_after_wave(part: &Part<'_>) -> Result<()> {
    const SOAK: SignedDuration = SignedDuration::from_secs(6);
    let nodes @ [w1, w2, canary, last] = [1, 2, 3, 4].map(|n| part.node(n));
    part.label(canary, "tier", Some("canary")).await?;
    part.label(last, "node-role.kubernetes.io/control-plane", Some(""))
        .await?;
    for node in [w2, canary] {
        part.block(node).await?;
    }
    let v2 = part
        .roll_to("2.0.0", json!({ "maxUnavailable": 4, "waves": canary_wave("1h") }))
        .await?;
    part.until_hold(&[canary]).await?;
    part.until_waiting(&[w1, w2, last], "WaveWaiting", "wave first are updated and Ready")
        .await?;
    part.unblock(canary).await?;
    part.until_waiting(&[w1, w2, last], "WaveSoaking", "the soak time of wave first is over")
        .await?;
    part.soon("the pool reports its waves", || async {
        let waves = part.status().await?.waves;
        let states = waves.iter().map(|w| (w.name.as_str(), w.state));
        let states: Vec<_> = states.collect();
        Ok(states.contains(&("first", WaveState::Soaking)) && states.contains(&("rest", WaveState::Waiting)))
    })
    .await?;
    part.rollout(json!({ "waves": canary_wave("6s") })).await?;
    part.until_run(&v2, &[1], SOON).await?;
    part.until_waiting(&[last], "WaveWaiting", "wave rest are updated and Ready")
        .await?;
    part.until_hold(&[w2]).await?;
    ensure!(part.order(&v2) == [canary, w1], "only these have gone so far");
    part.unblock(w2).await?;
    part.until_all_run(&v2, LONG).await?;
    ensure!(
        part.order(&v2) == [canary, w1, w2, last],
        "wave after wave: {:?} of {nodes:?}",
        part.order(&v2)
    );
    let proven = last_time(part, canary, |c| matches!(c, HostChange::Ready { .. }))?;
    let next = last_time(part, w1, |c| matches!(c, HostChange::Down))?;
    ensure!(next.duration_since(proven) >= SOAK, "{proven}, then {next}");
    part.until_node_says(last, ("Waiting", "False", "NotWaiting", ""))
        .await?;
    part.soon("all waves are done", || async {
        let waves = part.status().await?.waves;
        Ok(waves.len() == 3 && waves.iter().all(|w| w.state == WaveState::Done))
    })
    .await
}

async fn zone_beside_zone(part: &Part<'_>) -> Result<()> {
    let nodes @ [z1, z2, z3, _] = [1, 2, 3, 4].map(|n| part.node(n));
    for (node, rack) in nodes.iter().zip(["a", "a", "b", "b"]) {
        part.label(node, "rack", Some(rack)).await?;
        part.block(node).await?;
    }
    let v2 = part.publish("2.0.0").await?;
    part.roll_once_staged(&v2, json!({ "maxUnavailable": 2, "zoneKey": "rack" }))
        .await?;
    part.until_hold(&[z1, z3]).await?;
    part.unblock(z1).await?;
    part.until_hold(&[z2, z3]).await?;
    for node in &nodes[1..] {
        part.unblock(node).await?;
    }
    part.until_all_run(&v2, LONG).await
}

async fn failed(part: &Part<'_>, digest: &berth_api::Digest) -> Result<Vec<String>> {
    let mut failed = vec![];
    for host in &part.hosts {
        let status = part.node_status(host.name()).await?;
        failed.extend(status.failed_digests.contains(digest).then(|| host.name().to_owned()));
    }
    Ok(failed)
}

/// With k = 2 and maxFailures = 2 at most three nodes fail.
async fn an_image_that_fails_halts(part: &Part<'_>) -> Result<()> {
    const MOST: usize = 2 + 2 - 1;
    for host in &part.hosts {
        host.settings(|s| s.finalization_failures = u32::MAX);
    }
    let rollout = json!({ "maxUnavailable": 2, "maxFailures": 2 });
    let v2 = part.roll_to("2.0.0", rollout.clone()).await?;
    part.cluster
        .until_says(
            &part.name,
            ("RolloutHalted", "True", "TooManyFailures", "maxFailures is 2"),
            LONG,
        )
        .await?;
    part.until_hold(&[]).await?;
    part.until_false("Progressing", "RolloutHalted", "publish another image")
        .await?;
    // A berth shows a failure before its node's status does.
    part.soon(
        "from two to three nodes failed, and all of them are on record",
        || async {
            let bad = failed(part, &v2.digest).await?;
            let failures = part.status().await?.failures;
            let recorded = failures.into_iter().find(|f| f.digest == v2.digest);
            Ok((2..=MOST).contains(&bad.len()) && recorded.is_some_and(|recorded| recorded.nodes == bad))
        },
    )
    .await?;
    part.until_true("RolloutHalted", "TooManyFailures", "change rollout.retryToken")
        .await?;
    // A rollout of another image continues without an admin.
    for host in &part.hosts {
        host.settings(|s| s.finalization_failures = 0);
    }
    let v3 = part.roll_to("3.0.0", rollout.clone()).await?;
    part.until_all_run(&v3, LONG).await?;
    part.until_false("RolloutHalted", "AsExpected", "").await?;
    // The admin sets the failed image again. Nodes where it has not failed would go first, but no node may.
    part.pool(&v2, rollout.clone()).await?;
    part.until_true("RolloutHalted", "TooManyFailures", "maxFailures is 2")
        .await?;
    part.rollout(json!({ "retryToken": "mended" })).await?;
    part.until_all_run(&v2, LONG).await?;
    let bad = failed(part, &v2.digest).await?;
    ensure!(bad.is_empty(), "the failures are forgotten: {bad:?}");
    part.until_false("RolloutHalted", "AsExpected", "").await
}

async fn a_halt_takes_back_from_who_drains(part: &Part<'_>) -> Result<()> {
    let (n1, n2) = (part.node(1), part.node(2));
    part.block(n2).await?;
    let v2 = part.publish("2.0.0").await?;
    part.host(1)
        .settings(|s| s.never_ready = [v2.digest.to_string()].into());
    part.roll_once_staged(&v2, json!({ "maxUnavailable": 2, "maxFailures": 1 }))
        .await?;
    part.until_phase(n1, "Proving").await?;
    part.until_phase(n2, "Draining").await?;
    part.until_hold(&[n1, n2]).await?;
    // The admin excludes the first node: the image counts as failed there.
    part.label(n1, "berth.dev/exclude", Some("")).await?;
    part.until_true("RolloutHalted", "TooManyFailures", n1).await?;
    until_taken_back(part, 2, Outcome::Revoked).await?;
    part.until_false("Progressing", "RolloutHalted", n1).await?;
    part.unblock(n2).await?;
    part.rollout(json!({ "retryToken": "mended" })).await?;
    part.until_run(&v2, &[2], LONG).await?;
    ensure!(part.boots(1) == 2 && part.boots(2) == 2, "each of them rebooted once");
    Ok(())
}
