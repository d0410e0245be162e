//! The agent's report to the cluster: the BootcNode's status as a pure function of the facts.

use berth_api::berth::{Berth, HoldPhase, Holding, Outcome};
use berth_api::boot_image::NodeBootImage;
use berth_api::condition::{self, Verdict, Why, Word, node as types};
use berth_api::firstboot::NodeFirstboot;
use berth_api::node::{BootcNodeStatus, NotApplied, Phase, Turn};
use berth_api::pool::OnTimeout;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::agent::deployments;
use crate::agent::facts::{Deployments, Facts, Os};
use crate::agent::insight;
use crate::agent::reason::Reason;
use crate::agent::step::{
    Step, WaitReason, blockers, closed_window, inhibited, is_inhibited, is_ready, is_unproven, overdue, rollback_queued,
};
use crate::agent::timeline;

mod degraded;

use degraded::{degraded, unguarded};

/// Input of a report beside the facts.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// Generation of the spec that the facts were made from.
    pub generation: Option<i64>,
    /// The step that comes next.
    pub step: &'a Step,
    /// Version of bootc on the host, once known.
    pub bootc_version: Option<String>,
    /// Most demanding variant of its architecture that the host's CPU runs, if that is known.
    pub platform_variant: Option<&'a str>,
    /// Image that the machine was installed from; `None` if nobody has looked yet.
    pub boot_image: Option<&'a Option<NodeBootImage>>,
    /// Record of the machine's first boot, where there is one. The agent reads it at its start: who removes the file and restarts
    /// the agent has seen to what went wrong.
    pub firstboot: Option<&'a NodeFirstboot>,
    /// Changes when the agent shows that it lives.
    pub heartbeat: Time,
    /// Conditions of the BootcNode, with those that the controller writes.
    pub told: &'a [Condition],
}

/// The status that the BootcNode should have now, given the one that it has.
pub fn report(facts: &Facts, subject: &Subject<'_>, before: &BootcNodeStatus) -> BootcNodeStatus {
    if matches!(subject.step, Step::Wait(WaitReason::HostUnreachable, _)) {
        return report_silence(facts, subject, before);
    }
    let holding = holding(facts);
    let phase = phase(facts, subject.step);
    let phase_start_time = match before.phase == Some(phase) && before.phase_start_time.is_some() {
        true => before.phase_start_time.clone(),
        false => Some(Time::from(facts.now)),
    };
    let known = facts.host.os.deployments();
    let measured = facts.past.timeline.measured();
    let mut status = BootcNodeStatus {
        observed_generation: subject.generation,
        node_uid: facts
            .cluster_node
            .get()
            .map(|n| n.uid.to_string())
            .or_else(|| before.node_uid.clone()),
        boot_id: Some(facts.host.boot_id.to_string()),
        agent_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        backend: match &facts.host.os {
            Os::Bootc(known) => Some(known.backend.clone()),
            // A tool that gave no answer this time is still the host's.
            Os::Unusable {
                reason: Reason::StatusFailed | Reason::BootcFailed,
                ..
            }
            | Os::Unknown => before.backend.clone(),
            Os::Unusable { .. } => None,
        },
        bootc_version: subject.bootc_version.clone().or_else(|| before.bootc_version.clone()),
        heartbeat_time: Some(subject.heartbeat.clone()),
        booted: known.map(|d| d.booted.clone()).or_else(|| before.booted.clone()),
        // While a pull holds the lock nothing is known to be staged: better nothing than what was.
        staged: known.and_then(|d| d.staged.clone()),
        rollback: known
            .map(|d| d.rollback.clone())
            .unwrap_or_else(|| before.rollback.clone()),
        phase: Some(phase),
        phase_start_time,
        berth: berth(facts),
        progress: facts.host.pull.as_ref().and_then(|p| p.progress),
        failure: facts.past.failure.clone(),
        last_turn: facts.past.last_turn.clone(),
        failed_digests: facts.past.failed_digests.clone(),
        drain_blockers: match phase {
            Phase::Draining | Phase::Proving => facts.drain.blockers.clone(),
            _ => vec![],
        },
        not_applied: facts.past.not_applied.as_ref().map(|(digest, attempts)| NotApplied {
            digest: digest.clone(),
            attempts: *attempts,
        }),
        tried: facts.past.tried.clone(),
        retry_token: facts.past.retry_token.clone(),
        rollback_queued: facts.host.os.is_rollback_queued(),
        drain_seconds: before.drain_seconds.filter(|_| measured.drain.is_none()),
        reboot_seconds: before.reboot_seconds.filter(|_| measured.reboot.is_none()),
        timeline: timeline::told(&facts.past.timeline, subject.firstboot),
        turns: timeline::ended(&facts.past.turns),
        clock_synchronized: facts.host.clock_synchronized,
        platform_variant: subject.platform_variant.map(str::to_owned),
        boot_image: subject.boot_image.unwrap_or(&before.boot_image).clone(),
        firstboot: subject.firstboot.cloned(),
        deployments: deployments::record(facts, phase, &before.deployments),
        conditions: before.conditions.clone(),
        insight: None,
    };
    for (type_, verdict) in conditions(facts, holding, phase, subject.step, &before.conditions) {
        condition::set(&mut status.conditions, type_, verdict, subject.generation, facts.now);
    }
    status.insight = insight::of(facts, subject, &status, before);
    status
}

