//! Rules for every decision: without a licence, no staged image stays armed (I3). On a node without a pool, the rules
//! apply only to images that Berth staged (I12).

use std::time::Duration;

use berth_api::berth::{Berth, HoldPhase, Holding};
use berth_api::digest::Digest;
use berth_api::names::BootId;
use berth_api::node::Deployment;
use berth_api::seeded::Bug;

use super::action::{Step, WaitReason};
use crate::agent::facts::{AgentFacts, Deployments, Desired, Os, Past};

pub(super) fn held<'a>(facts: &AgentFacts, berths: &'a [Berth]) -> Option<(&'a Berth, &'a Holding)> {
    let seen = berths
        .iter()
        .filter(|b| !(Bug::SearchInNewPoolOnly.is_awake() && is_of_other_pool(facts, b)));
    seen.filter_map(|b| b.holding().filter(|h| h.node == facts.node).map(|h| (b, h)))
        .min_by_key(|(_, h)| {
            // If two berths were held, the turn that is furthest along is finished first.
            match h.phase {
                HoldPhase::Releasing(_) => 0,
                HoldPhase::Committed => 1,
                HoldPhase::Taken => 2,
            }
        })
}

fn is_of_other_pool(facts: &AgentFacts, berth: &Berth) -> bool {
    matches!(&facts.desired, Desired::Member(member) if member.pool != berth.pool)
}

/// True if the current boot is not proven under this berth (I5): the boot is new, or the berth was licensed again
/// during this boot, before a proof. The host's record names such a boot. If the record was lost, the booted image
/// still differs from the last proven one.
pub(crate) fn is_unproven(holding: &Holding, boot_id: &BootId, os: &Os, past: &Past) -> bool {
    if Bug::NoBootIdCheck.is_awake() {
        return false;
    }
    let deployments = os.deployments();
    let is_other = holding.from.is_some() && deployments.is_some_and(|d| d.booted.digest != holding.from);
    holding.boot_id != *boot_id || past.unproven_boot.as_ref() == Some(boot_id) || is_other
}

/// Returns the next step until no image that Berth must lock is armed (I3); `None` without such an image. The host is
/// read if its deployments are unknown, but not if Berth cannot have staged anything there (I12).
pub(super) fn settle(facts: &AgentFacts) -> Option<Step> {
    if facts.host.pull.is_some() {
        // The pull locks the image that it stages. The agent reads the result when the pull ends.
        return None;
    }
    if !has_pool(facts) && staged_by_berth(facts).next().is_none() {
        return None;
    }
    match &facts.host.os {
        Os::Unknown => Some(Step::LookAtHost),
        Os::Unusable { .. } if !facts.host.fresh => Some(Step::LookAtHost),
        Os::Unusable { .. } => Some(Step::Wait(WaitReason::HostUnusable, None)),
        Os::Bootc(d) => {
            let armed = d.staged.as_ref().filter(|s| !s.locked && is_to_lock(facts, s));
            let armed = armed.filter(|_| !(Bug::UnlockableLeft.is_awake() && facts.host.lock_failure.is_some()));
            armed.map(|staged| disarm(facts, d, staged))
        }
    }
}

/// Returns the step that disarms a staged image (I3): lock it, or remove it if it cannot be locked. An image with
/// packages that Berth did not request is never removed: its lock is retried, with growing pauses.
pub(super) fn disarm(facts: &AgentFacts, deployments: &Deployments, staged: &Deployment) -> Step {
    match (deployments.storage.ostree_lock(), &facts.host.lock_failure) {
        (Some(lock), None) => Step::Lock(lock),
        (Some(lock), Some(trouble)) if deployments.staged_layers => match trouble.pause {
            Duration::ZERO => Step::Lock(lock),
            pause => Step::Wait(WaitReason::Unlockable, Some(pause)),
        },
        _ => Step::Unstage(staged.clone()),
    }
}

/// True if the node is a member of a pool and not excluded.
pub(super) fn has_pool(facts: &AgentFacts) -> bool {
    match (&facts.desired, facts.cluster_node.get()) {
        (Desired::Member(member), Some(node)) => node.uid == member.node_uid && !node.excluded,
        _ => false,
    }
}

/// True if Berth may lock the staged image (I12): on a member, any image. On other nodes, and outside of a turn on a
/// host that Berth does not update, only an image that Berth staged.
pub(super) fn is_to_lock(facts: &AgentFacts, staged: &Deployment) -> bool {
    let is_left_alone =
        facts.host.os.refusal().is_some() && held(facts, facts.berths.as_deref().unwrap_or(&[])).is_none();
    (has_pool(facts) && !is_left_alone) || staged_by_berth(facts).any(|ours| staged.digest.as_ref() == Some(ours))
}

/// Returns the digests that Berth may have staged here: the one in the record, and the targets of held berths.
pub(super) fn staged_by_berth(facts: &AgentFacts) -> impl Iterator<Item = &Digest> {
    let held = facts.berths.iter().flatten().filter_map(Berth::holding);
    let targets = held.filter(|h| h.node == facts.node).map(|h| &h.target);
    facts.past.staged_by_us.iter().chain(targets)
}
