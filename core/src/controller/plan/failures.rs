//! Nodes where a digest failed (I8), and the halt of the rollout after too many failures.

use std::collections::BTreeSet;

use berth_api::berth::{Berth, BerthState, ClosedReason, Outcome};
use berth_api::seeded::Bug;
use berth_api::{Digest, NodeName};

use super::facts::{Failures, PoolFacts};
use crate::controller::gate::{Gate, GateReason};
use crate::text::few;

/// Maximum number of nodes per digest in `status.failures`, as in the schema, and upper bound of `maxFailures`.
pub const MAX_NAMED: usize = 64;

fn failure(berth: &Berth) -> Option<(&Digest, NodeName)> {
    let BerthState::Closed(closed) = &berth.state else {
        return None;
    };
    let (Some(Outcome::Failed), Some(target), Some(node)) =
        (closed.outcome, closed.last_target.as_ref(), closed.last_node.as_ref())
    else {
        return None;
    };
    // A new Node may have the name of the deleted Node. The suffix keeps this failure from counting for the new Node.
    let node = match closed.reason {
        ClosedReason::Gone => NodeName::new(format!("{node} (deleted)")),
        _ => node.clone(),
    };
    Some((target, node))
}

/// True if the berth closed with a failure. As soon as `status.failures` lists the failure, the controller clears it
/// from the berth.
pub(super) fn is_unrecorded(berth: &Berth) -> bool {
    failure(berth).is_some() && !Bug::ReopenBeforeRecorded.is_awake()
}

/// True if `status.failures` lists the failure of the closed berth, or has no room for another node.
pub(super) fn is_recorded(facts: &PoolFacts, berth: &Berth) -> bool {
    failure(berth).is_some_and(|(digest, node)| {
        facts
            .failures
            .get(digest)
            .is_some_and(|nodes| nodes.contains(&node) || nodes.len() >= MAX_NAMED)
    })
}

/// Returns the digests that the members should run now.
fn wanted(facts: &PoolFacts) -> BTreeSet<&Digest> {
    facts.members.iter().filter_map(|m| m.desired.as_ref()).collect()
}

/// Returns all failures: recorded ones, reports of members, and failures of closed berths.
pub(in crate::controller) fn all(facts: &PoolFacts) -> Failures {
    let mut all = facts.failures.clone();
    let reported = facts
        .members
        .iter()
        .flat_map(|m| m.agent.failed.iter().map(|digest| (digest, m.name.clone())));
    // Reported failures count only for digests that some member should run now.
    let wanted = wanted(facts);
    let reported = reported.filter(|(digest, _)| wanted.contains(digest));
    let told = facts.readable().filter_map(|(_, berth)| failure(berth));
    for (digest, node) in reported.chain(told) {
        all.entry(digest.clone()).or_default().insert(node);
    }
    all
}

/// Returns a gate that halts the rollout if too many nodes have failed. Counts only failures of the digests that
/// members should run now.
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
        "the image failed on {}, and maxFailures is {}; publish another image, or change rollout.retryToken to retry \
         this one",
        few(failed.iter().map(ToString::to_string)),
        facts.max_failures
    );
    Some(Gate {
        reason: GateReason::RolloutHalted,
        message,
    })
}
