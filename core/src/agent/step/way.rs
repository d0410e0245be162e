//! Checks before a reboot: the window, the cordon, the drain, inhibitors. After them, with a committed berth: fence,
//! unlock, verify, reboot.
//!
//! [`super::turn`] starts from a proven boot, so it can end the turn if a check fails. [`super::boot`] starts from an
//! unproven boot, so it cannot end the turn and waits until the check succeeds.

use std::time::Duration;

use berth_api::berth::{Berth, Holding};
use berth_api::node::Deployment;
use berth_api::pool::{Drain, OnTimeout};
use berth_api::seeded::Bug;
use jiff::Timestamp;

use super::action::{LOOK_INTERVAL, REBOOT_RETRY_INTERVAL, REBOOT_START_TIMEOUT, Step, WaitReason};
use crate::agent::facts::{AgentFacts, Desired, Reboot};
use crate::agent::node::NodeFacts;
use crate::agent::outside;

/// Why a node must not reboot now. The agent checks for obstacles before the commit. Because the commit may be old, the
/// agent checks for them again before the reboot.
#[expect(clippy::large_enum_variant, reason = "one lives for a moment in each decision")]
pub(super) enum Obstacle {
    /// The maintenance window is closed, or cannot be checked. Holds the message.
    WindowClosed(String),
    /// The node is not cordoned or not drained yet. Holds the next step to cordon or drain the node.
    NotClear(Step),
    /// A reboot is blocked, for example by an inhibitor. Holds the message.
    Inhibited(String),
    /// No obstacle: the reboot may start.
    None,
}

pub(super) fn obstacle(facts: &AgentFacts, berth: &Berth, holding: &Holding, node: &NodeFacts) -> Obstacle {
    // The agent checks the window too, since the controller may be down.
    if let Some(why) = closed_window(facts, holding.open_until) {
        return Obstacle::WindowClosed(why);
    }
    if let Some(step) = cordon_or_drain(facts, berth, node) {
        return Obstacle::NotClear(step);
    }
    if is_inhibited(facts) {
        return Obstacle::Inhibited(inhibited(facts));
    }
    Obstacle::None
}

/// Returns the next step with a committed berth: fence, unlock, reboot. The caller has just checked that no obstacle is
/// left, and that the berth is for this Node UID, digest and boot ID (I2).
pub(super) fn use_licence(facts: &AgentFacts, berth: &Berth, staged: &Deployment) -> Step {
    // I2, I3: an earlier write that takes the commit back may still be in flight. After the fence, the API server
    // rejects that write.
    if !facts.fenced {
        return Step::Fence(berth.clone());
    }
    if staged.locked { Step::Unlock } else { Step::Reboot }
}

