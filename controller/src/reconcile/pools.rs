//! Phases 3, 7 and 8, which send requests to the API server: the pools' finalizers, status and deletion.

use std::collections::BTreeSet;

use berth_api::pool::{BootcNodePool, BootcNodePoolStatus};
use berth_api::{PoolName, keys};
use berth_core::controller::aggregate::{Polled, pace};
use berth_core::controller::pool::Pool;
use berth_core::controller::statuses::PassResults;
use serde_json::json;

use super::phases::{Findings, Observed};
use super::reconciler::Reconciler;
use crate::events::Note;
use crate::leader::Lost;
use crate::resolve::Resolution;
use crate::time;

impl Reconciler {
    /// Phase 3: adds Berth's finalizer to pools before anything else is done for them. Returns the pools that lacked
    /// it. Their status is written only in the next pass, which has their new resourceVersion.
    pub(super) async fn finalizers(&mut self, observed: &Observed) -> Result<BTreeSet<PoolName>, Lost> {
        let mut touched = BTreeSet::new();
        for pool in observed.pools.iter().filter(|p| !p.deleting) {
            let Some(object) = &pool.object else {
                continue;
            };
            let mut finalizers = object.metadata.finalizers.clone().unwrap_or_default();
            if !finalizers.iter().any(|f| f == keys::FINALIZER_POOL) {
                finalizers.push(keys::FINALIZER_POOL.to_owned());
                self.set_finalizers(observed, pool, finalizers).await?;
                touched.insert(pool.name.clone());
            }
        }
        Ok(touched)
    }

    async fn set_finalizers(
        &mut self,
        observed: &Observed,
        pool: &Pool,
        finalizers: Vec<String>,
    ) -> Result<bool, Lost> {
        let key = format!("finalizer/{}", pool.name);
        let Some(entry) = observed.snapshot.pools.get(pool.name.as_str()) else {
            return Ok(false);
        };
        let uid = pool.object.as_ref().and_then(|o| o.metadata.uid.clone());
        if !self.memory.backoffs.is_ready(&key, observed.now) {
            return Ok(false);
        }
        let body = json!({ "metadata": {
            "uid": uid, "resourceVersion": entry.version, "finalizers": finalizers,
        }});
        let api = self.kube.all::<BootcNodePool>();
        let result = self.kube.merge(&api, pool.name.as_str(), body).await;
        Ok(self.outcome(&key, result)?.is_some())
    }

    /// Phase 7: writes each pool's status if it has changed.
    pub(super) async fn aggregate(
        &mut self,
        findings: &Findings,
        results: &PassResults<'_>,
        touched: &BTreeSet<PoolName>,
    ) -> Result<(), Lost> {
        let observed = &findings.observed;
        let unresolved = Resolution::default();
        for pool in &observed.pools {
            let Some(object) = &pool.object else {
                continue;
            };
            let old = object.status.clone().unwrap_or_default();
            let remembered = self
                .memory
                .leases
                .unwritable
                .values()
                .map(|remembered| &remembered.unwritable);
            let unwritable = remembered.filter(|lease| lease.pool == pool.name).collect();
            let resolution = findings.resolutions.get(&pool.name).unwrap_or(&unresolved);
            let polled = polled(pool, &old, resolution);
            let Some(new) = results.pool_status((pool, object), &old, polled, unwritable, observed.wall) else {
                continue;
            };
            let key = format!("status/{}", pool.name);
            if new == old || touched.contains(&pool.name) || !self.memory.backoffs.is_ready(&key, observed.now) {
                continue;
            }
            if let Some(last) = self.memory.pools.reported.get(&pool.name) {
                let next = *last + pace::pause(&old, &new);
                if next > time::now() {
                    self.again(next);
                    continue;
                }
            }
            let mut object = object.clone();
            let entry = observed.snapshot.pools.get(pool.name.as_str());
            object.metadata.resource_version = entry.map(|e| e.version.clone());
            object.status = Some(new.clone());
            let api = self.kube.all::<BootcNodePool>();
            let result = self.kube.replace_status(&api, pool.name.as_str(), &object).await;
            if self.outcome(&key, result)?.is_some() {
                self.memory.pools.reported.insert(pool.name.clone(), time::now());
                log(pool, &old, &new);
                for note in Note::of_status(&object, &old, &new) {
                    self.outside.events.queue(note);
                }
            }
        }
        self.memory
            .pools
            .reported
            .retain(|name, _| observed.snapshot.pools.contains_key(name.as_str()));
        Ok(())
    }

    /// Phase 8: removes Berth's finalizer from pools that are being deleted and have no nodes or berths left.
    pub(super) async fn finalize(&mut self, findings: &Findings) -> Result<(), Lost> {
        let Findings { observed, planned, .. } = findings;
        for pool in observed.pools.iter().filter(|p| p.deleting) {
            let Some(object) = &pool.object else {
                continue;
            };
            let finalizers = object.metadata.finalizers.clone().unwrap_or_default();
            let name = pool.name.as_str();
            let nodes = observed.snapshot.bootc_nodes.values().any(|host| {
                let published = host.view.spec().map(|s| s.pool_name.as_str());
                host.view.pool_label.as_deref() == Some(name) || published == Some(name)
            });
            let berths = planned.berths.leases.iter().any(|l| l.pool == pool.name);
            if nodes || berths || !finalizers.iter().any(|f| f == keys::FINALIZER_POOL) {
                continue;
            }
            let rest = finalizers.into_iter().filter(|f| f != keys::FINALIZER_POOL).collect();
            if self.set_finalizers(observed, pool, rest).await? {
                tracing::info!(pool = %pool.name, "finalizer removed from the pool");
            }
        }
        Ok(())
    }
}

/// Returns the registry answers about the pool's image.
fn polled<'a>(pool: &Pool, old: &BootcNodePoolStatus, resolution: &'a Resolution) -> Polled<'a> {
    // If no registry may be queried for the pool, its poll request counts as handled. Its conditions show the reason.
    let is_mute = pool.deleting || pool.refused.is_some() || resolution.answers.fleet_unreadable;
    let poll_request = if is_mute {
        pool.poll_request().map(str::to_owned)
    } else {
        resolution.poll_request.clone()
    };
    Polled {
        answers: &resolution.answers,
        polled: resolution.polled,
        available_seen: resolution.seen,
        poll_request: poll_request.or_else(|| old.poll_request.clone()),
    }
}

fn log(pool: &Pool, old: &BootcNodePoolStatus, new: &BootcNodePoolStatus) {
    for condition in &new.conditions {
        let before = old.conditions.iter().find(|c| c.type_ == condition.type_);
        if before.is_none_or(|b| b.status != condition.status || b.reason != condition.reason) {
            tracing::info!(
                pool = %pool.name, condition = %condition.type_, status = %condition.status,
                reason = %condition.reason, message = %condition.message, "condition"
            );
        }
    }
}
