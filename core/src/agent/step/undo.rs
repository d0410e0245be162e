//! Undoes an unproven boot: makes the next boot take the previous image again, and reboots, under the same berth.

use berth_api::berth::{HoldPhase, Holding};
use berth_api::condition::CommonReason;
use berth_api::pool::OnFailure;
use berth_api::seeded::Bug;

use super::action::{LOOK_INTERVAL, LOOK_INTERVAL_MAX, Step, WaitReason};
use super::proof::{Missing, missing};
use super::way::{await_reboot, is_inhibited, reboot_held_up};
use crate::agent::facts::{AgentFacts, Desired, RollbackGuard, Undone};
use crate::agent::node::NodeFacts;

/// Whether the agent undoes an unproven boot of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Undo {
    /// No rollback is due: `health.deadline` has not passed, the missing part of the proof is not a fault, or the host
    /// has not rebooted into the target under this berth.
    NotDue,
    /// Roll the host back now.
    Due,
    /// No rollback, for this reason. The node keeps running the target.
    Hold(String),
}

/// Decides whether to undo the running boot, whose proof lacks `missing`. A turn undoes its boot only once (I8). If the
/// host then boots the target again, the target keeps running.
pub(crate) fn undo(facts: &AgentFacts, holding: &Holding, missing: Option<&Missing>) -> Undo {
    let Desired::Member(member) = &facts.desired else {
        return Undo::NotDue;
    };
    let runs_target = facts.host.os.booted() == Some(&holding.target);
    let is_new_boot = holding.phase == HoldPhase::Committed && holding.boot_id != facts.host.boot_id;
    if !runs_target || !is_new_boot {
        return Undo::NotDue;
    }
    let undone = facts
        .past
        .undone
        .as_ref()
        .filter(|undone| undone.digest == holding.target);
    let is_begun = facts.undoes_boot();
    if undone.is_some() && !is_begun && !Bug::RollbackTwice.is_awake() {
        return Undo::Hold("the target was rolled back once, and the host booted it again".to_owned());
    }
    let has_fault = missing.is_some_and(Missing::is_fault) || Bug::UndoneAlways.is_awake();
    if !is_begun && (facts.proving_for < member.health.deadline() || !has_fault) {
        return Undo::NotDue;
    }
    if !is_begun && member.health.on_failure() == OnFailure::Hold {
        return Undo::Hold("health.onFailure is Hold".to_owned());
    }
    let Some(from) = &holding.from else {
        return Undo::Hold("the berth does not name the previous image".to_owned());
    };
    let rollback = facts.host.os.deployments().and_then(|known| known.rollback.as_ref());
    let is_proven = rollback.is_some_and(|rollback| rollback.digest.as_ref() == Some(from));
    if is_proven || (rollback.is_some() && Bug::RollbackToAny.is_awake()) {
        return Undo::Due;
    }
    Undo::Hold(format!("the host has no rollback deployment of {from}"))
}

/// Returns a wait while the host's rollback guard rolls the running boot back. A rollback by the agent at the same time
/// would revert the guard's rollback.
pub(super) fn await_guard(facts: &AgentFacts) -> Option<Step> {
    match &facts.host.rollback_guard {
        RollbackGuard::Fired(fired) if fired.boot_id == facts.host.boot_id => {
            Some(Step::Wait(WaitReason::Rebooting, Some(LOOK_INTERVAL)))
        }
        _ => None,
    }
}

/// Returns the message of a turn whose boot was undone.
pub(super) fn outcome(undone: &Undone) -> String {
    if undone.reason == CommonReason::RollbackGuardFired.as_str() {
        return "no agent proved the boot in time; the host's rollback guard rolled the host back".to_owned();
    }
    let cause = match undone.why.as_str() {
        "" => String::new(),
        why => format!(" ({why})"),
    };
    format!("the boot was not proven within health.deadline{cause}; the agent rolled the host back")
}

/// Returns the next step of a rollback: make the next boot take the rollback deployment, then reboot. `None` if no
/// rollback is due.
pub(super) fn next_step(facts: &AgentFacts, holding: &Holding, node: &NodeFacts) -> Option<Step> {
    let missing = missing(facts, node);
    if undo(facts, holding, missing.as_ref()) != Undo::Due {
        return None;
    }
    if let Some(wait) = await_reboot(facts) {
        return Some(wait);
    }
    if !facts.has_queued_undo() {
        let from = holding.from.clone()?;
        let (reason, message) = match missing {
            Some(missing) => (missing.reason(), missing.message()),
            // The proof is complete now: the node became healthy after the rollback began.
            None => (CommonReason::BootUnproven, String::new()),
        };
        return Some(Step::Rollback(from, reason, message));
    }
    if reboot_held_up(facts).is_some() || is_inhibited(facts) {
        return Some(Step::Wait(WaitReason::Inhibited, Some(LOOK_INTERVAL_MAX)));
    }
    Some(Step::Reboot)
}
