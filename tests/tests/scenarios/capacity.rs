//! The capacity of a pool: how it is computed, which nodes use it, and what happens to a berth whose node is gone or
//! does not come back. All scenarios share a cluster, each on hosts of its own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, SOON, Scenarios};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

mod refused;

#[tokio::test]
async fn capacity() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions::of(26)).await?;
    Scenarios::of(&cluster)
        .on("percent", 6, a_percentage_follows_the_members)
        .on("stuck", 3, an_undrainable_node_starves_no_other)
        .on("resize", 4, it_grows_and_shrinks_under_way)
        .on("unavailable", 3, who_is_unavailable_counts_once)
        .on("gone", 4, a_deleted_node_frees_its_berth)
        .on("lost", 3, a_holder_that_does_not_come_back)
        .on("frozen", 3, refused::a_lease_that_cannot_be_written_stops_no_other)
        .run()
        .await
}

/// Waits until the pool publishes a capacity, and has as many berths.
async fn until_total(part: &Part<'_>, total: u32) -> Result<()> {
    part.soon(&format!("{total} berths"), || async {
        let berths = part.berths().await?;
        Ok(part.status().await?.berths.total == total && berths.len() == total as usize)
    })
    .await
}

async fn events_about(part: &Part<'_>, reason: &str, about: &str) -> Result<Vec<Event>> {
    let all: Api<Event> = Api::namespaced(part.cluster.client(), "default");
    let selector = format!("reason={reason},regarding.name={about}");
    Ok(all.list(&ListParams::default().fields(&selector)).await?.items)
}

/// Waits until the object has exactly one event with this reason for each entry of `words`, and no other. Each event
/// contains its entry.
async fn until_events(part: &Part<'_>, reason: &str, about: &str, words: &[&str]) -> Result<()> {
    part.soon(&format!("{} events {reason}", words.len()), || async {
        let series = events_about(part, reason, about).await?.into_iter().map(|e| e.series);
        let count: i32 = series.map(|series| series.map_or(1, |s| s.count)).sum();
        Ok(usize::try_from(count)? >= words.len())
    })
    .await?;
    let events = events_about(part, reason, about).await?;
    let mut notes: Vec<_> = events.iter().map(|e| e.note.clone().unwrap_or_default()).collect();
    for words in words {
        let found = notes.iter().position(|note| note.contains(words));
        notes.remove(found.with_context(|| format!("no event {reason} says {words:?}: {events:#?}"))?);
    }
    ensure!(
        notes.is_empty() && events.iter().all(|e| e.series.is_none()),
        "each event is written once: {events:#?}"
    );
    Ok(())
}

async fn a_percentage_follows_the_members(part: &Part<'_>) -> Result<()> {
    for n in [5, 6] {
        part.leave(part.host(n)).await?;
    }
    part.cluster.allow(&part.name, 3);
    let v2 = part
        .roll_to("2.0.0", json!({ "maxUnavailable": "50%", "paused": true }))
        .await?;
    until_total(part, 2).await?;
    part.join(part.host(5)).await?;
    part.join(part.host(6)).await?;
    until_total(part, 3).await?;
    for n in [4, 5, 6] {
        part.label(part.node(n), "berth.dev/exclude", Some("")).await?;
    }
    until_total(part, 1).await?;
    let counts = part.status().await?.nodes;
    ensure!(
        (counts.total, counts.excluded) == (3, 3),
        "excluded nodes are members: {counts:?}"
    );
    for n in [4, 5, 6] {
        part.label(part.node(n), "berth.dev/exclude", None).await?;
    }
    until_total(part, 3).await?;
    // A number above the number of members creates no more Leases than members.
    part.patch(json!({ "rollout": { "maxUnavailable": 100_000 } })).await?;
    part.soon("a berth for each of six members", || async {
        Ok(part.status().await?.berths.total == 100_000 && part.berths().await?.len() == 6)
    })
    .await?;
    part.patch(json!({ "rollout": { "maxUnavailable": "50%" } })).await?;
    until_total(part, 3).await?;
    part.leave(part.host(6)).await?;
    until_total(part, 2).await?;
    part.rollout(json!({ "paused": false })).await?;
    part.until_run(&v2, &[1, 2, 3, 4, 5], LONG).await?;
    ensure!(part.host(6).facts().version == "1.0.0", "the node was updated");
    Ok(())
}

