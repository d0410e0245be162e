//! The agent's decision: facts in, next step out. Pure; the same function runs in production, in the tests and inside the
//! model checker, and is the place where the invariants of the design are kept. Their numbers stand beside the lines
//! that keep them.
//!
//! Here is what a decision can be, and who decides: [`turn`] with a berth, [`boot`] under a boot that is not proven yet,
//! [`idle`] without a berth. [`way`] is the one way to a reboot, which turns and unproven boots share.

mod action;
mod boot;
mod disarm;
mod idle;
mod turn;
mod way;

use berth_api::berth::{Berth, HoldPhase, Holding, Outcome};
use berth_api::seeded::Bug;

use self::action::{LOOK_AGAIN, LOOK_SELDOM};
pub use self::action::{REBOOT_AGAIN, REBOOT_GRACE, Step, WaitReason};
pub(crate) use self::boot::{is_ready, reports_ready};
pub(crate) use self::disarm::is_unproven;
use self::disarm::{held, settle};
pub use self::idle::taken_away;
pub(crate) use self::idle::{set_aside, twin, unlockable};
pub(crate) use self::way::{blockers, closed_window, is_drained, overdue};
pub use self::way::{inhibited, is_inhibited, rollback_queued};
use crate::agent::facts::{ClusterNode, Desired, Facts, Os, Unreachable};
use crate::agent::reason::Reason;

/// The next step.
pub fn step(facts: &Facts) -> Step {
    if facts.host.shutting_down {
        return Step::Wait(WaitReason::ShuttingDown, Some(LOOK_AGAIN));
    }
    if let Some(silence) = &facts.host.unreachable {
        // Without them nothing can be done on the host, nor seen of it.
        if !silence.is_to_be_told() {
            return Step::Wait(WaitReason::HostUnreachable, Some(LOOK_AGAIN));
        }
        return finish_in_silence(facts, silence).unwrap_or(Step::Wait(WaitReason::HostUnreachable, Some(LOOK_SELDOM)));
    }
    let Some(berths) = &facts.berths else {
        return Step::Wait(WaitReason::BerthsUnknown, None);
    };
    // A turn that was begun is finished before anything else, whatever is desired now.
    if let Some((berth, holding)) = held(facts, berths) {
        return finish(facts, berth, holding);
    }
    match &facts.cluster_node {
        ClusterNode::Unread => return Step::ReadNode,
        // I1(a): a cordon of ours that no berth covers is undone.
        ClusterNode::Is(node) if node.cordon.is_some() => return Step::Uncordon,
        _ => {}
    }
    let node = facts.cluster_node.get();
    match &facts.desired {
        Desired::Unknown => idle::leave_alone(facts, WaitReason::NothingAsked, None),
        Desired::Release => idle::undo(facts),
        // What was published for another Node of this name is nothing to this one.
        Desired::Member(member) if node.is_none_or(|n| n.uid != member.node_uid) => {
            idle::leave_alone(facts, WaitReason::OtherNode, None)
        }
        Desired::Member(_) if node.is_some_and(|n| n.excluded) => {
            idle::leave_alone(facts, WaitReason::Excluded, Some(LOOK_SELDOM))
        }
        Desired::Member(_) if facts.guard.next_try.is_zero() => Step::TryGuard,
        Desired::Member(member) => idle::pursue(facts, member, berths),
    }
}

/// The next step, of those that ask nothing of the host, towards the end of a turn that has armed nothing: the node must not
/// stay drained for as long as the host's services are silent.
fn finish_in_silence(facts: &Facts, silence: &Unreachable) -> Option<Step> {
    let (berth, holding) = held(facts, facts.berths.as_deref()?)?;
    let is_unproven = match holding.phase {
        // Its end was decided on a boot; another one has to be looked at.
        HoldPhase::Releasing(_) => holding.boot_id != facts.host.boot_id,
        _ => is_unproven(holding, &facts.host.boot_id, &facts.host.os, &facts.past),
    };
    if Bug::SilentLetsGo.is_awake() && holding.boot_id != facts.host.boot_id {
        return Some(Step::Release(berth.clone(), Outcome::Updated, silence.why.clone()));
    }
    if !facts.host.disarmed || is_unproven || holding.phase == HoldPhase::Committed {
        return None;
    }
    // What was seen of it before counts no more.
    let mut blind = facts.clone();
    blind.host.fresh = true;
    blind.host.os = Os::Unusable {
        reason: Reason::HostUnreachable,
        message: silence.why.clone(),
    };
    let next = match finish(&blind, berth, holding) {
        // Nobody has looked at the pods lately: they are not what keeps the turn.
        Step::Release(berth, Outcome::DrainTimeout, _) => {
            let why = format!("the host does not answer: {}", silence.why);
            Step::Release(berth, Outcome::RebootBlocked, why)
        }
        Step::Release(berth, outcome, why) if !why.contains(&silence.why) => {
            Step::Release(berth, outcome, format!("{why}; {}", silence.why))
        }
        next => next,
    };
    let of_cluster = matches!(
        next,
        Step::ReadNode | Step::Release(..) | Step::Restore(_) | Step::GiveBack(_)
    );
    of_cluster.then_some(next)
}

/// The next step of a turn that was begun.
fn finish(facts: &Facts, berth: &Berth, holding: &Holding) -> Step {
    let node = match &facts.cluster_node {
        ClusterNode::Unread => return Step::ReadNode,
        ClusterNode::Is(node) if node.uid == holding.uid || Bug::NoUidCheck.is_awake() => node,
        // I2: the licence is for another Node of this name. Nothing here may use it; the controller closes it.
        ClusterNode::Is(_) | ClusterNode::Gone => {
            return settle(facts).unwrap_or(Step::Wait(WaitReason::ForeignBerth, None));
        }
    };
    match holding.phase {
        HoldPhase::Releasing(_) => boot::release(facts, berth, holding, node),
        HoldPhase::Taken | HoldPhase::Committed
            if is_unproven(holding, &facts.host.boot_id, &facts.host.os, &facts.past) =>
        {
            boot::prove(facts, berth, holding, node)
        }
        HoldPhase::Taken => turn::work(facts, berth, holding, node),
        HoldPhase::Committed => turn::go(facts, berth, holding, node),
    }
}

#[cfg(test)]
mod tests;
