//! Phases 3, 7 and 8, which send requests to the API server: the pools' finalizers, status and deletion.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::Holding;
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus};
use berth_api::{NodeName, NodeUid, PoolName, keys};
use berth_core::controller::aggregate::{self, MemberView, pace};
use berth_core::controller::pool::Pool;
use berth_core::controller::unwritable::Unwritable;
use berth_core::controller::view::LeaseView;
use serde_json::json;

use super::phases::{Berths, Findings, Observed};
use super::reconciler::Reconciler;
use crate::events::Note;
use crate::leader::Lost;
use crate::time;

impl Reconciler {
    /// Phase 3: adds Berth's finalizer to pools before anything else is done for them.
    ///
    /// Returns the pools that it wrote. Their status is written in the next pass, which knows their new
    /// resourceVersion.
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
    pub(super) async fn aggregate(&mut self, findings: &Findings, touched: &BTreeSet<PoolName>) -> Result<(), Lost> {
        let observed = &findings.observed;
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
            let Some(new) = status(findings, (pool, object), unwritable, &old) else {
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

/// Computes the pool's status. `None` without a plan: the berths could not be read, and an old status is better than a
/// wrong one.
fn status(
    findings: &Findings,
    (pool, object): (&Pool, &BootcNodePool),
    unwritable: Vec<&Unwritable>,
    old: &BootcNodePoolStatus,
) -> Option<BootcNodePoolStatus> {
    let plan = findings.planned.plans.get(&pool.name)?;
    let holdings = holdings(&findings.planned.berths);
    let members = findings.membership.members(&pool.name);
    let members = views(findings, &holdings, members);
    let away = views(findings, &holdings, strangers(findings, pool));
    let resolution = findings.resolutions.get(&pool.name).cloned().unwrap_or_default();
    // If no registry may be queried for the pool, its poll request counts as handled; its conditions have the reason.
    let is_mute = pool.deleting || pool.refused.is_some() || resolution.answers.fleet_unreadable;
    let poll_request = if is_mute {
        pool.poll_request().map(str::to_owned)
    } else {
        resolution.poll_request
    };
    let leases = &findings.planned.berths.leases;
    let unreadable = leases
        .iter()
        .filter(|l| l.pool == pool.name)
        .filter_map(|l| l.berth.as_ref().err())
        .map(String::as_str)
        .collect();
    let facts = aggregate::PoolStatusFacts {
        generation: object.metadata.generation,
        old,
        pool: pool.name.as_str(),
        reference: object.spec.image_ref(),
        history_limit: object.spec.history_limit(),
        refused: pool.refused.as_deref(),
        minimum_age: object.spec.minimum_age(),
        boot_image: object.spec.boot_image(),
        answers: &resolution.answers,
        polled: resolution.polled,
        available_seen: resolution.seen,
        poll_request: poll_request.or_else(|| old.poll_request.clone()),
        paused: object.spec.is_paused(),
        gates: findings.gates.get(&pool.name),
        reboot_timeout: object.spec.reboot_timeout(),
        retry_token: object.spec.retry_token(),
        excluded: findings
            .membership
            .excluded
            .values()
            .filter(|of| **of == pool.name)
            .count(),
        deleting: pool.deleting,
        bad_selector: pool.bad_selector(),
        members: &members,
        away: &away,
        conflicts: findings.membership.conflicts_of(&pool.name).collect(),
        plan,
        unreadable,
        unwritable,
    };
    Some(aggregate::status(&facts, findings.observed.wall))
}

/// Returns the berth of each holder, by the holder's UID. If a node holds two berths, returns the first.
fn holdings(berths: &Berths) -> BTreeMap<&NodeUid, &Holding> {
    let holdings = berths.leases.iter().rev().filter_map(LeaseView::holding);
    holdings.map(|holding| (&holding.uid, holding)).collect()
}

fn views<'a>(
    findings: &'a Findings,
    holdings: &BTreeMap<&NodeUid, &'a Holding>,
    names: impl Iterator<Item = &'a NodeName>,
) -> Vec<MemberView<'a>> {
    names.filter_map(|name| member(findings, holdings, name)).collect()
}

fn member<'a>(
    findings: &'a Findings,
    holdings: &BTreeMap<&NodeUid, &'a Holding>,
    name: &NodeName,
) -> Option<MemberView<'a>> {
    let observed = &findings.observed;
    let node = observed.node(name.as_str())?;
    Some(MemberView {
        node,
        host: observed.host(name.as_str()),
        holding: holdings.get(&node.uid).copied(),
        overdue: findings.timed_out.contains(&node.uid),
        heard: observed.heard.contains(name),
    })
}

/// Returns the holders of the pool's berths that are no longer its members.
fn strangers<'a>(findings: &'a Findings, pool: &'a Pool) -> impl Iterator<Item = &'a NodeName> {
    let berths = findings.planned.berths.leases.iter().filter(|l| l.pool == pool.name);
    let holders = berths.filter_map(|l| Some(&l.holding()?.node));
    holders.filter(|name| findings.membership.pool_of(name) != Some(&pool.name))
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
