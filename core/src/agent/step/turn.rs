//! A turn with a berth, up to the reboot: cordon, drain, commit, unlock, reboot; or back again.

use berth_api::berth::{Berth, Holding, Outcome};
use berth_api::seeded::Bug;

use super::action::{LOOK_SELDOM, Step, WaitReason};
use super::disarm::settle;
use super::idle::lacks_policy;
use super::way::{self, Ahead, await_reboot};
use crate::agent::facts::{Facts, Reboot};
use crate::agent::node::NodeFacts;

/// Taken, same boot: cordon, drain, commit; or give back when there is a reason to.
pub(super) fn work(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    if let Some(first) = settle(facts) {
        return match end_unseen(facts, holding, node, &first) {
            Some((outcome, message)) => Step::Release(berth.clone(), outcome, message),
            None => first,
        };
    }
    if let Some((outcome, message)) = reason_to_stop(facts, holding, node) {
        return Step::Release(berth.clone(), outcome, message);
    }
    match way::ahead(facts, berth, holding, node) {
        Ahead::WindowClosed(why) => Step::Release(berth.clone(), Outcome::Revoked, why),
        Ahead::NotClear(step) => step,
        Ahead::Inhibited(who) => Step::Release(berth.clone(), Outcome::RebootBlocked, who),
        // Everything is seen once more, live, before the point of no return.
        Ahead::Nothing if !facts.host.fresh => Step::LookAtHost,
        Ahead::Nothing => Step::Commit(berth.clone()),
    }
}

/// Reason for which the target is not to be booted here any more, whatever else is the case.
fn unwanted(facts: &Facts, holding: &Holding, node: &NodeFacts) -> Option<String> {
    if node.excluded {
        return Some("the Node is excluded".to_owned());
    }
    (facts.desired.digest() != Some(&holding.target)).then(|| format!("{} is no longer desired here", holding.target))
}

/// Reason for which an uncommitted turn ends although the host does not say what is staged: a node must not stay drained
/// for that. Only where this process knows that it has left nothing armed (I3).
fn end_unseen(facts: &Facts, holding: &Holding, node: &NodeFacts, first: &Step) -> Option<(Outcome, String)> {
    if !is_unseen(facts, first) {
        return None;
    }
    let (outcome, message) = reason_to_end(facts, holding, node)
        .or_else(|| drain_timeout(facts))
        .or_else(|| drained_in_vain(facts))?;
    Some((
        outcome,
        format!("{message}; the host does not say what is staged, which was not armed when last seen"),
    ))
}

/// Says whether the host does not answer, and this process knows that it has left nothing armed.
pub(super) fn is_unseen(facts: &Facts, first: &Step) -> bool {
    facts.host.disarmed && matches!(first, Step::Wait(WaitReason::HostUnusable, _))
}

fn drain_timeout(facts: &Facts) -> Option<(Outcome, String)> {
    way::gives_up(facts).then(|| (Outcome::DrainTimeout, way::blockers(facts)))
}

/// The node is drained, has been so for as long as pods are waited with, and cannot go on.
fn drained_in_vain(facts: &Facts) -> Option<(Outcome, String)> {
    let so_far = facts.drain.elapsed;
    // Nothing says since when a node is drained that had nothing to drain.
    let long = so_far.is_zero() || so_far >= way::drain_limit(facts);
    let message = "the node is drained, and its reboot cannot be prepared";
    (way::is_drained(facts) && long).then(|| (Outcome::RebootBlocked, message.to_owned()))
}

/// Reason for which an uncommitted turn should end, whatever is staged.
fn reason_to_end(facts: &Facts, holding: &Holding, node: &NodeFacts) -> Option<(Outcome, String)> {
    if let Some(reason) = &holding.revoke {
        return Some((Outcome::Revoked, reason.clone()));
    }
    if let Some(why) = unwanted(facts, holding, node) {
        return Some((Outcome::Withdrawn, why));
    }
    if let Some(why) = &facts.host.forgetful {
        return Some((Outcome::RebootBlocked, why.clone()));
    }
    if let Some(why) = facts.host.os.refusal() {
        return Some((Outcome::RebootBlocked, why.to_owned()));
    }
    if let Some(objection) = facts.objection() {
        return Some((Outcome::RebootBlocked, objection.message));
    }
    if let Reboot::Blocked { why, .. } = &facts.host.reboot {
        return Some((Outcome::RebootBlocked, why.clone()));
    }
    // I8
    if facts.past.failed_digests.contains(&holding.target) {
        return Some((Outcome::Withdrawn, format!("{} failed on this node", holding.target)));
    }
    None
}

/// Reason for which an uncommitted turn should end.
fn reason_to_stop(facts: &Facts, holding: &Holding, node: &NodeFacts) -> Option<(Outcome, String)> {
    if let Some(end) = reason_to_end(facts, holding, node) {
        return Some(end);
    }
    match facts.host.os.staged() {
        Some(_) if !facts.past.is_complete(&holding.target) => {
            let why = format!("the pull of {} failed: what is staged may lack images", holding.target);
            return Some((Outcome::NotStaged, why));
        }
        Some(_) if lacks_policy(facts) => {
            let why = format!(
                "what is staged of {} was not pulled under the host's current signature policy, which the pool requires",
                holding.target
            );
            return Some((Outcome::NotStaged, why));
        }
        Some(staged) if staged.digest.as_ref() == Some(&holding.target) => {}
        Some(staged) => {
            let what = staged
                .digest
                .as_ref()
                .map_or_else(|| staged.image.clone(), ToString::to_string);
            return Some((
                Outcome::NotStaged,
                format!("{what} is staged in place of {}", holding.target),
            ));
        }
        None => return Some((Outcome::NotStaged, format!("{} is no longer staged", holding.target))),
    }
    drain_timeout(facts)
}

/// Committed, same boot: unlock, verify, reboot; or take the commit back. The commit may be hours old, for the agent may
/// have been away: where the node is not cordoned and drained any more, or the window has closed, it is taken back too.
pub(super) fn go(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    if let Some(reason) = holding.revoke.as_ref().filter(|_| Bug::ReleaseAfterCommit.is_awake()) {
        return Step::Release(berth.clone(), Outcome::Revoked, reason.clone());
    }
    if let Some(wait) = await_reboot(facts) {
        return wait;
    }
    if !facts.host.fresh {
        return Step::LookAtHost;
    }
    if facts.host.os.deployments().is_none() {
        if Bug::UnseenLetsGo.is_awake() {
            return Step::Uncommit(berth.clone());
        }
        // The image may be unlocked: who cannot see that it is not keeps the licence.
        return Step::Wait(WaitReason::HostUnusable, None);
    }
    if let Some(staged) = facts.staged_whole(&holding.target)
        && facts.host.reboot == Reboot::NotAsked
        && unwanted(facts, holding, node).is_none()
        && (matches!(way::ahead(facts, berth, holding, node), Ahead::Nothing) || Bug::OldCommitUsed.is_awake())
    {
        return way::use_licence(facts, berth, staged);
    }
    // I3: nothing stays armed when the turn does not end in a reboot.
    if let Some(first) = settle(facts) {
        return first;
    }
    // A shutdown that is queued is waited for: whatever it ends is still under this licence.
    if facts.host.shutdown_scheduled && !Bug::ScheduledIgnored.is_awake() {
        return Step::Wait(WaitReason::Rebooting, Some(LOOK_SELDOM));
    }
    Step::Uncommit(berth.clone())
}
