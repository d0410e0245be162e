//! Lifecycle conditions that the Node should have. They show tools that do not know Berth that a node is drained or
//! down on purpose; no step depends on them. A condition that another program wrote, True or not, is neither changed
//! nor removed; otherwise the two programs would overwrite each other.
//!
//! `MaintenancePlanned` means that an image is staged and the node waits for its turn. The other conditions exist only
//! while Berth's cordon is on the node.

use berth_api::berth::{Berth, HoldPhase, Holding};

use crate::agent::facts::{AgentFacts, Desired};
use crate::agent::lifecycle::Wanted;
use crate::agent::step::is_drained;

/// Returns the Node's conditions and the berth they belong to; `None` while unknown or about to change.
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
    // With draining disabled, no drain is in progress or finished.
    let drains = member.drain.is_enabled();
    node.unschedulable
        .then_some(([false, drains && draining, drains && drained, true], Some(berth)))
}

/// True if the published image is staged and not booted yet, so that a turn will drain and reboot the node.
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

/// Returns whether the drain is in progress, and whether it is finished; `None` when the turn is about to end.
fn drain(facts: &AgentFacts, holding: &Holding) -> Option<[bool; 2]> {
    match holding.phase {
        // After the reboot, only the commit shows that the drain finished.
        HoldPhase::Committed => Some([false, true]),
        HoldPhase::Taken if holding.boot_id == facts.host.boot_id => {
            let drained = is_drained(facts);
            Some([!drained, drained])
        }
        // An unlicensed reboot ended the drain.
        HoldPhase::Taken => Some([false, false]),
        HoldPhase::Releasing(_) => None,
    }
}
