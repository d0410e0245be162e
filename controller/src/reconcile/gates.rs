//! Between phases 5 and 6 of a pass: evaluates the gates of every pool.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::PoolName;
use berth_core::controller::gates::Gates;
use berth_core::controller::pool::Pool;

use super::phases::Observed;
use super::reconciler::Reconciler;

impl Reconciler {
    /// Evaluates the gates of every pool, and schedules a pass for the next time when a gate opens or closes.
    pub(super) fn gates(&mut self, observed: &Observed) -> BTreeMap<PoolName, Gates> {
        let clock_synchronized = self.is_clock_synchronized(observed);
        let mut all = BTreeMap::new();
        for pool in &observed.pools {
            let fleet = observed.snapshot.fleet_gate();
            let Some(inputs) = pool.gate_inputs(fleet, clock_synchronized, observed.wall) else {
                continue;
            };
            let gates = self.memory.pools.gates.gates(inputs);
            if let Some(changes) = gates.changes {
                let wait = Duration::try_from(changes.duration_since(observed.wall)).unwrap_or_default();
                self.again(observed.now + wait);
            }
            all.insert(pool.name.clone(), gates);
        }
        self.memory.pools.gates.keep(|pool| all.contains_key(pool));
        all
    }

    /// True if this machine's clock is synchronized, or no pool has windows or exclusions. Does not block.
    fn is_clock_synchronized(&mut self, observed: &Observed) -> bool {
        !observed.pools.iter().any(has_windows) || self.outside.clock.is_synchronized(observed.now)
    }
}

/// True if the pool has windows or exclusions.
fn has_windows(pool: &Pool) -> bool {
    let rollout = pool.object.as_ref().map(|object| object.spec.rollout());
    rollout.is_some_and(|r| !r.windows.is_empty() || !r.exclusions.is_empty())
}
