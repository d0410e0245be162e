//! Compromised nodes that write values that no program of Berth can decode, with the identities of their kubelet and
//! their agent. The other nodes are updated all the same, and conditions name the objects.

use anyhow::{Context, Result, ensure};
use berth_api::condition::{fleet, pool};
use berth_api::decode::Decoded;
use berth_api::keys;
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, Scenarios, has_condition};
use berth_tests::controlplane::Bound;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GetParams, Patch, PatchParams, Request};
use kube::{Api, Client, Resource};
use kubectl_berth::{Scope, Snapshot, report};
use serde_json::{Value, json};

use crate::said::berth;

/// A time that Go accepts. The latest time of Berth's programs is 26 hours before the end of that year.
const LATE: &str = "9999-12-31T23:59:59Z";

#[tokio::test]
async fn liars() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions {
        controller_args: vec!["--release-deadline=5s".into(), "--agent-silence=30s".into()],
        agent_args: vec!["--heartbeat=10".into()],
        ..ClusterOptions::of(5)
    })
    .await?;
    Scenarios::of(&cluster)
        .with(unreadable_objects_stop_no_other)
        .run()
        .await
}

async fn unreadable_objects_stop_no_other(cluster: &Cluster) -> Result<()> {
    let late = Part::new(cluster, "late", 1..=3).await?;
    let forged = Part::new(cluster, "forged", [4]).await?;
    let deleted = Part::new(cluster, "deleted", [5]).await?;
    let target = forged.roll_to("2.0.0", json!({ "maxUnavailable": 1 })).await?;
    forged.until_all_run(&target, LONG).await?;
    a_late_node_stops_no_other(&late).await?;
    a_forged_lease_stops_only_its_pool(&forged, &late).await?;
    a_bad_status_does_not_keep_its_pool(&deleted).await?;
    a_node_that_refuses_patches_is_excluded(&late, late.node(3)).await
}

