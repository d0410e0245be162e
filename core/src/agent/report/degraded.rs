//! The finding that the condition `NodeDegraded` shows: the most important problem that a list of checks finds.

use berth_api::berth::Outcome;
use berth_api::condition::{CommonReason, Word};
use berth_api::node::Phase;
use berth_api::pool::OnTimeout;

use crate::agent::facts::{AgentFacts, Desired, Os};
use crate::agent::outside;
use crate::agent::reason::{self, Reason};
use crate::agent::rivals;
use crate::agent::step::{
    Missing, Step, Undo, WaitReason, blockers, missing, overdue, rollback_queued, same_deployment, set_aside,
    taken_away, undo, unlockable,
};
use crate::finding::Finding;

type Check = fn(&AgentFacts, Phase, &Step) -> Option<Finding>;

/// The checks, most important first. The status shows only the first problem found.
const CHECKS: [Check; 9] = [
    |facts, _, _| host_problem(facts),
    |facts, _, step| staging_problem(facts, step),
    |facts, _, _| outside::rolled_back(facts),
    |facts, _, _| image_problem(facts),
    turn_problem,
    |facts, _, _| retried_problem(facts),
    |facts, _, _| credentials_problem(facts),
    |facts, _, _| outside::unexpected(facts),
    |facts, _, _| rivals::finding(facts),
];

/// Returns the most important problem of the node; `None` if no check finds a problem.
pub(super) fn degraded(facts: &AgentFacts, phase: Phase, step: &Step) -> Option<Finding> {
    CHECKS.iter().find_map(|check| check(facts, phase, step))
}

fn host_problem(facts: &AgentFacts) -> Option<Finding> {
    if let Some(silence) = facts.host.unreachable.as_ref().filter(|s| s.is_reportable()) {
        return Some(facts.degraded(Reason::HostUnreachable, silence.why.clone()));
    }
    if let Os::Unusable { reason, message } = &facts.host.os {
        return Some(facts.degraded(*reason, message.clone()));
    }
    if let Some(why) = facts.host.os.refusal() {
        return Some(facts.degraded(Reason::ComposefsNotSupported, why.to_owned()));
    }
    if let Some(why) = &facts.host.memory_error {
        let advice = "the node takes no berth until the agent can write its state file; make the file writable or free \
                      disk space";
        return Some(facts.degraded(Reason::MemoryUnwritable, format!("{why}: {advice}")));
    }
    if let Some(message) = unlockable(facts) {
        return Some(facts.degraded(Reason::LockFailed, message));
    }
    if let Some(trouble) = &facts.trouble {
        // Show the number of attempts rounded down to a power of two. Otherwise a step that fails for hours would
        // change the status at every attempt.
        let attempts = trouble.attempts.checked_ilog2().map_or(0, |p| 1 << p);
        let message = format!("{} (failed at least {attempts} times)", trouble.message);
        return Some(facts.degraded(trouble.reason, message));
    }
    None
}

fn staging_problem(facts: &AgentFacts, step: &Step) -> Option<Finding> {
    if let Some(objection) = facts
        .objection()
        .filter(|_| facts.host.os.booted() != facts.desired.digest())
    {
        return Some(facts.degraded(objection.reason, objection.message));
    }
    if matches!(step, Step::Wait(WaitReason::RivalUpdater, _))
        && let Some(found) = rivals::finding(facts)
    {
        return Some(found);
    }
    if let Some(message) = rollback_queued(facts).filter(|_| !outside::is_left_first(facts)) {
        return Some(facts.degraded(CommonReason::RollbackQueued, message));
    }
    if let Some(message) = facts.host.os.unit_missing() {
        return Some(facts.degraded(Reason::UnitMissing, message));
    }
    if let Some(message) = set_aside(facts).or_else(|| taken_away(facts, step)) {
        return Some(facts.degraded(Reason::ForeignStaged, message));
    }
    None
}

fn image_problem(facts: &AgentFacts) -> Option<Finding> {
    if let Some(desired) = facts.desired.digest()
        && facts.past.failed_digests.contains(desired)
        && facts.host.os.booted() != Some(desired)
    {
        let message = facts
            .past
            .last_turn
            .as_ref()
            .map(|t| format!(": {} ({} times)", t.message, t.attempts));
        let message = format!(
            "{desired} failed on this node and is not tried again{}{}",
            message.unwrap_or_default(),
            outside::next_boot(facts)
        );
        let fell_back = facts.past.fell_back.as_ref();
        let reason = if fell_back.is_some_and(|fell| fell.digest == *desired) {
            CommonReason::FellBack
        } else {
            CommonReason::DigestFailed
        };
        return Some(facts.degraded(reason, message));
    }
    let message = same_deployment(facts, facts.desired.digest()?)?;
    Some(facts.degraded(Reason::SameDeployment, message))
}

