//! Nodes on which a digest failed (I8), and the halt of the rollout that follows.

use super::facts::{Failures, PoolFacts};
use crate::controller::gate::{Gate, GateReason};
use crate::text::few;
use berth_api::berth::{Berth, BerthState, ClosedReason, Outcome};
use berth_api::seeded::Bug;
use berth_api::{Digest, NodeName};
use std::collections::BTreeSet;

/// Number of nodes that are named for each digest; the schema allows no more. No pool may have a larger `maxFailures`.
pub const MAX_NAMED: usize = 64;

/// The failure that a closed berth tells of.
fn failure(berth: &Berth) -> Option<(&Digest, NodeName)> {
    let BerthState::Closed(closed) = &berth.state else {
        return None;
    };
    let (Some(Outcome::Failed), Some(target), Some(node)) =
        (closed.outcome, closed.last_target.as_ref(), closed.last_node.as_ref())
    else {
        return None;
    };
    // A Node that is made anew under that name is another one, on which nothing has failed.
    let node = match closed.reason {
        ClosedReason::Gone => NodeName::new(format!("{node} (deleted)")),
        _ => node.clone(),
    };
    Some((target, node))
}

/// The berth tells of a failure, and nobody has said yet that it is on record.
pub(super) fn is_unrecorded(berth: &Berth) -> bool {
    failure(berth).is_some() && !Bug::ReopenBeforeRecorded.is_awake()
}

/// The berth tells of a failure that is on record, as the pool's status was read. When as many as can be named are,
/// one more makes no difference.
pub(super) fn is_recorded(facts: &PoolFacts, berth: &Berth) -> bool {
    failure(berth).is_some_and(|(digest, node)| {
        facts
            .failures
            .get(digest)
            .is_some_and(|nodes| nodes.contains(&node) || nodes.len() >= MAX_NAMED)
    })
}

/// Digests that the members should run now.
fn wanted(facts: &PoolFacts) -> BTreeSet<&Digest> {
    facts.members.iter().filter_map(|m| m.desired.as_ref()).collect()
}

/// Everything that is on record, that a member reports, or that a closed berth tells of.
pub(in crate::controller) fn all(facts: &PoolFacts) -> Failures {
    let mut all = facts.failures.clone();
    let reported = facts
        .members
        .iter()
        .flat_map(|m| m.failed.iter().map(|digest| (digest, m.name.clone())));
    // What failed long ago and is not wanted now is each node's own affair.
    let wanted = wanted(facts);
    let reported = reported.filter(|(digest, _)| wanted.contains(digest));
    let told = facts.readable().filter_map(|(_, berth)| failure(berth));
    for (digest, node) in reported.chain(told) {
        all.entry(digest.clone()).or_default().insert(node);
    }
    all
}

/// Halts when too many nodes failed with the digests that the members should run now.
pub(super) fn halt(facts: &PoolFacts, failures: &Failures) -> Option<Gate> {
    let failed: Vec<&NodeName> = wanted(facts)
        .iter()
        .filter_map(|d| failures.get(*d))
        .flatten()
        .collect();
    if failed.len() < facts.max_failures.max(1) {
        return None;
    }
    let message = format!(
        "the image failed on {}, and maxFailures is {}; publish another image, or change rollout.retryToken",
        few(failed.iter().map(ToString::to_string)),
        facts.max_failures
    );
    Some(Gate {
        reason: GateReason::RolloutHalted,
        message,
    })
}
