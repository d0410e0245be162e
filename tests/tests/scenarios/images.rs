//! Tags that move, references that are pinned, and a registry that is away, through the shipped programs.

use std::fs;

use anyhow::{Context, Result, ensure};
use berth_api::condition::find;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, Published, Scenarios};
use berth_tests::programs;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::said::{self, Said};
use crate::{boot_images, false_reports, variants};

#[tokio::test]
async fn images() -> Result<()> {
    tokio::task::spawn_blocking(programs::kubectl).await??;
    let cluster = Cluster::start(ClusterOptions::of(20)).await?;
    Scenarios::of(&cluster)
        .on("follows", 2, a_tag_that_moves_is_followed)
        .on("pinned", 1, a_pinned_pool_waits_for_approval)
        .on("still", 1, a_pool_that_is_not_polled)
        .on("aged", 1, a_push_that_is_pulled_back_is_not_adopted)
        .on(
            "aged-machine",
            1,
            boot_images::an_image_for_newer_boot_images_is_refused,
        )
        .on("mixed", 2, boot_images::machines_of_two_boot_images)
        .on("first-boot", 1, boot_images::a_refused_first_boot_is_reported)
        .on("variants", 3, variants::each_node_gets_the_image_that_its_cpu_runs)
        .on("majority", 3, boot_images::one_of_three_machines_is_outvoted)
        .on("lies", 3, false_reports::a_report_of_one_node_decides_nothing)
        .on("unrecorded", 2, false_reports::a_refused_history_stops_no_rollout)
        .run()
        .await?;
    Scenarios::of(&cluster)
        .with(an_outage_and_another_leader_change_nothing)
        .run()
        .await
}

/// Steps that affect all pools, so they run one after the other. The registry is stopped, and later the leader is
/// killed.
async fn an_outage_and_another_leader_change_nothing(cluster: &Cluster) -> Result<()> {
    let pinned = Part::new(cluster, "pinned", [3]).await?;
    let still = Part::new(cluster, "still", [4]).await?;
    let first_boot = Part::new(cluster, "first-boot", [9]).await?;
    a_registry_that_is_away(&pinned).await?;
    not_polled_by_another_leader(&still).await?;
    boot_images::a_machine_that_never_joins(&first_boot).await
}

pub async fn berth(part: &Part<'_>, arguments: &[&str]) -> Result<Said> {
    said::berth(part.cluster, &[arguments, &[&part.name]].concat()).await
}

/// Creates the pool with its own tag, and waits until its nodes run that tag's image.
pub async fn begin(part: &Part<'_>) -> Result<Published> {
    let image = part
        .cluster
        .move_tag(&part.name, &format!("1.0.0-{}", part.name))
        .await?;
    part.pool(&image, json!({ "maxUnavailable": 1 })).await?;
    part.until_all_run(&image, LONG).await?;
    Ok(image)
}

async fn moved(part: &Part<'_>, version: &str) -> Result<Published> {
    part.cluster
        .move_tag(&part.name, &format!("{version}-{}", part.name))
        .await
}

async fn image(part: &Part<'_>, image: serde_json::Value) -> Result<()> {
    part.patch(json!({ "image": image })).await
}

async fn until_event(part: &Part<'_>, reason: &str, words: &str) -> Result<()> {
    let events = Api::<Event>::namespaced(part.cluster.client(), "default");
    let selector = format!("regarding.name={}", part.name);
    part.soon(&format!("an event {reason}: {words}"), || async {
        let list = events.list(&ListParams::default().fields(&selector)).await?;
        Ok(list.items.iter().any(|event| {
            event.reason.as_deref() == Some(reason) && event.note.as_ref().is_some_and(|note| note.contains(words))
        }))
    })
    .await
}

async fn a_tag_that_moves_is_followed(part: &Part<'_>) -> Result<()> {
    begin(part).await?;
    let spec = part.cluster.pools().get(&part.name).await?.metadata.generation;
    berth(part, &["poll"])
        .await?
        .well(&["1.0.0-follows", "which the pool already uses"])?;
    let v2 = moved(part, "2.0.0").await?;
    berth(part, &["poll"])
        .await?
        .well(&["2.0.0-follows", "which the pool already uses"])?;
    part.until_all_run(&v2, LONG).await?;
    until_event(part, "ImageAdopted", "2.0.0-follows").await?;
    berth(part, &["approve", "--yes"])
        .await?
        .well(&["Nothing to approve"])?;
    let now = part.cluster.pools().get(&part.name).await?.metadata.generation;
    ensure!(now == spec, "the pool's spec is unchanged");
    Ok(())
}

async fn a_pinned_pool_waits_for_approval(part: &Part<'_>) -> Result<()> {
    let v1 = begin(part).await?;
    image(part, json!({ "ref": format!("{}@{}", v1.reference, v1.digest) })).await?;
    part.until_true("ImageResolved", "Resolved", "is resolved").await?;
    let boots = part.boots(1);
    let v2 = moved(part, "2.0.0").await?;
    berth(part, &["poll"])
        .await?
        .well(&["2.0.0-pinned", "which the pool does not use yet"])?;
    let available = part.status().await?.available.context("nothing is available")?;
    ensure!(available.digest == v2.digest && available.version.as_deref() == Some("2.0.0-pinned"));
    until_event(part, "ImageAvailable", "2.0.0-pinned").await?;
    berth(part, &["approve", "--print"])
        .await?
        .well(&[&format!("ref: {}@{}\n", v1.reference, v2.digest)])?;
    ensure!(part.status().await?.target.is_some_and(|t| t.digest == v1.digest));
    part.is_untouched(1, boots).await?;
    berth(part, &["approve", "--yes"]).await?.well(&["is set to"])?;
    part.until_all_run(&v2, LONG).await?;
    part.soon("nothing is available any more", || async {
        Ok(part.status().await?.available.is_none())
    })
    .await
}

