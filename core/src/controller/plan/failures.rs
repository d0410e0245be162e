//! Nodes where a digest failed (I8), and the halt of the rollout after too many failures.
//!
//! A failure counts for the halt only if the node had a berth for the digest: the berth closed as failed, or the node
//! reports the failure and has committed a berth to the digest. A failure that a node only reports, for example after a
//! rollback by hand, keeps the digest from this node alone.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::{Berth, BerthState, ClosedReason, HoldPhase, Outcome};
use berth_api::seeded::Bug;
use berth_api::{Digest, NodeName};

use super::facts::{Failures, Member, PoolFacts};
use crate::controller::gate::{Gate, GateReason};
use crate::text::few;

/// Maximum number of nodes per digest in `status.failures`, as in the schema, and upper bound of `maxFailures`.
pub const MAX_NAMED: usize = 64;

/// Suffix of a node whose Node was deleted after the commit. A new Node may have the name of the deleted Node. The
/// suffix keeps the failure from the new Node.
const DELETED: &str = " (deleted)";
/// Suffix of a node that was excluded and not Ready after the commit. The suffix keeps the failure in the count while
/// the node is excluded.
const EXCLUDED: &str = " (excluded)";

/// Returns the digest that failed under a closed berth, and the name to record for the node.
pub(in crate::controller) fn failure(berth: &Berth) -> Option<(&Digest, NodeName)> {
    let BerthState::Closed(closed) = &berth.state else {
        return None;
    };
    let (Some(Outcome::Failed), Some(target), Some(node)) =
        (closed.outcome, closed.last_target.as_ref(), closed.last_node.as_ref())
    else {
        return None;
    };
    let node = match closed.reason {
        ClosedReason::Gone => NodeName::new(format!("{node}{DELETED}")),
        ClosedReason::Excluded => excluded_name(node),
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

/// True if the digest failed on this node, according to the record. A failure of a deleted Node does not count for a new
/// Node of the same name.
pub(super) fn has_failed_on(failures: &Failures, digest: &Digest, node: &NodeName) -> bool {
    let nodes = failures.get(digest).into_iter().flatten();
    nodes.into_iter().any(|recorded| is_of(recorded.as_str(), node))
}

/// True if a recorded failure is one of this node.
pub fn is_of(recorded: &str, node: &NodeName) -> bool {
    recorded.strip_suffix(EXCLUDED).unwrap_or(recorded) == node.as_str()
}

/// Returns the failures to record: recorded ones, failures of closed berths, and failures that members report of a
/// digest that they have committed to or have been offered.
pub(in crate::controller) fn all(facts: &PoolFacts) -> Failures {
    let mut all = facts.failures.clone();
    let told = facts.readable().filter_map(|(_, berth)| failure(berth));
    let reported = facts
        .members
        .iter()
        .flat_map(|member| reported(facts, member).map(|digest| (digest, member.name.clone())));
    for (digest, node) in reported.chain(told) {
        all.entry(digest.clone()).or_default().insert(node);
    }
    all
}

/// Returns the digests that the member reports as failed and has committed a berth to. After an offer, the desired digest
/// counts without a berth too: an image may be proven first, and fail a later boot.
fn reported<'a>(facts: &'a PoolFacts, member: &'a Member) -> impl Iterator<Item = &'a Digest> {
    let held = facts.readable().filter_map(|(_, berth)| berth.holding());
    let committed = held.filter(|h| h.uid == member.uid && h.phase != HoldPhase::Taken);
    let offered = member.desired.as_ref().filter(|_| member.offers > 0);
    committed
        .map(|h| &h.target)
        .chain(offered)
        .filter(|target| member.agent.failed.contains(target))
}

/// Returns the nodes whose failures count towards `maxFailures`, by the name without its suffix: a node that failed, and
/// failed again under a new Node, is one node. Counts only failures of the digests that members should run now. A
/// failure that an excluded node has written itself does not count: the admin outvotes the node.
fn counted<'a>(facts: &PoolFacts, failures: &'a Failures) -> BTreeMap<&'a str, &'a str> {
    let failed = wanted(facts).into_iter().filter_map(|d| failures.get(d)).flatten();
    count(failed.map(NodeName::as_str), |node| facts.excluded.contains(node))
}

/// Returns the recorded names that count towards `maxFailures`, by the name without its suffix. `is_excluded`: true if
/// the Node of this name is excluded now.
pub fn count<'a>(
    recorded: impl IntoIterator<Item = &'a str>,
    is_excluded: impl Fn(&NodeName) -> bool,
) -> BTreeMap<&'a str, &'a str> {
    let mut counted = BTreeMap::new();
    for name in recorded {
        let bare = name.strip_suffix(DELETED).or_else(|| name.strip_suffix(EXCLUDED));
        if bare.is_some() || !is_excluded(&NodeName::from(name)) {
            counted.entry(bare.unwrap_or(name)).or_insert(name);
        }
    }
    counted
}

/// Returns the name to record if the controller closes the committed berth of an excluded node.
pub fn excluded_name(node: &NodeName) -> NodeName {
    NodeName::new(format!("{node}{EXCLUDED}"))
}

/// Returns a gate that halts the rollout if too many nodes have failed.
pub(super) fn halt(facts: &PoolFacts, failures: &Failures) -> Option<Gate> {
    let failed = counted(facts, failures);
    if failed.len() < facts.max_failures.max(1) {
        return None;
    }
    let message = format!(
        "the image failed on {}, and maxFailures is {}; publish another image, or change rollout.retryToken to retry \
         this one (kubectl berth retry {}); if a node is at fault and not the image, exclude it first (kubectl berth \
         exclude NODE)",
        few(failed.values().map(ToString::to_string)),
        facts.max_failures,
        facts.pool
    );
    Some(Gate {
        reason: GateReason::RolloutHalted,
        message,
    })
}
