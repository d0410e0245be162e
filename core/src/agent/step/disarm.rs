//! What every decision keeps: nothing of Berth's is armed outside of a licence (I3), and nothing of others is touched (I12).

use std::time::Duration;

use berth_api::berth::{Berth, HoldPhase, Holding};
use berth_api::digest::Digest;
use berth_api::names::BootId;
use berth_api::node::Deployment;
use berth_api::seeded::Bug;

use super::action::{Step, WaitReason};
use crate::agent::facts::{Deployments, Desired, Facts, Os, Past};

pub(super) fn held<'a>(facts: &Facts, berths: &'a [Berth]) -> Option<(&'a Berth, &'a Holding)> {
    let elsewhere = |b: &Berth| matches!(&facts.desired, Desired::Member(m) if m.pool != b.pool);
    let seen = berths
        .iter()
        .filter(|b| !(Bug::SearchInNewPoolOnly.is_awake() && elsewhere(b)));
    seen.filter_map(|b| b.holding().filter(|h| h.node == facts.node).map(|h| (b, h)))
        .min_by_key(|(_, h)| {
            // Should there ever be two, the one that is furthest is finished first.
            match h.phase {
                HoldPhase::Releasing(_) => 0,
                HoldPhase::Committed => 1,
                HoldPhase::Taken => 2,
            }
        })
}

/// Says whether the boot that runs has still to be proven under this berth (I5). That is true of a new boot. It is also
/// true of a boot under which the berth was licensed anew, since that did not prove it: this host remembers such a
/// boot; and if it has forgotten, another image runs than the one that was proven last.
pub(crate) fn is_unproven(holding: &Holding, boot_id: &BootId, os: &Os, past: &Past) -> bool {
    if Bug::NoBootIdCheck.is_awake() {
        return false;
    }
    let is_other = |d: &Deployments| holding.from.is_some() && d.booted.digest != holding.from;
    holding.boot_id != *boot_id
        || past.unproven_boot.as_ref() == Some(boot_id)
        || os.deployments().is_some_and(is_other)
}

/// Step that must be done before it is known that nothing of Berth's is armed (I3): that nothing is staged, or that it is
/// locked. A host that does not answer does not count as one with nothing staged. Where nothing can be Berth's, the host
/// is not even read (I12).
pub(super) fn settle(facts: &Facts) -> Option<Step> {
    if facts.host.pull.is_some() {
        // bootc or the unit of the pull locks what it stages; its end is looked at.
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
            let armed = armed.filter(|_| !(Bug::UnlockableLeft.is_awake() && facts.host.lock_fails.is_some()));
            armed.map(|staged| disarm(facts, d, staged))
        }
    }
}

/// Step after which a staged image is not armed: it is locked, or removed where that cannot be, or fails again and again (I3).
/// One with packages that somebody has asked for is never removed: the lock is tried again, ever more seldom.
pub(super) fn disarm(facts: &Facts, deployments: &Deployments, staged: &Deployment) -> Step {
    match (deployments.storage.ostree_lock(), &facts.host.lock_fails) {
        (Some(lock), None) => Step::Lock(lock),
        (Some(lock), Some(trouble)) if deployments.staged_layers => match trouble.pause {
            Duration::ZERO => Step::Lock(lock),
            pause => Step::Wait(WaitReason::Unlockable, Some(pause)),
        },
        _ => Step::Unstage(staged.clone()),
    }
}

/// Says whether a pool has this node, and nobody has excluded it.
pub(super) fn has_pool(facts: &Facts) -> bool {
    match (&facts.desired, facts.cluster_node.get()) {
        (Desired::Member(member), Some(node)) => node.uid == member.node_uid && !node.excluded,
        _ => false,
    }
}

/// Says whether a staged image is Berth's to lock (I12): any image on a node of a pool, and elsewhere what Berth staged. On a
/// host that is refused, what others staged is theirs as well, but for a turn that was begun.
pub(super) fn is_to_lock(facts: &Facts, staged: &Deployment) -> bool {
    let is_left_alone =
        facts.host.os.refusal().is_some() && held(facts, facts.berths.as_deref().unwrap_or(&[])).is_none();
    (has_pool(facts) && !is_left_alone) || staged_by_berth(facts).any(|ours| staged.digest.as_ref() == Some(ours))
}

/// Images that Berth may have staged here: the one that the host remembers, and those of the berths that the node holds.
pub(super) fn staged_by_berth(facts: &Facts) -> impl Iterator<Item = &Digest> {
    let held = facts.berths.iter().flatten().filter_map(Berth::holding);
    let targets = held.filter(|h| h.node == facts.node).map(|h| &h.target);
    facts.past.staged_by_us.iter().chain(targets)
}
