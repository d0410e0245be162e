//! The agent's decision: facts in, next step out. Pure; production, tests and the model checker run the same function.
//! Comments such as "I3" name the invariant that a line keeps (see docs/architecture.md).
//!
//! [`turn`] decides for a node that holds a berth, [`boot`] under an unproven boot, [`idle`] without a berth. [`way`]
//! has the checks before a reboot, which [`turn`] and [`boot`] share. [`mod@proof`] checks a boot, and [`mod@undo`]
//! rolls back a boot that is not proven.

mod action;
mod boot;
mod disarm;
mod idle;
mod pool_checks;
mod proof;
mod turn;
mod undo;
mod way;

use berth_api::berth::{Berth, HoldPhase, Holding, Outcome};
use berth_api::seeded::Bug;

use self::action::{LOOK_INTERVAL, LOOK_INTERVAL_MAX};
pub use self::action::{REBOOT_RETRY_INTERVAL, REBOOT_START_TIMEOUT, Step, WaitReason};
pub(crate) use self::disarm::is_unproven;
use self::disarm::{held, settle};
pub use self::idle::taken_away;
pub(crate) use self::idle::{same_deployment, set_aside, unlockable};
pub use self::proof::proven_parts;
pub(crate) use self::proof::{Missing, missing};
pub(crate) use self::undo::{Undo, undo};
pub(crate) use self::way::{blockers, closed_window, is_drained, overdue};
pub use self::way::{inhibited, is_inhibited, rollback_queued};
use crate::agent::facts::{AgentFacts, ClusterNode, Desired, Os, Unreachable};
use crate::agent::reason::Reason;

/// Returns the next step of the agent.
pub fn step(facts: &AgentFacts) -> Step {
    if facts.host.shutting_down {
        return Step::Wait(WaitReason::ShuttingDown, Some(LOOK_INTERVAL));
    }
    if let Some(silence) = &facts.host.unreachable {
        // Without the host's services, the agent can neither read nor change the host.
        if !silence.is_reportable() {
            return Step::Wait(WaitReason::HostUnreachable, Some(LOOK_INTERVAL));
        }
        return finish_in_silence(facts, silence)
            .unwrap_or(Step::Wait(WaitReason::HostUnreachable, Some(LOOK_INTERVAL_MAX)));
    }
    let Some(berths) = &facts.berths else {
        return Step::Wait(WaitReason::BerthsUnknown, None);
    };
    // Finish a turn that has begun, even if another image is desired now.
    if let Some((berth, holding)) = held(facts, berths) {
        return finish(facts, berth, holding);
    }
    match &facts.cluster_node {
        ClusterNode::Unread => return Step::ReadNode,
        // I1: the Node has Berth's cordon, but the node holds no berth, so remove the cordon.
        ClusterNode::Is(node) if node.cordon.is_some() => return Step::Uncordon,
        _ => {}
    }
    let node = facts.cluster_node.get();
    match &facts.desired {
        Desired::Unknown => idle::leave_alone(facts, WaitReason::NothingAsked, None),
        Desired::Release => idle::undo(facts),
        // The spec was published for another Node of this name, with another UID.
        Desired::Member(member) if node.is_none_or(|n| n.uid != member.node_uid) => {
            idle::leave_alone(facts, WaitReason::OtherNode, None)
        }
        Desired::Member(_) if node.is_some_and(|n| n.excluded) => {
            idle::leave_alone(facts, WaitReason::Excluded, Some(LOOK_INTERVAL_MAX))
        }
        Desired::Member(_) if facts.guard.next_try.is_zero() => Step::TryGuard,
        Desired::Member(member) => idle::pursue(facts, member, berths),
    }
}

/// Returns the next step that ends a turn while the host's services do not answer. Without such steps, the node would
/// stay drained. `None` if an image may be armed, or if the next step needs the host.
fn finish_in_silence(facts: &AgentFacts, silence: &Unreachable) -> Option<Step> {
    let (berth, holding) = held(facts, facts.berths.as_deref()?)?;
    let is_unproven = match holding.phase {
        // The outcome was decided under another boot, so the current boot must be checked first.
        HoldPhase::Releasing(_) => holding.boot_id != facts.host.boot_id,
        _ => is_unproven(holding, &facts.host.boot_id, &facts.host.os, &facts.past),
    };
    if Bug::SilentLetsGo.is_awake() && holding.boot_id != facts.host.boot_id {
        return Some(Step::Release(berth.clone(), Outcome::Updated, silence.why.clone()));
    }
    if !facts.host.disarmed || is_unproven || holding.phase == HoldPhase::Committed {
        return None;
    }
    // Decide as if the deployments could not be read, since the last reading may be outdated.
    let mut blind = facts.clone();
    blind.host.fresh = true;
    blind.host.os = Os::Unusable {
        reason: Reason::HostUnreachable,
        message: silence.why.clone(),
    };
    let next = match finish(&blind, berth, holding) {
        // Do not name the remaining pods as the cause, since the agent has not listed them recently.
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

fn finish(facts: &AgentFacts, berth: &Berth, holding: &Holding) -> Step {
    let node = match &facts.cluster_node {
        ClusterNode::Unread => return Step::ReadNode,
        ClusterNode::Is(node) if node.uid == holding.uid || Bug::NoUidCheck.is_awake() => node,
        // I2: the berth licenses a reboot of another Node of this name, so it must not be used here. The controller
        // closes it.
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
        HoldPhase::Taken => turn::taken(facts, berth, holding, node),
        HoldPhase::Committed => turn::committed(facts, berth, holding, node),
    }
}

#[cfg(test)]
mod tests;
