//! Memory of a controller with as many Nodes as the largest clusters have, each with a BootcNode that reports a rollout: idle,
//! after an image is published to all, and during a relist.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use super::figure::Figure;
use super::fleet::POOL;
use super::memory::{CONTROLLER, Memory, of_controller, relist};
use super::progress::Progress;
use super::settings::{Run, idle_time, setting};
use super::thousand;
use crate::cluster::{Cluster, ClusterOptions, LONG};
use crate::controlplane::Options;

pub(super) const BENCHES: [&str; 3] = ["many-nodes-memory", "many-nodes-relist", "many-nodes-slope"];
const SIZES: [usize; 3] = [1_000, 5_000, 20_000];
/// Memory target: a number of Nodes, and the maximum MiB with that many Nodes.
const AIMED: (usize, f64) = (5_000, 48.0);
/// Memory target in MiB during a relist, with the number of Nodes in [`AIMED`].
const RELIST: f64 = 64.0;
/// Timeout for the controller to count all Nodes, or to publish an image to all of them.
const TIMEOUT: Duration = Duration::from_secs(1200);

/// Measures all figures. `BERTH_BENCH_MANY` sets a single number of Nodes instead of [`SIZES`].
pub(super) async fn measure(run: &Run) -> Result<()> {
    let progress = run.progress;
    let asked = usize::try_from(setting("BERTH_BENCH_MANY", 0))?;
    let sizes = if asked == 0 { SIZES.to_vec() } else { vec![asked] };
    let mut at_rest = vec![];
    for count in sizes {
        ensure!(
            (2..=thousand::MAX_NODES).contains(&count),
            "BERTH_BENCH_MANY is {count}; ask for 2 to {}",
            thousand::MAX_NODES
        );
        let cluster = reporting(count, progress).await?;
        progress.say("leaving the controller idle");
        tokio::time::sleep(idle_time()).await;
        let rest = of_controller(&cluster)?;
        at_rest.push((count, rest.resident));
        progress.say(&format!("{rest:?}; publishing an image to all"));
        let published = publish(&cluster, count).await?;
        if run.wants(BENCHES[0]) {
            let mut figure = Figure::new(BENCHES[0], "MiB", &[rest.resident]);
            if count == AIMED.0 {
                figure = figure.aim(AIMED.1);
            }
            figure
                .detail("nodes", json!(count))
                .detail("at rest", rest.json())
                .detail("after an image was published", published.json())
                .print();
        }
        if run.wants(BENCHES[1]) {
            progress.say(&format!("{published:?}; restarting the API server"));
            let mut figure = Figure::new(BENCHES[1], "MiB", &[relist(&cluster, TIMEOUT).await?]);
            if count == AIMED.0 {
                figure = figure.aim(RELIST);
            }
            figure.detail("nodes", json!(count)).print();
        }
    }
    if let [(few, less), .., (many, more)] = at_rest.as_slice()
        && run.wants(BENCHES[2])
    {
        let slope = (more - less) * 1024.0 / f64::from(u32::try_from(many - few)?);
        let figure = Figure::new(BENCHES[2], "KiB", &[slope]).aim(4.0);
        figure.detail("from", json!(few)).detail("to", json!(many)).print();
    }
    Ok(())
}

/// Starts a cluster with one host. Then creates `count` Nodes with copies of the host's BootcNode, and waits until the
/// controller has counted them.
pub(super) async fn reporting(count: usize, progress: Progress) -> Result<Cluster> {
    let cluster = one_host().await?;
    progress.say("rolling out to one host, whose BootcNode is the template of all others");
    for version in ["2.0.0", "3.0.0"] {
        let image = cluster.publish(version).await?;
        cluster.pool(POOL, &image.reference, rollout()).await?;
        cluster.until_all_run(&image, LONG).await?;
    }
    until(&cluster, "the rollout ends", async || {
        let status = cluster.pools().get(POOL).await?.status.unwrap_or_default();
        Ok(status.nodes.updated == 1 && status.berths.held == 0)
    })
    .await?;
    progress.say(&format!("writing {count} Nodes and BootcNodes"));
    multiply(&cluster, count, progress).await?;
    progress.say("starting a controller");
    cluster.controllers.start(CONTROLLER)?;
    until(&cluster, "every Node is counted", async || {
        let status = cluster.pools().get(POOL).await?.status.unwrap_or_default();
        Ok(usize::try_from(status.nodes.updated)? >= count)
    })
    .await?;
    Ok(cluster)
}

