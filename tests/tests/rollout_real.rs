//! Rollouts over three real hosts: systemd, logind, ostree, containerd and a kubelet each, the agent as the shipped
//! DaemonSet with its own tokens, roles and policies in force. One rig is booted, and the scenarios follow one another
//! on it. The judge is the ground truth: what the hosts booted, and what the audit log saw.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_tests::cluster::{Published, RealCluster};
use serde_json::json;

const LONG: Duration = Duration::from_secs(180);

async fn roll_to(cluster: &RealCluster, version: &str, most: usize) -> Result<Published> {
    let image = cluster.publish(version).await?;
    cluster.pool("workers", &image.reference, json!({ "maxUnavailable": most, "maxStaging": "100%" })).await?;
    Ok(image)
}

async fn one_at_a_time(cluster: &RealCluster) -> Result<()> {
    let v2 = roll_to(cluster, "2.0.0", 1).await?;
    cluster.until_all_run(&v2, LONG).await?;
    let boots = cluster.boots();
    ensure!(boots.values().all(|&n| n == 2), "each host boots once: {boots:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn three_real_hosts() -> Result<()> {
    if let Some(reason) = berth_tests::hosts::real::unavailable() {
        println!("{reason}");
        return Ok(());
    }
    let begin = Instant::now();
    let cluster = RealCluster::start(3).await?;
    println!("rig: {:.1} s", begin.elapsed().as_secs_f64());
    cluster.deploy("web", 3).await?;
    let begin = Instant::now();
    if let Err(error) = one_at_a_time(&cluster).await {
        eprintln!("violations: {:#?}", cluster.violations()?);
        return Err(error);
    }
    cluster.judge()?;
    println!("one_at_a_time: {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}