/// Returns an API without types: a test cannot decode these values either.
fn untyped<K: Resource<DynamicType = ()>>(client: Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<K>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

/// Restarts the controller. The new leader lists all objects again.
fn restart_controller(part: &Part<'_>) -> Result<()> {
    part.cluster.controllers.kill(0);
    part.cluster.controllers.start(0)
}

/// Waits until the fleet's condition `ControllerHealthy` names this object.
async fn until_named(part: &Part<'_>, words: &str) -> Result<()> {
    part.soon(&format!("the fleet names {words}"), || async {
        let conditions = part.cluster.fleet_status().await?.conditions;
        let said = (fleet::CONTROLLER_HEALTHY, "False", "UnreadableObjects", words);
        Ok(has_condition(&conditions, said))
    })
    .await
}

async fn until_all_readable(part: &Part<'_>) -> Result<()> {
    part.soon("all objects can be read", || async {
        let conditions = part.cluster.fleet_status().await?.conditions;
        let said = (fleet::CONTROLLER_HEALTHY, "True", "AsExpected", "");
        Ok(has_condition(&conditions, said))
    })
    .await
}

/// Adds a condition with this time to a Node, with the identity of its kubelet.
async fn write_time(part: &Part<'_>, node: &str, time: &str) -> Result<()> {
    let kubelet = part.cluster.control_plane.node_kubeconfig(node)?.client().await?;
    let condition = json!({
        "type": "PIDPressure", "status": "False", "reason": "R", "lastHeartbeatTime": time, "lastTransitionTime": time,
    });
    let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
    untyped::<Node>(kubelet, None)
        .patch_status(node, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// A command of an admin reads everything, and names the object that it cannot read.
async fn admin_reads(part: &Part<'_>, words: &str) -> Result<()> {
    let snapshot = Snapshot::read(&part.cluster.client(), keys::NAMESPACE, Scope::Admin).await?;
    let notes = report(&snapshot, Timestamp::now()).notes;
    ensure!(notes.iter().any(|note| note.contains(words)), "{words}: {notes:?}");
    Ok(())
}

async fn a_late_node_stops_no_other(part: &Part<'_>) -> Result<()> {
    let (n1, n2) = (part.node(1), part.node(2));
    part.block(n1).await?;
    part.block(n2).await?;
    let v2 = part.publish("2.0.0").await?;
    part.roll_once_staged(&v2, json!({ "maxUnavailable": 2 })).await?;
    part.until_hold(&[n1, n2]).await?;
    write_time(part, n1, LATE).await?;
    restart_controller(part)?;
    until_named(part, &format!("Node {n1}: status.conditions: ")).await?;
    part.until_true(pool::DEGRADED, "NodesDegraded", n1).await?;
    admin_reads(part, &format!("Node {n1}: status.conditions: ")).await?;
    part.unblock(n2).await?;
    part.until_run(&v2, &[2, 3], LONG).await?;
    ensure!(part.holders().await? == [n1], "it keeps its berth");
    // The Node can be read again, and the node finishes its turn.
    write_time(part, n1, "2026-01-01T00:00:00Z").await?;
    until_all_readable(part).await?;
    part.unblock(n1).await?;
    part.until_all_run(&v2, LONG).await
}

/// Changes the spec of a Lease, as an agent could before the admission policies refused such times.
async fn write_lease(part: &Part<'_>, lease: &str, spec: Value) -> Result<()> {
    let leases = untyped::<Lease>(part.cluster.client(), Some(keys::NAMESPACE));
    let patch = Patch::Merge(json!({ "spec": spec }));
    leases.patch(lease, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn a_forged_lease_stops_only_its_pool(part: &Part<'_>, other: &Part<'_>) -> Result<()> {
    let lease = format!("{}-0", part.name);
    let (late, past) = ("9999-12-31T23:59:59.000000Z", "2026-01-01T00:00:00.000000Z");
    for field in ["acquireTime", "renewTime"] {
        write_lease(part, &lease, json!({ field: late })).await?;
        restart_controller(part)?;
        until_named(part, &format!("Lease {lease}: ")).await?;
        let words = format!("spec.{field}: ");
        part.until_true(pool::DEGRADED, "UnreadableLease", &words).await?;
        admin_reads(part, &format!("Lease {lease}: {words}")).await?;
        if field == "acquireTime" {
            write_lease(part, &lease, json!({ field: null })).await?;
            until_all_readable(part).await?;
        }
    }
    let target = part.roll_to("3.0.0", json!({ "maxUnavailable": 1 })).await?;
    let of_other = other.roll_to("3.0.0", json!({ "maxUnavailable": 2 })).await?;
    other.until_all_run(&of_other, LONG).await?;
    let version = part.host(1).facts().version;
    ensure!(
        version == "2.0.0-forged",
        "a berth that counts as held was offered: {version}"
    );
    write_lease(part, &lease, json!({ "renewTime": past })).await?;
    part.until_all_run(&target, LONG).await
}

async fn a_bad_status_does_not_keep_its_pool(part: &Part<'_>) -> Result<()> {
    let n1 = part.node(1);
    let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 1 })).await?;
    part.until_all_run(&v2, LONG).await?;
    an_agent_replaces_a_bad_status(part).await?;
    an_insight_needs_no_managed_fields(part).await?;
    write_status(part, n1).await?;
    until_named(part, &format!("BootcNode {n1}: status: ")).await?;
    part.until_true(pool::DEGRADED, "NodesDegraded", n1).await?;
    admin_reads(part, &format!("BootcNode {n1}: status: ")).await?;
    let pools: Api<BootcNodePool> = part.cluster.pools();
    pools.delete(&part.name, &DeleteParams::default()).await?;
    part.soon("the pool is gone", || async {
        Ok(pools.get_opt(&part.name).await?.is_none())
    })
    .await
    .context("an agent that does not answer keeps its pool")
}

/// Returns a client with the identity of the node's agent.
async fn as_agent(part: &Part<'_>, node: &str) -> Result<Client> {
    let plane = &part.cluster.control_plane;
    let agent = plane
        .service_account_kubeconfig("berth-system", "berth-agent", Bound::Node(node))
        .await?;
    agent.client().await
}

/// Writes a status that cannot be decoded, as a field manager other than the agent.
async fn write_status(part: &Part<'_>, node: &str) -> Result<()> {
    let failure = json!({ "reason": "R", "message": "m", "attempts": 5, "nextTryTime": LATE });
    let patch = Patch::Merge(json!({ "status": { "failure": failure } }));
    untyped::<BootcNode>(as_agent(part, node).await?, None)
        .patch_status(node, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// The agent replaces a status that cannot be decoded, and the controller does not withdraw the node's image meanwhile.
async fn an_agent_replaces_a_bad_status(part: &Part<'_>) -> Result<()> {
    let n1 = part.node(1);
    part.host(1).stop_agent().await;
    write_status(part, n1).await?;
    until_named(part, &format!("BootcNode {n1}: status: ")).await?;
    part.host(1).start_agent();
    until_all_readable(part).await?;
    let object = untyped::<BootcNode>(part.cluster.client(), None).get(n1).await?;
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    ensure!(
        spec["image"]["digest"].is_string() && status["failure"].is_null(),
        "{spec} {status}"
    );
    Ok(())
}

/// The controller writes the insight of a silent agent, although a time of the managed fields cannot be decoded. Only a
/// client that may write more than the status can write such a time: the API server ignores it in a write of the status.
async fn an_insight_needs_no_managed_fields(part: &Part<'_>) -> Result<()> {
    let n1 = part.node(1);
    part.host(1).stop_agent().await;
    let entry = json!({
        "manager": "liar", "operation": "Update", "apiVersion": "berth.dev/v1alpha1", "time": LATE, "subresource": "status",
        "fieldsType": "FieldsV1", "fieldsV1": { "f:status": { "f:phase": {} } },
    });
    let nodes: Api<Decoded<BootcNode>> = Api::all(part.cluster.client());
    let patch = Patch::Merge(json!({ "metadata": { "managedFields": [entry] } }));
    nodes.patch(n1, &PatchParams::default(), &patch).await?;
    let request = Request::new(BootcNode::url_path(&(), None)).get(n1, &GetParams::default())?;
    let stored = part.cluster.client().request_text(request).await?;
    ensure!(stored.contains(LATE), "the API server did not keep the time: {stored}");
    part.soon("the insight says that the agent is silent", || async {
        let object = nodes.get(n1).await?.object;
        let insight = object.status.and_then(|status| status.insight);
        let silent = insight.is_some_and(|insight| insight.conditions.iter().any(|c| c.reason == "AgentSilent"));
        Ok(silent)
    })
    .await?;
    // The types of this test cannot decode the time either.
    let patch = Patch::Merge(json!({ "metadata": { "managedFields": [{}] } }));
    nodes.patch(n1, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// A kubelet writes times that are in the year 10000 in UTC. Then the API server refuses each patch of the Node that keeps
/// them. An admin can exclude the node all the same.
async fn a_node_that_refuses_patches_is_excluded(part: &Part<'_>, node: &str) -> Result<()> {
    let time = "9999-12-31T23:59:59-12:00";
    let owner = json!({
        "manager": "liar", "operation": "Update", "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1",
        "fieldsV1": { "f:metadata": { "f:annotations": {} } },
    });
    let kubelet = part.cluster.control_plane.node_kubeconfig(node)?.client().await?;
    write_time(part, node, time).await?;
    let patch = Patch::Merge(json!({ "metadata": { "managedFields": [owner] }, "status": null }));
    let own: Api<Decoded<Node>> = Api::all(kubelet);
    own.patch(node, &PatchParams::default(), &patch).await?;
    let nodes: Api<Decoded<Node>> = Api::all(part.cluster.client());
    let plain = Patch::Merge(json!({ "metadata": { "labels": { "plain": "true" } } }));
    let refused = nodes.patch(node, &PatchParams::default(), &plain).await;
    ensure!(refused.is_err(), "the API server can parse Node {node}");
    for (act, label) in [("exclude", true), ("include", false)] {
        berth(part.cluster, &[act, node, "--yes"]).await?.well(&[])?;
        let labels = nodes.get(node).await?.object.metadata.labels.unwrap_or_default();
        ensure!(labels.contains_key(keys::LABEL_EXCLUDE) == label, "{act}: {labels:?}");
    }
    Ok(())
}
