//! Use of the fleet's limit on nodes that are unavailable at once.

use berth_api::seeded::Bug;
use berth_api::{NodeName, PoolName, text};

use crate::controller::usage::{How, Use};
use crate::text::NAMED;

/// Use of the fleet's limit: the sets H, R and U over the members of all pools, each node counted once. The plans of all
/// pools hand it on, so that what one offers the next one counts.
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
    /// The first of all these, by name.
    pub used_by: Vec<Use>,
    /// Number of open offers that may stay, when the limit has become smaller: the holders come first.
    pub may_stay: usize,
    /// A write of another leader, or one of unknown fate, could still land on a berth of any pool.
    pub unfenced: bool,
    /// The pools of these berths that cannot be read, so that nobody fences them.
    pub unreadable: Vec<PoolName>,
}

impl FleetUse {
    /// I1 over all pools: whether one more berth may be opened, for a node that is unavailable already or is not.
    pub fn room_for(&self, is_unavailable: bool) -> bool {
        let room = self.held_or_offered < self.limit && (is_unavailable || self.all < self.limit);
        room || Bug::FleetLimitIgnored.is_awake()
    }

    /// For people, when it is used up.
    pub fn words(&self) -> String {
        let users = text::names(self.used_by.iter().map(Use::words), self.all);
        format!(
            "maxUnavailable of BootcFleet cluster is used up, {} of {} over all pools: {users}",
            self.all, self.limit
        )
    }

    /// For people, when berths stay unfenced because nobody can read their pools.
    pub fn unfenced_words(&self) -> Option<String> {
        let pools: Vec<&str> = self.unreadable.iter().take(NAMED).map(PoolName::as_str).collect();
        let words = format!(
            "BootcFleet cluster has a limit, and a former leader may still offer berths of pools that cannot be read: {}; \
             mend them (the controller's log says what is wrong), or take maxUnavailable out of BootcFleet cluster",
            text::names(pools, self.unreadable.len())
        );
        (!self.unreadable.is_empty()).then_some(words)
    }

    /// Keeps an open offer, or says that it is one too many.
    pub fn keep_offer(&mut self) -> bool {
        let left = self.may_stay.checked_sub(1);
        self.may_stay = left.unwrap_or_default();
        left.is_some()
    }

    /// Counts an offer to a node that had no berth.
    pub fn offer(&mut self, node: &NodeName, is_unavailable: bool) {
        self.held_or_offered += 1;
        self.all += usize::from(!is_unavailable);
        if self.used_by.len() < NAMED && self.used_by.iter().all(|user| user.who != node.as_str()) {
            let (who, how) = (node.to_string(), How::IsOffered);
            self.used_by.push(Use { who, how });
        }
    }

    /// Says whether nodes that are unavailable use up the whole limit: nobody else can be offered a berth before one of them
    /// is repaired.
    pub fn is_starved(&self) -> bool {
        self.unavailable >= self.limit
    }
}