/// Returns the next step to cordon or drain the node; `None` if the node is cordoned and drained.
fn cordon_or_drain(facts: &AgentFacts, berth: &Berth, node: &NodeFacts) -> Option<Step> {
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

fn drain_settings(facts: &AgentFacts) -> Option<&Drain> {
    match &facts.desired {
        Desired::Member(member) => Some(&member.drain),
        _ => None,
    }
}

/// True if the node has no pod left to evict, or the pool disables draining.
pub(crate) fn is_drained(facts: &AgentFacts) -> bool {
    facts.drain.done || drain_settings(facts).is_some_and(|drain| !drain.is_enabled())
}

pub(super) fn drain_limit(facts: &AgentFacts) -> Duration {
    drain_settings(facts).map_or(Duration::ZERO, Drain::timeout)
}

/// Returns the pool's `drain.onTimeout` if the drain has lasted longer than its timeout; `None` otherwise.
pub(crate) fn overdue(facts: &AgentFacts) -> Option<OnTimeout> {
    let settings = drain_settings(facts)?;
    (!is_drained(facts) && facts.drain.elapsed >= settings.timeout()).then(|| settings.on_timeout())
}

/// True if the turn must end because its drain takes too long. The limit is the drain's timeout if `drain.onTimeout` is
/// `Release`, and twice the timeout if it is `Force`; `Hold` has no limit. Without a limit, a pod that cannot be
/// deleted would keep the berth from other nodes forever.
pub(super) fn is_drain_given_up(facts: &AgentFacts) -> bool {
    match overdue(facts) {
        Some(OnTimeout::Release) => true,
        Some(OnTimeout::Force) => facts.drain.elapsed >= drain_limit(facts).saturating_mul(2),
        Some(OnTimeout::Hold) | None => false,
    }
}

pub(crate) fn blockers(facts: &AgentFacts) -> String {
    let who: Vec<_> = facts
        .drain
        .blockers
        .iter()
        .map(|b| format!("{}: {}", b.pod, b.reason))
        .collect();
    format!(
        "pods still on the node after {}s: {}",
        drain_limit(facts).as_secs(),
        who.join("; ")
    )
}

/// True if the host must not reboot now. An inhibitor or a scheduled shutdown blocks the reboot, the next boot would
/// take another deployment, or the kubelet would not start in the next boot.
pub fn is_inhibited(facts: &AgentFacts) -> bool {
    !facts.host.inhibitors.is_empty() || facts.host.shutdown_scheduled || is_next_boot_wrong(facts)
}

/// True if the next boot would not take the staged image, or a unit such as the kubelet would not start in that boot.
pub(super) fn is_next_boot_wrong(facts: &AgentFacts) -> bool {
    is_rollback_in_the_way(facts) || facts.host.os.unit_missing().is_some()
}

/// True if the next boot takes another deployment, perhaps because a person chose it. False if the agent itself queued
/// the deployment, if its digest failed on this node, or if the host has already fallen back from it or rolled it back.
fn is_rollback_in_the_way(facts: &AgentFacts) -> bool {
    if Bug::RollbackIgnored.is_awake() {
        return false;
    }
    let os = &facts.host.os;
    let queued = os.queued_digest();
    let has_failed = queued.is_some_and(|digest| facts.past.failed_digests.contains(digest));
    os.is_rollback_queued() && !has_failed && !outside::is_left_first(facts) && !facts.has_queued_undo()
}

/// Returns a message if the next boot takes another deployment than the booted one. `None` for a rollback that the
/// agent itself queued.
pub fn rollback_queued(facts: &AgentFacts) -> Option<String> {
    if facts.has_queued_undo() {
        return None;
    }
    let os = &facts.host.os;
    let what = os
        .queued_digest()
        .map_or("another deployment".to_owned(), ToString::to_string);
    let deployments = os.deployments().filter(|d| d.rollback_queued)?;
    let tool = deployments.backend.name.tool();
    Some(format!(
        "the next boot takes {what} instead of the booted image. To undo that, run `{tool} rollback` on the host; to accept it, \
         reboot the host"
    ))
}

/// Returns why the host must not reboot now. Called only if [`is_inhibited`] is true.
pub fn inhibited(facts: &AgentFacts) -> String {
    if let Some(why) = rollback_queued(facts).filter(|_| is_rollback_in_the_way(facts)) {
        return why;
    }
    if let Some(why) = facts.host.os.unit_missing() {
        return why;
    }
    let mut who = facts.host.inhibitors.clone();
    if facts.host.shutdown_scheduled {
        who.push("a scheduled shutdown".to_owned());
    }
    format!("the reboot is blocked by {}", who.join(", "))
}

/// Returns a message if the maintenance window has closed or cannot be checked; `None` if the reboot may start.
/// `open_until` is the deadline for the start of the reboot.
pub(crate) fn closed_window(facts: &AgentFacts, open_until: Option<Timestamp>) -> Option<String> {
    let until = open_until?;
    if facts.host.clock_synchronized != Some(true) {
        let advice = "start time synchronization on the host, or start the agent with --trust-clock";
        return Some(format!(
            "the host's clock is not synchronized, so the maintenance window cannot be checked: {advice}"
        ));
    }
    (facts.now >= until).then(|| format!("the maintenance window has closed: a reboot could start until {until}"))
}

/// Returns a wait if a reboot was requested and may still begin; `None` otherwise. A reboot may begin even if logind
/// did not answer the request.
pub(super) fn await_reboot(facts: &AgentFacts) -> Option<Step> {
    match facts.host.reboot {
        Reboot::Asked(ago) if ago < REBOOT_START_TIMEOUT => Some(Step::Wait(
            WaitReason::Rebooting,
            Some(LOOK_INTERVAL.min(REBOOT_START_TIMEOUT.saturating_sub(ago))),
        )),
        _ => None,
    }
}

/// Returns why a requested reboot did not begin. `None` if no reboot was requested, or it is time to request it again.
pub(super) fn reboot_held_up(facts: &AgentFacts) -> Option<String> {
    match &facts.host.reboot {
        Reboot::NotAsked => None,
        Reboot::Blocked { why, ago } => (*ago < REBOOT_RETRY_INTERVAL).then(|| why.clone()),
        Reboot::Asked(ago) => (*ago < REBOOT_START_TIMEOUT + REBOOT_RETRY_INTERVAL)
            .then(|| "logind accepted the reboot, but no shutdown began".to_owned()),
    }
}
