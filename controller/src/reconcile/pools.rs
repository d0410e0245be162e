//! Phases 3, 7 and 8, which send requests to the API server: the pools' finalizers, status and deletion.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::pool::{BootcNodePool, BootcNodePoolStatus};
use berth_api::{PoolName, keys};
use berth_core::controller::aggregate::refused::RefusedReports;
use berth_core::controller::aggregate::{Polled, pace};
use berth_core::controller::pool::Pool;
use berth_core::controller::statuses::PassResults;
use serde_json::json;

use super::phases::{Findings, Observed};
use super::reconciler::Reconciler;
use crate::api::CallError;
use crate::events::Note;
use crate::leader::Lost;
use crate::resolve::Resolution;
use crate::time;

/// Interval between two attempts to write what the API server refused in a pool's status.
const REFUSED_RETRY: Duration = Duration::from_secs(600);

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
            let new = self.without_refused(pool, new, &old, observed);
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
            let result = self.write_status(observed, (pool, object), &old, new).await;
            if let Some((object, new)) = self.outcome(&key, result)? {
                self.memory.pools.reported.insert(pool.name.clone(), time::now());
                log(pool, &old, &new);
                for note in Note::of_status(&object, &old, &new) {
                    self.outside.events.queue(note);
                }
            }
        }
        let exists = |name: &PoolName| observed.snapshot.pools.contains_key(name.as_str());
        self.memory.pools.reported.retain(|name, _| exists(name));
        self.memory.pools.refused.retain(|name, _| exists(name));
        Ok(())
    }

    /// Leaves out what the API server refused a short time ago, if the members still report the same.
    fn without_refused(
        &mut self,
        pool: &Pool,
        new: BootcNodePoolStatus,
        old: &BootcNodePoolStatus,
        observed: &Observed,
    ) -> BootcNodePoolStatus {
        let Some((refused, retry)) = self.memory.pools.refused.get(&pool.name) else {
            return new;
        };
        if refused.are_in(&new) && observed.now < *retry {
            return refused.left_out(new, old, observed.wall);
        }
        self.memory.pools.refused.remove(&pool.name);
        new
    }

    /// Writes a pool's status. If the API server refuses the status, writes it once more without the parts that come
    /// from the members' reports. Returns the pool and the status that was written.
    async fn write_status(
        &mut self,
        observed: &Observed,
        (pool, object): (&Pool, &BootcNodePool),
        old: &BootcNodePoolStatus,
        new: BootcNodePoolStatus,
    ) -> Result<(BootcNodePool, BootcNodePoolStatus), CallError> {
        let api = self.kube.all::<BootcNodePool>();
        let name = pool.name.as_str();
        let mut object = object.clone();
        let entry = observed.snapshot.pools.get(name);
        object.metadata.resource_version = entry.map(|e| e.version.clone());
        object.status = Some(new.clone());
        let error = match self.kube.replace_status(&api, name, &object).await {
            Err(CallError::Refused(error)) => error,
            result => return result.map(|_| (object, new)),
        };
        let refused = RefusedReports::new(&new, error.clone());
        if refused.are_in(old) {
            // The members' reports change nothing, so something else is refused.
            return Err(CallError::Refused(error));
        }
        let rest = refused.left_out(new, old, observed.wall);
        object.status = Some(rest.clone());
        self.kube.replace_status(&api, name, &object).await?;
        tracing::warn!(
            pool = %pool.name, %error,
            "the API server refused the pool's status; wrote it without what the members' reports would change in \
             deployHistory, bootImage and phaseDurations"
        );
        let retry = observed.now + REFUSED_RETRY;
        self.memory.pools.refused.insert(pool.name.clone(), (refused, retry));
        Ok((object, rest))
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
