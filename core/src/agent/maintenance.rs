//! Decides which lifecycle conditions a Node should have. They show other tools that the node is drained or down on
//! purpose; no step of Berth depends on them. If another program wrote such a condition, the agent leaves it as it is.
//! Otherwise the two programs would overwrite each other's values.
//!
//! `MaintenancePlanned` means that an image is staged and the node waits for its turn. The other conditions exist only
//! while Berth's cordon is on the Node.

use berth_api::berth::{Berth, HoldPhase, Holding};

use crate::agent::facts::{AgentFacts, Desired};
use crate::agent::lifecycle::Wanted;
use crate::agent::step::is_drained;

/// Returns the conditions that the Node should have, and the berth that the node holds, if any. `None` while the state
/// of the turn is unknown or about to change.
pub fn wanted(facts: &AgentFacts) -> Option<(Wanted, Option<&Berth>)> {
    let node = facts.cluster_node.get()?;
    if node.cordon.is_none() {
        let planned = is_planned(facts, node.excluded);
        return Some(([planned, false, false, false], None));
    }
    let berths = facts.berths.iter().flatten();
    let mut held = berths.filter_map(|berth| Some((berth, berth.holding()?)));
    let (berth, holding) = held.find(|(_, holding)| holding.node == facts.node && holding.uid == node.uid)?;
    let [draining, drained] = drain(facts, holding)?;
    let Desired::Member(member) = &facts.desired else {
        return None;
    };
    // In a pool that disables draining, the Node never gets the conditions about the drain.
    let drains = member.drain.is_enabled();
    node.unschedulable
        .then_some(([false, drains && draining, drains && drained, true], Some(berth)))
}

/// True if the published image is staged but not booted yet, so that the node will be drained and rebooted.
fn is_planned(facts: &AgentFacts, excluded: bool) -> bool {
    let Some(desired) = facts.desired.digest().filter(|_| !excluded) else {
        return false;
    };
    let os = &facts.host.os;
    let is_staged = os
        .staged()
        .is_some_and(|staged| staged.digest.as_ref() == Some(desired));
    is_staged && os.booted() != Some(desired) && !facts.past.failed_digests.contains(desired)
}

/// Returns two flags: true if the drain is in progress, and true if the drain is finished. `None` if the turn is about
/// to end.
fn drain(facts: &AgentFacts, holding: &Holding) -> Option<[bool; 2]> {
    match holding.phase {
        // After the reboot, the agent no longer knows how far the drain got. The commit shows that the drain had
        // finished.
        HoldPhase::Committed => Some([false, true]),
        HoldPhase::Taken if holding.boot_id == facts.host.boot_id => {
            let drained = is_drained(facts);
            Some([!drained, drained])
        }
        // The host has rebooted without a commit, which ended the drain.
        HoldPhase::Taken => Some([false, false]),
        HoldPhase::Releasing(_) => None,
    }
}
