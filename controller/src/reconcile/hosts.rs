//! Phase 5, client required: publishing to the nodes.

use std::collections::BTreeSet;

use berth_api::membership::Membership;
use berth_api::node::BootcNode;
use berth_core::controller::pool;
use berth_core::controller::publish::{self, BootcNodeWrite};
use futures::StreamExt;

use super::Reconciler;
use super::seen::{Berths, Resolutions, Seen};
use crate::api::{CallError, Kube};
use crate::leader::Lost;

/// BootcNodes written at once.
const CONCURRENCY: usize = 16;

impl Reconciler {
    /// Publishes what is due to the BootcNodes. Answers the berths, live when it had to read them.
    pub(super) async fn publish(
        &mut self,
        seen: &Seen,
        membership: &Membership,
        resolutions: &Resolutions,
        mut berths: Berths,
    ) -> Result<Berths, Lost> {
        self.memory.leaves.see(&seen.snapshot.bootc_nodes, seen.now);
        let mut writes = self.host_writes(seen, membership, resolutions, &berths);
        // Whoever moves or is let go must not hold a berth: that is asked of the server, not of a watch.
        if writes.iter().any(|write| lets_go(seen, write)) {
            berths = self.live_berths(seen, berths).await?;
            if berths.live {
                writes = self.host_writes(seen, membership, resolutions, &berths);
            } else {
                writes.retain(|write| !lets_go(seen, write));
            }
        }
        writes.retain(|write| self.memory.backoffs.ready(&key(write.name()), seen.now));
        let kube = self.kube.clone();
        let results: Vec<(BootcNodeWrite, Result<(), CallError>)> = futures::stream::iter(writes)
            .map(|write| {
                let kube = kube.clone();
                async move {
                    let result = execute(&kube, &write).await;
                    if result.is_ok() {
                        log(&write);
                    }
                    (write, result)
                }
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        for (write, result) in results {
            self.outcome(&key(write.name()), result)?;
        }
        Ok(berths)
    }

    /// Returns the BootcNodes (UIDs) whose agents were asked long ago to release their node.
    pub(super) fn overdue(&self, seen: &Seen) -> BTreeSet<String> {
        let asked = self.memory.asked.iter();
        let late = asked.filter(|(_, since)| seen.now.since(**since) >= self.settings.release_deadline);
        late.map(|(uid, _)| uid.clone()).collect()
    }

    fn host_writes(
        &self,
        seen: &Seen,
        membership: &Membership,
        resolutions: &Resolutions,
        berths: &Berths,
    ) -> Vec<BootcNodeWrite> {
        // The pools whose first resolution is under way.
        let first = resolutions.iter().filter(|(_, r)| r.first);
        let resolving = first.map(|(name, _)| name.clone()).collect();
        publish::publish(&publish::PublishFacts {
            nodes: &seen.snapshot.nodes,
            bootc_nodes: &seen.snapshot.bootc_nodes,
            membership,
            terms: &publish::terms(&seen.pools, membership, &resolving),
            occupied: &berths.occupied.by_uid,
            holdings: &berths.occupied.holdings,
            unclear: &berths.occupied.unclear,
            overdue: &self.overdue(seen),
            lasting: &pool::lasting(&seen.snapshot.pools),
            confirmed_gone: &seen.confirmed_gone,
            heard: &seen.heard,
            permits: &self.memory.leaves,
            fleet_paused: seen.snapshot.fleet_gate().is_some(),
        })
    }
}

fn key(name: &str) -> String {
    format!("bootcnode/{name}")
}

/// Says whether a write takes a node out of the pool that it is in.
fn lets_go(seen: &Seen, write: &BootcNodeWrite) -> bool {
    match write {
        BootcNodeWrite::Create { .. } => false,
        BootcNodeWrite::Delete { .. } | BootcNodeWrite::Release { .. } => true,
        BootcNodeWrite::Update { name, spec, .. } => {
            let host = seen.snapshot.bootc_nodes.get(name);
            let old = host.and_then(|h| h.view.spec());
            old.is_some_and(|old| !old.pool_name.is_empty() && old.pool_name != spec.pool_name)
        }
    }
}

async fn execute(kube: &Kube, write: &BootcNodeWrite) -> Result<(), CallError> {
    let api = kube.all::<BootcNode>();
    match write {
        BootcNodeWrite::Create { name, spec, label } => {
            let object = publish::object(name, spec, label.as_deref());
            kube.create(&api, &object).await.map(drop)
        }
        BootcNodeWrite::Update {
            name,
            uid,
            version,
            before,
            spec,
            label,
            finalizers,
        } => {
            let body = publish::patch(name, (uid, version), (before, spec), label.as_deref(), finalizers)
                .map_err(|e| CallError::Refused(e.to_string()))?;
            kube.merge(&api, name, body).await.map(drop)
        }
        BootcNodeWrite::Delete { name, uid } => kube.delete(&api, name, Some(uid.clone()), None).await,
        BootcNodeWrite::Release {
            name,
            uid,
            version,
            finalizers,
            ..
        } => {
            let body = publish::release(uid, version, finalizers);
            kube.merge(&api, name, body).await.map(drop)
        }
    }
}

fn log(write: &BootcNodeWrite) {
    match write {
        BootcNodeWrite::Create { name, spec, .. } | BootcNodeWrite::Update { name, spec, .. } => {
            let digest = spec.image.as_ref().map(|i| i.digest.to_string());
            tracing::info!(
                node = %name, pool = %spec.pool_name, digest = digest.as_deref().unwrap_or("none"),
                staging = ?spec.staging, "published"
            );
        }
        BootcNodeWrite::Delete { name, .. } => tracing::info!(node = %name, "BootcNode deleted"),
        BootcNodeWrite::Release { name, late, .. } if *late => tracing::warn!(
            node = %name, "BootcNode let go although its agent has not said that everything is undone"
        ),
        BootcNodeWrite::Release { name, .. } => tracing::info!(node = %name, "BootcNode let go"),
    }
}
