//! `kubectl berth dashboard` in a browser, with 5,000 nodes and 50 changes each second: the times between frames, and the memory of
//! the program.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_api::node::BootcNode;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinSet;

use super::cpu::Usage;
use super::figure::{Figure, round, skip};
use super::fleet::POOL;
use super::many;
use super::memory::{CONTROLLER, Memory};
use super::progress::Progress;
use super::settings::{Run, setting};
use super::thousand;
use crate::browser::{Browser, Frames, unavailable};
use crate::cluster::Cluster;
use crate::dashboard::Dashboard;
use crate::programs;

pub(super) const BENCHES: [&str; 2] = ["dashboard-frame", "dashboard-memory"];
/// Targets: milliseconds between frames, with one frame in a hundred left out, and MiB.
const AIMS: (f64, f64) = (100.0, 120.0);
/// Time between two changes: 50 in a second.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long the nodes change while frames are measured.
const CHANGING: Duration = Duration::from_secs(30);
/// Timeout until the page shows a tile for each node, and until it shows the last change.
const TIMEOUT: Duration = Duration::from_secs(180);
/// How long a view is looked at.
const LOOKING: Duration = Duration::from_secs(6);
/// Phases that the nodes go through.
const PHASES: [&str; 4] = ["Draining", "Rebooting", "Updated", "Staging"];

/// A dashboard under load.
#[derive(Debug, Clone, Copy)]
pub struct Watched {
    /// Number of nodes.
    pub nodes: usize,
    /// Changes in a second, as they were made.
    pub rate: f64,
    /// Times between the frames of the page.
    pub frames: Frames,
    /// Memory of the program, with its peak since it began.
    pub memory: Memory,
    /// Height of the tiles beyond their panel, in pixels: more than 0 if a person must scroll to see all tiles.
    pub hidden: f64,
    /// Seconds from the address to the tiles of all nodes.
    pub shown: f64,
    /// Share of the time that the processors were busy.
    pub busy: f64,
}

/// Measures both figures. `BERTH_BENCH_STATUS` sets the number of nodes.
pub(super) async fn measure(run: &Run) -> Result<()> {
    if let Some(why) = unavailable() {
        for bench in BENCHES {
            skip(bench, why.trim_start_matches("SKIPPED: "));
        }
        return Ok(());
    }
    run.progress.say("building kubectl berth with the shipped settings");
    let (program, _) = tokio::task::spawn_blocking(programs::shipped_kubectl).await??;
    let nodes = usize::try_from(setting("BERTH_BENCH_STATUS", 5000))?;
    let watched = watch(&program, nodes, run.progress).await?;
    if run.wants(BENCHES[0]) {
        let frames = watched.frames;
        Figure::new(BENCHES[0], "ms", &[frames.p99])
            .aim(AIMS.0)
            .detail("nodes", json!(nodes))
            .detail("changes in a second", json!(round(watched.rate)))
            .detail("frames", json!(frames.count))
            .detail("p50", json!(round(frames.half)))
            .detail("p99", json!(round(frames.p99)))
            .detail("max", json!(round(frames.max)))
            .detail("pixels of tiles to scroll to", json!(round(watched.hidden)))
            .detail("seconds to the first picture", json!(round(watched.shown)))
            .detail("processors busy", json!(round(watched.busy)))
            .print();
    }
    if run.wants(BENCHES[1]) {
        Figure::new(BENCHES[1], "MiB", &[watched.memory.peak])
            .aim(AIMS.1)
            .detail("nodes", json!(nodes))
            .detail("memory", watched.memory.json())
            .print();
    }
    Ok(())
}

