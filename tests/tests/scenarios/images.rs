//! Tags that move, references that are pinned, and a registry that is away, through the shipped programs. The control plane and
//! the registry are real, the hosts are simulated.

use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use berth_api::condition::find;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, Published, SOON, together};
use berth_tests::programs;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::process::Command;

use crate::{boot_images, variants};

#[tokio::test]
async fn images() -> Result<()> {
    tokio::task::spawn_blocking(programs::kubectl).await??;
    let cluster = Cluster::start(ClusterOptions {
        hosts: 12,
        ..ClusterOptions::default()
    })
    .await?;
    let follows = Part::new(&cluster, "follows", 1..=2).await?;
    let pinned = Part::new(&cluster, "pinned", 3..=3).await?;
    let still = Part::new(&cluster, "still", 4..=4).await?;
    let aged = Part::new(&cluster, "aged", 5..=5).await?;
    let aged_machine = Part::new(&cluster, "aged-machine", 6..=6).await?;
    let mixed = Part::new(&cluster, "mixed", 7..=8).await?;
    let first_boot = Part::new(&cluster, "first-boot", 9..=9).await?;
    let variants = Part::new(&cluster, "variants", 10..=12).await?;
    together(
        &cluster,
        vec![
            (
                "an_image_for_newer_boot_images_is_refused",
                Box::pin(boot_images::an_old_machine(&aged_machine)),
            ),
            (
                "machines_of_two_boot_images",
                Box::pin(boot_images::a_mixed_pool(&mixed)),
            ),
            (
                "a_refused_first_boot_is_reported",
                Box::pin(boot_images::a_first_boot(&first_boot)),
            ),
            (
                "each_node_gets_the_image_that_its_cpu_runs",
                Box::pin(variants::of_each_cpu(&variants)),
            ),
            ("a_tag_that_moves_is_followed", Box::pin(a_tag_that_moves(&follows))),
            ("a_pinned_pool_waits_for_approval", Box::pin(a_pinned_pool(&pinned))),
            (
                "a_pool_that_is_not_polled_is_not_asked_for",
                Box::pin(not_polled(&still)),
            ),
            (
                "a_push_that_is_pulled_back_is_not_adopted",
                Box::pin(pulled_back(&aged)),
            ),
        ],
    )
    .await?;
    // Run one after the other: stopping the registry and killing the leader affect all pools.
    let a_new_leader = async {
        a_registry_that_is_away(&pinned).await?;
        not_polled_by_another_leader(&still).await?;
        boot_images::a_machine_that_never_joins(&first_boot).await
    };
    together(
        &cluster,
        vec![(
            "neither_a_registry_that_is_away_nor_another_leader_changes_anything",
            Box::pin(a_new_leader),
        )],
    )
    .await
}

/// Runs `kubectl berth` for the pool as an admin, without a terminal for questions. Returns whether it succeeded, and its output.
pub async fn berth(part: &Part<'_>, arguments: &[&str]) -> Result<(bool, String)> {
    command(part, &[arguments, &[&part.name]].concat()).await
}

/// Runs `kubectl berth` with these arguments only. Returns whether it succeeded, and its output.
pub async fn command(part: &Part<'_>, arguments: &[&str]) -> Result<(bool, String)> {
    let program = tokio::task::spawn_blocking(programs::kubectl).await??;
    let config = part.cluster.control_plane.kubeconfig_for("tom", &["system:masters"])?;
    let mut command = Command::new(program);
    command.args(arguments).arg("--kubeconfig").arg(&config.path);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LONG, command.output())
        .await
        .context("kubectl berth does not end")??;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
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

/// Moves the pool's tag.
async fn moved(part: &Part<'_>, version: &str) -> Result<Published> {
    part.cluster
        .move_tag(&part.name, &format!("{version}-{}", part.name))
        .await
}

async fn image(part: &Part<'_>, image: serde_json::Value) -> Result<()> {
    part.cluster.patch_pool(&part.name, json!({ "image": image })).await
}

async fn until_event(part: &Part<'_>, reason: &str, words: &str) -> Result<()> {
    let events = Api::<Event>::namespaced(part.cluster.client(), "default");
    let selector = format!("regarding.name={}", part.name);
    part.until(&format!("an event {reason}: {words}"), SOON, || async {
        let list = events.list(&ListParams::default().fields(&selector)).await?;
        Ok(list.items.iter().any(|event| {
            event.reason.as_deref() == Some(reason) && event.note.as_ref().is_some_and(|note| note.contains(words))
        }))
    })
    .await
}