async fn it_grows_and_shrinks_under_way(part: &Part<'_>) -> Result<()> {
    for host in &part.hosts {
        part.block(host.name()).await?;
    }
    let (n1, n2, n3) = (part.node(1), part.node(2), part.node(3));
    let v2 = part.publish("2.0.0").await?;
    part.roll_once_staged(&v2, json!({ "maxUnavailable": 1 })).await?;
    part.until_hold(&[n1]).await?;
    until_total(part, 1).await?;
    part.rollout(json!({ "maxUnavailable": 3 })).await?;
    part.until_hold(&[n1, n2, n3]).await?;
    // The smaller capacity is published at once; the holders keep their berths.
    part.rollout(json!({ "maxUnavailable": 1 })).await?;
    part.soon("one berth is published while three are held", || async {
        let berths = part.status().await?.berths;
        Ok((berths.total, berths.held) == (1, 3))
    })
    .await?;
    part.until_phase(n1, "Draining").await?;
    ensure!(part.holders().await? == [n1, n2, n3], "all three keep their berths");
    part.unblock(n2).await?;
    part.until_run(&v2, &[2], SOON).await?;
    part.soon("the berth of the second is gone", || async {
        Ok(part.berths().await?.len() == 2)
    })
    .await?;
    part.unblock(n1).await?;
    part.until_run(&v2, &[1], SOON).await?;
    // A berth below the capacity is free, but is not offered: another node still holds one above the capacity.
    part.until_hold(&[n3]).await?;
    part.unblock(n3).await?;
    part.until_run(&v2, &[3], SOON).await?;
    part.until_hold(&[part.node(4)]).await?;
    until_total(part, 1).await?;
    part.unblock(part.node(4)).await?;
    part.until_all_run(&v2, SOON).await?;
    for index in [1, 2] {
        let last = part.ever(index)?.pop();
        ensure!(last.as_deref() == Some("closed:shrunk"), "berth {index}: {last:?}");
    }
    Ok(())
}

async fn who_is_unavailable_counts_once(part: &Part<'_>) -> Result<()> {
    let (n2, n3) = (part.node(2), part.node(3));
    // Outdated and cordoned by its admin: this node is updated first, and stays cordoned.
    part.cordon(n2, true).await?;
    let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 1 })).await?;
    part.until_run(&v2, &[2], LONG).await?;
    let message = format!("rollout.maxUnavailable is used up, 1 of 1: {n2} (cordoned by someone else)");
    part.until_false("Progressing", "Waiting", &message).await?;
    ensure!(part.is_cordoned(n2).await?, "its admin's cordon is gone");
    ensure!(part.order(&v2) == [n2], "no other node went: {:?}", part.order(&v2));
    // Also not Ready: still one node, counted once.
    part.not_ready(n2).await?;
    let message = format!("rollout.maxUnavailable is used up, 1 of 1: {n2} (not Ready)");
    part.until_false("Progressing", "Waiting", &message).await?;
    part.rollout(json!({ "maxUnavailable": 2 })).await?;
    part.until_run(&v2, &[1, 3], LONG).await?;
    part.soon("one node is unavailable", || async {
        Ok(part.status().await?.nodes.unavailable == 1)
    })
    .await?;
    part.host(2).start_kubelet().await;
    part.cordon(n2, false).await?;
    part.soon("all are available", || async {
        Ok(part.status().await?.nodes.unavailable == 0)
    })
    .await?;
    // Outdated and not Ready: this node goes first, so that a fix reaches it.
    part.not_ready(n3).await?;
    part.rollout(json!({ "maxUnavailable": 1 })).await?;
    let v3 = part.roll_to("3.0.0", json!({ "maxUnavailable": 1 })).await?;
    part.until_all_run(&v3, LONG).await?;
    let order = part.order(&v3);
    ensure!(
        order.first().map(String::as_str) == Some(n3),
        "the node that was not Ready goes first: {order:?}"
    );
    Ok(())
}

async fn an_undrainable_node_starves_no_other(part: &Part<'_>) -> Result<()> {
    let n1 = part.node(1);
    part.block(n1).await?;
    let v2 = part
        .roll_to("2.0.0", json!({ "maxUnavailable": 1, "paused": true }))
        .await?;
    part.patch(json!({ "drain": { "timeout": "2s" } })).await?;
    part.roll_once_staged(&v2, json!({ "maxUnavailable": 1 })).await?;
    part.until_run(&v2, &[2, 3], LONG).await?;
    part.is_untouched(1, 1).await?;
    let turn = part.node_status(n1).await?.last_turn.context("no turn on record")?;
    let pod = format!("default/block-{n1}");
    ensure!(
        turn.outcome == "DrainTimeout" && turn.message.contains(&pod),
        "the turn record names the pod: {turn:?}"
    );
    part.until_node_says(n1, ("NodeDegraded", "True", "DrainTimeout", &pod))
        .await?;
    part.until_true("Degraded", "NodesDegraded", &pod).await?;
    part.unblock(n1).await?;
    // The node would try again automatically after a minute.
    part.rollout(json!({ "retryToken": "now" })).await?;
    part.until_all_run(&v2, LONG).await?;
    part.until_false("Degraded", "AsExpected", "").await
}

/// Removes a node for good, as if its machine were taken away: nothing on it runs, and its Node is deleted.
async fn take_away(part: &Part<'_>, n: usize) -> Result<()> {
    let host = part.host(n);
    host.stop_agent().await;
    host.stop_kubelet();
    part.cluster
        .nodes()
        .delete(host.name(), &DeleteParams::default())
        .await?;
    Ok(())
}

