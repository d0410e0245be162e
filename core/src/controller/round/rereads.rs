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
        let offers = |pool: &&Pool| {
            let plan = plans.get(&pool.name);
            plan.is_some_and(|plan| plan.writes.iter().any(BerthWrite::is_offer))
        };
        let offering: Vec<&Pool> = all.iter().filter(offers).collect();
        (!offering.is_empty()).then_some(Self { all, offering })
    }

    /// The pools to read.
    pub fn pools(&self) -> Vec<&'a Pool> {
        let goes_first = |pool: &Pool| self.offering.iter().any(|later| later.comes_after(&pool.name));
        let is_read = |pool: &&Pool| self.offers(&pool.name) || goes_first(pool);
        self.all.iter().filter(is_read).collect()
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
        let is_sure = |pool: &&Pool| {
            let waits = || changed.iter().any(|name| pool.comes_after(name));
            !fleet_changed && self.offers(&pool.name) && !changed.contains(&pool.name) && !waits()
        };
        let names = self.all.iter().filter(|pool| !is_sure(pool));
        names.map(|pool| pool.name.clone()).collect()
    }
}
