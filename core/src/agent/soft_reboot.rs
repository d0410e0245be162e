//! Whether the next reboot of a turn is a soft reboot, which restarts only the userspace.

use berth_api::backend::Backend;
use berth_api::berth::HoldPhase;
use berth_api::pool::RebootPolicy;

use crate::agent::facts::{AgentFacts, Desired};
use crate::agent::step::is_unproven;

/// True if the next reboot of the turn is a soft reboot. The pool must allow soft reboots, and the host and the staged
/// image must support them. The agent leaves an unproven boot only by a full reboot.
pub fn is_chosen(facts: &AgentFacts) -> bool {
    let Desired::Member(member) = &facts.desired else {
        return false;
    };
    let Some(holding) = facts.holding().filter(|held| held.phase == HoldPhase::Committed) else {
        return false;
    };
    let Some(known) = facts.host.os.deployments() else {
        return false;
    };
    let staged = known.staged.as_ref();
    let is_capable = staged.is_some_and(|staged| {
        staged.soft_reboot_capable && !staged.locked && staged.digest.as_ref() == Some(&holding.target)
    });
    let is_supported = known.backend.name == Backend::Bootc && facts.host.soft_reboots.supported;
    let leaves_unproven = facts.undoes_boot() || is_unproven(holding, &facts.host.boot_id, &facts.host.os, &facts.past);
    member.reboot_policy == RebootPolicy::AllowSoftReboot && is_capable && is_supported && !leaves_unproven
}

#[cfg(test)]
mod tests;
