//! The one way to a reboot: window, cordon, drain, inhibitors; and with a licence: fence, unlock, verify, reboot.
//!
//! [`super::turn`] goes it from a proven boot, and turns back when something is in the way. [`super::boot`] goes it from a
//! boot that is not proven, where there is no way back, and waits.

use std::time::Duration;

use berth_api::berth::{Berth, Holding};
use berth_api::digest::Digest;
use berth_api::node::Deployment;
use berth_api::pool::{Drain, OnTimeout};
use berth_api::seeded::Bug;
use jiff::Timestamp;

use super::action::{LOOK_AGAIN, REBOOT_GRACE, Step, WaitReason};
use crate::agent::facts::{Desired, Facts, Reboot};
use crate::agent::node::NodeFacts;

/// The next thing between a node and its reboot. Looked at before the licence is given, and again before it is used: it may
/// be old.
#[expect(clippy::large_enum_variant, reason = "one lives for a moment in each decision")]
pub(super) enum Ahead {
    /// No reboot may start now, for this reason.
    WindowClosed(String),
    /// The node is not cordoned, or not drained: the step towards that.
    NotClear(Step),
    /// Somebody inhibits the shutdown.
    Inhibited(String),
    /// Nothing.
    Nothing,
}

/// The next thing between a node and its reboot.
pub(super) fn ahead(facts: &Facts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Ahead {
    // No gate is missed because the controller is dead.
    if let Some(why) = closed_window(facts, holding.open_until) {
        return Ahead::WindowClosed(why);
    }
    if let Some(step) = clear(facts, berth, node) {
        return Ahead::NotClear(step);
    }
    match is_inhibited(facts) {
        true => Ahead::Inhibited(inhibited(facts)),
        false => Ahead::Nothing,
    }
}

/// The next step under a licence for this UID, digest and boot ID, all read live in this very pass (I2), with nothing else
/// ahead: fence, unlock, reboot.
pub(super) fn use_licence(facts: &Facts, berth: &Berth, staged: &Deployment) -> Step {
    // I2, I3: an agent that died, or one that waited in vain for an answer, may have sent what takes the licence back.
    // Before anything is armed under it, that must have lost.
    if !facts.fenced {
        return Step::Fence(berth.clone());
    }
    match staged.locked {
        true => Step::Unlock,
        false => Step::Reboot,
    }
}

/// Next step towards a node that is cordoned and drained; `None` once it is.
fn clear(facts: &Facts, berth: &Berth, node: &NodeFacts) -> Option<Step> {
    if node.cordon.is_none() || !node.unschedulable {
        return Some(Step::Cordon(berth.clone()));
    }
    if is_drained(facts) {
        return None;
    }
    match facts.drain.next_pass {
        Some(next) if !next.is_zero() => Some(Step::Wait(WaitReason::Draining, Some(next))),
        _ => Some(Step::Drain),
    }
}

/// Settings of the pool by which pods are moved.
fn settings(facts: &Facts) -> Option<&Drain> {
    match &facts.desired {
        Desired::Member(member) => Some(&member.drain),
        _ => None,
    }
}

/// Says whether no pod is left to move, or none is to be moved.
pub(crate) fn is_drained(facts: &Facts) -> bool {
    facts.drain.done || settings(facts).is_some_and(|drain| !drain.is_enabled())
}

/// Longest time for which the pool has pods waited with.
pub(super) fn drain_limit(facts: &Facts) -> Duration {
    settings(facts).map_or(Duration::ZERO, Drain::timeout)
}

/// Word of the pool on a drain that takes too long, when this one does.
pub(crate) fn overdue(facts: &Facts) -> Option<OnTimeout> {
    let settings = settings(facts)?;
    (!is_drained(facts) && facts.drain.elapsed >= settings.timeout()).then(|| settings.on_timeout())
}

/// The drain has taken so long that the turn ends. Force gets the same time again: what cannot even be deleted must
/// not keep the berth from the others for ever.
pub(super) fn gives_up(facts: &Facts) -> bool {
    match overdue(facts) {
        Some(OnTimeout::Release) => true,
        Some(OnTimeout::Force) => facts.drain.elapsed >= drain_limit(facts).saturating_mul(2),
        Some(OnTimeout::Hold) | None => false,
    }
}

/// Pods that hold up the drain, for people.
pub(crate) fn blockers(facts: &Facts) -> String {
    let who: Vec<_> = facts
        .drain
        .blockers
        .iter()
        .map(|b| format!("{}: {}", b.pod, b.reason))
        .collect();
    format!(
        "after {}s still there: {}",
        drain_limit(facts).as_secs(),
        who.join("; ")
    )
}

/// A reboot would be refused, or would come in the way of one that somebody else has planned, or would not boot what is
/// staged alone.
pub fn is_inhibited(facts: &Facts) -> bool {
    !facts.host.inhibitors.is_empty() || facts.host.shutdown_scheduled || is_next_boot_wrong(facts)
}

/// True if the next boot would take another deployment, or if the kubelet would not start after it.
pub(super) fn is_next_boot_wrong(facts: &Facts) -> bool {
    is_rollback_in_the_way(facts) || facts.host.os.unit_missing().is_some()
}

/// Says whether the next boot would take a deployment in place of the one that runs, and somebody may want that. An image
/// that failed here is what no one wants: the next one that is finalized takes its place.
fn is_rollback_in_the_way(facts: &Facts) -> bool {
    if Bug::RollbackIgnored.is_awake() {
        return false;
    }
    let os = &facts.host.os;
    let failed = |digest: &Digest| facts.past.failed_digests.contains(digest);
    os.is_rollback_queued() && !os.queued_digest().is_some_and(failed)
}

/// Deployment that the next boot takes in place of the one that runs, for people; `None` when there is none.
pub fn rollback_queued(facts: &Facts) -> Option<String> {
    let os = &facts.host.os;
    let what = os
        .queued_digest()
        .map_or("another deployment".to_owned(), ToString::to_string);
    let deployments = os.deployments().filter(|d| d.rollback_queued)?;
    let tool = deployments.backend.name.tool();
    Some(format!(
        "the next boot takes {what} in place of what runs: run `{tool} rollback` on the host to take that back, or reboot it"
    ))
}

/// Inhibitors, for people.
pub fn inhibited(facts: &Facts) -> String {
    if let Some(why) = rollback_queued(facts).filter(|_| is_rollback_in_the_way(facts)) {
        return why;
    }
    if let Some(why) = facts.host.os.unit_missing() {
        return why;
    }
    let mut who = facts.host.inhibitors.clone();
    if facts.host.shutdown_scheduled {
        who.push("a shutdown that is scheduled for later".to_owned());
    }
    format!("shutdown is inhibited by {}", who.join(", "))
}

/// Reason why no reboot may start, as far as windows go; `None` when it may. Without a window no clock is looked at.
pub(crate) fn closed_window(facts: &Facts, open_until: Option<Timestamp>) -> Option<String> {
    let until = open_until?;
    if facts.host.clock_synchronized != Some(true) {
        let advice = "start time synchronisation on the host, or start the agent with --trust-clock";
        return Some(format!(
            "the host's clock is not synchronised, so no window can be judged: {advice}"
        ));
    }
    (facts.now >= until).then(|| format!("the window has closed: a reboot could start until {until}"))
}

/// A reboot that was asked for may be on its way: a lost reply counts as accepted.
pub(super) fn await_reboot(facts: &Facts) -> Option<Step> {
    match facts.host.reboot {
        Reboot::Asked(ago) if ago < REBOOT_GRACE => Some(Step::Wait(
            WaitReason::Rebooting,
            Some(LOOK_AGAIN.min(REBOOT_GRACE.saturating_sub(ago))),
        )),
        _ => None,
    }
}
