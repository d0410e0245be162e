//! Leases that cannot be written: the controller remembers them, and retries them later.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::lease;
use berth_api::{PoolName, keys};
use berth_core::controller::plan::{BerthWrite, Plan};
use berth_core::controller::pool::Pool;
use berth_core::controller::unwritable::{Obstacle, Unwritable};
use berth_core::controller::view::LeaseView;
use jiff::Timestamp;

use super::leader_memory::Remembered;
use super::phases::{Berths, Observed};
use super::reconciler::Reconciler;
use crate::api::CallError;
use crate::leader::Lost;
use crate::time;

fn backoff_key(lease: &str) -> String {
    format!("berth/{lease}")
}

impl Reconciler {
    /// Returns the names of the Leases that this pass does not write, since a recent write failed.
    pub(super) fn left_alone(&self, observed: &Observed) -> BTreeSet<String> {
        let names = self.memory.leases.unwritable.keys();
        let left_alone = names.filter(|name| !self.memory.backoffs.is_ready(&backoff_key(name), observed.now));
        left_alone.cloned().collect()
    }

    /// Adds the Leases in `left_alone` that a list by label does not show.
    pub(super) fn with_unlisted(&self, berths: Berths, left_alone: &BTreeSet<String>) -> Berths {
        let remembered = self.memory.leases.unwritable.values();
        let unlisted = remembered.filter_map(|remembered| remembered.unlisted.as_ref());
        let missing =
            unlisted.filter(|lease| left_alone.contains(lease.name()) && berths.named(lease.name()).is_none());
        let missing: Vec<LeaseView> = missing.cloned().collect();
        berths.with(missing)
    }

    pub(super) fn write_refused(&mut self, pool: &Pool, write: &BerthWrite, words: String) -> Result<(), Lost> {
        let unlisted = match write {
            BerthWrite::Create(berth) => {
                let lease = lease::create(berth, self.kube.namespace(), pool.reboot_timeout(), Timestamp::now());
                Some(LeaseView::of(lease))
            }
            BerthWrite::Update { .. } | BerthWrite::Delete { .. } => None,
        };
        let lease = write.lease();
        self.remember(&pool.name, lease.clone(), Obstacle::Refused(words.clone()), unlisted);
        let error = CallError::Refused(words);
        self.outcome::<()>(&backoff_key(&lease), Err(error)).map(drop)
    }

    /// Returns true if the Lease cannot be created because it exists and has lost its label. Then also remembers the
    /// Lease as unwritable.
    pub(super) async fn has_lost_label(&mut self, pool: &Pool, name: &str) -> Result<bool, Lost> {
        let found = self.kube.get(&self.kube.leases(), name).await;
        let Ok(Some(found)) = found else {
            return Ok(false);
        };
        let labels = found.metadata.labels.as_ref();
        let label = labels.and_then(|labels| labels.get(keys::LABEL_POOL));
        if label.is_some_and(|label| label == pool.name.as_str()) {
            // Another leader created this Lease a moment ago.
            return Ok(false);
        }
        let unlisted = LeaseView::without_label(found, &pool.name);
        self.remember(&pool.name, name.to_owned(), Obstacle::NoLabel, Some(unlisted));
        let error = CallError::Conflict(format!("Lease {name} has no label {}={}", keys::LABEL_POOL, pool.name));
        self.outcome::<()>(&backoff_key(name), Err(error))?;
        Ok(true)
    }

    fn remember(&mut self, pool: &PoolName, lease: String, why: Obstacle, unlisted: Option<LeaseView>) {
        let unwritable = Unwritable {
            pool: pool.clone(),
            lease: lease.clone(),
            why,
        };
        let remembered = Remembered { unwritable, unlisted };
        self.memory.leases.unwritable.insert(lease, remembered);
    }

    /// Records that a Lease was written: it is no longer unwritable.
    pub(super) fn was_written(&mut self, lease: &str) {
        if self.memory.leases.unwritable.remove(lease).is_some() {
            tracing::info!(berth = %lease, "the Lease can be written again");
            self.memory.backoffs.note(&backoff_key(lease), true, time::now());
        }
    }

    /// Forgets the Leases of deleted pools, and the Leases that can be written again. Keeps a Lease while its pool has
    /// no plan, while the plan writes to it, or while it is in `left_alone`. Also keeps a Lease that still has its
    /// label, while a member of its pool waits for a berth.
    pub(super) fn forget_writable(
        &mut self,
        plans: &BTreeMap<PoolName, Plan>,
        berths: &Berths,
        left_alone: &BTreeSet<String>,
        observed: &Observed,
    ) {
        self.memory.leases.unwritable.retain(|lease, remembered| {
            let pool = &remembered.unwritable.pool;
            if !observed.pools.iter().any(|known| known.name == *pool) {
                return false;
            }
            let Some(plan) = plans.get(pool) else {
                return true;
            };
            if left_alone.contains(lease) || plan.writes_to(lease) {
                return true;
            }
            remembered.unlisted.is_none() && plan.has_waiting() && berths.named(lease).is_some()
        });
    }
}
