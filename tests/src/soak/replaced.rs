//! Machines whose Node is deleted and which join again: one that vanished, and one that is not trusted any more.

use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::condition::node::WAITING;
use berth_api::keys;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::fault::Vanish;
use super::liar::Liar;
use super::pools::{POOL, SPARE};
use super::untyped::{BOOTC_NODES, LEASES, NODES, PODS, conditions, delete, items, patch, read, text};
use crate::cluster::Cluster;
use crate::hosts::sim::SimHost;

/// How long a host whose agent was stopped may still go down for a reboot that the agent had requested.
pub(super) const PENDING_REBOOT_MAX: Duration = Duration::from_secs(2);
/// Timeout until a host has joined again.
const JOIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Time until an admin asks for a retry, because the new node is not updated.
const RETRY_AFTER: Duration = Duration::from_secs(20);
/// Timeout until the new node is updated.
const BACK_TIMEOUT: Duration = Duration::from_secs(90);

/// Adds the control plane's label to the liar's servers, or removes it. The admin may have deleted the liar's Node.
pub(super) async fn label_servers(cluster: &Cluster, liar: &Liar, on: bool) -> Result<()> {
    let value = if on { json!("") } else { json!(null) };
    let body = json!({ "metadata": { "labels": { keys::LABELS_CONTROL_PLANE[0]: value } } });
    for node in &liar.servers {
        if !on && uid(cluster, cluster.host(*node)).await.is_empty() {
            continue;
        }
        patch(cluster, &format!("{NODES}/node{node}"), &body).await?;
    }
    Ok(())
}

/// Returns the UID of a Node; empty if it does not exist.
pub(super) async fn uid(cluster: &Cluster, host: &SimHost) -> String {
    let node = read(cluster, &format!("{NODES}/{}", host.name())).await;
    text(&node.unwrap_or_default(), "/metadata/uid").to_owned()
}

/// Lets a host join again under its old name after its Node, which had the UID `before`, was deleted.
pub(super) async fn join_again(cluster: &Cluster, host: &SimHost, how: Vanish, before: &str) -> Result<()> {
    match how {
        Vanish::PowerLoss => host.power_on().await?,
        Vanish::Stopped => host.register().await.context("cannot register the Node again")?,
    }
    cluster
        .until(&format!("{} is back", host.name()), JOIN_TIMEOUT, || async {
            let uid = uid(cluster, host).await;
            Ok(!uid.is_empty() && uid != before)
        })
        .await?;
    cluster.renew_agent_token(host).await?;
    // An agent that another fault started meanwhile still has the old Node's token.
    host.kill_agent();
    host.start_agent();
    Ok(())
}

/// Replaces the liar's machine: deletes its Node and its pods, and lets a new Node with the same name join.
/// Returns when the new node is updated, so that the next rollout begins like any other. If an admin had to ask for a
/// retry, returns why.
pub(super) async fn replace(cluster: &Cluster, liar: &Liar) -> Result<Option<String>> {
    let host = cluster.host(liar.node);
    let name = liar.name();
    host.stop_agent().await;
    sleep(PENDING_REBOOT_MAX).await;
    host.stop_kubelet();
    let before = uid(cluster, host).await;
    let pods = read(cluster, &format!("{PODS}?fieldSelector=spec.nodeName%3D{name}")).await?;
    delete(cluster, &format!("{NODES}/{name}")).await?;
    for pod in items(&pods) {
        let [namespace, pod] = ["/metadata/namespace", "/metadata/name"].map(|field| text(pod, field));
        delete(cluster, &format!("/api/v1/namespaces/{namespace}/pods/{pod}")).await?;
    }
    // The host may be down for a reboot.
    host.power_on().await?;
    join_again(cluster, host, Vanish::Stopped, &before).await?;
    let (start, mut act) = (Instant::now(), None);
    while !is_updated(cluster, &name).await.unwrap_or(false) {
        anyhow::ensure!(
            start.elapsed() < BACK_TIMEOUT,
            "the new node is not updated within {BACK_TIMEOUT:?}: {}",
            waits(cluster, &name).await
        );
        if act.is_none() && start.elapsed() >= RETRY_AFTER {
            let why = waits(cluster, &name).await;
            act = Some(format!(
                "retry of all pools, because the new Node {name} was not updated: {why}"
            ));
            retry(cluster).await?;
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(act)
}

/// A failure on record applies to the name, so a new node with an old name may need a retry.
async fn retry(cluster: &Cluster) -> Result<()> {
    for pool in [POOL, SPARE] {
        let retry = json!({ "rollout": { "retryToken": format!("without-{}", jiff::Timestamp::now()) } });
        cluster.patch_pool(pool, retry).await?;
    }
    Ok(())
}

/// The phase of a node, and the reason why it waits.
async fn waits(cluster: &Cluster, name: &str) -> String {
    let bootc_node = read(cluster, &format!("{BOOTC_NODES}/{name}"))
        .await
        .unwrap_or_default();
    let mut all = conditions(&bootc_node).iter();
    let waiting = all.find(|condition| text(condition, "/type") == WAITING);
    let message = waiting.map_or("", |condition| text(condition, "/message"));
    format!("{} {message}", text(&bootc_node, "/status/phase"))
}

/// True if the new Node is updated and holds no berth.
async fn is_updated(cluster: &Cluster, name: &str) -> Result<bool> {
    let node = read(cluster, &format!("{NODES}/{name}")).await?;
    let bootc_node = read(cluster, &format!("{BOOTC_NODES}/{name}")).await?;
    let uid = text(&node, "/metadata/uid");
    let is_new = ["/spec/nodeUID", "/status/nodeUID"]
        .iter()
        .all(|field| text(&bootc_node, field) == uid);
    let leases = read(cluster, LEASES).await?;
    let mut holders = items(&leases).iter().map(|lease| text(lease, "/spec/holderIdentity"));
    let is_idle = holders.all(|holder| holder.strip_prefix("offered:").unwrap_or(holder) != name);
    Ok(is_new && is_idle && text(&bootc_node, "/status/phase") == "Updated")
}