fn turn_problem(facts: &AgentFacts, phase: Phase, step: &Step) -> Option<Finding> {
    if matches!(step, Step::Wait(WaitReason::ForeignBerth, _)) {
        let message = "a berth names another Node object with this node's name; the controller will close that berth";
        return Some(facts.degraded(CommonReason::ForeignBerth, message));
    }
    if let Some(message) = drains_too_long(facts) {
        return Some(facts.degraded(CommonReason::DrainTimeout, message));
    }
    if phase == Phase::Proving {
        return unproven(facts);
    }
    None
}

fn retried_problem(facts: &AgentFacts) -> Option<Finding> {
    if let Some(failure) = &facts.past.failure {
        let again = format!(
            "{} (try {}, next at {})",
            failure.message,
            failure.attempts,
            failure.next_try_time.0.strftime("%H:%M:%SZ")
        );
        return Some(facts.degraded(reason::word(&failure.reason), again));
    }
    if let Some(message) = unguarded(facts) {
        return Some(facts.degraded(Reason::Unguarded, message));
    }
    if let Some(turn) = facts.failed_turn() {
        let again = turn.next_try_time.0.strftime("%H:%M:%SZ");
        let message = format!(
            "{} (turn {}; the next turn may begin at {again})",
            turn.message, turn.attempts
        );
        let outcome = Outcome::from_word(&turn.outcome);
        let reason = outcome.map_or(Word::from(CommonReason::TurnFailed), Word::from);
        return Some(facts.degraded(reason, message));
    }
    None
}

fn credentials_problem(facts: &AgentFacts) -> Option<Finding> {
    let objection = facts.host.rules.credentials.as_ref()?;
    Some(facts.degraded(objection.reason, objection.message.clone()))
}

/// Returns a message if the API server may accept writes to other nodes' objects. Returns `None` if it rejects them, or
/// if the node is excluded or in no pool, because such a node takes no berth.
pub(super) fn unguarded(facts: &AgentFacts) -> Option<String> {
    let excluded = facts.cluster_node.get().is_some_and(|node| node.excluded);
    let would_take = matches!(facts.desired, Desired::Member(_)) && !excluded;
    facts
        .guard
        .unguarded()
        .filter(|_| would_take && facts.guard.is_reportable())
}

/// Returns a message if a drain continues after its timeout. Either the pool's `drain.onTimeout` requires this, or the
/// berth cannot be given back.
pub(super) fn drains_too_long(facts: &AgentFacts) -> Option<String> {
    let on_timeout = overdue(facts).filter(|_| !facts.drain.blockers.is_empty())?;
    let why = match on_timeout {
        OnTimeout::Hold => "the drain continues (drain.onTimeout: Hold)",
        OnTimeout::Force => "their disruption budgets are ignored now (drain.onTimeout: Force)",
        OnTimeout::Release => "the drain continues: the boot is not proven, so the berth cannot be given back",
    };
    Some(format!("{}; {why}", blockers(facts)))
}

fn unproven(facts: &AgentFacts) -> Option<Finding> {
    let holding = facts.holding()?;
    let known = facts.host.os.deployments()?;
    let booted = known.booted.digest.as_ref();
    if booted.is_none() || (booted != Some(&holding.target) && booted != holding.from.as_ref()) {
        let booted = booted.map_or_else(|| "an unknown image".to_owned(), ToString::to_string);
        let message = format!(
            "the node runs {booted}, which is neither the target nor the previous image; the node keeps its berth"
        );
        return Some(facts.degraded(CommonReason::BootUnproven, message));
    }
    // If the agent could not read the Node, the Node counts as not Ready.
    let missing = facts
        .cluster_node
        .get()
        .map_or(Some(Missing::Ready), |node| missing(facts, node))?;
    let cause = missing.message();
    match undo(facts, holding, Some(&missing)) {
        Undo::Due => {
            let message = format!(
                "the boot was not proven within health.deadline: {cause}; the node rolls back to the previous image"
            );
            Some(facts.degraded(CommonReason::RollingBack, message))
        }
        Undo::Hold(why) => {
            let message = format!(
                "the boot was not proven within health.deadline: {cause}; the node keeps its berth and does not roll back: {why}"
            );
            Some(facts.degraded(missing.reason(), message))
        }
        Undo::NotDue if is_late(facts) => {
            let message = format!("the boot was not proven within rebootTimeout: {cause}; the node keeps its berth");
            Some(facts.degraded(missing.reason(), message))
        }
        Undo::NotDue => None,
    }
}

fn is_late(facts: &AgentFacts) -> bool {
    match &facts.desired {
        Desired::Member(member) => facts.proving_for >= member.reboot_timeout,
        _ => false,
    }
}
