//! `retry`: tries failed images again.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::Digest;
use berth_api::condition;
use berth_api::pool::BootcNodePool;
use berth_api::text::names;
use jiff::Timestamp;
use kube::ResourceExt;

use super::holder::of_target;
use super::plan::{Change, NoPlan, Plan, pool_of};
use crate::members::Roster;
use crate::snapshot::Snapshot;
use crate::text::{clean, count, short};

/// Plans a retry in a pool.
pub fn retry(snapshot: &Snapshot, pool: &str, now: Timestamp) -> Result<Plan, NoPlan> {
    let found = pool_of(snapshot, pool)?;
    let roster = Roster::of(snapshot, now);
    let failed = failed(found, &roster);
    let halted = found
        .status
        .as_ref()
        .is_some_and(|s| condition::is_true(&s.conditions, condition::pool::ROLLOUT_HALTED));
    if failed.is_empty() && !halted {
        let head = format!("Pool {pool} has no failures on record; nothing to retry.");
        return Ok(Plan {
            head,
            ..Plan::default()
        });
    }
    let token = now.to_string();
    let mut plan = Plan {
        head: format!("Retry in pool {pool}: sets rollout.retryToken to {token}."),
        changes: vec![Change::Retry {
            pool: pool.to_owned(),
            uid: found.uid().unwrap_or_default(),
            token,
        }],
        ..Plan::default()
    };
    let mut again = false;
    for (digest, nodes) in &failed {
        let wanted = is_wanted(found, digest);
        again |= wanted;
        plan.facts.push(words(found, digest, nodes, wanted));
    }
    if halted {
        plan.facts.push("The halted rollout continues.".to_owned());
    }
    if again {
        let k = found.spec.capacity(roster.members(pool).len());
        plan.facts.push(format!(
            "Each node tries once, at most {k} at a time; the rollout halts again at {}.",
            count(found.spec.max_failures(), "failure")
        ));
    }
    if found.spec.is_paused() {
        plan.warnings
            .push("The pool is paused: no node reboots until rollout.paused is false".to_owned());
    }
    Ok(plan)
}

/// Returns, for each failed digest, the nodes where it failed and the number of failures in the pool's status. The
/// nodes are from the pool's status and from the nodes' own reports.
fn failed(pool: &BootcNodePool, roster: &Roster<'_>) -> BTreeMap<Digest, (BTreeSet<String>, usize)> {
    let mut failed: BTreeMap<Digest, (BTreeSet<String>, usize)> = BTreeMap::new();
    for record in pool.status.iter().flat_map(|s| &s.failures) {
        let entry = failed.entry(record.digest.clone()).or_default();
        entry.0.extend(record.nodes.iter().cloned());
        entry.1 = record.count as usize;
    }
    for member in roster.members(&pool.name_any()) {
        for digest in member.status().failed_digests {
            failed.entry(digest).or_default().0.insert(member.name.clone());
        }
    }
    failed
}

fn is_wanted(pool: &BootcNodePool, digest: &Digest) -> bool {
    let target = pool.status.as_ref().and_then(|s| s.target.as_ref());
    target.is_some_and(|t| t.platforms.iter().any(|p| p.digest == *digest))
}

fn words(pool: &BootcNodePool, digest: &Digest, (nodes, count): &(BTreeSet<String>, usize), wanted: bool) -> String {
    let name = match of_target(digest, Some(pool)) {
        Some(version) => format!("{} ({})", clean(&version), short(digest)),
        None => short(digest),
    };
    let list = names(nodes, *count);
    if wanted {
        format!("{name} is retried on {list}.")
    } else {
        format!(
            "{name} is not an image of the pool's current target; if a later target has this image, the image is retried on {list}."
        )
    }
}
