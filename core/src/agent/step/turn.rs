//! A turn with a berth, up to the reboot: cordon, drain, commit, unlock, reboot; or give the berth back.

use berth_api::berth::{Berth, Holding, Outcome};
use berth_api::seeded::Bug;

use super::action::{LOOK_INTERVAL_MAX, Step, WaitReason};
use super::disarm::settle;
use super::idle::lacks_policy;
use super::way::{self, Obstacle, await_reboot};
use crate::agent::facts::{AgentFacts, Reboot};
use crate::agent::node::NodeFacts;

/// Returns the next step under a berth that the node took in this boot: cordon, drain, commit; or give the berth back.
pub(super) fn taken(facts: &AgentFacts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
    if let Some(first) = settle(facts) {
        return match reason_to_end_unseen(facts, holding, node, &first) {
            Some((outcome, message)) => Step::Release(berth.clone(), outcome, message),
            None => first,
        };
    }
    if let Some((outcome, message)) = reason_to_stop(facts, holding, node) {
        return Step::Release(berth.clone(), outcome, message);
    }
    match way::obstacle(facts, berth, holding, node) {
        Obstacle::WindowClosed(why) => Step::Release(berth.clone(), Outcome::Revoked, why),
        Obstacle::NotClear(step) => step,
        Obstacle::Inhibited(who) => Step::Release(berth.clone(), Outcome::RebootBlocked, who),
        // Read the host once more before the commit. After the commit, the turn cannot simply end.
        Obstacle::None if !facts.host.fresh => Step::LookAtHost,
        Obstacle::None => Step::Commit(berth.clone()),
    }
}

fn unwanted(facts: &AgentFacts, holding: &Holding, node: &NodeFacts) -> Option<String> {
    if node.excluded {
        return Some("the Node is excluded".to_owned());
    }
    (facts.desired.digest() != Some(&holding.target))
        .then(|| format!("{} is no longer desired on this node", holding.target))
}

/// Returns why an uncommitted turn must end although the agent cannot read the staged image. `None` if the turn can
/// continue, or if an image may be armed (I3). Without this function, the node would stay drained until the agent can
/// read the image.
fn reason_to_end_unseen(
    facts: &AgentFacts,
    holding: &Holding,
    node: &NodeFacts,
    first: &Step,
) -> Option<(Outcome, String)> {
    if !is_unseen(facts, first) {
        return None;
    }
    let (outcome, message) = reason_to_end(facts, holding, node)
        .or_else(|| drain_timeout(facts))
        .or_else(|| drained_too_long(facts))?;
    Some((
        outcome,
        format!(
            "{message}; the staged image cannot be read now. At the last read, a reboot would not have applied the image"
        ),
    ))
}

/// True if the agent waits (`first`) because the host's deployments cannot be read, but this agent process knows that
/// no image is armed.
pub(super) fn is_unseen(facts: &AgentFacts, first: &Step) -> bool {
    facts.host.disarmed && matches!(first, Step::Wait(WaitReason::HostUnusable, _))
}

fn drain_timeout(facts: &AgentFacts) -> Option<(Outcome, String)> {
    way::is_drain_given_up(facts).then(|| (Outcome::DrainTimeout, way::blockers(facts)))
}

/// Returns the outcome and the message to end the turn of a drained node whose deployments cannot be read. `None` if
/// the node is not drained, or if the drain's timeout has not passed.
fn drained_too_long(facts: &AgentFacts) -> Option<(Outcome, String)> {
    let so_far = facts.drain.elapsed;
    // The time is zero after a commit was taken back, because the commit cleared it. Such a turn ends at once.
    let long = so_far.is_zero() || so_far >= way::drain_limit(facts);
    let message = "the node is drained, but its reboot cannot be prepared";
    (way::is_drained(facts) && long).then(|| (Outcome::RebootBlocked, message.to_owned()))
}

/// Returns why an uncommitted turn must end. Does not check the staged image and the drain.
fn reason_to_end(facts: &AgentFacts, holding: &Holding, node: &NodeFacts) -> Option<(Outcome, String)> {
    if let Some(reason) = &holding.revoke {
        return Some((Outcome::Revoked, reason.clone()));
    }
    if let Some(why) = unwanted(facts, holding, node) {
        return Some((Outcome::Withdrawn, why));
    }
    if let Some(why) = &facts.host.memory_error {
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
    // I8: a failed digest must not be booted again.
    if facts.past.failed_digests.contains(&holding.target) {
        return Some((Outcome::Withdrawn, format!("{} failed on this node", holding.target)));
    }
    None
}

/// Returns why an uncommitted turn must end. Also checks the staged image and the drain's timeout.
fn reason_to_stop(facts: &AgentFacts, holding: &Holding, node: &NodeFacts) -> Option<(Outcome, String)> {
    if let Some(end) = reason_to_end(facts, holding, node) {
        return Some(end);
    }
    match facts.host.os.staged() {
        Some(_) if !facts.past.is_complete(&holding.target) => {
            let why = format!(
                "the pull of {} failed: the staged image may lack logically bound images",
                holding.target
            );
            return Some((Outcome::NotStaged, why));
        }
        Some(_) if lacks_policy(facts) => {
            let why = format!(
                "the staged image {} was not checked against the host's current signature policy; the pool requires that check",
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
                format!("{what} is staged instead of {}", holding.target),
            ));
        }
        None => return Some((Outcome::NotStaged, format!("{} is no longer staged", holding.target))),
    }
    drain_timeout(facts)
}

/// Returns the next step under a berth that was committed in this boot: unlock, verify, reboot; or take the commit
/// back. The commit may be hours old if the agent was not running. So the agent also takes it back if the node is no
/// longer cordoned and drained, or if the window has closed.
pub(super) fn committed(facts: &AgentFacts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Step {
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
        // The image may be unlocked. While the deployments cannot be read, the node must keep its licence to reboot.
        return Step::Wait(WaitReason::HostUnusable, None);
    }
    if let Some(staged) = facts.staged_whole(&holding.target)
        && facts.host.reboot == Reboot::NotAsked
        && unwanted(facts, holding, node).is_none()
        && (matches!(way::obstacle(facts, berth, holding, node), Obstacle::None) || Bug::OldCommitUsed.is_awake())
    {
        return way::use_licence(facts, berth, staged);
    }
    // I3: if the host does not reboot now, no image may stay armed.
    if let Some(first) = settle(facts) {
        return first;
    }
    // Wait for the scheduled shutdown: the node still has its licence for that reboot.
    if facts.host.shutdown_scheduled && !Bug::ScheduledIgnored.is_awake() {
        return Step::Wait(WaitReason::Rebooting, Some(LOOK_INTERVAL_MAX));
    }
    Step::Uncommit(berth.clone())
}
