//! `kubectl berth uninstall` on a real host: the pod of the changed DaemonSet removes Berth from the host, through the
//! real systemd.

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::RealCluster;
use berth_tests::hosts::real::RealHost;
use berth_tests::programs;
use berth_tests::traces::real_host_is_clean;
use serde_json::json;
use tokio::process::Command;

/// Time limit of a rollout, and of the removal.
const LONG: Duration = Duration::from_secs(180);
/// Files of an admin for Berth's units.
const DROP_IN: &str = "/etc/systemd/system/berth-pull-.service.d/proxy.conf";
const KEPT: &str = "/etc/berth/health.d/README";

async fn uninstall(cluster: &RealCluster) -> Result<Output> {
    let program = tokio::task::spawn_blocking(programs::kubectl).await??;
    let config = cluster.control_plane.kubeconfig_for("tom", &["system:masters"])?;
    let mut command = Command::new(program);
    command
        .args(["uninstall", "--yes", "--timeout", "3m", "--kubeconfig"])
        .arg(&config.path);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(2 * LONG, command.output()).await;
    output
        .context("the command does not end")?
        .context("running kubectl berth")
}

async fn scenario(cluster: &RealCluster, host: &RealHost) -> Result<()> {
    // The controller is a process of the harness: its pod never gets an image.
    let manifests = programs::workspace_root().join("manifests/base");
    for file in ["network-policies.yaml", "controller-deployment.yaml"] {
        cluster.control_plane.apply_manifests(&manifests.join(file)).await?;
    }
    let image = cluster.publish("2.0.0").await?;
    cluster
        .pool("workers", &image.reference, json!({ "maxUnavailable": 1 }))
        .await?;
    cluster.until_all_run(&image, LONG).await?;
    host.exec(&[
        "mkdir",
        "--parents",
        "/etc/systemd/system/berth-pull-.service.d",
        "/etc/berth/health.d",
    ])
    .await?;
    host.write(DROP_IN, "[Service]\n").await?;
    host.write(KEPT, "").await?;
    let guard = host
        .exec(&["systemctl", "is-enabled", "berth-rollback-guard.service"])
        .await?;
    ensure!(guard.trim() == "enabled", "the guard is {guard}");
    // Judged now: the harness's controller is not a pod, so it continues without its rights, and is refused.
    cluster.judge()?;

    let output = uninstall(cluster).await?;
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{said}");
    ensure!(output.status.success(), "{said}");
    real_host_is_clean(host, &["/etc/berth"]).await?;
    ensure!(host.read(KEPT).await?.is_empty(), "the file of the admin stays");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uninstall_cleans_a_real_host() -> Result<()> {
    if crate::one_host::is_skipped() {
        return Ok(());
    }
    let begin = Instant::now();
    let cluster = RealCluster::start(1).await?;
    let outcome = scenario(&cluster, cluster.host(1)).await;
    println!("{:<44} {:>5.1} s", "total", begin.elapsed().as_secs_f64());
    if let Err(error) = &outcome {
        eprintln!("{error:#}\n{}", cluster.describe().await);
    }
    outcome
}
