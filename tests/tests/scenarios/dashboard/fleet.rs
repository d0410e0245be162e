//! A fleet of three pools, and a rollout of one of them.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Published, SOON};
use berth_tests::hosts::sim::Settings;
use serde_json::{Value, json};

use super::pictures;
use super::viewer::{Viewer, tile};

/// Members of each pool.
const POOLS: [(&str, &[&str]); 3] = [("workers", &WORKERS), ("edge", &EDGE), ("database", &DATABASE)];
const WORKERS: [&str; 9] = [
    "worker-a1",
    "worker-a2",
    "worker-a3",
    "worker-b1",
    "worker-b2",
    "worker-b3",
    "worker-c1",
    "worker-c2",
    "worker-c3",
];
pub const EDGE: [&str; 2] = ["edge-a1", "edge-b1"];
pub const DATABASE: [&str; 1] = ["database-a1"];
const POOL_LABEL: &str = "example.com/pool";
const TIER_LABEL: &str = "example.com/tier";
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The worker whose drain the test blocks. It is alone in the first wave.
const CANARY: &str = WORKERS[0];
/// A worker of the second wave whose drain the test blocks, so that the rollout cannot end too early.
const BLOCKED: &str = WORKERS[8];
/// Number of drawn elements of the timeline.
const DRAWN: &str = "#timeline svg *";

/// Starts the cluster. All hosts run the image of their pool.
pub async fn start() -> Result<Cluster> {
    let names: Vec<String> = POOLS
        .iter()
        .flat_map(|(_, nodes)| nodes.iter().map(ToString::to_string))
        .collect();
    let cluster = Cluster::start(ClusterOptions {
        hosts: names.len(),
        names,
        settings: Settings {
            // Long enough that the page shows it on a busy machine.
            reboot_time: Duration::from_secs(2),
            ..Settings::default()
        },
        ..ClusterOptions::default()
    })
    .await?;
    for (pool, nodes) in POOLS {
        for node in nodes {
            let zone = node
                .rsplit('-')
                .next()
                .and_then(|place| place.get(..1))
                .context("no zone")?;
            let tier = if *node == CANARY { "canary" } else { "main" };
            let labels = json!({ POOL_LABEL: pool, ZONE_LABEL: format!("zone-{zone}"), TIER_LABEL: tier });
            cluster
                .patch_node(node, json!({ "metadata": { "labels": labels } }))
                .await?;
        }
        let first = cluster.publish("1.0.0").await?;
        pool_of(&cluster, pool, &first, json!({})).await?;
        cluster
            .until_says(pool, ("Progressing", "False", "Updated", ""), LONG)
            .await?;
    }
    Ok(cluster)
}

/// Creates a pool, or changes its image and its `spec.rollout`.
pub async fn pool_of(cluster: &Cluster, pool: &str, image: &Published, mut rollout: Value) -> Result<()> {
    rollout["maxStaging"] = json!("100%");
    cluster
        .pool_of(pool, json!({ POOL_LABEL: pool }), &image.reference, rollout)
        .await
}

fn rules() -> Value {
    let canary = json!({ "name": "canary", "nodeSelector": { "matchLabels": { TIER_LABEL: "canary" } } });
    json!({ "maxUnavailable": 4, "zoneKey": ZONE_LABEL, "waves": [canary] })
}

