//! Settings of drains, from the pool's spec to the agents and back into the status, and the ends of a drain that takes
//! too long. All scenarios share a cluster, each on hosts of its own.

use anyhow::{Context, Result, ensure};
use berth_api::node::DrainBlocker;
use berth_tests::audit::AuditLog;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, Published, Scenarios};
use berth_tests::hosts::HostChange;
use berth_tests::hosts::sim::Updaters;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

#[tokio::test]
async fn drain_settings() -> Result<()> {
    // A node whose name cannot be the value of a label.
    let names = vec![format!("node1.{}.{}.example.com", "a".repeat(60), "b".repeat(60))];
    let cluster = Cluster::start(ClusterOptions {
        hosts: 6,
        names,
        // Every other host has rpm-ostree.
        updaters: vec![Updaters::Bootc, Updaters::RpmOstree],
        ..ClusterOptions::default()
    })
    .await?;
    Scenarios::of(&cluster)
        .on("settings", 1, the_settings_come_from_the_pool)
        .on("hold", 2, hold_waits_for_an_admin)
        .on("force", 1, force_deletes_what_is_left)
        .on("disabled", 1, without_a_drain_the_pods_stay)
        .on("selected", 1, selected_pods_are_deleted)
        .run()
        .await
}

fn pods(part: &Part<'_>) -> Api<Pod> {
    Api::namespaced(part.cluster.client(), "default")
}

/// Creates a pod without an owner. Deleting this pod would also delete its data.
async fn bare_pod(part: &Part<'_>, name: &str, node: &str) -> Result<()> {
    let pod = json!({"metadata": {"name": name}, "spec": {
        "nodeName": node, "containers": [{"name": "main", "image": "registry.test/app"}],
        "volumes": [{"name": "tmp", "emptyDir": {}}], "terminationGracePeriodSeconds": 1,
    }});
    pods(part)
        .create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    Ok(())
}

/// Creates a pod that a drain evicts, and waits until it runs.
async fn managed_pod(part: &Part<'_>, name: &str, node: &str) -> Result<()> {
    // The pod's owner. No controller re-creates the pod here.
    let maps: Api<ConfigMap> = Api::namespaced(part.cluster.client(), "default");
    let map = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    let uid = maps.create(&PostParams::default(), &map).await?.uid();
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "controller": true}]);
    let pod = json!({
        "metadata": {"name": name, "labels": {"app": name}, "ownerReferences": owner},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "registry.test/app"}],
        },
    });
    pods(part)
        .create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    part.soon(&format!("{name} runs"), || async {
        let status = pods(part).get(name).await?.status;
        Ok(status.and_then(|s| s.phase).as_deref() == Some("Running"))
    })
    .await
}

fn budgets(part: &Part<'_>) -> Api<PodDisruptionBudget> {
    Api::namespaced(part.cluster.client(), "default")
}

/// Creates a disruption budget that never allows the eviction of the pod with the same name.
async fn protect(part: &Part<'_>, name: &str) -> Result<()> {
    let budget = json!({
        "metadata": {"name": name},
        "spec": {"minAvailable": 10, "selector": {"matchLabels": {"app": name}}},
    });
    budgets(part)
        .create(&PostParams::default(), &serde_json::from_value(budget)?)
        .await?;
    part.soon(&format!("budget {name} is observed"), || async {
        let status = budgets(part).get(name).await?.status;
        Ok(status.is_some_and(|s| s.observed_generation == Some(1) && s.current_healthy > 0))
    })
    .await
}

/// Waits until a pod blocks the drain of a node for this reason, according to the node's status.
async fn until_in_the_way(part: &Part<'_>, node: &str, pod: &str, reason: &str) -> Result<DrainBlocker> {
    let found = std::cell::RefCell::new(None);
    part.soon(&format!("{pod} holds up {node}: {reason:?}"), || async {
        let status = part.node_status(node).await?;
        let blocker = status
            .drain_blockers
            .into_iter()
            .find(|b| b.pod == pod && b.reason.contains(reason));
        let is_there = blocker.is_some();
        found.replace(blocker);
        Ok(is_there)
    })
    .await?;
    found.into_inner().context("it was there")
}

async fn the_settings_come_from_the_pool(part: &Part<'_>) -> Result<()> {
    let node = part.node(1);
    bare_pod(part, "bare", node).await?;
    let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 1 })).await?;
    let first = until_in_the_way(part, node, "default/bare", "Unmanaged, with EmptyDir").await?;
    ensure!(first.since.0 <= Timestamp::now(), "since when: {first:?}");
    part.patch(json!({ "drain": { "force": true } })).await?;
    until_in_the_way(part, node, "default/bare", "drain.deleteEmptyDirData").await?;
    ensure!(part.boots(1) == 1, "a blocked drain reboots nothing");
    part.patch(json!({ "drain": { "deleteEmptyDirData": true } })).await?;
    part.until_all_run(&v2, LONG).await?;
    ensure!(pods(part).get_opt("bare").await?.is_none(), "it was evicted");
    Ok(())
}

