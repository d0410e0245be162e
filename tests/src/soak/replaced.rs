//! The end of a compromised node: its machine is replaced, as an admin does who cannot trust it any more.

use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::keys;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::inject::{POOL, SPARE};
use super::liar::Liar;
use super::untyped::{BOOTC_NODES, LEASES, NODES, PODS, delete, items, patch, read, text};
use crate::cluster::Cluster;

/// How long a host whose agent was stopped may still go down for a reboot that the agent had requested.
const PENDING_REBOOT_MAX: Duration = Duration::from_secs(2);
/// Timeout until the new node is updated.
const BACK_TIMEOUT: Duration = Duration::from_secs(90);

/// Adds the control plane's label to the liar's servers, or removes it.
pub(super) async fn label_servers(cluster: &Cluster, liar: &Liar, on: bool) -> Result<()> {
    let value = if on { json!("") } else { json!(null) };
    let body = json!({ "metadata": { "labels": { keys::LABELS_CONTROL_PLANE[0]: value } } });
    for node in &liar.servers {
        patch(cluster, &format!("{NODES}/node{node}"), &body).await?;
    }
    Ok(())
}

/// Replaces the liar's machine: deletes its Node and its pods, and lets a new Node with the same name join.
/// Returns when the new node is updated, so that the next rollout begins like any other.
pub(super) async fn replace(cluster: &Cluster, liar: &Liar) -> Result<()> {
    let host = cluster.host(liar.node);
    let (name, node) = (liar.name(), format!("{NODES}/{}", liar.name()));
    host.stop_agent().await;
    sleep(PENDING_REBOOT_MAX).await;
    host.stop_kubelet();
    let pods = read(cluster, &format!("{PODS}?fieldSelector=spec.nodeName%3D{name}")).await?;
    delete(cluster, &node).await?;
    for pod in items(&pods) {
        let [namespace, pod] = ["/metadata/namespace", "/metadata/name"].map(|field| text(pod, field));
        delete(cluster, &format!("/api/v1/namespaces/{namespace}/pods/{pod}")).await?;
    }
    host.power_on().await?;
    host.register().await.context("cannot register the Node again")?;
    cluster.renew_agent_token(host).await?;
    host.kill_agent();
    host.start_agent();
    // A failure on record applies to the name, so the new node needs a retry.
    for pool in [POOL, SPARE] {
        let retry = json!({ "rollout": { "retryToken": format!("without-{}", jiff::Timestamp::now()) } });
        cluster.patch_pool(pool, retry).await?;
    }
    let start = Instant::now();
    while !is_updated(cluster, &name).await.unwrap_or(false) {
        anyhow::ensure!(
            start.elapsed() < BACK_TIMEOUT,
            "the new node is not updated within {BACK_TIMEOUT:?}"
        );
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
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