/// Starts a cluster of one host, without the parts that need memory per object: the controller manager and the audit log.
async fn one_host() -> Result<Cluster> {
    let mut control_plane = Options {
        controller_manager: false,
        // The API server reads all objects before it is ready.
        ready_deadline: TIMEOUT,
        ..Options::simulated_nodes()
    };
    control_plane.apiserver_arguments.push("--audit-log-path=".to_owned());
    let options = ClusterOptions {
        hosts: 1,
        scheduler: false,
        control_plane,
        // The shipped timeout: an API server that lists this many objects responds late.
        controller_args: vec!["--leader-lease-duration=15s".to_owned()],
        ..ClusterOptions::default()
    };
    Cluster::start(options).await
}

/// Stops the controller and the API server, writes this many Nodes with copies of the host's BootcNode directly to
/// etcd, and starts the API server again.
async fn multiply(cluster: &Cluster, count: usize, progress: Progress) -> Result<()> {
    cluster.controllers.stop(CONTROLLER);
    let pattern = cluster.bootc_nodes().list(&ListParams::default()).await?;
    let pattern = serde_json::to_value(pattern.items.first().context("no BootcNode")?)?;
    let first = thousand::name(0);
    thousand::make(&cluster.client(), 1).await?;
    let node = serde_json::to_value(cluster.nodes().get(&first).await?)?;
    cluster.nodes().delete(&first, &DeleteParams::default()).await?;
    cluster.control_plane.stop_apiserver().await?;
    let objects = (0..count).flat_map(|number| {
        let name = thousand::name(number);
        let node = identified(&thousand::copy(&node, number), &name, &uid(number));
        let mut host = identified(&pattern, &name, &uid(count + number));
        host["spec"]["nodeUID"] = json!(uid(number));
        for owner in host["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
            owner["name"] = json!(name);
            owner["uid"] = json!(uid(number));
        }
        [
            (format!("minions/{name}"), node),
            (format!("berth.dev/bootcnodes/{name}"), host),
        ]
    });
    cluster.control_plane.seed(objects).await?;
    progress.say("starting the API server");
    cluster.control_plane.start_apiserver().await
}

/// Rules of the pool. `maxStaging` is fixed: a percentage would let more nodes stage in a larger cluster, and so
/// lengthen their progress interval. The longer interval would be written to every BootcNode at the start.
fn rollout() -> Value {
    json!({ "maxStaging": 100 })
}

fn uid(number: usize) -> String {
    format!("00000000-0000-4000-9000-{number:012x}")
}

fn identified(object: &Value, name: &str, uid: &str) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.insert("name".to_owned(), json!(name));
        metadata.insert("uid".to_owned(), json!(uid));
        metadata.remove("resourceVersion");
    }
    object
}

/// Publishes an image to all Nodes, whose agents do not respond. Returns the controller's memory after the last write.
async fn publish(cluster: &Cluster, count: usize) -> Result<Memory> {
    let image = cluster.publish("4.0.0").await?;
    cluster.pool(POOL, &image.reference, rollout()).await?;
    until(cluster, "the image is published to all", async || {
        for name in [thousand::name(0), thousand::name(count - 1)] {
            let host = cluster.bootc_nodes().get(&name).await?;
            if host.spec.image.is_none_or(|i| i.digest != image.digest) {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await?;
    tokio::time::sleep(idle_time()).await;
    of_controller(cluster)
}

async fn until(cluster: &Cluster, what: &str, mut done: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !done().await? {
        if start.elapsed() > TIMEOUT {
            bail!("not within {TIMEOUT:?}: {what}\n{}", cluster.controllers.tail(20));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