/// Rolls out the next image with these drain settings.
async fn roll_with(part: &Part<'_>, drain: Value) -> Result<Published> {
    let v2 = part.publish("2.0.0").await?;
    part.pool(&v2, json!({ "maxUnavailable": 1, "paused": true })).await?;
    part.patch(json!({ "drain": drain })).await?;
    part.roll_once_staged(&v2, json!({ "maxUnavailable": 1 })).await?;
    Ok(v2)
}

/// Time of the host's last shutdown.
fn down(part: &Part<'_>, n: usize) -> Result<Timestamp> {
    let events = part.cluster.log.events();
    let down = events
        .iter()
        .rev()
        .find(|e| e.host == part.node(n) && matches!(e.change, HostChange::Down));
    Ok(down.context("it never went down")?.at)
}

/// Requests of the agents to remove a pod: time, verb, and success. Requests of the kubelet are left out.
fn asked(part: &Part<'_>, pod: &str) -> Result<Vec<(Timestamp, &'static str, bool)>> {
    let audit = AuditLog::read(&part.cluster.control_plane.audit_log())?;
    let of_pod = audit.records().iter().filter(|r| r.resource == "pods" && r.name == pod);
    let moves = of_pod.filter(|r| r.program() == "berth-agent" && r.stage == "ResponseComplete" && r.is_write());
    Ok(moves
        .map(|r| {
            (
                r.received,
                if r.verb == "delete" { "delete" } else { "evict" },
                r.succeeded(),
            )
        })
        .collect())
}

async fn hold_waits_for_an_admin(part: &Part<'_>) -> Result<()> {
    let [n1, n2] = [part.node(1), part.node(2)];
    managed_pod(part, "moves", n1).await?;
    managed_pod(part, "kept", n1).await?;
    protect(part, "kept").await?;
    let v2 = roll_with(part, json!({ "timeout": "2s", "onTimeout": "Hold" })).await?;
    until_in_the_way(part, n1, "default/kept", "disruption budget kept").await?;
    part.soon("the unprotected pod is gone", || async {
        Ok(pods(part).get_opt("moves").await?.is_none())
    })
    .await?;
    let held = "default/kept: ";
    part.until_node_says(n1, ("Drained", "False", "DrainTimeout", held))
        .await?;
    part.until_node_says(
        n1,
        (
            "NodeDegraded",
            "True",
            "DrainTimeout",
            "the drain continues (drain.onTimeout: Hold)",
        ),
    )
    .await?;
    part.until_true(
        "Degraded",
        "NodesDegraded",
        "the drain continues (drain.onTimeout: Hold)",
    )
    .await?;
    // Twice the timeout: even Force would have given up by then.
    let conditions = part.node_status(n1).await?.conditions;
    let degraded = berth_api::condition::find(&conditions, "NodeDegraded").context("not degraded")?;
    let since = degraded.last_transition_time.0;
    part.soon("four seconds have passed", || async {
        Ok(Timestamp::now().duration_since(since) > SignedDuration::from_secs(4))
    })
    .await?;
    ensure!(
        part.holders().await? == [n1],
        "the node keeps its berth, and {n2} waits: {:?}",
        part.holders().await?
    );
    ensure!(
        part.cluster.phase(n1).await? == "Draining" && part.is_cordoned(n1).await?,
        "the drain continues"
    );
    ensure!(part.boots(1) == 1 && part.boots(2) == 1, "no node reboots");
    ensure!(
        pods(part).get("kept").await?.metadata.deletion_timestamp.is_none(),
        "a pod protected by a budget stays"
    );
    let turn = part.bootc_node(n1).await?.status.and_then(|s| s.last_turn);
    ensure!(turn.is_none(), "its turn has not ended: {turn:?}");
    it_ends_without_the_budget(part, &v2).await
}

async fn it_ends_without_the_budget(part: &Part<'_>, v2: &Published) -> Result<()> {
    let [n1, n2] = [part.node(1), part.node(2)];
    // An admin deletes the budget; the rest is automatic.
    budgets(part).delete("kept", &DeleteParams::default()).await?;
    part.until_all_run(v2, LONG).await?;
    part.until_false("Degraded", "AsExpected", "").await?;
    let asked = asked(part, "kept")?;
    ensure!(asked.iter().all(|(_, how, _)| *how == "evict"), "forced: {asked:?}");
    let evicted = asked
        .iter()
        .find(|(_, _, well)| *well)
        .context("it was evicted in the end")?
        .0;
    ensure!(evicted < down(part, 1)?, "not evicted before the reboot: {evicted}");
    ensure!(part.order(v2) == [n1, n2], "one turn each: {:?}", part.order(v2));
    ensure!(
        part.boots(1) == 2 && !part.is_cordoned(n1).await?,
        "rebooted twice, or cordoned"
    );
    Ok(())
}

