//! Phase 5 of a pass: publishes the desired state in the BootcNodes. Sends requests to the API server.

use std::collections::BTreeSet;

use berth_api::decode::Decoded;
use berth_api::membership::Membership;
use berth_api::node::BootcNode;
use berth_core::controller::pool;
use berth_core::controller::publish::{self, BootcNodeWrite};

use super::phases::{Berths, Observed, Resolutions};
use super::reconciler::Reconciler;
use crate::api::{CallError, Kube};
use crate::leader::Lost;

/// Backoff key of writes to BootcNodes.
const KIND: &str = "bootcnode";

impl Reconciler {
    /// Makes the BootcNode writes that are due. Returns the berths: read from the API server if a write required that,
    /// else unchanged.
    pub(super) async fn publish(
        &mut self,
        observed: &Observed,
        membership: &Membership,
        resolutions: &Resolutions,
        mut berths: Berths,
    ) -> Result<Berths, Lost> {
        self.memory
            .nodes
            .permits
            .see(&observed.snapshot.bootc_nodes, observed.now);
        let mut writes = self.host_writes(observed, membership, resolutions, &berths);
        // A node that changes or leaves its pool must not hold a berth. Check this on the API server, not in the watch.
        if writes.iter().any(|write| leaves_pool(observed, write)) {
            berths = self.live_berths(observed, berths).await?;
            if berths.live {
                writes = self.host_writes(observed, membership, resolutions, &berths);
            } else {
                writes.retain(|write| !leaves_pool(observed, write));
            }
        }
        writes.retain(|write| self.may_write(KIND, write.name(), observed.now));
        self.write_nodes(KIND, writes, BootcNodeWrite::name, execute).await?;
        Ok(berths)
    }

    /// Returns the UIDs of the BootcNodes whose agents were asked to undo Berth's changes to their node, but have not
    /// done so within the release deadline.
    pub(super) fn overdue(&self, observed: &Observed) -> BTreeSet<String> {
        let asked = self.memory.nodes.release_asked.iter();
        let late = asked.filter(|(_, since)| observed.now.since(**since) >= self.settings.release_deadline);
        late.map(|(uid, _)| uid.clone()).collect()
    }

    fn host_writes(
        &self,
        observed: &Observed,
        membership: &Membership,
        resolutions: &Resolutions,
        berths: &Berths,
    ) -> Vec<BootcNodeWrite> {
        let first = resolutions.iter().filter(|(_, r)| r.first);
        let resolving = first.map(|(name, _)| name.clone()).collect();
        publish::publish(&publish::PublishFacts {
            nodes: &observed.snapshot.nodes,
            bootc_nodes: &observed.snapshot.bootc_nodes,
            membership,
            terms: &publish::terms(&observed.pools, membership, &resolving),
            occupied: &berths.occupied.by_uid,
            holdings: &berths.occupied.holdings,
            unclear: &berths.occupied.unclear,
            overdue: &self.overdue(observed),
            lasting: &pool::lasting(&observed.snapshot.pools),
            confirmed_gone: &observed.confirmed_gone,
            heard: &observed.heard,
            permits: &self.memory.nodes.permits,
            fleet_paused: observed.snapshot.fleet_gate().is_some(),
        })
    }
}

fn leaves_pool(observed: &Observed, write: &BootcNodeWrite) -> bool {
    match write {
        BootcNodeWrite::Create { .. } => false,
        BootcNodeWrite::Delete { .. } | BootcNodeWrite::Release { .. } => true,
        BootcNodeWrite::Update { name, spec, .. } => {
            let old = observed.host(name).and_then(|host| host.spec());
            old.is_some_and(|old| !old.pool_name.is_empty() && old.pool_name != spec.pool_name)
        }
    }
}

async fn execute(kube: &Kube, write: &BootcNodeWrite) -> Result<(), CallError> {
    let api = kube.all::<Decoded<BootcNode>>();
    match write {
        BootcNodeWrite::Create { name, spec, label } => {
            let object = publish::object(name, spec, label.as_deref());
            kube.create(&api, &object.into()).await?;
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
            kube.merge(&api, name, body).await?;
        }
        BootcNodeWrite::Delete { name, uid } => kube.delete(&api, name, Some(uid.clone()), None).await?,
        BootcNodeWrite::Release {
            name,
            uid,
            version,
            finalizers,
            ..
        } => {
            let body = publish::release(uid, version, finalizers);
            kube.merge(&api, name, body).await?;
        }
    }
    log(write);
    Ok(())
}

fn log(write: &BootcNodeWrite) {
    match write {
        BootcNodeWrite::Create { name, spec, .. } | BootcNodeWrite::Update { name, spec, .. } => {
            let digest = spec.image.as_ref().map(|i| i.digest.to_string());
            tracing::info!(
                node = %name, pool = %spec.pool_name, digest = digest.as_deref().unwrap_or("none"),
                staging = ?spec.staging, "spec of the BootcNode written"
            );
        }
        BootcNodeWrite::Delete { name, .. } => tracing::info!(node = %name, "BootcNode deleted"),
        BootcNodeWrite::Release { name, late, .. } if *late => tracing::warn!(
            node = %name,
            "finalizer removed from the BootcNode before its agent reported that Berth's changes to the node are undone"
        ),
        BootcNodeWrite::Release { name, .. } => tracing::info!(node = %name, "finalizer removed from the BootcNode"),
    }
}
