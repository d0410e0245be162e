//! The controllers' counts of their offers. Each controller has one set of the nodes that had the most offers, because
//! the plan needs only the order of the counts.

use crate::number::{Image, Number};
use crate::set::Set;
use crate::state::{Berth, State};

/// Updates the set of nodes that had the most offers of the target, after a controller's write of a berth.
pub fn count(offered: &mut Set, before: &Berth, after: &Berth, target: Image) {
    let (Berth::Closed(_), Berth::Offered(offer)) = (before, after) else {
        return;
    };
    if offer.target != target {
        return;
    }
    if offered.has(offer.node) {
        // The node has had more offers than the others now.
        *offered = Set::default();
    }
    offered.add(offer.node);
}

/// Makes the controllers forget the offers to an updated node, to keep the number of states small. The node needs
/// another offer only after a retry or a change of the target, and then all offers are forgotten.
pub fn forget_updated(state: &mut State, node: usize, target: Image) {
    if state.nodes[node].host.booted == target {
        for controller in &mut state.controllers {
            controller.offered.drop(node as Number);
        }
    }
}

/// Makes the controllers forget all offers, because the target has changed or an admin requested a retry.
pub fn forget(state: &mut State) {
    for controller in &mut state.controllers {
        controller.offered = Set::default();
    }
}
