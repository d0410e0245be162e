//! Use of the fleet's limit on nodes that are unavailable at once.

use berth_api::seeded::Bug;
use berth_api::{NodeName, PoolName, text};

use crate::controller::usage::{CapacityUse, UseKind};
use crate::text::NAMED;

/// Use of the fleet's limit by the members of all pools. Each node counts once. H: nodes that hold a berth. R: nodes
/// that are offered a berth. U: unavailable nodes. Each pool's plan adds its offers and passes the value to the plan of
/// the next pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FleetUse {
    /// Number of nodes that may be unavailable at once.
    pub limit: usize,
    /// Number of nodes that hold a berth or are offered one: |H ∪ R|.
    pub held_or_offered: usize,
    /// Number of unavailable nodes: |U|.
    pub unavailable: usize,
    /// Number of nodes that use up the limit in any way: |H ∪ U ∪ R|.
    pub all: usize,
    /// The first nodes by name that use up the limit, for messages.
    pub used_by: Vec<CapacityUse>,
    /// Number of open offers that may stay: the limit minus the holders. After the limit is lowered, more offers may be
    /// open; the plans then withdraw the excess offers.
    pub may_stay: usize,
    /// True if a late write may still reach a berth of any pool. Such a write comes from an earlier leader, or from
    /// this leader if its result is unknown.
    pub unfenced: bool,
    /// Pools that cannot be read and have unfenced berths. Such a pool has no plan, so its berths stay unfenced.
    pub unreadable: Vec<PoolName>,
}

impl FleetUse {
    /// True if the fleet's limit allows one more berth (I1). `is_unavailable`: the node is unavailable already.
    pub fn room_for(&self, is_unavailable: bool) -> bool {
        let room = self.held_or_offered < self.limit && (is_unavailable || self.all < self.limit);
        room || Bug::FleetLimitIgnored.is_awake()
    }

    /// Returns the message for a limit that is used up.
    pub fn words(&self) -> String {
        let users = text::names(self.used_by.iter().map(CapacityUse::words), self.all);
        format!(
            "maxUnavailable of BootcFleet cluster is used up, {} of {} over all pools: {users}",
            self.all, self.limit
        )
    }

    /// Returns a message about unfenced berths in pools that cannot be read; `None` if there are none.
    pub fn unfenced_words(&self) -> Option<String> {
        let pools: Vec<&str> = self.unreadable.iter().take(NAMED).map(PoolName::as_str).collect();
        let words = format!(
            "no berth is offered, because an earlier leader may still offer berths of pools that cannot be read: {}; \
             repair these pools (see the controller's log), or remove maxUnavailable from BootcFleet cluster",
            text::names(pools, self.unreadable.len())
        );
        (!self.unreadable.is_empty()).then_some(words)
    }

    /// Counts an open offer that stays. Returns false if the limit has no room for the offer.
    pub fn keep_offer(&mut self) -> bool {
        let left = self.may_stay.checked_sub(1);
        self.may_stay = left.unwrap_or_default();
        left.is_some()
    }

    /// Counts an offer to a node that has no berth yet.
    pub fn offer(&mut self, node: &NodeName, is_unavailable: bool) {
        self.held_or_offered += 1;
        self.all += usize::from(!is_unavailable);
        if self.used_by.len() < NAMED && self.used_by.iter().all(|user| user.who != node.as_str()) {
            let (who, how) = (node.to_string(), UseKind::IsOffered);
            self.used_by.push(CapacityUse { who, how });
        }
    }

    /// True if unavailable nodes use up the whole limit. No available node can then be offered a berth.
    pub fn is_starved(&self) -> bool {
        self.unavailable >= self.limit
    }
}
