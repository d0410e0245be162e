//! A rollout over real hosts with each way to install Berth: the overlays of `manifests/` and the Helm charts. `rollout.rs` has the
//! overlay `kubeadm` in all scenarios.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_tests::cluster::{RealCluster, Shipped};
use serde_json::json;

use crate::rollout::{ONLY_IN_TEST_REAL, SELECTED};
use crate::service;

/// Time limit for a rollout.
const LONG: Duration = Duration::from_secs(180);

/// Installs Berth in this way on hosts of version 1.0.0, and rolls out 2.0.0.
async fn rolls_out(name: &str, hosts: usize, shipped: Shipped) -> Result<()> {
    if crate::one_host::is_skipped() {
        return Ok(());
    }
    if std::env::var_os(SELECTED).is_none() {
        println!("{ONLY_IN_TEST_REAL}{name}: its objects are applied to a real API server in `make test`");
        return Ok(());
    }
    let begin = Instant::now();
    let cluster = RealCluster::start_as(hosts, shipped).await?;
    println!("{:<44} {:>5.1} s", "the rig is ready", begin.elapsed().as_secs_f64());
    let outcome = roll(&cluster, shipped).await;
    println!("{name:<44} {:>5.1} s", begin.elapsed().as_secs_f64());
    if let Err(error) = &outcome {
        eprintln!("{error:#}\n{}", cluster.describe().await);
    }
    outcome
}

async fn roll(cluster: &RealCluster, shipped: Shipped) -> Result<()> {
    if !shipped.has_daemon_set() {
        for host in &cluster.hosts {
            service::install(cluster, host).await?;
            host.exec(&["systemctl", "enable", "--now", service::UNIT]).await?;
        }
    }
    cluster.deploy("web", cluster.hosts.len()).await?;
    let before = cluster.boots();
    let v2 = cluster.publish("2.0.0").await?;
    let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%" });
    cluster.pool("workers", &v2.reference, rollout).await?;
    cluster.until_all_run(&v2, LONG).await?;
    let boots = cluster.boots();
    let once = boots
        .iter()
        .all(|(host, n)| before.get(host).is_some_and(|b| b + 1 == *n));
    ensure!(once, "each host boots once: {before:?}, then {boots:?}");
    cluster.judge()
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_k3s() -> Result<()> {
    rolls_out("hosts_of_k3s", 2, Shipped::Overlay("k3s")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_rke2() -> Result<()> {
    rolls_out("hosts_of_rke2", 1, Shipped::Overlay("rke2")).await
}

/// The kubelet's kubeconfig has a certificate here, not the program of EKS.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_with_the_paths_of_eks() -> Result<()> {
    rolls_out("hosts_with_the_paths_of_eks", 1, Shipped::Overlay("eks")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_with_the_paths_of_openshift() -> Result<()> {
    rolls_out("hosts_with_the_paths_of_openshift", 1, Shipped::Overlay("openshift")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_node() -> Result<()> {
    rolls_out("a_single_node", 1, Shipped::Overlay("single-node")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_with_metrics() -> Result<()> {
    rolls_out("hosts_with_metrics", 1, Shipped::Overlay("monitoring")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_with_the_agent_as_a_service() -> Result<()> {
    rolls_out(
        "hosts_with_the_agent_as_a_service",
        2,
        Shipped::Overlay("systemd-agent"),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_a_helm_release() -> Result<()> {
    rolls_out("hosts_of_a_helm_release", 2, Shipped::Helm).await
}
