//! A node whose reports are wrong: the pool records its target and its history all the same. The scenarios are parts of
//! `images`.

use anyhow::{Context, Result, ensure};
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use berth_tests::cluster::{LONG, Part};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::refusal;

/// Name of the policy, and the text of its refusals.
const POLICY: &str = "no-such-history";
const WORDS: &str = "this version is not allowed here";

/// Versions in the pool's history, newest first.
async fn history(part: &Part<'_>) -> Result<Vec<String>> {
    let images = part.status().await?.deploy_history.into_iter();
    Ok(images.map(|image| image.version.unwrap_or_default()).collect())
}

/// A node reports times that no pool's status can hold, versions and images of its own, and a platform that no image has.
pub async fn a_report_of_one_node_decides_nothing(part: &Part<'_>) -> Result<()> {
    let rollout = json!({ "maxUnavailable": 2 });
    let v1 = part.roll_to("1.0.0", rollout.clone()).await?;
    part.until_all_run(&v1, LONG).await?;
    let host = part.host(3);
    host.stop_agent().await;
    let evil = format!("sha256:{}", "e".repeat(64));
    let lie = |digest: &str, manifest: &str, time: &str| {
        json!({
            "pool": part.name, "digest": digest, "manifest": manifest, "version": "6.6.6", "deployedTime": time,
        })
    };
    let real = v1.digest.to_string();
    let lies = json!({ "status": {
        "platformVariant": "v9",
        "deployments": [
            lie(&real, &real, "0000-01-01T00:00:00+23:59"),
            lie(&evil, &real, "2026-01-01T00:00:00.5Z"),
            lie(&evil, &evil, "9999-01-01T00:00:00Z"),
        ],
        "bootImage": { "source": "/x", "version": "0.1", "provisionedTime": "0000-01-01T00:00:00+23:59" },
    }});
    let nodes: Api<BootcNode> = Api::all(part.cluster.client());
    nodes
        .patch_status(host.name(), &PatchParams::default(), &Patch::Merge(lies))
        .await?;
    let v2 = part.roll_to("2.0.0", rollout).await?;
    part.until_run(&v2, &[1, 2], LONG).await?;
    let [second, first] = ["2.0.0", "1.0.0"].map(|version| format!("{version}-{}", part.name));
    // The nodes ran the last one when they joined the pool, and all of them reported it then.
    let expected = [second, first, "1.0.0".to_owned()];
    part.soon(
        "the history has the images that the nodes had, and no other",
        || async { Ok(history(part).await? == expected) },
    )
    .await?;
    let status = part.status().await?;
    let target = status.target.context("there is no target")?;
    ensure!(target.digest == v2.digest, "{target:?}");
    let images = status.deploy_history.iter();
    let were_targets: Vec<bool> = images.map(|image| image.publish_time.is_some()).collect();
    ensure!(were_targets == [true, true, false], "{:?}", status.deploy_history);
    // An agent keeps the list of its node's images, so the false entries are deleted before the agent starts again.
    let repair = json!({ "status": { "deployments": null, "bootImage": null } });
    nodes
        .patch_status(host.name(), &PatchParams::default(), &Patch::Merge(repair))
        .await?;
    host.start_agent();
    part.until_all_run(&v2, LONG).await
}

/// The API server refuses the pool's history. The rest of the status is written, and the rollout continues.
pub async fn a_refused_history_stops_no_rollout(part: &Part<'_>) -> Result<()> {
    let rollout = json!({ "maxUnavailable": 2 });
    let v1 = part.roll_to("1.0.0", rollout.clone()).await?;
    part.until_all_run(&v1, LONG).await?;
    part.soon("the history has the first image", || async {
        Ok(history(part).await?.iter().any(|version| version.starts_with("1.0.0")))
    })
    .await?;
    forbid(part).await?;
    let v2 = part.roll_to("2.0.0", rollout.clone()).await?;
    part.until_all_run(&v2, LONG).await?;
    part.until_true("Degraded", "StatusRefused", WORDS).await?;
    let status = part.status().await?;
    ensure!(status.target.is_some_and(|target| target.digest == v2.digest));
    let history_now = history(part).await?;
    ensure!(
        !history_now.iter().any(|version| version.starts_with("2.0.0")),
        "{history_now:?}"
    );
    part.soon("all members are counted", || async {
        Ok(part.status().await?.nodes.updated == 2)
    })
    .await?;

    refusal::delete(part.cluster.client(), POLICY).await?;
    let v3 = part.roll_to("3.0.0", rollout).await?;
    part.until_all_run(&v3, LONG).await?;
    part.until_false("Degraded", "AsExpected", "").await?;
    part.soon("the history has the last image", || async {
        Ok(history(part).await?.iter().any(|version| version.starts_with("3.0.0")))
    })
    .await
}

/// Creates a policy that refuses every pool status with the second image, and waits until it takes effect.
async fn forbid(part: &Part<'_>) -> Result<()> {
    let expression = format!(
        "object.metadata.name != '{}' || !has(object.status) || !has(object.status.deployHistory) || \
         !object.status.deployHistory.exists(i, has(i.version) && i.version.startsWith('2.0.0'))",
        part.name
    );
    let validation = json!({ "expression": expression, "message": WORDS });
    refusal::create(
        part.cluster.client(),
        POLICY,
        ("berth.dev", "bootcnodepools/status"),
        validation,
    )
    .await?;
    part.soon("the history is refused", || async { Ok(is_refused(part).await) })
        .await
}

async fn is_refused(part: &Part<'_>) -> bool {
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let digest = format!("sha256:{}", "1".repeat(64));
    let history: Value = json!([{ "digest": digest, "version": "2.0.0", "nodeCount": 1 }]);
    let patch = Patch::Merge(json!({ "status": { "deployHistory": history } }));
    let pools: Api<BootcNodePool> = Api::all(part.cluster.client());
    let tried = pools.patch_status(&part.name, &dry, &patch).await;
    tried.is_err_and(|error| error.to_string().contains(WORDS))
}