async fn force_deletes_what_is_left(part: &Part<'_>) -> Result<()> {
    let node = part.node(1);
    managed_pod(part, "guarded", node).await?;
    protect(part, "guarded").await?;
    // With Force, the deleted pods get the same time again to end.
    let v2 = roll_with(part, json!({ "timeout": "20s", "onTimeout": "Force" })).await?;
    until_in_the_way(part, node, "default/guarded", "disruption budget guarded").await?;
    ensure!(part.boots(1) == 1, "nothing reboots over a drain");
    part.until_all_run(&v2, LONG).await?;
    ensure!(pods(part).get_opt("guarded").await?.is_none(), "it was deleted");
    let asked = asked(part, "guarded")?;
    let evictions = asked.iter().filter(|(_, how, _)| *how == "evict");
    ensure!(
        evictions.clone().count() > 0 && evictions.clone().all(|(_, _, well)| !well),
        "evictions are tried first, and fail: {asked:?}"
    );
    let first = evictions.map(|(at, _, _)| *at).min().context("an eviction was tried")?;
    let deleted = asked
        .iter()
        .find(|(_, how, well)| *how == "delete" && *well)
        .context("it was deleted")?
        .0;
    // The drain began before the first try.
    let waited = deleted.duration_since(first);
    ensure!(waited >= SignedDuration::from_secs(15), "deleted after {waited:?}");
    ensure!(deleted < down(part, 1)?, "not deleted before the reboot");
    let status = part.node_status(node).await?;
    let turn = status.last_turn;
    ensure!(turn.is_none() && part.boots(1) == 2, "one turn was enough: {turn:?}");
    Ok(())
}

/// The UID of a pod that exists and is not being deleted.
async fn uid_of(part: &Part<'_>, pod: &str) -> Result<Option<String>> {
    let found = pods(part)
        .get_opt(pod)
        .await?
        .filter(|p| p.metadata.deletion_timestamp.is_none());
    Ok(found.and_then(|p| p.metadata.uid))
}

/// With the drain disabled, pods stay on their node. A cluster with a single node needs this, because its pods cannot
/// run elsewhere.
async fn without_a_drain_the_pods_stay(part: &Part<'_>) -> Result<()> {
    let (node, pods) = (part.node(1), ["plain", "shy"]);
    bare_pod(part, pods[0], node).await?;
    managed_pod(part, pods[1], node).await?;
    protect(part, pods[1]).await?;
    let before = [uid_of(part, pods[0]).await?, uid_of(part, pods[1]).await?];
    let v2 = roll_with(part, json!({ "enabled": false })).await?;
    part.until_all_run(&v2, LONG).await?;
    for pod in pods {
        ensure!(
            asked(part, pod)?.is_empty(),
            "a pod was asked to leave: {pod}: {:?}",
            asked(part, pod)?
        );
    }
    let after = [uid_of(part, pods[0]).await?, uid_of(part, pods[1]).await?];
    ensure!(before == after && before.iter().all(Option::is_some), "{after:?}");
    let audit = AuditLog::read(&part.cluster.control_plane.audit_log())?;
    let cordons = audit
        .writes()
        .filter(|r| r.name == node && r.unschedulable() == Some(true));
    let cordoned = cordons.map(|r| r.received).min().context("the node was not cordoned")?;
    ensure!(
        cordoned < down(part, 1)? && !part.is_cordoned(node).await?,
        "cordoned before the reboot and not after it"
    );
    Ok(())
}

/// Unselected pods stay, even a pod that a drain would refuse to delete. Selected pods are deleted regardless of their
/// budget.
async fn selected_pods_are_deleted(part: &Part<'_>) -> Result<()> {
    let node = part.node(1);
    bare_pod(part, "left", node).await?;
    managed_pod(part, "chosen", node).await?;
    protect(part, "chosen").await?;
    let before = uid_of(part, "left").await?;
    let selector = json!({ "matchLabels": { "app": "chosen" } });
    let v2 = roll_with(part, json!({ "podSelector": selector, "disableEviction": true })).await?;
    part.until_all_run(&v2, LONG).await?;
    ensure!(pods(part).get_opt("chosen").await?.is_none(), "it was deleted");
    let asked = [asked(part, "chosen")?, asked(part, "left")?];
    ensure!(
        asked[0].iter().all(|(_, how, well)| *how == "delete" && *well),
        "deleted at once, without an eviction: {asked:?}"
    );
    ensure!(!asked[0].is_empty() && asked[1].is_empty(), "unselected: {asked:?}");
    ensure!(before.is_some() && uid_of(part, "left").await? == before, "it is gone");
    Ok(())
}
