use berth_api::berth::{HoldPhase, Holding, Outcome};
use berth_api::condition::{self, CommonReason, Verdict, Word, node as types};
use berth_api::digest::Digest;
use berth_api::node::Phase;
use berth_api::pool::OnFailure;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::degraded::{degraded, drains_too_long, unguarded};
use super::phase::{is_blocked, is_staged};
use super::subject::GuardUnit;
use crate::agent::facts::{AgentFacts, ClusterNode, Desired};
use crate::agent::reason::{self, Reason};
use crate::agent::step::{Missing, Step, WaitReason, closed_window, inhibited, is_inhibited, missing, rollback_queued};
use crate::finding::Finding;

pub(super) type Verdicts = Vec<(&'static str, Verdict)>;

/// Conditions whose state the agent reads from the Node object.
const OF_THE_NODE: [&str; 3] = [types::CORDONED, types::RESUMED, types::UNCORDONED];

pub(super) fn conditions(
    facts: &AgentFacts,
    holding: Option<&Holding>,
    phase: Phase,
    step: &Step,
    before: &[Condition],
) -> Verdicts {
    let mut list = update_conditions(facts, holding, phase, step, before);
    list.extend(turn_conditions(facts, holding));
    if matches!(facts.cluster_node, ClusterNode::Unread) {
        // The agent has not read the Node since it may have changed, so these conditions keep their last state.
        list.retain(|(type_, _)| !OF_THE_NODE.contains(type_) || condition::find(before, type_).is_none());
    }
    list.push((types::NODE_DEGRADED, verdict(degraded(facts, phase, step))));
    list.extend(guarded(facts, before).map(|verdict| (types::GUARDED, verdict)));
    list.extend(released(step, before).map(|verdict| (types::RELEASED, verdict)));
    list
}

pub(super) fn verdict(trouble: Option<Finding>) -> Verdict {
    trouble.map_or_else(|| Verdict::no(CommonReason::AsExpected, ""), Finding::verdict)
}

/// Returns the condition `Released`: True if the node is in no pool and all of Berth's changes to it are undone,
/// otherwise False. Returns `None` instead of False if the status has no such condition yet.
fn released(step: &Step, before: &[Condition]) -> Option<Verdict> {
    if matches!(step, Step::Wait(WaitReason::Released, _)) {
        return Some(Verdict::yes(Phase::Released, ""));
    }
    condition::find(before, types::RELEASED).map(|_| as_is(false))
}

/// Returns the condition `Guarded`: True if the API server rejects writes to other nodes' objects. `None` leaves the
/// condition unchanged. `NodeDegraded` shows a missing guard only if the node has no worse problem.
fn guarded(facts: &AgentFacts, before: &[Condition]) -> Option<Verdict> {
    match unguarded(facts) {
        Some(message) => Some(Verdict::no(Reason::Unguarded, message)),
        None if facts.guard.unguarded().is_some() => None,
        None => condition::find(before, types::GUARDED).map(|_| Verdict::yes(CommonReason::AsExpected, "")),
    }
}

/// Returns the condition `RollbackGuard`: True if the host can roll back an unproven boot without an agent. `None` if
/// the agent has not looked for the guard's unit yet, or does not know the pool's setting.
pub(super) fn rollback_guard(facts: &AgentFacts, unit: Option<&GuardUnit>) -> Option<Verdict> {
    let unit = unit?;
    let Desired::Member(member) = &facts.desired else {
        return None;
    };
    if member.health.on_failure() == OnFailure::Hold {
        return Some(Verdict::no(
            CommonReason::NotWanted,
            "not needed: the pool's health.onFailure is Hold",
        ));
    }
    Some(match unit {
        GuardUnit::InImage => Verdict::yes(
            CommonReason::InImage,
            "the host's image has berth-rollback-guard.service",
        ),
        GuardUnit::Installed => Verdict::yes(
            CommonReason::InstalledByAgent,
            "the agent has installed berth-rollback-guard.service in /etc/systemd/system",
        ),
        GuardUnit::Missing(why) => Verdict::no(
            CommonReason::NotInstalled,
            format!("berth-rollback-guard.service cannot be installed: {why}"),
        ),
    })
}

fn update_conditions(
    facts: &AgentFacts,
    holding: Option<&Holding>,
    phase: Phase,
    step: &Step,
    before: &[Condition],
) -> Verdicts {
    let Some(desired) = facts.desired.digest() else {
        let why = Verdict::unknown(
            CommonReason::NothingDesired,
            "the controller has published no image for this node",
        );
        return [
            types::UPDATED,
            types::IMAGE_PULLED,
            types::STAGED,
            types::UPDATE_PREPARED,
        ]
        .map(|t| (t, why.clone()))
        .into();
    };
    let runs = facts.host.os.booted() == Some(desired);
    let staged_now = match (runs, is_staged(facts)) {
        (true, _) => Verdict::no(CommonReason::Booted, "the desired image runs, so nothing is staged"),
        (false, true) => Verdict::yes(
            CommonReason::Locked,
            format!("{desired} is staged and locked, so a reboot would not apply the image"),
        ),
        (false, false) => Verdict::no(CommonReason::NotStaged, ""),
    };
    vec![
        (types::UPDATED, updated(facts, desired, holding, phase, step)),
        (types::IMAGE_PULLED, pulled(facts, desired, step)),
        (types::STAGED, staged_now),
        (types::UPDATE_PREPARED, prepared(facts, holding, runs, step, before)),
    ]
}

/// Returns the condition `Updated`: True if the node runs the desired image and its turn is over.
fn updated(facts: &AgentFacts, desired: &Digest, holding: Option<&Holding>, phase: Phase, step: &Step) -> Verdict {
    let runs = facts.host.os.booted() == Some(desired);
    match (runs, phase) {
        (true, Phase::Updated) => Verdict::yes(CommonReason::Updated, format!("the node runs {desired}")),
        (true, _) if matches!(step, Step::Wait(WaitReason::Excluded, _)) => Verdict::yes(
            CommonReason::Updated,
            format!("the node runs {desired}; the Node is excluded"),
        ),
        (true, _) if facts.host.os.is_rollback_queued() => {
            Verdict::no(CommonReason::RollbackQueued, rollback_queued(facts).unwrap_or_default())
        }
        (true, _) => Verdict::no(
            CommonReason::Proving,
            format!("the node runs {desired}; the berth is not given back yet"),
        ),
        (false, _) => match waiting_for(facts, holding, step) {
            Some((reason, message)) => Verdict::no(reason, format!("the node should run {desired}: {message}")),
            None => Verdict::no(phase, format!("the node should run {desired}")),
        },
    }
}

/// Returns the condition `ImagePulled`: True if the desired image is staged or booted.
fn pulled(facts: &AgentFacts, desired: &Digest, step: &Step) -> Verdict {
    if is_staged(facts) || facts.host.os.booted() == Some(desired) {
        return Verdict::yes(CommonReason::AsExpected, "");
    }
    if let Some(objection) = facts.objection() {
        return Verdict::no(objection.reason, objection.message);
    }
    match &facts.past.failure {
        _ if facts.host.pull.is_some() => Verdict::unknown(CommonReason::Pulling, format!("pulling {desired}")),
        _ if is_blocked(facts, step) => {
            Verdict::unknown(CommonReason::Blocked, "see NodeDegraded for the problem to fix first")
        }
        Some(f) if f.digest.as_ref() == Some(desired) => Verdict::no(reason::word(&f.reason), f.message.clone()),
        _ => Verdict::unknown(CommonReason::NotStarted, ""),
    }
}

/// Returns a reason and a message if the node waits for a gate, for a window, for an inhibitor, or because it is
/// excluded; `None` for other steps.
fn waiting_for(facts: &AgentFacts, holding: Option<&Holding>, step: &Step) -> Option<(Word, String)> {
    match (step, holding) {
        (Step::Wait(WaitReason::Revoked, _), Some(holding)) => {
            let gate = holding.revoke.as_deref().unwrap_or_default();
            return Some((
                CommonReason::Revoked.into(),
                format!("the pool does not allow a reboot into the new image now: {gate}"),
            ));
        }
        (Step::Wait(WaitReason::WindowClosed, _), Some(holding)) => {
            return Some((
                CommonReason::WindowClosed.into(),
                closed_window(facts, holding.open_until).unwrap_or_default(),
            ));
        }
        (Step::Wait(WaitReason::Inhibited, _), Some(_)) => {
            let asked = "the requested reboot did not begin; the agent will request it again".to_owned();
            return Some((
                CommonReason::Inhibited.into(),
                if is_inhibited(facts) { inhibited(facts) } else { asked },
            ));
        }
        (Step::Wait(WaitReason::Excluded, _), _) => {
            return Some((
                CommonReason::Excluded.into(),
                "the Node is excluded; to update it, remove its label berth.dev/exclude".to_owned(),
            ));
        }
        _ => {}
    }
    None
}

/// Returns the condition `UpdatePrepared`: True if the agent takes a berth or waits for an offer. The controller offers
/// a berth only while the condition is True. A True condition stays True while the agent only reads.
fn prepared(facts: &AgentFacts, holding: Option<&Holding>, runs: bool, step: &Step, before: &[Condition]) -> Verdict {
    if runs {
        return Verdict::no(CommonReason::Booted, "nothing is left to prepare");
    }
    if holding.is_some() {
        return Verdict::no(CommonReason::InTurn, "the node holds a berth");
    }
    match step {
        Step::Wait(WaitReason::NoBerth | WaitReason::ForeignBerth, _) | Step::Take(_) => {
            Verdict::yes(CommonReason::Ready, "")
        }
        Step::Wait(WaitReason::Inhibited, _) => Verdict::no(CommonReason::Inhibited, inhibited(facts)),
        Step::Wait(WaitReason::Unguarded, _) => {
            Verdict::no(Reason::Unguarded, facts.guard.unguarded().unwrap_or_default())
        }
        Step::Wait(WaitReason::BackingOff, _) if is_staged(facts) => {
            let turn = facts.past.last_turn.as_ref();
            Verdict::no(
                CommonReason::BackingOff,
                turn.map_or_else(String::new, |t| format!("{}: {}", t.outcome, t.message)),
            )
        }
        Step::ReadNode | Step::LookAtHost | Step::TryGuard if condition::is_true(before, types::UPDATE_PREPARED) => {
            Verdict::yes(CommonReason::Ready, "")
        }
        _ if !is_staged(facts) => Verdict::no(CommonReason::NotStaged, ""),
        _ => Verdict::no(CommonReason::NotReady, ""),
    }
}

fn as_is(yes: bool) -> Verdict {
    if yes {
        Verdict::yes(CommonReason::AsExpected, "")
    } else {
        Verdict::no(CommonReason::NotYet, "")
    }
}

/// Returns the condition `Resumed`: True if the new boot is proven. If it is False, its message names the missing part
/// of the proof. A part that is missing at the start of every boot is not named.
fn resumed(facts: &AgentFacts, rebooted: bool) -> Verdict {
    let Some(node) = facts.cluster_node.get().filter(|_| rebooted) else {
        return as_is(false);
    };
    match missing(facts, node) {
        None => as_is(true),
        // After every boot, these parts are missing at first, so they need no message.
        Some(Missing::Unread | Missing::Ready) => as_is(false),
        Some(missing) => Verdict::no(missing.reason(), missing.message()),
    }
}

fn turn_conditions(facts: &AgentFacts, holding: Option<&Holding>) -> Verdicts {
    let node = facts.cluster_node.get();
    let cordoned = node.is_some_and(|n| n.cordon.is_some() && n.unschedulable);
    let Some(h) = holding else {
        return rest_conditions(facts, cordoned);
    };
    let applied = facts.host.os.booted() == Some(&h.target);
    // The second half of this expression is for a berth that was committed again under this unproven boot, for the
    // image that already runs.
    let rebooted = h.boot_id != facts.host.boot_id || (applied && h.phase == HoldPhase::Committed);
    let releasing = matches!(h.phase, HoldPhase::Releasing(_));
    let updated = h.phase == HoldPhase::Releasing(Outcome::Updated);
    let committed = h.phase == HoldPhase::Committed || rebooted || updated;
    vec![
        (types::CORDONED, as_is(cordoned)),
        (types::DRAINED, drained(facts, committed)),
        (types::UPDATE_EXECUTED, as_is(committed)),
        (types::REBOOTED_NODE, as_is(rebooted || updated)),
        (types::APPLIED_OS_IMAGE, as_is(applied)),
        (types::RESUMED, resumed(facts, rebooted || updated)),
        (types::UNCORDONED, as_is(releasing && !cordoned)),
        (types::UPDATE_COMPLETE, as_is(false)),
    ]
}

/// Returns the condition `Drained`. If pods block the drain for longer than its timeout, it is False and its message
/// names these pods. If the drain left pods behind, it is True and its message names these pods.
fn drained(facts: &AgentFacts, committed: bool) -> Verdict {
    if let Some(message) = drains_too_long(facts) {
        return Verdict::no(CommonReason::DrainTimeout, message);
    }
    let left: Vec<_> = facts
        .drain
        .left_behind
        .iter()
        .map(|b| format!("{}: {}", b.pod, b.reason))
        .collect();
    if facts.drain.done && !left.is_empty() {
        Verdict::yes(CommonReason::LeftBehind, format!("drained except {}", left.join("; ")))
    } else {
        as_is(facts.drain.done || committed)
    }
}

/// Returns the conditions of a node that holds no berth. A node that runs the desired image has the conditions of a
/// finished turn. Any other node has the conditions of a turn that has not started.
pub(super) fn rest_conditions(facts: &AgentFacts, cordoned: bool) -> Verdicts {
    let runs = facts.host.os.booted().is_some() && facts.host.os.booted() == facts.desired.digest();
    let drained = match facts.failed_turn() {
        Some(turn) if turn.outcome == Outcome::DrainTimeout.as_str() => {
            Verdict::no(CommonReason::DrainTimeout, turn.message.clone())
        }
        _ => as_is(runs),
    };
    let rest = [
        types::UPDATE_EXECUTED,
        types::REBOOTED_NODE,
        types::APPLIED_OS_IMAGE,
        types::RESUMED,
    ];
    let mut list: Verdicts = rest.map(|t| (t, as_is(runs))).into();
    list.push((types::CORDONED, as_is(cordoned)));
    list.push((types::DRAINED, drained));
    list.push((types::UNCORDONED, as_is(!cordoned)));
    list.push((types::UPDATE_COMPLETE, as_is(runs)));
    list
}
