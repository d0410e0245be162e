//! The gates: what keeps the berths of a pool closed, how the pool and its nodes show it, how an uncommitted holder gives back,
//! and that all continues automatically after the gate opens. The control plane, the controller and the agents are real, the
//! hosts are simulated. All scenarios but one share a cluster, each on hosts of its own.

use anyhow::{Context, Result, ensure};
use berth_api::berth::{BerthState, Outcome};
use berth_api::condition;
use berth_api::fleet::BootcFleet;
use berth_api::pool::WaveState;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, SOON, together};
use berth_tests::hosts::HostChange;
use jiff::SignedDuration;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

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
    let part = async |name, hosts| Part::new(&cluster, name, hosts).await;
    let pause = part("pause", 1..=3).await?;
    let window = part("window", 4..=4).await?;
    let shutting = part("shutting", 5..=5).await?;
    let invalid = part("invalid", 6..=6).await?;
    let clock = part("clock", 7..=9).await?;
    let waves = part("waves", 10..=13).await?;
    let zones = part("zones", 14..=17).await?;
    let budget = part("budget", 18..=21).await?;
    let splay = part("splay", 22..=22).await?;
    let short = part("short", 23..=25).await?;
    let halt = part("halt", 26..=27).await?;
    together(
        &cluster,
        vec![
            (
                "a_paused_pool_takes_back_and_resumes",
                Box::pin(a_paused_pool_takes_back_and_resumes(&pause)),
            ),
            ("a_window_opens", Box::pin(windows::a_window_opens(&window))),
            (
                "a_window_shuts_over_a_drain",
                Box::pin(windows::a_window_shuts_over_a_drain(&shutting)),
            ),
            (
                "a_window_that_means_nothing",
                Box::pin(windows::a_window_that_means_nothing(&invalid)),
            ),
            (
                "a_host_without_the_time",
                Box::pin(windows::a_host_without_the_time(&clock)),
            ),
            ("wave_after_wave", Box::pin(wave_after_wave(&waves))),
            ("zone_beside_zone", Box::pin(zone_beside_zone(&zones))),
            (
                "an_image_that_fails_halts",
                Box::pin(an_image_that_fails_halts(&budget)),
            ),
            (
                "a_halt_takes_back_from_who_drains",
                Box::pin(a_halt_takes_back_from_who_drains(&halt)),
            ),
            (
                "a_splay_delays_the_start",
                Box::pin(windows::a_splay_delays_the_start(&splay)),
            ),
            (
                "a_window_that_is_too_short",
                Box::pin(windows::a_window_that_is_too_short(&short)),
            ),
        ],
    )
    .await
}

/// Here the controller asks its machine's kernel about the clock, its default.
#[tokio::test]
async fn fleet() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions {
        controller_env: vec![],
        ..options(3)
    })
    .await?;
    let part = Part::new(&cluster, "fleet", 1..=2).await?;
    together(
        &cluster,
        vec![("a_paused_fleet_takes_back_and_resumes", Box::pin(paused_fleet(&part)))],
    )
    .await?;
    let part = Part::new(&cluster, "kernel", 3..=3).await?;
    together(
        &cluster,
        vec![(
            "the_clock_of_the_controller",
            Box::pin(windows::the_clock_of_the_controller(&part)),
        )],
    )
    .await
}

/// Waits until the node holds no berth: its last turn ended with this outcome, its Node is schedulable, and its host was not
/// rebooted.
async fn until_taken_back(part: &Part<'_>, n: usize, outcome: Outcome) -> Result<()> {
    part.until_hold(&[], SOON).await?;
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
        part.until_phase(node, "Waiting", SOON).await?;
    }
    part.until_says("Paused", "True", "PausedByAdmin", "", SOON).await?;
    part.until_says("Progressing", "False", "Paused", "rollout.paused", SOON)
        .await?;
    ensure!(part.holders().await?.is_empty(), "a paused pool has no holders");
    part.is_said_of_none(&nodes).await?;
    part.rollout(json!({ "paused": false })).await?;
    part.until_phase(nodes[0], "Draining", SOON).await?;
    ensure!(part.is_cordoned(nodes[0]).await?, "a draining node is cordoned");
    part.rollout(json!({ "paused": true })).await?;
    until_taken_back(part, 1, Outcome::Revoked).await?;
    part.until_says("Progressing", "False", "Paused", "rollout.paused", SOON)
        .await?;
    part.is_said_of_none(&nodes).await?;
    part.rollout(json!({ "paused": false })).await?;
    part.until_hold(&nodes[..1], SOON).await?;
    part.unblock(nodes[0]).await?;
    part.until_all_run(&v2, LONG).await?;
    part.until_says("Paused", "False", "NotPaused", "", SOON).await
}

