//! `kubectl berth dashboard` in a browser, with as many nodes as a large cluster has.

use anyhow::{Result, ensure};
use berth_tests::bench::{Progress, watch};
use berth_tests::browser::unavailable;
use berth_tests::programs;

use crate::rollout::{ONLY_IN_TEST_REAL, SELECTED};

const NODES: usize = 5000;
/// Longest time between two frames in milliseconds, with one frame in a hundred left out.
const FRAME: f64 = 100.0;
/// Longest time between any two frames in milliseconds. A drawer or a timeline that opens may take a frame longer.
const LONGEST: f64 = 500.0;
/// Most memory of the program, in MiB.
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
        watched.memory.resident < MEMORY,
        "the program needs too much memory: {watched:?}"
    );
    ensure!(
        watched.rate > 40.0,
        "the changes were too slow to measure anything: {watched:?}"
    );
    Ok(())
}
