//! Pools to read again from the API server before offers are written. If a pool has changed since the last watch event,
//! some offers are dropped. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::PoolName;

use crate::controller::plan::{BerthWrite, Plan};
use crate::controller::pool::Pool;

/// Pools to read again before a pass writes its offers: pools with offers, and the pools in their `rollout.after`.
#[derive(Debug)]
pub struct Rereads<'a> {
    all: &'a [Pool],
    offering: Vec<&'a Pool>,
}

impl<'a> Rereads<'a> {
    /// Returns the pools to read again for these plans; `None` if no plan makes an offer.
    pub fn of(all: &'a [Pool], plans: &BTreeMap<PoolName, Plan>) -> Option<Self> {
        let offering = all.iter().filter(|pool| {
            let plan = plans.get(&pool.name);
            plan.is_some_and(|plan| plan.writes.iter().any(BerthWrite::is_offer))
        });
        let offering: Vec<&Pool> = offering.collect();
        (!offering.is_empty()).then_some(Self { all, offering })
    }

    /// Returns the pools to read.
    pub fn pools(&self) -> Vec<&'a Pool> {
        let read = self
            .all
            .iter()
            .filter(|pool| self.offers(&pool.name) || self.goes_first(&pool.name));
        read.collect()
    }

    fn goes_first(&self, name: &PoolName) -> bool {
        self.offering.iter().any(|later| later.comes_after(name))
    }

    fn offers(&self, name: &PoolName) -> bool {
        self.offering.iter().any(|pool| pool.name == *name)
    }

    /// Returns the pools that must offer nothing in this pass; empty if no object has changed. After a change, returns
    /// the changed pools, the pools that wait for a changed pool, and the pools without a planned offer. The last group
    /// may have changed unnoticed, and could otherwise use the capacity that dropped offers leave.
    ///
    /// `changed`: pools that differ from the watches or could not be read. `fleet_changed`: true if the BootcFleet
    /// differs or could not be read, so that no pool may offer anything.
    pub fn closed(&self, changed: &BTreeSet<PoolName>, fleet_changed: bool) -> BTreeSet<PoolName> {
        if changed.is_empty() && !fleet_changed {
            return BTreeSet::new();
        }
        let closed = self.all.iter().filter(|pool| {
            fleet_changed
                || !self.offers(&pool.name)
                || changed.contains(&pool.name)
                || changed.iter().any(|name| pool.comes_after(name))
        });
        closed.map(|pool| pool.name.clone()).collect()
    }
}
