//! Computes the BootcNode's status from the facts. Pure.

mod conditions;
mod degraded;
mod insight;
mod phase;
mod subject;

use berth_api::backend::NodeBackend;
use berth_api::berth::Berth;
use berth_api::condition::{self, CommonReason, Verdict, node as types};
use berth_api::node::{BootcNodeStatus, DrainBlocker, NotApplied, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use self::conditions::{conditions, rest_conditions, rollback_guard, verdict};
use self::degraded::degraded;
pub use self::phase::phase;
pub use self::subject::{GuardUnit, Machine, Subject};
use crate::agent::deployments;
use crate::agent::facts::{AgentFacts, Os};
use crate::agent::reason::Reason;
use crate::agent::step::{Step, WaitReason};
use crate::agent::timeline;

/// Returns the new status of the BootcNode. `before` is its current status.
pub fn report(facts: &AgentFacts, subject: &Subject<'_>, before: &BootcNodeStatus) -> BootcNodeStatus {
    if matches!(subject.step, Step::Wait(WaitReason::HostUnreachable, _)) {
        return report_silence(facts, subject, before);
    }
    let (holding, machine) = (facts.holding(), subject.machine);
    let phase = phase(facts, subject.step);
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
        backend: backend(facts, before),
        bootc_version: machine.bootc_version.clone().or_else(|| before.bootc_version.clone()),
        heartbeat_time: Some(subject.heartbeat.clone()),
        booted: known.map(|d| d.booted.clone()).or_else(|| before.booted.clone()),
        // While a pull holds ostree's lock, the agent cannot read the staged deployment. The status then shows no
        // staged deployment, since the last one that the agent read may be gone.
        staged: known.and_then(|d| d.staged.clone()),
        rollback: known
            .map(|d| d.rollback.clone())
            .unwrap_or_else(|| before.rollback.clone()),
        phase: Some(phase),
        phase_start_time: Some(phase_start_time(facts, phase, before)),
        berth: berth(facts),
        progress: facts.host.pull.as_ref().and_then(|p| p.progress),
        failure: facts.past.failure.clone(),
        last_turn: facts.past.last_turn.clone(),
        failed_digests: facts.past.failed_digests.clone(),
        drain_blockers: drain_blockers(facts, phase),
        not_applied: not_applied(facts),
        tried: facts.past.tried.clone(),
        retry_token: facts.past.retry_token.clone(),
        rollback_queued: facts.host.os.is_rollback_queued(),
        drain_seconds: before.drain_seconds.filter(|_| measured.drain.is_none()),
        reboot_seconds: before.reboot_seconds.filter(|_| measured.reboot.is_none()),
        timeline: timeline::reported(&facts.past.timeline, subject.machine.firstboot.as_ref()),
        turns: timeline::ended(&facts.past.turns),
        clock_synchronized: facts.host.clock_synchronized,
        platform_variant: machine.platform_variant.map(str::to_owned),
        boot_safeguards: machine
            .boot_safeguards
            .clone()
            .or_else(|| before.boot_safeguards.clone()),
        boot_image: machine.boot_image.as_ref().unwrap_or(&before.boot_image).clone(),
        firstboot: machine.firstboot.clone(),
        deployments: deployments::record(facts, phase, &before.deployments),
        conditions: before.conditions.clone(),
        insight: None,
    };
    let mut verdicts = conditions(facts, holding, phase, subject.step, &before.conditions);
    let guard = rollback_guard(facts, machine.guard_unit.as_ref());
    verdicts.extend(guard.map(|verdict| (types::ROLLBACK_GUARD, verdict)));
    for (type_, verdict) in verdicts {
        condition::set(&mut status.conditions, type_, verdict, subject.generation, facts.now);
    }
    status.insight = insight::of(facts, subject, &status, before);
    status
}

fn phase_start_time(facts: &AgentFacts, phase: Phase, before: &BootcNodeStatus) -> Time {
    match &before.phase_start_time {
        Some(time) if before.phase == Some(phase) => time.clone(),
        _ => Time::from(facts.now),
    }
}

fn drain_blockers(facts: &AgentFacts, phase: Phase) -> Vec<DrainBlocker> {
    match phase {
        Phase::Draining | Phase::Proving => facts.drain.blockers.clone(),
        _ => vec![],
    }
}

fn backend(facts: &AgentFacts, before: &BootcNodeStatus) -> Option<NodeBackend> {
    match &facts.host.os {
        Os::Bootc(known) => Some(known.backend.clone()),
        // After these errors the backend still exists, although it did not answer. So keep the backend of the last
        // status.
        Os::Unusable {
            reason: Reason::StatusFailed | Reason::BootcFailed,
            ..
        }
        | Os::Unknown => before.backend.clone(),
        Os::Unusable { .. } => None,
    }
}

fn not_applied(facts: &AgentFacts) -> Option<NotApplied> {
    let (digest, attempts) = facts.past.not_applied.clone()?;
    Some(NotApplied { digest, attempts })
}

/// Returns the status while the host's services do not answer: the previous status with a new heartbeat. After 30 s
/// without an answer, the status also shows the error. The condition `UpdatePrepared` then becomes False, so that the
/// node is offered no berth.
fn report_silence(facts: &AgentFacts, subject: &Subject<'_>, before: &BootcNodeStatus) -> BootcNodeStatus {
    let mut status = BootcNodeStatus {
        heartbeat_time: Some(subject.heartbeat.clone()),
        ..before.clone()
    };
    if facts.host.unreachable.as_ref().is_some_and(|s| s.is_reportable()) {
        let phase = phase(facts, subject.step);
        if before.phase != Some(phase) {
            (status.phase, status.phase_start_time) = (Some(phase), Some(Time::from(facts.now)));
        }
        let no_offer = Verdict::no(Reason::HostUnreachable, "the host does not answer");
        let mut verdicts = vec![
            (types::NODE_DEGRADED, verdict(degraded(facts, phase, subject.step))),
            (types::UPDATE_PREPARED, no_offer),
        ];
        if !condition::is_true(&before.conditions, types::IMAGE_PULLED) {
            let not_pulled = Verdict::unknown(CommonReason::Blocked, "the host does not answer");
            verdicts.push((types::IMAGE_PULLED, not_pulled));
        }
        // The node's turn may have ended during the silence.
        if facts.berths.is_some() && facts.holding().is_none() {
            status.drain_blockers.clear();
            status.berth = None;
            if before.berth.is_some() {
                let node = facts.cluster_node.get();
                let cordoned = node.is_some_and(|n| n.cordon.is_some() && n.unschedulable);
                verdicts.extend(rest_conditions(facts, cordoned));
            }
        }
        for (type_, verdict) in verdicts {
            condition::set(
                &mut status.conditions,
                type_,
                verdict,
                before.observed_generation,
                facts.now,
            );
        }
        status.timeline = timeline::reported(&facts.past.timeline, subject.machine.firstboot.as_ref());
        status.turns = timeline::ended(&facts.past.turns);
        status.last_turn.clone_from(&facts.past.last_turn);
        status.failure.clone_from(&facts.past.failure);
        status.insight = insight::of(facts, subject, &status, before);
    }
    status
}

fn berth(facts: &AgentFacts) -> Option<String> {
    let mut berths = facts.berths.iter().flatten();
    let held = berths.find(|berth| berth.holding().is_some_and(|holding| holding.node == facts.node));
    held.map(Berth::name)
}
