//! Pools that are read again before any offer. If one has changed, some offers are dropped. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::PoolName;

use crate::controller::plan::{BerthWrite, Plan};
use crate::controller::pool::Pool;

/// Pools to read again before the offers of a pass: those with offers, and those that go before them.
#[derive(Debug)]
pub struct Rereads<'a> {
    all: &'a [Pool],
    offering: Vec<&'a Pool>,
}

impl<'a> Rereads<'a> {
    /// Returns the pools to read for these plans; `None` if no plan makes an offer.
    pub fn of(all: &'a [Pool], plans: &BTreeMap<PoolName, Plan>) -> Option<Self> {
        let offering = all.iter().filter(|pool| {
            let plan = plans.get(&pool.name);
            plan.is_some_and(|plan| plan.writes.iter().any(BerthWrite::is_offer))
        });
        let offering: Vec<&Pool> = offering.collect();
        (!offering.is_empty()).then_some(Self { all, offering })
    }

    /// The pools to read.
    pub fn pools(&self) -> Vec<&'a Pool> {
        let read = self
            .all
            .iter()
            .filter(|pool| self.offers(&pool.name) || self.goes_first(&pool.name));
        read.collect()
    }

    /// True if a pool with offers comes after the pool.
    fn goes_first(&self, name: &PoolName) -> bool {
        self.offering.iter().any(|later| later.comes_after(name))
    }

    fn offers(&self, name: &PoolName) -> bool {
        self.offering.iter().any(|pool| pool.name == *name)
    }

    /// Returns the pools that must offer nothing in this pass. `changed`: pools that were read and differ from the
    /// watches, or could not be read. `fleet_changed`: the same for the fleet. Pools after a changed one are included.
    /// So are all pools without a planned offer: they were not read again, and the change may have made room for them.
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
