//! Use of the fleet's limit on nodes that are unavailable at once.

use berth_api::seeded::Bug;
use berth_api::{NodeName, PoolName, text};

use crate::controller::usage::{CapacityUse, UseKind};
use crate::text::NAMED;

/// Use of the fleet's limit: the sets H, R and U over the members of all pools, each node counted once. It is passed
/// from the plan of one pool to the next, so that each plan counts the offers of those before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FleetUse {
    /// Number of nodes that may be unavailable at once.
    pub limit: usize,
    /// |H ∪ R|
    pub held_or_offered: usize,
    /// |U|
    pub unavailable: usize,
    /// |H ∪ U ∪ R|
    pub all: usize,
    /// The first nodes in these sets, by name.
    pub used_by: Vec<CapacityUse>,
    /// Number of open offers that may stay if the limit was lowered: holders come first.
    pub may_stay: usize,
    /// True if a write of another leader, or one of unknown result, may still arrive at a berth of any pool.
    pub unfenced: bool,
    /// Pools of unfenced berths that cannot be read, so that no plan fences them.
    pub unreadable: Vec<PoolName>,
}

impl FleetUse {
    /// I1 over all pools: true if one more berth may be opened, for a node that is or is not unavailable already.
    pub fn room_for(&self, is_unavailable: bool) -> bool {
        let room = self.held_or_offered < self.limit && (is_unavailable || self.all < self.limit);
        room || Bug::FleetLimitIgnored.is_awake()
    }

    /// Message for a limit that is used up.
    pub fn words(&self) -> String {
        let users = text::names(self.used_by.iter().map(CapacityUse::words), self.all);
        format!(
            "maxUnavailable of BootcFleet cluster is used up, {} of {} over all pools: {users}",
            self.all, self.limit
        )
    }

    /// Message for unfenced berths whose pools cannot be read.
    pub fn unfenced_words(&self) -> Option<String> {
        let pools: Vec<&str> = self.unreadable.iter().take(NAMED).map(PoolName::as_str).collect();
        let words = format!(
            "an earlier leader may still offer berths of pools that cannot be read: {}; repair these pools (see the \
             controller's log), or remove maxUnavailable from BootcFleet cluster",
            text::names(pools, self.unreadable.len())
        );
        (!self.unreadable.is_empty()).then_some(words)
    }

    /// Keeps an open offer. False if the offer is one too many.
    pub fn keep_offer(&mut self) -> bool {
        let left = self.may_stay.checked_sub(1);
        self.may_stay = left.unwrap_or_default();
        left.is_some()
    }

    /// Counts an offer to a node without a berth.
    pub fn offer(&mut self, node: &NodeName, is_unavailable: bool) {
        self.held_or_offered += 1;
        self.all += usize::from(!is_unavailable);
        if self.used_by.len() < NAMED && self.used_by.iter().all(|user| user.who != node.as_str()) {
            let (who, how) = (node.to_string(), UseKind::IsOffered);
            self.used_by.push(CapacityUse { who, how });
        }
    }

    /// True if unavailable nodes use up the whole limit: no other node can be offered a berth until one of them
    /// recovers.
    pub fn is_starved(&self) -> bool {
        self.unavailable >= self.limit
    }
}