/// The status of a node whose host does not answer: what was known, with the signs of life; after a while with the reason,
/// and no longer ready for an offer.
fn report_silence(facts: &Facts, subject: &Subject<'_>, before: &BootcNodeStatus) -> BootcNodeStatus {
    let mut status = BootcNodeStatus {
        heartbeat_time: Some(subject.heartbeat.clone()),
        ..before.clone()
    };
    if facts.host.unreachable.as_ref().is_some_and(|s| s.is_to_be_told()) {
        let phase = phase(facts, subject.step);
        if before.phase != Some(phase) {
            (status.phase, status.phase_start_time) = (Some(phase), Some(Time::from(facts.now)));
        }
        let mut set = |type_, verdict| {
            condition::set(
                &mut status.conditions,
                type_,
                verdict,
                before.observed_generation,
                facts.now,
            );
        };
        set(types::NODE_DEGRADED, degraded(facts, phase, subject.step));
        let no_offer = Verdict::no(Reason::HostUnreachable, "the host does not answer");
        set(types::UPDATE_PREPARED, no_offer);
        if !condition::is_true(&before.conditions, types::IMAGE_PULLED) {
            set(
                types::IMAGE_PULLED,
                Verdict::unknown(Why::Blocked, "the host does not answer"),
            );
        }
        // A turn may have ended meanwhile.
        if facts.berths.is_some() && holding(facts).is_none() {
            status.drain_blockers.clear();
            status.berth = None;
            if before.berth.is_some() {
                let node = facts.cluster_node.get();
                let cordoned = node.is_some_and(|n| n.cordon.is_some() && n.unschedulable);
                for (type_, verdict) in rest_conditions(facts, cordoned) {
                    set(type_, verdict);
                }
            }
        }
        status.timeline = timeline::told(&facts.past.timeline, subject.firstboot);
        status.turns = timeline::ended(&facts.past.turns);
        status.last_turn.clone_from(&facts.past.last_turn);
        status.failure.clone_from(&facts.past.failure);
        status.insight = insight::of(facts, subject, &status, before);
    }
    status
}

fn holding(facts: &Facts) -> Option<&Holding> {
    facts
        .berths
        .iter()
        .flatten()
        .filter_map(|b| b.holding())
        .find(|h| h.node == facts.node)
}

/// Name of the berth that the node holds.
fn berth(facts: &Facts) -> Option<String> {
    let is_held = |b: &&Berth| b.holding().is_some_and(|h| h.node == facts.node);
    facts.berths.iter().flatten().find(is_held).map(Berth::name)
}