pub async fn tiles_and_timeline_follow_the_rollout(cluster: &Cluster, viewer: &Viewer) -> Result<()> {
    let browser = &viewer.browser;
    browser
        .until_attribute("[data-pool='workers']", "data-assessment", "Completed")
        .await?;
    ensure!(browser.count("#tiles [data-node]").await? == 12, "a tile for each node");
    viewer.record().await?;
    let pod = block(cluster, CANARY).await?;
    let image = cluster.publish("2.0.0").await?;
    pool_of(cluster, "workers", &image, rules()).await?;
    until_both(cluster, viewer, CANARY, "Draining").await?;
    browser
        .until_attribute("[data-pool='workers']", "data-assessment", "Progressing")
        .await?;
    viewer.go("#/timeline/workers").await?;
    browser.until_shown("#timeline svg").await?;
    let before: usize = browser.count(DRAWN).await?;
    let last = block(cluster, BLOCKED).await?;
    pod.remove(cluster).await?;
    until_both(cluster, viewer, CANARY, "Rebooting").await?;
    until_both(cluster, viewer, CANARY, "Updated").await?;
    let grown = Cell::new(before);
    browser
        .until("the timeline grows", async || {
            grown.set(browser.count(DRAWN).await?);
            Ok(grown.get() > before)
        })
        .await?;
    viewer.go("#/nodes").await?;
    pictures::until_half(viewer).await?;
    pictures::take(viewer, "rolling-out").await?;
    until_both(cluster, viewer, BLOCKED, "Draining").await?;
    browser
        .until_text("#headline-sentence", "Updating workers to 2.0.0")
        .await?;
    last.remove(cluster).await?;
    cluster
        .until_says("workers", ("Progressing", "False", "Updated", ""), LONG)
        .await?;
    browser
        .until_attribute("[data-pool='workers']", "data-assessment", "Completed")
        .await?;
    browser
        .until_attribute("[data-pool='workers']", "data-percent", "100")
        .await?;
    for node in WORKERS {
        browser.until_attribute(&tile(node), "data-phase", "Updated").await?;
    }
    viewer.go("#/timeline/workers").await?;
    browser
        .until("the timeline has all nodes", async || {
            Ok(browser.count(DRAWN).await? > grown.get())
        })
        .await?;
    pictures::take(viewer, "completed").await?;
    viewer.go("#/nodes").await?;
    each_tile_went_through_a_reboot(viewer).await
}

async fn each_tile_went_through_a_reboot(viewer: &Viewer) -> Result<()> {
    let seen = viewer.recorded().await?;
    for node in WORKERS {
        let phases = seen.get(node).with_context(|| format!("no phases of {node}"))?;
        let rebooted = phases.iter().position(|phase| phase == "Rebooting");
        let rebooted = rebooted.with_context(|| format!("{node} did not reboot on the page: {phases:?}"))?;
        let ended = phases.last().is_some_and(|phase| phase == "Updated");
        ensure!(ended && rebooted + 1 < phases.len(), "{node}: {phases:?}");
    }
    for node in [EDGE.as_slice(), &DATABASE].concat() {
        let phases = seen.get(node).with_context(|| format!("no phases of {node}"))?;
        ensure!(phases == &["Updated"], "{node} is of another pool: {phases:?}");
    }
    Ok(())
}

/// Waits until the API server and the page have a node in this phase at the same time.
async fn until_both(cluster: &Cluster, viewer: &Viewer, node: &str, phase: &str) -> Result<()> {
    let what = format!("{node} is {phase}, and its tile shows it");
    viewer
        .browser
        .within(SOON, &what, async || {
            let shown = viewer.phase(node).await?;
            let real = cluster.phase(node).await?;
            // Until the boot is proven, its node counts as rebooting.
            let real = if real == "Proving" { "Rebooting" } else { real.as_str() };
            Ok(shown == phase && real == phase)
        })
        .await
}

/// A pod that blocks a drain, because nothing would create it again.
pub struct Blocker {
    node: String,
}

/// Creates a pod without an owner on a node.
pub async fn block(cluster: &Cluster, node: &str) -> Result<Blocker> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("report-{node}"), "namespace": "default" },
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "containers": [{ "name": "app", "image": "registry.test/app:1" }],
        },
    });
    cluster.control_plane.apply_yaml(&pod.to_string()).await?;
    Ok(Blocker { node: node.to_owned() })
}

impl Blocker {
    /// Deletes the pod.
    pub async fn remove(self, cluster: &Cluster) -> Result<()> {
        let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::namespaced(cluster.client(), "default");
        let name = format!("report-{}", self.node);
        let now = kube::api::DeleteParams::default().grace_period(0);
        pods.delete(&name, &now).await.context("cannot delete a pod")?;
        Ok(())
    }
}
