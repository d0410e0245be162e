//! A Lease that a policy refuses to write, or that lost its label, counts as used; the rest of the pool continues.

use anyhow::{Result, ensure};
use berth_tests::cluster::{LONG, Part};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::refusal;

/// Name of the policy, and the text of its refusals.
const POLICY: &str = "frozen-lease";
const WORDS: &str = "this Lease is frozen";

pub async fn a_lease_that_cannot_be_written_stops_no_other(part: &Part<'_>) -> Result<()> {
    let (n3, lease) = (part.node(3), format!("{}-0", part.name));
    let v2 = part
        .roll_to("2.0.0", json!({ "maxUnavailable": 2, "paused": true }))
        .await?;
    super::until_total(part, 2).await?;
    // The hold keeps the rollout from ending, so that the conditions below remain.
    part.label(n3, "berth.dev/hold", Some("")).await?;
    freeze(part, &lease).await?;
    part.roll_once_staged(&v2, json!({ "maxUnavailable": 2 })).await?;
    part.until_run(&v2, &[1, 2], LONG).await?;
    part.until_true("Degraded", "WriteRefused", &lease).await?;
    part.until_true("Degraded", "WriteRefused", WORDS).await?;
    let ever = part.ever(0)?;
    let is_unopened = ever.iter().all(|holder| holder.starts_with("closed:"));
    ensure!(is_unopened, "{lease} was written: {ever:?}");
    refusal::delete(part.cluster.client(), POLICY).await?;
    part.label(n3, "berth.dev/hold", None).await?;
    part.until_all_run(&v2, LONG).await?;
    part.cluster
        .until_says(&part.name, ("Degraded", "False", "AsExpected", ""), LONG)
        .await?;

    let v3 = part.publish("3.0.0").await?;
    part.label(n3, "berth.dev/hold", Some("")).await?;
    let pool = part.name.as_str();
    label(part, &lease, Value::Null).await?;
    part.roll_once_staged(&v3, json!({ "maxUnavailable": 2 })).await?;
    part.until_run(&v3, &[1, 2], LONG).await?;
    part.until_true("Degraded", "NameTaken", &lease).await?;
    label(part, &lease, json!(pool)).await?;
    part.label(n3, "berth.dev/hold", None).await?;
    part.until_all_run(&v3, LONG).await?;
    part.cluster
        .until_says(&part.name, ("Degraded", "False", "AsExpected", ""), LONG)
        .await?;
    super::until_total(part, 2).await
}

async fn label(part: &Part<'_>, lease: &str, value: Value) -> Result<()> {
    let patch = json!({ "metadata": { "labels": { "berth.dev/pool": value } } });
    let berths = part.cluster.berths();
    berths
        .patch(lease, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// Creates a policy that refuses every write to the Lease, and waits until it takes effect.
async fn freeze(part: &Part<'_>, lease: &str) -> Result<()> {
    let validation = json!({ "expression": format!("object.metadata.name != '{lease}'"), "message": WORDS });
    refusal::create(
        part.cluster.client(),
        POLICY,
        ("coordination.k8s.io", "leases"),
        validation,
    )
    .await?;
    part.soon("the Lease is frozen", || async { Ok(is_refused(part, lease).await) })
        .await
}

async fn is_refused(part: &Part<'_>, lease: &str) -> bool {
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { "example.com/try": "1" } } }));
    let tried = part.cluster.berths().patch(lease, &dry, &patch).await;
    tried.is_err_and(|error| error.to_string().contains(WORDS))
}
