//! Lifecycle conditions of the Node, by which tools that know nothing of Berth see that a node is drained or down on purpose.
//!
//! `MaintenancePlanned` says that an image is staged and the node waits for its turn. The others follow our cordon: what is set
//! under it goes with it. A condition is ours by its reason. One that somebody else
//! has written, True or not, is theirs: it is neither changed nor removed, or two programs would write it in turns. No step
//! depends on any of them.

use berth_api::berth::{Berth, HoldPhase, Holding};

use crate::agent::facts::{Desired, Facts};
use crate::agent::lifecycle::Wanted;
use crate::agent::step::is_drained;

/// Conditions as they should be now, and under which berth. `None` while that is not known, or about to change anyway.
pub fn wanted(facts: &Facts) -> Option<(Wanted, Option<&Berth>)> {
    let node = facts.cluster_node.get()?;
    if node.cordon.is_none() {
        let planned = is_planned(facts, node.excluded);
        return Some(([planned, false, false, false], None));
    }
    let held = |b: &&Berth| b.holding().is_some_and(|h| h.node == facts.node && h.uid == node.uid);
    let berth = facts.berths.iter().flatten().find(held)?;
    let [draining, drained] = drain(facts, berth.holding()?)?;
    let Desired::Member(member) = &facts.desired else {
        return None;
    };
    // Without a drain there is none in progress, and none that has ended.
    let drains = member.drain.is_enabled();
    node.unschedulable
        .then_some(([false, drains && draining, drains && drained, true], Some(berth)))
}

/// True if the image that is published for the node is staged and does not run yet, so that the node will be drained and
/// rebooted when its turn comes.
fn is_planned(facts: &Facts, excluded: bool) -> bool {
    let Some(desired) = facts.desired.digest().filter(|_| !excluded) else {
        return false;
    };
    let os = &facts.host.os;
    let is_staged = os
        .staged()
        .is_some_and(|staged| staged.digest.as_ref() == Some(desired));
    is_staged && os.booted() != Some(desired) && !facts.past.failed_digests.contains(desired)
}

/// Says whether pods are being moved, and whether they are gone; `None` when the turn is about to end.
fn drain(facts: &Facts, holding: &Holding) -> Option<[bool; 2]> {
    match holding.phase {
        // After the boot nothing says it any more but this.
        HoldPhase::Committed => Some([false, true]),
        HoldPhase::Taken if holding.boot_id == facts.host.boot_id => {
            let drained = is_drained(facts);
            Some([!drained, drained])
        }
        // A boot that nobody licensed has ended the drain.
        HoldPhase::Taken => Some([false, false]),
        HoldPhase::Releasing(_) => None,
    }
}
