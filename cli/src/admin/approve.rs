//! `approve`: adopts the image that a pinned pool's tag points to.

use berth_api::condition::{self, pool as types};
use berth_api::pool::{Available, BootcNodePool};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::plan::{Change, NoPlan, Plan, pool_of};
use crate::members::Roster;
use crate::snapshot::Snapshot;
use crate::text::{age, clean, seconds, short};

/// Plans to adopt the image that a pool's tag points to.
pub fn approve(snapshot: &Snapshot, pool: &str, now: Timestamp) -> Result<Plan, NoPlan> {
    let found = pool_of(snapshot, pool)?;
    let status = found.status.clone().unwrap_or_default();
    let Ok(reference) = found.spec.image_ref().get() else {
        return Ok(nothing(pool, "its image.ref is not a valid image reference."));
    };
    let Some(tag) = reference.without_digest() else {
        let why = "its image.ref has no tag, so Berth looks for no newer image.";
        return Ok(nothing(pool, why));
    };
    let is_current = status.target.as_ref().is_some_and(|t| t.is_of(found.spec.image_ref()));
    let Some(available) = status.available.filter(|_| is_current) else {
        let why = format!("Berth knows no newer image at {tag}. To check now: kubectl berth poll {pool}");
        return Ok(nothing(pool, &why));
    };
    let image = named(available.version.as_deref(), &available);
    if reference.digest().is_none() {
        return Ok(nothing(pool, &followed(found, &available, &image)));
    }
    let to = format!("{tag}@{}", available.digest);
    let roster = Roster::of(snapshot, now);
    let count = roster.members(pool).len();
    let before = status.target.map(|t| match &t.version {
        Some(version) => format!("{} ({})", clean(version), short(&t.digest)),
        None => short(&t.digest),
    });
    let nodes = if count == 1 { "node" } else { "nodes" };
    let mut plan = Plan {
        head: format!("Approve {image} for pool {pool}: sets image.ref to {to}."),
        facts: vec![
            format!("Current: {}", found.spec.image_ref()),
            format!(
                "Effect on {count} {nodes}: update from {} to {image}, as rollout in the pool's spec allows.",
                before.unwrap_or_default()
            ),
            format!(
                "{tag} was first seen to point to this image {} ago.",
                age(available.since.0, now)
            ),
            format!(
                "If the pool is applied from a repository, change the pool there instead: kubectl berth approve {pool} --print"
            ),
        ],
        changes: vec![Change::Approve {
            pool: pool.to_owned(),
            uid: found.uid().unwrap_or_default(),
            from: found.spec.image_ref().to_string(),
            to,
            digest: available.digest,
        }],
        ..Plan::default()
    };
    plan.warnings = warnings(found, &status.conditions);
    Ok(plan)
}

fn nothing(pool: &str, why: &str) -> Plan {
    Plan {
        head: format!("Nothing to approve in pool {pool}: {why}"),
        ..Plan::default()
    }
}

/// Returns warnings about conditions that keep nodes of the pool from running the image.
fn warnings(pool: &BootcNodePool, conditions: &[Condition]) -> Vec<String> {
    let mut warnings = vec![];
    if pool.spec.is_paused() {
        warnings.push("The pool is paused: no node reboots until rollout.paused is false".to_owned());
    }
    let resolved = condition::find(conditions, types::IMAGE_RESOLVED);
    if let Some(missing) = resolved.filter(|c| c.reason == "NoSuchPlatform") {
        warnings.push(format!("Not every node can run the image: {}", clean(&missing.message)));
    }
    warnings
}

fn named(version: Option<&str>, available: &Available) -> String {
    match version {
        Some(version) => format!("{} ({})", clean(version), short(&available.digest)),
        None => short(&available.digest),
    }
}

/// Explains, in one sentence, when a pool that follows its tag adopts the available image.
fn followed(pool: &BootcNodePool, available: &Available, image: &str) -> String {
    let minimum = pool.spec.minimum_age().as_secs();
    let when = match minimum.saturating_sub(available.seen_seconds) {
        _ if minimum == 0 => "as soon as every node can run it (see the condition ImageResolved)".to_owned(),
        0 => "as soon as the registry has confirmed that the tag still points to it".to_owned(),
        left => format!(
            "in about {}, if the tag still points to it then (image.minimumAge)",
            seconds(left)
        ),
    };
    let now = match minimum {
        0 => String::new(),
        _ => format!(
            " To adopt it now, add @{} after the tag in image.ref.",
            available.digest
        ),
    };
    format!("the pool follows its tag. {image} is adopted automatically {when}.{now}")
}

/// Returns the change as a YAML file for a repository or for `kubectl patch --patch-file`. Fails with the reason if
/// there is nothing to change.
pub fn print(plan: &Plan) -> Result<String, String> {
    let Some(Change::Approve { pool, to, .. }) = plan.changes.first() else {
        return Err(plan.head.clone());
    };
    let (group, version) = (berth_api::keys::GROUP, berth_api::keys::VERSION);
    Ok(format!(
        "apiVersion: {group}/{version}\nkind: BootcNodePool\nmetadata:\n  name: {pool}\nspec:\n  image:\n    ref: {to}\n"
    ))
}
