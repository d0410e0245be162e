//! Polling of tags: the time from a tag's move to the first pull, and the number of requests for many pools with few tags.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::figure::Figure;
use super::progress::Progress;
use super::settings::{Run, runs};
use crate::cluster::{Cluster, ClusterOptions, Published};
use crate::hosts::HostChange;

pub(super) const BENCHES: [&str; 2] = ["poll-to-pull", "polls-per-interval"];

const POOL: &str = "followed";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of pools, and of the tags they share.
const POOLS: usize = 500;
const TAGS: usize = 20;
/// Shortest poll interval of a pool, and the number of intervals to watch.
const INTERVAL: Duration = Duration::from_secs(60);
const INTERVALS: u32 = 2;

pub(super) async fn measure(run: &Run) -> Result<()> {
    let progress = run.progress;
    let cluster = Cluster::start(ClusterOptions {
        hosts: 1,
        scheduler: false,
        ..ClusterOptions::default()
    })
    .await?;
    if run.wants(BENCHES[0]) {
        to_pull(&cluster, progress).await?;
    }
    if run.wants(BENCHES[1]) {
        per_interval(&cluster, progress).await?;
    }
    Ok(())
}

async fn to_pull(cluster: &Cluster, progress: Progress) -> Result<()> {
    let first = cluster.move_tag("bench", "bench-0").await?;
    cluster
        .pool(POOL, &first.reference, json!({ "maxUnavailable": 1 }))
        .await?;
    cluster.until_all_run(&first, TIMEOUT).await?;
    let mut seconds = vec![];
    for run in 1..=runs() {
        let image = cluster.move_tag("bench", &format!("bench-{run}")).await?;
        let moved = Timestamp::now();
        cluster.request_poll(POOL).await?;
        cluster.until_all_run(&image, TIMEOUT).await?;
        let began = pull_of(cluster, &image).context("no host pulled the image")?;
        seconds.push(began.duration_since(moved).as_secs_f64());
        progress.say(&format!("pulled {:?} s after the tag moved", seconds.last()));
    }
    Figure::new(BENCHES[0], "s", &seconds).aim(1.0).print();
    Ok(())
}

fn pull_of(cluster: &Cluster, image: &Published) -> Option<Timestamp> {
    let wanted = image.digest.to_string();
    let events = cluster.log.events().into_iter();
    let mut pulls = events.filter(|e| matches!(&e.change, HostChange::PullStarted { digest } if *digest == wanted));
    pulls.next().map(|event| event.at)
}

async fn per_interval(cluster: &Cluster, progress: Progress) -> Result<()> {
    progress.say(&format!("creating {POOLS} pools on {TAGS} tags"));
    let mut references = vec![];
    for tag in 0..TAGS {
        let tag = format!("tag-{tag}");
        references.push(cluster.move_tag(&tag, &tag).await?.reference);
    }
    let pools = cluster.pools();
    let (of_pools, references) = (&pools, &references);
    stream::iter(0..POOLS)
        .map(|number| async move {
            let name = format!("pool-{number}");
            let pool = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": name },
                "spec": {
                    "nodeSelector": { "matchLabels": { "part": "nobody" } },
                    "image": { "ref": references[number % TAGS], "pollInterval": format!("{}s", INTERVAL.as_secs()) },
                },
            });
            let params = PatchParams::apply("bench").force();
            of_pools.patch(&name, &params, &Patch::Apply(&pool)).await.map(drop)
        })
        .buffer_unordered(8)
        .try_collect::<Vec<()>>()
        .await?;
    cluster
        .until("every pool has an image", TIMEOUT, || async {
            let mut statuses = pools
                .list(&ListParams::default())
                .await?
                .items
                .into_iter()
                .map(|p| p.status);
            Ok(statuses.all(|status| status.is_some_and(|s| s.target.is_some())))
        })
        .await?;
    progress.say(&format!("watching {INTERVALS} intervals of {INTERVAL:?}"));
    let before = polls(cluster)?;
    tokio::time::sleep(INTERVAL * INTERVALS).await;
    let each = (polls(cluster)? - before) as f64 / f64::from(INTERVALS);
    let figure = Figure::new(BENCHES[1], "requests", &[each]).aim(TAGS as f64);
    figure
        .detail("pools", json!(POOLS))
        .detail("interval, s", json!(INTERVAL.as_secs()))
        .print();
    Ok(())
}

/// Number of requests for tags that the registry has answered.
fn polls(cluster: &Cluster) -> Result<usize> {
    let log = fs::read_to_string(cluster.registry.log())?;
    let polls = log
        .lines()
        .filter(|line| line.contains("/manifests/tag-") && line.contains("berth-controller"));
    Ok(polls.count())
}