async fn a_tag_that_moves(part: &Part<'_>) -> Result<()> {
    begin(part).await?;
    let spec = part.cluster.pools().get(&part.name).await?.metadata.generation;
    let (well, said) = berth(part, &["poll"]).await?;
    ensure!(
        well && said.contains("1.0.0-follows") && said.contains("which the pool uses"),
        "{said}"
    );
    let v2 = moved(part, "2.0.0").await?;
    let (well, said) = berth(part, &["poll"]).await?;
    ensure!(
        well && said.contains("2.0.0-follows") && said.contains("which the pool uses"),
        "{said}"
    );
    part.until_all_run(&v2, LONG).await?;
    until_event(part, "ImageAdopted", "2.0.0-follows").await?;
    let (well, said) = berth(part, &["approve", "--yes"]).await?;
    ensure!(well && said.contains("Nothing to approve"), "{said}");
    let now = part.cluster.pools().get(&part.name).await?.metadata.generation;
    ensure!(now == spec, "the pool's spec is unchanged");
    Ok(())
}

async fn a_pinned_pool(part: &Part<'_>) -> Result<()> {
    let v1 = begin(part).await?;
    image(part, json!({ "ref": format!("{}@{}", v1.reference, v1.digest) })).await?;
    part.until_says("ImageResolved", "True", "Resolved", "is resolved", SOON)
        .await?;
    let boots = part.boots(1);
    let v2 = moved(part, "2.0.0").await?;
    let (well, said) = berth(part, &["poll"]).await?;
    ensure!(
        well && said.contains("2.0.0-pinned") && said.contains("which the pool does not use yet"),
        "{said}"
    );
    let available = part.status().await?.available.context("nothing is available")?;
    ensure!(available.digest == v2.digest && available.version.as_deref() == Some("2.0.0-pinned"));
    until_event(part, "ImageAvailable", "2.0.0-pinned").await?;
    let (well, said) = berth(part, &["approve", "--print"]).await?;
    ensure!(
        well && said.contains(&format!("ref: {}@{}\n", v1.reference, v2.digest)),
        "{said}"
    );
    ensure!(part.status().await?.target.is_some_and(|t| t.digest == v1.digest));
    part.is_untouched(1, boots).await?;
    let (well, said) = berth(part, &["approve", "--yes"]).await?;
    ensure!(well && said.contains("is set to"), "{said}");
    part.until_all_run(&v2, LONG).await?;
    part.until("nothing is available any more", SOON, || async {
        Ok(part.status().await?.available.is_none())
    })
    .await
}

/// Number of requests for the tag's manifest that the registry has answered.
fn asked(part: &Part<'_>) -> Result<usize> {
    let log = fs::read_to_string(part.cluster.registry.log())?;
    let tag = format!("/manifests/{} ", part.name);
    let questions = |line: &&str| line.contains(&tag) && line.contains("berth-controller");
    Ok(log.lines().filter(questions).count())
}

async fn not_polled(part: &Part<'_>) -> Result<()> {
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
    part.until("the other pool has the new image", SOON, || async {
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
    let (well, said) = berth(part, &["poll"]).await?;
    ensure!(well && said.contains("2.0.0-still"), "{said}");
    ensure!(
        asked(part)? <= before + 4,
        "more requests than two for the other pool and two for the poll request"
    );
    Ok(())
}

async fn pulled_back(part: &Part<'_>) -> Result<()> {
    let v1 = begin(part).await?;
    image(part, json!({ "minimumAge": "25s" })).await?;
    let bad = moved(part, "2.0.0").await?;
    let (well, said) = berth(part, &["poll"]).await?;
    ensure!(well && said.contains("is adopted in"), "{said}");
    let (_, said) = berth(part, &["approve", "--yes"]).await?;
    ensure!(
        said.contains("Nothing to approve") && said.contains("automatically"),
        "{said}"
    );
    moved(part, "1.0.0").await?;
    part.until(
        "the tag was asked once more, and nothing is available",
        SOON,
        || async { Ok(part.status().await?.available.is_none()) },
    )
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
    let (well, said) = berth(part, &["poll"]).await?;
    ensure!(!well && said.contains("RegistryUnavailable"), "{said}");
    part.until_says("ImageResolved", "True", "RegistryUnavailable", "next try at", SOON)
        .await?;
    part.until_says("FeedFailing", "True", "RegistryUnavailable", "cannot be queried", SOON)
        .await?;
    let failing_since = feed_since(part).await?;
    // Controller 0 leads.
    part.cluster.controllers.kill(0);
    part.cluster.controllers.start(0)?;
    let (well, said) = berth(part, &["poll"]).await?;
    ensure!(
        feed_since(part).await? == failing_since,
        "the new leader changed the start of the outage"
    );
    ensure!(
        !well && said.contains("since") && said.contains("the pool keeps it"),
        "{said}"
    );
    ensure!(
        part.status().await?.target.as_ref() == Some(&before),
        "the pool keeps its digest"
    );
    part.cluster.registry.restart().await?;
    part.until_says("ImageResolved", "True", "Resolved", "is resolved", LONG)
        .await?;
    part.until_says("FeedFailing", "False", "AsExpected", "can be queried", SOON)
        .await?;
    ensure!(part.status().await?.target.as_ref() == Some(&before));
    let v3 = moved(part, "3.0.0").await?;
    for words in [&["poll"][..], &["approve", "--yes"]] {
        let (well, said) = berth(part, words).await?;
        ensure!(well, "{said}");
    }
    part.until_all_run(&v3, LONG).await
}
