//! The host's rollback guard: it rolls the host back if no agent proves the new image in time. So it also helps if the
//! agent, the kubelet or the network does not work under that image.
//!
//! The guard is a script that systemd starts at each boot. Before a reboot, the agent leaves an [`Order`] for it on the
//! host: that arms the guard. To disarm it, the agent renames the order. The guard renames the order too before it
//! rolls back, so only one of the two can succeed. [`duty`] decides what the agent does before a step, and [`fires`] is
//! the script's rule in Rust, for the model checker.

use std::fmt::Write as _;
use std::time::Duration;

use berth_api::backend::Backend;
use berth_api::berth::HoldPhase;
use berth_api::digest::Digest;
use berth_api::names::BootId;
use berth_api::pool::{Health, OnFailure};
use berth_api::seeded::Bug;

use crate::agent::facts::{AgentFacts, Deployments, Desired, Os, RollbackGuard};
use crate::agent::step::Step;

/// Limits of the extra time that the guard waits after `health.deadline` and `soakTime`.
const MARGIN_MIN: Duration = Duration::from_secs(3);
const MARGIN_MAX: Duration = Duration::from_secs(60);

/// Order for the guard. The agent writes it to the host before a reboot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Tool that rolls the host back.
    pub backend: Backend,
    /// Digest that the next boot should run. The guard acts only on a boot of this image.
    pub target: Digest,
    /// Digest that the guard rolls back to: the image that is proven and runs now.
    pub previous: Digest,
    /// ostree commits of the target and the previous image; `None` on a composefs host.
    pub commits: Option<(String, String)>,
    /// ID of the boot that the agent reboots from. The guard does nothing under this boot.
    pub boot_id: BootId,
    /// How long the guard waits for the proof, from the start of the guard. The wait begins again when an agent starts
    /// for the first time in the new boot.
    pub limit: Duration,
}

impl Order {
    /// Returns the order as lines `key=value`, as the script reads it. `api_server`: host and port of the API server,
    /// which the agent has just reached.
    pub fn text(&self, api_server: Option<(&str, u16)>) -> String {
        let mut text = format!(
            "backend={}\ntarget={}\nprevious={}\nboot={}\nlimit={}\n",
            self.backend.tool(),
            self.target,
            self.previous,
            self.boot_id,
            self.limit.as_secs()
        );
        if let Some((target, previous)) = &self.commits {
            let _ = write!(text, "target_commit={target}\nprevious_commit={previous}\n");
        }
        if let Some((host, port)) = api_server {
            let _ = write!(text, "api_host={host}\napi_port={port}\n");
        }
        text
    }
}

/// Action of the agent on the guard before a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Duty {
    /// No action.
    None,
    /// Arm the guard with this order.
    Arm(Order),
    /// Disarm the guard. If the guard has already fired, the agent must not perform the step.
    Disarm,
}

/// True if the guard may be armed: the pool allows a rollback of unproven boots, and Berth can update the host.
pub fn is_wanted(desired: &Desired, os: &Os) -> bool {
    let can_update = os.deployments().is_some_and(|known| known.refusal.is_none());
    can_update && wants_rollback(desired) == Some(true)
}

/// True if the node is in a pool whose `health.onFailure` allows a rollback. `None` if the BootcNode has not been read.
fn wants_rollback(desired: &Desired) -> Option<bool> {
    match desired {
        Desired::Unknown => None,
        Desired::Release => Some(false),
        Desired::Member(member) => Some(member.health.on_failure() != OnFailure::Hold),
    }
}

/// Decides what the agent does about the guard before this step. Before an unlock or a reboot, the agent arms the
/// guard. Before the agent gives the berth back, commits it again, or rolls the host back itself, it disarms the guard.
pub fn duty(facts: &AgentFacts, step: &Step) -> Duty {
    match step {
        Step::Unlock | Step::Reboot => order(facts).map_or(Duty::Disarm, Duty::Arm),
        Step::Release(..) | Step::GiveBack(_) | Step::Rollback(..) | Step::Relicense(..)
            if !Bug::GuardLeftArmed.is_awake() =>
        {
            Duty::Disarm
        }
        _ if is_left_over(facts) || is_refused(facts) => Duty::Disarm,
        _ => Duty::None,
    }
}

/// True if the guard is armed although the node holds no berth, for example because an admin deleted the Lease.
fn is_left_over(facts: &AgentFacts) -> bool {
    let holds_none = facts.berths.is_some() && facts.holding().is_none();
    holds_none && facts.host.rollback_guard == RollbackGuard::Armed && !Bug::GuardLeftArmed.is_awake()
}

/// True if the guard is armed, but the node has left its pool or its pool no longer allows a rollback.
fn is_refused(facts: &AgentFacts) -> bool {
    facts.host.rollback_guard == RollbackGuard::Armed && wants_rollback(&facts.desired) == Some(false)
}

/// Returns the order for the next boot. `None` in the cases where the guard must not roll that boot back: the berth is
/// not committed, the target is not staged, the running image is not proven, the agent is undoing the running boot, or
/// the pool allows no rollback.
fn order(facts: &AgentFacts) -> Option<Order> {
    let Desired::Member(member) = &facts.desired else {
        return None;
    };
    let holding = facts.holding().filter(|held| held.phase == HoldPhase::Committed)?;
    let known = facts.host.os.deployments()?;
    let previous = holding.from.as_ref()?;
    let is_proven = known.booted.digest.as_ref() == Some(previous) || Bug::GuardToAny.is_awake();
    let staged = known.staged.as_ref().and_then(|staged| staged.digest.as_ref());
    if !is_wanted(&facts.desired, &facts.host.os) || facts.undoes_boot() || !is_proven {
        return None;
    }
    if staged != Some(&holding.target) {
        return None;
    }
    Some(Order {
        backend: known.backend.name,
        target: holding.target.clone(),
        previous: known.booted.digest.clone()?,
        commits: commits(known),
        boot_id: facts.host.boot_id.clone(),
        limit: limit(&member.health),
    })
}

fn commits(known: &Deployments) -> Option<(String, String)> {
    known.staged_commit.clone().zip(known.booted_commit.clone())
}

/// Returns how long the guard waits: `health.deadline` plus `soakTime` plus some extra time. A working agent normally
/// decides earlier than the guard.
fn limit(health: &Health) -> Duration {
    let deadline = health.deadline();
    let margin = (deadline / 5).clamp(MARGIN_MIN, MARGIN_MAX);
    deadline.saturating_add(health.soak_time()).saturating_add(margin)
}

/// Action of the guard at the end of its wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fire {
    /// Nothing: the host does not run the target, or cannot go back to the previous image.
    No,
    /// Make the next boot take the previous image, then reboot.
    Queue,
    /// Reboot: the next boot takes the previous image already.
    Reboot,
}

/// Decides the guard's action at the end of its wait. `next` is the image that the next boot takes. `deployed` is true
/// if the host has the previous image as its rollback deployment.
pub fn fires<I: PartialEq>(target: &I, previous: &I, booted: &I, next: &I, deployed: bool) -> Fire {
    if booted != target || !deployed {
        return Fire::No;
    }
    if next == previous { Fire::Reboot } else { Fire::Queue }
}

#[cfg(test)]
mod tests;
