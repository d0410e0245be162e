//! Rules that come first in every decision: unless a reboot is licensed, no staged image may be armed (I3). On a node
//! without a pool, the rules apply only to images that Berth staged (I12).

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
            // If the node holds two berths, the agent first finishes the turn that has got furthest.
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

/// True if the current boot is not proven under this berth (I5). In the first case, the host has rebooted since the
/// boot that the berth names. In the second case, the berth was committed again during this unproven boot, so the berth
/// names this boot. The host's record then marks the boot as unproven. If the record is lost, the booted image still
/// differs from the image before the turn.
pub(crate) fn is_unproven(holding: &Holding, boot_id: &BootId, os: &Os, past: &Past) -> bool {
    if Bug::NoBootIdCheck.is_awake() {
        return false;
    }
    let deployments = os.deployments();
    let is_other = holding.from.is_some() && deployments.is_some_and(|d| d.booted.digest != holding.from);
    holding.boot_id != *boot_id || past.unproven_boot.as_ref() == Some(boot_id) || is_other
}

/// Returns the next step if a staged image that Berth must lock is armed (I3); `None` if there is no such image. If the
/// deployments are unknown, the agent reads them first. This read is skipped if Berth cannot have staged an image on
/// the host (I12).
pub(super) fn settle(facts: &AgentFacts) -> Option<Step> {
    if facts.host.pull.is_some() {
        // The unit that pulls also locks the image. The agent reads the result when the unit has ended.
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

/// Returns the step that disarms a staged image (I3): lock the image, or remove it if it cannot be locked. An image
/// with packages that Berth did not request is never removed. Its lock is retried, with growing pauses.
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

/// True if Berth may lock this staged image (I12). On a member, Berth may lock any image. Berth may lock only its own
/// images on a node without a pool, and outside of a turn on a host that Berth does not update.
pub(super) fn is_to_lock(facts: &AgentFacts, staged: &Deployment) -> bool {
    let is_left_alone =
        facts.host.os.refusal().is_some() && held(facts, facts.berths.as_deref().unwrap_or(&[])).is_none();
    (has_pool(facts) && !is_left_alone) || staged_by_berth(facts).any(|ours| staged.digest.as_ref() == Some(ours))
}

/// Returns the digests that Berth may have staged on this host: the digest in the record, and the targets of the berths
/// that the node holds.
pub(super) fn staged_by_berth(facts: &AgentFacts) -> impl Iterator<Item = &Digest> {
    let held = facts.berths.iter().flatten().filter_map(Berth::holding);
    let targets = held.filter(|h| h.node == facts.node).map(|h| &h.target);
    facts.past.staged_by_us.iter().chain(targets)
}
