//! Pools that are read once more before anything is offered, and what follows when one is not as the watches show it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::PoolName;

use crate::controller::plan::{BerthWrite, Plan};
use crate::controller::pool::Pool;

/// Pools that are read anew before the offers of a pass are made: those in which something is to be offered, and those that
/// go before them.
#[derive(Debug)]
pub struct Rereads<'a> {
    all: &'a [Pool],
    offering: Vec<&'a Pool>,
}

impl<'a> Rereads<'a> {
    /// Pools to read for these plans; `None`: they offer nothing.
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

    /// The pools that offer nothing in this pass. `changed`: those that were read and are no longer as the watches show them,
    /// or could not be read; `fleet_changed`: likewise the fleet. Besides them, and those that go after them, these are all
    /// that were not to offer anything: nobody has read them, and there may be room for them now.
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