/// Phase of the node in one word.
pub fn phase(facts: &Facts, step: &Step) -> Phase {
    if let Some(holding) = holding(facts) {
        return match holding.phase {
            HoldPhase::Releasing(_) => Phase::Releasing,
            _ if is_unproven(holding, &facts.host.boot_id, &facts.host.os, &facts.past)
                && !is_licensed(facts, holding) =>
            {
                Phase::Proving
            }
            HoldPhase::Committed => Phase::Rebooting,
            HoldPhase::Taken => Phase::Draining,
        };
    }
    match step {
        Step::Wait(WaitReason::NothingAsked | WaitReason::BerthsUnknown | WaitReason::OtherNode, _) => Phase::Idle,
        Step::Wait(WaitReason::Released, _) => Phase::Released,
        Step::Wait(WaitReason::Updated, _) => Phase::Updated,
        step if is_blocked(facts, step) => Phase::Degraded,
        // Not answered yet: nothing is wrong.
        Step::Wait(WaitReason::Unguarded, _) => waiting(facts),
        Step::Wait(WaitReason::Pulling, _) | Step::StartPull(..) | Step::Lock(_) => Phase::Staging,
        Step::Wait(WaitReason::NoBerth | WaitReason::ForeignBerth | WaitReason::Inhibited, _) | Step::Take(_) => {
            Phase::Waiting
        }
        Step::Wait(WaitReason::BackingOff, _) => waiting(facts),
        _ => Phase::Pending,
    }
}

/// True if the node does nothing before something is repaired, or another image is published.
fn is_blocked(facts: &Facts, step: &Step) -> bool {
    match step {
        Step::Wait(WaitReason::Unguarded, _) => facts.guard.is_to_be_told(),
        Step::Wait(
            WaitReason::HostUnusable
            | WaitReason::HostUnreachable
            | WaitReason::Unlockable
            | WaitReason::Forgetful
            | WaitReason::RivalUpdater
            | WaitReason::FailedDigest
            | WaitReason::ImageRefused
            | WaitReason::RollbackQueued,
            _,
        ) => true,
        _ => false,
    }
}

/// Phase of a node that waits outside of a turn.
fn waiting(facts: &Facts) -> Phase {
    match staged(facts) {
        true => Phase::Waiting,
        false => Phase::Pending,
    }
}

/// Committed for this very boot, with its image staged: a reboot is on its way.
fn is_licensed(facts: &Facts, holding: &Holding) -> bool {
    let os = facts.host.os.deployments();
    let is_gone = |d: &Deployments| {
        d.staged
            .as_ref()
            .is_none_or(|s| s.digest.as_ref() != Some(&holding.target))
    };
    holding.boot_id == facts.host.boot_id && holding.phase == HoldPhase::Committed && !os.is_some_and(is_gone)
}

fn staged(facts: &Facts) -> bool {
    let staged = facts.desired.digest().and_then(|digest| facts.staged_whole(digest));
    staged.is_some_and(|s| s.locked)
}