/// Starts a cluster with this many nodes, opens the dashboard in a browser, and changes the nodes.
pub async fn watch(program: &Path, nodes: usize, progress: Progress) -> Result<Watched> {
    // Including the host that the others are copies of.
    let cluster = many::reporting(nodes.saturating_sub(1), progress).await?;
    // A controller would undo the changes.
    cluster.controllers.stop(CONTROLLER);
    // The estimate of the time left looks at each window.
    let hourly = json!({ "rollout": { "windows": [{ "schedule": "0 * * * *", "duration": "20m" }] } });
    cluster.patch_pool(POOL, hourly).await?;
    let config = cluster.control_plane.kubeconfig_for("tom", &["system:masters"])?;
    progress.say("opening the dashboard");
    let dashboard = Dashboard::start(program, &config.path, &[]).await?;
    let browser = Browser::start().await?;
    let opened = Instant::now();
    browser.open(dashboard.address()).await?;
    browser
        .within(TIMEOUT, "the page has a tile for each node", async || {
            Ok(browser.count("#tiles [data-node]").await? == nodes)
        })
        .await?;
    let shown = opened.elapsed().as_secs_f64();
    // The page settles after its first picture.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let hidden = browser.hidden("#tiles").await?;
    progress.say("changing 50 nodes each second");
    browser.measure_frames().await?;
    let (begin, usage) = (Instant::now(), Usage::now()?);
    let (changed, visited) = tokio::join!(change(&cluster, nodes - 1), visit(&browser));
    let (count, node, phase) = changed?;
    visited?;
    let rate = count as f64 / begin.elapsed().as_secs_f64();
    let busy = usage.busy_since()?;
    let frames = browser.frames().await?;
    let memory = Memory::of(dashboard.pid())?;
    let tile = format!("#tiles [data-node='{node}']");
    browser
        .within(TIMEOUT, "the page has the last change", async || {
            Ok(browser.attribute(&tile, "data-phase").await?.as_deref() == Some(phase))
        })
        .await?;
    browser.is_quiet().await?;
    Ok(Watched {
        nodes,
        rate,
        frames,
        memory,
        hidden,
        shown,
        busy,
    })
}

/// Looks at each view for a while.
async fn visit(browser: &Browser) -> Result<()> {
    let drawer = format!("#/node/{}", thousand::name(1));
    let timeline = format!("#/timeline/{POOL}");
    for (view, part) in [
        ("#/nodes", "#tiles [data-node]"),
        (timeline.as_str(), "#timeline svg"),
        (drawer.as_str(), "#drawer #explain"),
        ("#/nodes", "#tiles [data-node]"),
    ] {
        browser.go(view).await?;
        browser.until_shown(part).await?;
        tokio::time::sleep(LOOKING).await;
    }
    Ok(())
}

/// Changes the phases of nodes. Returns the number of changes, and the last node with the phase that the page must show.
async fn change(cluster: &Cluster, nodes: usize) -> Result<(usize, String, &'static str)> {
    ensure!(nodes > 0, "no nodes to change");
    let mut clock = tokio::time::interval(INTERVAL);
    let begin = Instant::now();
    let mut requests = JoinSet::new();
    let mut count = 0;
    while begin.elapsed() < CHANGING {
        clock.tick().await;
        // Neighbours in the list are far apart in time.
        let name = thousand::name(count * 37 % nodes);
        requests.spawn(set_phase(cluster.bootc_nodes(), name, PHASES[count % PHASES.len()]));
        count += 1;
        while let Some(done) = requests.try_join_next() {
            done??;
        }
    }
    while let Some(done) = requests.join_next().await {
        done??;
    }
    let last = thousand::name(0);
    set_phase(cluster.bootc_nodes(), last.clone(), "Draining").await?;
    Ok((count, last, "Draining"))
}

async fn set_phase(nodes: Api<BootcNode>, name: String, phase: &'static str) -> Result<()> {
    let patch = Patch::Merge(json!({ "status": { "phase": phase } }));
    let patched = nodes.patch_status(&name, &PatchParams::default(), &patch).await;
    patched.with_context(|| format!("cannot change the status of {name}"))?;
    Ok(())
}