async fn paused_fleet(part: &Part<'_>) -> Result<()> {
    let nodes = [part.node(1), part.node(2)];
    let fleet: Api<BootcFleet> = Api::all(part.cluster.client());
    let pause = async |paused: bool| {
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcFleet", "metadata": { "name": "cluster" },
            "spec": { "paused": paused },
        });
        fleet
            .patch("cluster", &PatchParams::apply("admin").force(), &Patch::Apply(&object))
            .await?;
        part.until("the fleet says so", SOON, || async {
            let status = fleet.get("cluster").await?.status.unwrap_or_default();
            Ok(condition::is_true(&status.conditions, "Paused") == paused)
        })
        .await
    };
    // The holder is the node that stages first.
    let draining = async || {
        part.until("a node drains", SOON, || async {
            let holders = part.holders().await?;
            let [holder] = holders.as_slice() else { return Ok(false) };
            Ok(part.cluster.phase(holder).await? == "Draining")
        })
        .await?;
        let holder = part.holders().await?.pop().context("no node holds a berth")?;
        nodes
            .iter()
            .position(|node| *node == holder)
            .map(|n| n + 1)
            .context("the holder is an unknown host")
    };
    pause(true).await?;
    for node in nodes {
        part.block(node).await?;
    }
    let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 1 })).await?;
    part.until_says("Paused", "True", "PausedByFleet", "BootcFleet cluster", SOON)
        .await?;
    part.until_says("Progressing", "False", "FleetPaused", "BootcFleet cluster", SOON)
        .await?;
    ensure!(
        part.hosts.iter().all(|h| h.facts().staged.is_none()),
        "no node starts a pull"
    );
    pause(false).await?;
    let first = draining().await?;
    pause(true).await?;
    until_taken_back(part, first, Outcome::Revoked).await?;
    part.until_says("Progressing", "False", "FleetPaused", "BootcFleet cluster", SOON)
        .await?;
    part.is_said_of_none(&nodes).await?;
    pause(false).await?;
    draining().await?;
    for node in nodes {
        part.unblock(node).await?;
    }
    part.until_all_run(&v2, LONG).await?;
    part.until_says("Paused", "False", "NotPaused", "", SOON).await
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
    let waves = |soak: &str| {
        let selector = json!({ "matchLabels": { "tier": "canary" } });
        json!([{ "name": "first", "nodeSelector": selector, "soakTime": soak }])
    };
    let v2 = part
        .roll_to("2.0.0", json!({ "maxUnavailable": 4, "waves": waves("1h") }))
        .await?;
    part.until_hold(&[canary], SOON).await?;
    part.until_waiting(&[w1, w2, last], "WaveWaiting", "wave first is proven", SOON)
        .await?;
    part.unblock(canary).await?;
    part.until_waiting(&[w1, w2, last], "WaveSoaking", "wave first has soaked", SOON)
        .await?;
    part.until("the pool reports its waves", SOON, || async {
        let waves = part.status().await?.waves;
        let is = |name: &str, state| waves.iter().any(|w| w.name == name && w.state == state);
        Ok(is("first", WaveState::Soaking) && is("rest", WaveState::Waiting))
    })
    .await?;
    part.rollout(json!({ "waves": waves("6s") })).await?;
    part.until_run(&v2, &[1], SOON).await?;
    part.until_waiting(&[last], "WaveWaiting", "wave rest is proven", SOON)
        .await?;
    part.until_hold(&[w2], SOON).await?;
    ensure!(part.order(&v2) == [canary, w1], "only these have gone so far");
    part.unblock(w2).await?;
    part.until_all_run(&v2, LONG).await?;
    ensure!(
        part.order(&v2) == [canary, w1, w2, last],
        "wave after wave: {:?} of {nodes:?}",
        part.order(&v2)
    );
    let events = part.cluster.log.events();
    let at = |host: &str, wanted: fn(&HostChange) -> bool| {
        events
            .iter()
            .rev()
            .find(|e| e.host == host && wanted(&e.change))
            .map(|e| e.at)
            .context("the host has not rebooted")
    };
    let proven = at(canary, |c| matches!(c, HostChange::Ready { .. }))?;
    let next = at(w1, |c| matches!(c, HostChange::Down))?;
    ensure!(
        next.duration_since(proven) >= SOAK,
        "the canary soaked: proven at {proven}, next down at {next}"
    );
    part.until_node_says(last, ("Waiting", "False", "NotWaiting", ""), SOON)
        .await?;
    part.until("all waves are done", SOON, || async {
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
    part.until_hold(&[z1, z3], SOON).await?;
    part.unblock(z1).await?;
    part.until_hold(&[z2, z3], SOON).await?;
    for node in &nodes[1..] {
        part.unblock(node).await?;
    }
    part.until_all_run(&v2, LONG).await
}

/// Nodes that report that the image failed on them.
async fn failed(part: &Part<'_>, digest: &berth_api::Digest) -> Result<Vec<String>> {
    let mut failed = vec![];
    for host in &part.hosts {
        let status = part.bootc_node(host.name()).await?.status.unwrap_or_default();
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
    let rollout = || json!({ "maxUnavailable": 2, "maxFailures": 2 });
    let v2 = part.roll_to("2.0.0", rollout()).await?;
    part.until_says("RolloutHalted", "True", "TooManyFailures", "maxFailures is 2", LONG)
        .await?;
    part.until_hold(&[], SOON).await?;
    part.until_says("Progressing", "False", "RolloutHalted", "publish another image", SOON)
        .await?;
    // A berth shows a failure before its node's status does.
    part.until(
        "from two to three nodes failed, and all of them are on record",
        SOON,
        || async {
            let bad = failed(part, &v2.digest).await?;
            let failures = part.status().await?.failures;
            let recorded = failures.into_iter().find(|f| f.digest == v2.digest);
            Ok((2..=MOST).contains(&bad.len()) && recorded.is_some_and(|recorded| recorded.nodes == bad))
        },
    )
    .await?;
    part.until_says(
        "RolloutHalted",
        "True",
        "TooManyFailures",
        "change rollout.retryToken",
        SOON,
    )
    .await?;
    // A rollout of another image continues without an admin.
    for host in &part.hosts {
        host.settings(|s| s.finalization_failures = 0);
    }
    let v3 = part.roll_to("3.0.0", rollout()).await?;
    part.until_all_run(&v3, LONG).await?;
    part.until_says("RolloutHalted", "False", "AsExpected", "", SOON)
        .await?;
    // The admin sets the failed image again. Nodes where it has not failed would go first, but no node may.
    part.pool(&v2, rollout()).await?;
    part.until_says("RolloutHalted", "True", "TooManyFailures", "maxFailures is 2", SOON)
        .await?;
    part.rollout(json!({ "retryToken": "mended" })).await?;
    part.until_all_run(&v2, LONG).await?;
    let bad = failed(part, &v2.digest).await?;
    ensure!(bad.is_empty(), "the failures are forgotten: {bad:?}");
    part.until_says("RolloutHalted", "False", "AsExpected", "", SOON).await
}

async fn a_halt_takes_back_from_who_drains(part: &Part<'_>) -> Result<()> {
    let (n1, n2) = (part.node(1), part.node(2));
    part.block(n2).await?;
    let v2 = part.publish("2.0.0").await?;
    part.host(1)
        .settings(|s| s.never_ready = [v2.digest.to_string()].into());
    part.roll_once_staged(&v2, json!({ "maxUnavailable": 2, "maxFailures": 1 }))
        .await?;
    part.until_phase(n1, "Proving", SOON).await?;
    part.until_phase(n2, "Draining", SOON).await?;
    part.until_hold(&[n1, n2], SOON).await?;
    // The admin excludes the first node: the image counts as failed there.
    part.label(n1, "berth.dev/exclude", Some("")).await?;
    part.until_says("RolloutHalted", "True", "TooManyFailures", n1, SOON)
        .await?;
    until_taken_back(part, 2, Outcome::Revoked).await?;
    part.until_says("Progressing", "False", "RolloutHalted", n1, SOON)
        .await?;
    part.unblock(n2).await?;
    part.rollout(json!({ "retryToken": "mended" })).await?;
    part.until_run(&v2, &[2], LONG).await?;
    ensure!(part.boots(1) == 2 && part.boots(2) == 2, "each of them rebooted once");
    Ok(())
}
