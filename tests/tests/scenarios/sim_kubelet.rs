//! The kubelet stand-in of simulated hosts, against a real API server with NodeRestriction.

use std::time::Duration;

use anyhow::Result;
use berth_tests::cluster::SOON;
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::hosts::HostLog;
use berth_tests::hosts::sim::{Catalog, KubeletConfig, NEVER_ENDS, SimFleet, SimHost, SimHostConfig};
use berth_tests::wait::eventually;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::sleep;

const HOSTS: usize = 3;

/// A Node's report: ready, boot ID, UID.
type Said = (bool, String, String);

async fn said(nodes: &Api<Node>, name: &str) -> Result<Said> {
    let node = nodes.get(name).await?;
    let uid = node.uid().unwrap_or_default();
    let status = node.status.unwrap_or_default();
    let is_ready = status
        .conditions
        .iter()
        .flatten()
        .any(|c: &k8s_openapi::api::core::v1::NodeCondition| c.type_ == "Ready" && c.status == "True");
    let boot = status.node_info.map(|info| info.boot_id).unwrap_or_default();
    Ok((is_ready, boot, uid))
}

async fn is_ready(nodes: &Api<Node>, host: &SimHost) -> Result<bool> {
    let (is_ready, boot, _) = said(nodes, host.name()).await?;
    Ok(is_ready && Some(boot) == host.facts().boot_id)
}

async fn is_running(pods: &Api<Pod>, name: &str) -> Result<bool> {
    let status = pods.get(name).await?.status.unwrap_or_default();
    let is_ready = status.container_statuses.iter().flatten().all(|c| c.ready);
    Ok(status.phase.as_deref() == Some("Running") && is_ready)
}

async fn fleet(plane: &ControlPlane, catalog: &Catalog, digest: &str) -> Result<SimFleet> {
    let mut configs = Vec::new();
    for i in 0..HOSTS {
        let name = format!("node-{i}");
        let mut config = SimHostConfig::new(&name, "registry.test/os", digest, catalog, &HostLog::default());
        config.settings.reboot_time = Duration::from_millis(200);
        config.kubelet = Some(KubeletConfig {
            kubeconfig: plane.node_kubeconfig(&name)?.path,
            labels: [("example.com/zone".to_owned(), format!("zone-{i}"))].into(),
        });
        configs.push(config);
    }
    SimFleet::start(HOSTS, |i| configs[i].clone()).await
}

#[tokio::test]
async fn nodes_come_reboot_and_come_back() -> Result<()> {
    let plane = ControlPlane::start(Options::simulated_nodes()).await?;
    let (catalog, nodes) = (Catalog::default(), Api::<Node>::all(plane.admin_client()));
    let digest = catalog.publish("1.0.0");
    let fleet = fleet(&plane, &catalog, &digest).await?;
    for i in 0..HOSTS {
        eventually("ready", SOON, async || is_ready(&nodes, &fleet.hosts[i]).await).await?;
    }
    assert_eq!(nodes.get("node-1").await?.labels()["example.com/zone"], "zone-1");

    let host = &fleet.hosts[0];
    host.reboot_now().await?;
    eventually("ready after the reboot", SOON, async || {
        is_ready(&nodes, &fleet.hosts[0]).await
    })
    .await?;

    // With this image the kubelet never gets ready, and reports that under the new boot ID.
    host.settings(|s| s.never_ready.insert(digest.clone()));
    host.reboot_now().await?;
    let boot = host.facts().boot_id.unwrap_or_default();
    eventually("not ready under the new boot", SOON, async || {
        Ok(said(&nodes, "node-0").await?.1 == boot)
    })
    .await?;
    sleep(Duration::from_millis(500)).await;
    assert!(!said(&nodes, "node-0").await?.0);

    let (_, _, uid) = said(&nodes, "node-2").await?;
    nodes.delete("node-2", &DeleteParams::default()).await?;
    fleet.hosts[2].register().await?;
    eventually("registered again", SOON, async || {
        is_ready(&nodes, &fleet.hosts[2]).await
    })
    .await?;
    assert_ne!(said(&nodes, "node-2").await?.2, uid);
    Ok(())
}

#[tokio::test]
async fn pods_run_and_end() -> Result<()> {
    let plane = ControlPlane::start(Options::simulated_nodes()).await?;
    let catalog = Catalog::default();
    let fleet = fleet(&plane, &catalog, &catalog.publish("1.0.0")).await?;
    let pods: Api<Pod> = Api::namespaced(plane.admin_client(), "default");
    for (name, node, annotations) in [
        ("mortal", "node-0", json!({})),
        ("immortal", "node-1", json!({NEVER_ENDS: ""})),
    ] {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "registry.test/app"}]},
        }))?;
        pods.create(&PostParams::default(), &pod).await?;
    }
    for name in ["mortal", "immortal"] {
        eventually("running", SOON, async || is_running(&pods, name).await).await?;
        pods.delete(name, &DeleteParams::default()).await?;
    }
    eventually("gone", SOON, async || Ok(pods.get_opt("mortal").await?.is_none())).await?;
    assert!(pods.get("immortal").await?.metadata.deletion_timestamp.is_some());
    drop(fleet);
    Ok(())
}
