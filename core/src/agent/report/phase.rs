use berth_api::berth::{HoldPhase, Holding};
use berth_api::node::Phase;

use crate::agent::facts::AgentFacts;
use crate::agent::step::{Step, WaitReason, is_unproven};

/// Returns the node's phase. It is for people and metrics. No decision depends on it.
pub fn phase(facts: &AgentFacts, step: &Step) -> Phase {
    if let Some(holding) = facts.holding() {
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
        // A guard probe without an answer counts as a problem only after several probes.
        Step::Wait(WaitReason::Unguarded, _) => waiting(facts),
        Step::Wait(WaitReason::Pulling, _) | Step::StartPull(..) | Step::Lock(_) => Phase::Staging,
        Step::Wait(WaitReason::NoBerth | WaitReason::ForeignBerth | WaitReason::Inhibited, _) | Step::Take(_) => {
            Phase::Waiting
        }
        Step::Wait(WaitReason::BackingOff, _) => waiting(facts),
        _ => Phase::Pending,
    }
}

/// True if the node can continue only after an admin or another program has fixed a problem, or after the pool has
/// published another image.
pub(super) fn is_blocked(facts: &AgentFacts, step: &Step) -> bool {
    match step {
        Step::Wait(WaitReason::Unguarded, _) => facts.guard.is_reportable(),
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

fn waiting(facts: &AgentFacts) -> Phase {
    if is_staged(facts) {
        Phase::Waiting
    } else {
        Phase::Pending
    }
}

/// True if the agent will reboot into the staged image. The berth must be committed under this boot, and its target
/// must be staged unless the deployments are unknown.
fn is_licensed(facts: &AgentFacts, holding: &Holding) -> bool {
    let is_gone = facts.host.os.deployments().is_some_and(|known| {
        let staged = known.staged.as_ref().and_then(|staged| staged.digest.as_ref());
        staged != Some(&holding.target)
    });
    holding.boot_id == facts.host.boot_id && holding.phase == HoldPhase::Committed && !is_gone
}

pub(super) fn is_staged(facts: &AgentFacts) -> bool {
    let staged = facts.desired.digest().and_then(|digest| facts.staged_whole(digest));
    staged.is_some_and(|s| s.locked)
}