async fn each_loss_is_told(part: &Part<'_>) -> Result<()> {
    let words = [1, 2].map(|n| format!("of node {}", part.node(n)));
    until_events(part, "BerthGone", &part.name, &[&words[0], &words[1]]).await?;
    until_events(part, "RolloutHalted", &part.name, &[part.node(2)]).await
}

async fn a_deleted_node_frees_its_berth(part: &Part<'_>) -> Result<()> {
    let (n1, n2, n3, n4) = (part.node(1), part.node(2), part.node(3), part.node(4));
    part.block(n1).await?;
    let v2 = part.publish("2.0.0").await?;
    part.host(2)
        .settings(|s| s.never_ready = [v2.digest.to_string()].into());
    part.roll_once_staged(&v2, json!({ "maxUnavailable": 1 })).await?;
    // Before the commit: the next node continues, and nothing has failed.
    part.until_hold(&[n1]).await?;
    take_away(part, 1).await?;
    part.until_hold(&[n2]).await?;
    ensure!(
        part.ever(0)?.contains(&"closed:gone".to_owned()),
        "its berth was closed: {:?}",
        part.ever(0)?
    );
    ensure!(part.status().await?.failures.is_empty(), "nothing was committed");
    // After the commit: it is unknown whether the image was the cause, so the rollout halts.
    part.until_phase(n2, "Proving").await?;
    take_away(part, 2).await?;
    part.until_true("RolloutHalted", "TooManyFailures", n2).await?;
    let failures = part.status().await?.failures;
    let [failed] = failures.as_slice() else {
        anyhow::bail!("one digest has failed: {failures:?}")
    };
    ensure!(
        failed.digest == v2.digest && failed.nodes == [format!("{n2} (deleted)")],
        "on the node that is gone: {failed:?}"
    );
    part.until_false("Progressing", "RolloutHalted", n2).await?;
    part.is_said_of_none(&[n3, n4]).await?;
    ensure!(
        part.holders().await?.is_empty() && part.order(&v2) == [n2],
        "another node goes"
    );
    each_loss_is_told(part).await?;
    part.rollout(json!({ "retryToken": "again" })).await?;
    part.until_run(&v2, &[3, 4], LONG).await?;
    part.until_false("RolloutHalted", "AsExpected", "").await?;
    let status = part.status().await?;
    ensure!(
        status.failures.is_empty() && status.retry_token.as_deref() == Some("again"),
        "the failure is forgotten: {status:?}"
    );
    each_loss_is_told(part)
        .await
        .context("after many more passes of the controller")
}

async fn a_holder_that_does_not_come_back(part: &Part<'_>) -> Result<()> {
    let n1 = part.node(1);
    part.host(1).settings(|s| s.reboot_time = Duration::from_secs(3600));
    let rollout = json!({ "maxUnavailable": 1, "maxFailures": 2, "rebootTimeout": "3s" });
    let v2 = part.publish("2.0.0").await?;
    part.roll_once_staged(&v2, rollout).await?;
    part.soon("the first host is down", || async {
        Ok(part.host(1).facts().boot_id.is_none())
    })
    .await?;
    part.not_ready(n1).await?;
    let said = ("RebootTimedOut", "True", "RebootTimedOut", "keeps berth lost-0");
    part.until_node_says(n1, said).await?;
    part.until_true("Degraded", "RebootTimedOut", n1).await?;
    ensure!(part.holders().await? == [n1], "it keeps its berth");
    let others = [part.host(2), part.host(3)];
    ensure!(others.iter().all(|h| h.facts().version == "1.0.0"), "another node goes");
    // The admin excludes the node: it leaves the pool and the count, and one failure is recorded.
    part.label(n1, "berth.dev/exclude", Some("broken")).await?;
    part.until_run(&v2, &[2, 3], LONG).await?;
    ensure!(
        part.ever(0)?.contains(&"closed:excluded".to_owned()),
        "its berth was closed: {:?}",
        part.ever(0)?
    );
    part.until_node_says(n1, ("RebootTimedOut", "False", "NoBerth", n1))
        .await?;
    part.until_false("RolloutHalted", "AsExpected", "").await?;
    let status = part.status().await?;
    ensure!(
        (status.nodes.total, status.nodes.excluded) == (2, 1),
        "the excluded node is still a member: {:?}",
        status.nodes
    );
    let failed: Vec<_> = status.failures.iter().flat_map(|f| &f.nodes).collect();
    ensure!(
        *failed == [&format!("{n1} (excluded)")],
        "its failure is not on record: {:?}",
        status.failures
    );
    until_events(part, "RebootTimedOut", n1, &["keeps berth lost-0"]).await?;
    until_events(
        part,
        "BerthExcluded",
        &part.name,
        &[&format!("berth lost-0 of node {n1}")],
    )
    .await?;
    until_events(part, "RolloutHalted", &part.name, &[]).await
}