type Verdicts = Vec<(&'static str, Verdict)>;

fn conditions(facts: &Facts, holding: Option<&Holding>, phase: Phase, step: &Step, before: &[Condition]) -> Verdicts {
    let mut list = update_conditions(facts, holding, phase, step, before);
    list.extend(turn_conditions(facts, holding));
    list.push((types::NODE_DEGRADED, degraded(facts, phase, step)));
    list.extend(guarded(facts, before).map(|verdict| (types::GUARDED, verdict)));
    list.extend(released(step, before).map(|verdict| (types::RELEASED, verdict)));
    list
}

/// Returns whether what Berth did on a node of no pool is undone; `None`: it never was.
fn released(step: &Step, before: &[Condition]) -> Option<Verdict> {
    if matches!(step, Step::Wait(WaitReason::Released, _)) {
        return Some(Verdict::yes(Phase::Released, ""));
    }
    condition::find(before, types::RELEASED).map(|_| as_is(false))
}

/// The trouble of a cluster, which `NodeDegraded` does not show while a graver one of the node does. `None`: as it was.
fn guarded(facts: &Facts, before: &[Condition]) -> Option<Verdict> {
    match unguarded(facts) {
        Some(message) => Some(Verdict::no(Reason::Unguarded, message)),
        None if facts.guard.unguarded().is_some() => None,
        None => condition::find(before, types::GUARDED).map(|_| Verdict::yes(Why::AsExpected, "")),
    }
}

/// Conditions of the image: whether it is pulled, staged, ready, running.
fn update_conditions(
    facts: &Facts,
    holding: Option<&Holding>,
    phase: Phase,
    step: &Step,
    before: &[Condition],
) -> Verdicts {
    let Some(desired) = facts.desired.digest() else {
        let why = Verdict::unknown(Why::NothingDesired, "no image is published for this node");
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
    let updated = match (runs, phase) {
        (true, Phase::Updated) => Verdict::yes(Why::Updated, format!("runs {desired}")),
        (true, _) if matches!(step, Step::Wait(WaitReason::Excluded, _)) => {
            Verdict::yes(Why::Updated, format!("runs {desired}, and is excluded"))
        }
        (true, _) if facts.host.os.is_rollback_queued() => {
            Verdict::no(Why::RollbackQueued, rollback_queued(facts).unwrap_or_default())
        }
        (true, _) => Verdict::no(Why::Proving, format!("runs {desired}, not given back yet")),
        (false, _) => match waiting_for(facts, holding, step) {
            Some((reason, message)) => Verdict::no(reason, format!("should run {desired}: {message}")),
            None => Verdict::no(phase, format!("should run {desired}")),
        },
    };
    let here = staged(facts) || runs;
    let refused = facts.objection().map(|o| Verdict::no(o.reason, o.message));
    let pulled = match (here, &facts.past.failure) {
        (true, _) => Verdict::yes(Why::AsExpected, ""),
        (false, _) if facts.host.pull.is_some() => Verdict::unknown(Why::Pulling, format!("pulling {desired}")),
        (false, _) if is_blocked(facts, step) => {
            Verdict::unknown(Why::Blocked, "NodeDegraded says what to repair first")
        }
        (false, Some(f)) if f.digest.as_ref() == Some(desired) => Verdict::no(reason(&f.reason), f.message.clone()),
        (false, _) => Verdict::unknown(Why::NotStarted, ""),
    };
    let pulled = refused.filter(|_| !here).unwrap_or(pulled);
    let staged_now = match (runs, staged(facts)) {
        (true, _) => Verdict::no(Why::Booted, "the image runs; nothing is staged"),
        (false, true) => Verdict::yes(Why::Locked, format!("{desired} is staged with finalization locked")),
        (false, false) => Verdict::no(Why::NotStaged, ""),
    };
    let prepared = prepared(facts, holding, runs, step, before);
    vec![
        (types::UPDATED, updated),
        (types::IMAGE_PULLED, pulled),
        (types::STAGED, staged_now),
        (types::UPDATE_PREPARED, prepared),
    ]
}

/// Reason outside of this node that keeps it from going on.
fn waiting_for(facts: &Facts, holding: Option<&Holding>, step: &Step) -> Option<(Word, String)> {
    let gate = |holding: &Holding| holding.revoke.clone().unwrap_or_default();
    match (step, holding) {
        (Step::Wait(WaitReason::Revoked, _), Some(holding)) => {
            return Some((
                Why::Revoked.into(),
                format!("the berth is not licensed anew meanwhile: {}", gate(holding)),
            ));
        }
        (Step::Wait(WaitReason::WindowClosed, _), Some(holding)) => {
            return Some((
                Why::WindowClosed.into(),
                closed_window(facts, holding.open_until).unwrap_or_default(),
            ));
        }
        (Step::Wait(WaitReason::Inhibited, _), Some(_)) => {
            let asked = "a reboot was asked for in vain, and is tried again".to_owned();
            return Some((
                Why::Inhibited.into(),
                if is_inhibited(facts) { inhibited(facts) } else { asked },
            ));
        }
        (Step::Wait(WaitReason::Excluded, _), _) => {
            return Some((
                Why::Excluded.into(),
                "the Node is excluded; remove its label berth.dev/exclude".to_owned(),
            ));
        }
        _ => {}
    }
    None
}

/// The controller may offer a berth: this is the condition that it reads. The step says so, for it would take one; a step
/// that only reads says nothing yet.
fn prepared(facts: &Facts, holding: Option<&Holding>, runs: bool, step: &Step, before: &[Condition]) -> Verdict {
    if runs {
        return Verdict::no(Why::Booted, "nothing is left to prepare");
    }
    if holding.is_some() {
        return Verdict::no(Why::InTurn, "the node holds a berth");
    }
    match step {
        Step::Wait(WaitReason::NoBerth | WaitReason::ForeignBerth, _) | Step::Take(_) => Verdict::yes(Why::Ready, ""),
        Step::Wait(WaitReason::Inhibited, _) => Verdict::no(Why::Inhibited, inhibited(facts)),
        Step::Wait(WaitReason::Unguarded, _) => {
            Verdict::no(Reason::Unguarded, facts.guard.unguarded().unwrap_or_default())
        }
        Step::Wait(WaitReason::BackingOff, _) if staged(facts) => {
            let turn = facts.past.last_turn.as_ref();
            Verdict::no(
                Why::BackingOff,
                turn.map_or_else(String::new, |t| format!("{}: {}", t.outcome, t.message)),
            )
        }
        Step::ReadNode | Step::LookAtHost | Step::TryGuard if condition::is_true(before, types::UPDATE_PREPARED) => {
            Verdict::yes(Why::Ready, "")
        }
        _ if !staged(facts) => Verdict::no(Why::NotStaged, ""),
        _ => Verdict::no(Why::NotReady, ""),
    }
}

fn as_is(yes: bool) -> Verdict {
    match yes {
        true => Verdict::yes(Why::AsExpected, ""),
        false => Verdict::no(Why::NotYet, ""),
    }
}

/// Conditions of the turn with a berth; without one, of how the last turn ended.
fn turn_conditions(facts: &Facts, holding: Option<&Holding>) -> Verdicts {
    let node = facts.cluster_node.get();
    let cordoned = node.is_some_and(|n| n.cordon.is_some() && n.unschedulable);
    let ready = node.is_some_and(|n| is_ready(facts, n));
    let Some(h) = holding else {
        return rest_conditions(facts, cordoned);
    };
    let applied = facts.host.os.booted() == Some(&h.target);
    // Also the boot that the berth was licensed anew under, when it is licensed for what runs.
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
        (types::RESUMED, as_is((rebooted || updated) && ready)),
        (types::UNCORDONED, as_is(releasing && !cordoned)),
        (types::UPDATE_COMPLETE, as_is(false)),
    ]
}

/// Condition of the drain: whether it is done, which pods were left behind, or which have been in the way for too long.
fn drained(facts: &Facts, committed: bool) -> Verdict {
    if let Some(message) = drains_too_long(facts) {
        return Verdict::no(Why::DrainTimeout, message);
    }
    let left: Vec<_> = facts
        .drain
        .left_behind
        .iter()
        .map(|b| format!("{}: {}", b.pod, b.reason))
        .collect();
    match facts.drain.done && !left.is_empty() {
        true => Verdict::yes(Why::LeftBehind, format!("drained but for {}", left.join("; "))),
        false => as_is(facts.drain.done || committed),
    }
}

/// A drain that goes on although its time is over, because the pool says so or because there is no way back.
fn drains_too_long(facts: &Facts) -> Option<String> {
    let on_timeout = overdue(facts).filter(|_| !facts.drain.blockers.is_empty())?;
    let why = match on_timeout {
        OnTimeout::Hold => "held by drain.onTimeout: Hold",
        OnTimeout::Force => "their budgets are not asked any more, by drain.onTimeout: Force",
        OnTimeout::Release => "the drain goes on, since the boot is not proven and the berth cannot be given back",
    };
    Some(format!("{}; {why}", blockers(facts)))
}

/// Conditions without a berth: either the desired image runs and the berth is given back, or a turn is still to come.
fn rest_conditions(facts: &Facts, cordoned: bool) -> Verdicts {
    let runs = facts.host.os.booted().is_some() && facts.host.os.booted() == facts.desired.digest();
    let drained = match failed_turn(facts) {
        Some(turn) if turn.outcome == Outcome::DrainTimeout.as_str() => {
            Verdict::no(Why::DrainTimeout, turn.message.clone())
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

/// The last turn, when it was for what is desired now and ended badly.
fn failed_turn(facts: &Facts) -> Option<&Turn> {
    facts
        .past
        .last_turn
        .as_ref()
        .filter(|t| Some(&t.digest) == facts.desired.digest())
}

/// Reasons that come back from a stored object are again the constants that they were written from.
fn reason(stored: &str) -> Word {
    crate::agent::reason::known(stored).map_or(Why::Failed.into(), Word::from)
}
