//! `kubectl berth dashboard` in a browser, with as many nodes as a large cluster has.

use std::time::Duration;

use anyhow::{Result, ensure};
use berth_tests::bench::{Progress, watch};
use berth_tests::browser::{Browser, unavailable};
use berth_tests::cluster::{Cluster, ClusterOptions, LONG};
use berth_tests::dashboard::Dashboard;
use berth_tests::programs;
use nix::sys::signal::Signal;

use crate::rollout::{ONLY_IN_TEST_REAL, SELECTED};

/// Longer than the silence that a page takes for a lost connection.
const SILENCE: Duration = Duration::from_secs(45);
const NODES: usize = 5000;
/// Longest time between two frames in milliseconds, with one frame in a hundred left out.
const FRAME: f64 = 100.0;
/// Longest time between any two frames in milliseconds. A drawer or a timeline that opens may take a frame longer.
const LONGEST: f64 = 500.0;
/// Most memory of the program at any time, in MiB.
const MEMORY: f64 = 120.0;

#[tokio::test]
async fn five_thousand_nodes_change_smoothly() -> Result<()> {
    if std::env::var_os(SELECTED).is_none() {
        println!(
            "{ONLY_IN_TEST_REAL}five_thousand_nodes_change_smoothly: it takes two minutes, and processors that are not busy"
        );
        return Ok(());
    }
    if let Some(why) = unavailable() {
        println!("{why}");
        return Ok(());
    }
    let (program, _) = tokio::task::spawn_blocking(programs::shipped_kubectl).await??;
    let watched = watch(&program, NODES, Progress::default()).await?;
    println!("{watched:#?}");
    ensure!(watched.frames.p99 < FRAME, "the frames take too long: {watched:?}");
    ensure!(watched.frames.max < LONGEST, "a frame takes too long: {watched:?}");
    ensure!(
        watched.memory.peak < MEMORY,
        "the program needs too much memory: {watched:?}"
    );
    ensure!(watched.hidden <= 0.0, "not all tiles fit: {watched:?}");
    ensure!(
        watched.rate > 40.0,
        "the changes were too slow to measure anything: {watched:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_silent_program_is_lost() -> Result<()> {
    if std::env::var_os(SELECTED).is_none() {
        println!("{ONLY_IN_TEST_REAL}a_silent_program_is_lost: a page waits for 40 seconds");
        return Ok(());
    }
    if let Some(why) = unavailable() {
        println!("{why}");
        return Ok(());
    }
    let cluster = Cluster::start(ClusterOptions {
        hosts: 1,
        ..ClusterOptions::default()
    })
    .await?;
    let program = tokio::task::spawn_blocking(programs::kubectl).await??;
    let config = cluster.control_plane.kubeconfig_for("tom", &["system:masters"])?;
    let mut dashboard = Dashboard::start(&program, &config.path, &[]).await?;
    let browser = Browser::start().await?;
    browser.open(dashboard.address()).await?;
    browser.until_attribute("#connection", "data-state", "live").await?;
    // Quiet for longer than a page waits: the events that only say so are enough.
    tokio::time::sleep(SILENCE).await;
    let state = browser.attribute("#connection", "data-state").await?;
    ensure!(state.as_deref() == Some("live"), "{state:?}");
    dashboard.signal(Signal::SIGSTOP);
    let lost = browser.within(LONG, "the page says that the program is lost", async || {
        let state = browser.attribute("#connection", "data-state").await?;
        Ok(state.as_deref() == Some("lost"))
    });
    lost.await?;
    dashboard.signal(Signal::SIGCONT);
    browser.until_attribute("#connection", "data-state", "live").await
}