/// Number of requests for the tag's manifest that the registry has answered.
fn asked(part: &Part<'_>) -> Result<usize> {
    let log = fs::read_to_string(part.cluster.registry.log())?;
    let tag = format!("/manifests/{} ", part.name);
    Ok(log
        .lines()
        .filter(|line: &&str| line.contains(&tag) && line.contains("berth-controller"))
        .count())
}

async fn a_pool_that_is_not_polled(part: &Part<'_>) -> Result<()> {
    let v1 = begin(part).await?;
    image(part, json!({ "pollInterval": "0" })).await?;
    let before = asked(part)?;
    ensure!(before > 0, "the registry's log has the first question");
    moved(part, "2.0.0").await?;
    // Another pool's request for the same tag must not count for this pool.
    let other = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": "still-beside" },
        "spec": { "nodeSelector": { "matchLabels": { "part": "nobody" } }, "image": { "ref": v1.reference } },
    });
    let pools = part.cluster.pools();
    let apply = PatchParams::apply("admin");
    pools.patch("still-beside", &apply, &Patch::Apply(&other)).await?;
    part.soon("the other pool has the new image", || async {
        let status = pools.get("still-beside").await?.status.unwrap_or_default();
        Ok(status.target.is_some_and(|target| target.digest != v1.digest))
    })
    .await?;
    let status = part.status().await?;
    ensure!(status.available.is_none() && status.target.is_some_and(|target| target.digest == v1.digest));
    ensure!(asked(part)? <= before + 4, "more requests than the other pool's");
    Ok(())
}

async fn not_polled_by_another_leader(part: &Part<'_>) -> Result<()> {
    let before = asked(part)?;
    // Controller 0 leads.
    part.cluster.controllers.kill(0);
    part.cluster.controllers.start(0)?;
    berth(part, &["poll"]).await?.well(&["2.0.0-still"])?;
    ensure!(asked(part)? <= before + 4, "more than four requests");
    Ok(())
}

async fn a_push_that_is_pulled_back_is_not_adopted(part: &Part<'_>) -> Result<()> {
    let v1 = begin(part).await?;
    image(part, json!({ "minimumAge": "25s" })).await?;
    let bad = moved(part, "2.0.0").await?;
    berth(part, &["poll"]).await?.well(&["is adopted in"])?;
    berth(part, &["approve", "--yes"])
        .await?
        .well(&["Nothing to approve", "automatically"])?;
    moved(part, "1.0.0").await?;
    part.soon("the tag was asked once more, and nothing is available", || async {
        Ok(part.status().await?.available.is_none())
    })
    .await?;
    ensure!(part.status().await?.target.is_some_and(|t| t.digest == v1.digest));
    ensure!(part.order(&bad).is_empty(), "no node ran the withdrawn image");
    let good = moved(part, "3.0.0").await?;
    berth(part, &["poll"]).await?;
    part.until_all_run(&good, LONG).await
}

/// Status of `FeedFailing`, and the time of its last transition.
async fn feed_since(part: &Part<'_>) -> Result<(String, String)> {
    let status = part.status().await?;
    let condition = find(&status.conditions, "FeedFailing").context("no condition FeedFailing")?;
    let since = condition.last_transition_time.0.to_string();
    Ok((condition.status.clone(), since))
}

async fn a_registry_that_is_away(part: &Part<'_>) -> Result<()> {
    let before = part.status().await?.target.context("no target")?;
    part.cluster.registry.stop()?;
    berth(part, &["poll"]).await?.ends(1, &["RegistryUnavailable"])?;
    part.until_true("ImageResolved", "RegistryUnavailable", "next try at")
        .await?;
    part.until_true("FeedFailing", "RegistryUnavailable", "cannot be queried")
        .await?;
    let failing_since = feed_since(part).await?;
    // Controller 0 leads.
    part.cluster.controllers.kill(0);
    part.cluster.controllers.start(0)?;
    let said = berth(part, &["poll"]).await?;
    ensure!(feed_since(part).await? == failing_since, "the outage starts again");
    said.ends(1, &["since", "the pool keeps its current image"])?;
    ensure!(part.status().await?.target.as_ref() == Some(&before), "another target");
    part.cluster.registry.restart().await?;
    part.cluster
        .until_says(&part.name, ("ImageResolved", "True", "Resolved", "is resolved"), LONG)
        .await?;
    part.until_false("FeedFailing", "AsExpected", "can be queried").await?;
    ensure!(part.status().await?.target.as_ref() == Some(&before));
    let v3 = moved(part, "3.0.0").await?;
    for words in [&["poll"][..], &["approve", "--yes"]] {
        berth(part, words).await?.well(&[])?;
    }
    part.until_all_run(&v3, LONG).await
}
