//! Phase 1 of a pass: turns a snapshot of the watches into a state that the pass may act on. If an object is missing
//! from a watch, reads it from the API server before the pass acts on its absence.

use std::collections::BTreeSet;

use berth_api::decode::Decoded;
use berth_api::pool::BootcNodePool;
use berth_api::{NodeName, NodeUid, PoolName, keys};
use berth_core::Moment;
use berth_core::controller::occupied::missing_nodes;
use berth_core::controller::pool::Pool;
use berth_core::controller::snapshot::Snapshot;
use berth_core::controller::unreadable::{Unreadable, unreadable};
use berth_core::controller::view::LeaseView;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::phases::{Berths, Observed};
use super::reconciler::Reconciler;
use crate::api::CallError;
use crate::leader::Lost;
use crate::time;

impl Reconciler {
    pub(super) async fn dereference(&mut self, snapshot: Snapshot) -> Result<(Observed, Berths), Lost> {
        let now = time::now();
        let berths = Berths::watched(&snapshot);
        self.warn_unreadable(&snapshot, &berths);
        let confirmed_gone = self.confirm_nodes(&snapshot, &berths, now).await?;
        let mut pools = Pool::readable(&snapshot.pools);
        // While the BootcFleet cannot be read, all gates are closed and no image is resolved.
        let fleet = snapshot.fleet_spec();
        pools = pools.into_iter().map(|pool| pool.guarded(fleet.as_ref())).collect();
        pools.extend(self.orphans(&snapshot, &berths, now).await?);
        let lately = snapshot
            .bootc_nodes
            .iter()
            .filter(|(_, host)| now.since(host.heard) < self.settings.agent_silence);
        let heard = lately.map(|(name, _)| NodeName::from(name.as_str())).collect();
        let observed = Observed {
            snapshot,
            pools,
            heard,
            confirmed_gone,
            now,
            wall: Timestamp::now(),
        };
        Ok((observed, berths))
    }

    /// Reads the Nodes that Berth's objects name but the watch does not show. Returns the UIDs of the deleted Nodes.
    async fn confirm_nodes(
        &mut self,
        snapshot: &Snapshot,
        berths: &Berths,
        now: Moment,
    ) -> Result<BTreeSet<NodeUid>, Lost> {
        let missing = missing_nodes(snapshot, &berths.occupied);
        let mut gone = std::mem::take(&mut self.memory.nodes.gone);
        gone.retain(|uid| missing.contains_key(uid));
        for (uid, name) in missing {
            if gone.contains(&uid) {
                continue;
            }
            let key = format!("node/{name}");
            if !self.memory.backoffs.is_ready(&key, now) {
                continue;
            }
            let found = self.kube.get(&self.kube.all::<Decoded<Node>>(), name.as_str()).await;
            let found = match found {
                Err(CallError::Conflict(_)) => Ok(None),
                other => other,
            };
            let Some(found) = self.outcome(&key, found)? else {
                continue;
            };
            let there = found.and_then(|n| n.object.metadata.uid).map(NodeUid::new);
            if there.as_ref() != Some(&uid) {
                tracing::info!(node = %name, %uid, "Node is gone");
                gone.insert(uid);
            }
        }
        self.memory.nodes.gone.clone_from(&gone);
        Ok(gone)
    }

    /// Finds pools that no longer exist but still have berths. The pass closes and deletes these berths, as for a
    /// pool that is being deleted.
    async fn orphans(&mut self, snapshot: &Snapshot, berths: &Berths, now: Moment) -> Result<Vec<Pool>, Lost> {
        let mut orphans = vec![];
        let named: BTreeSet<PoolName> = berths.leases.iter().map(|l| l.pool.clone()).collect();
        for pool in named {
            let key = format!("pool/{pool}");
            let known = snapshot.pools.contains_key(pool.as_str());
            if known || pool.as_str().is_empty() || !self.memory.backoffs.is_ready(&key, now) {
                continue;
            }
            let api = self.kube.all::<Decoded<BootcNodePool>>();
            let found = self.kube.get(&api, pool.as_str()).await;
            if let Some(None) = self.outcome(&key, found)? {
                orphans.push(Pool::orphaned(pool));
            }
        }
        Ok(orphans)
    }

    /// Reads all berths from the server, unless this pass has done so already. Offers are planned only from live
    /// berths, because a watch may lag behind the controller's own writes. Returns `berths` unchanged (not live) if the
    /// server cannot be read now.
    pub(super) async fn live_berths(&mut self, observed: &Observed, berths: Berths) -> Result<Berths, Lost> {
        if berths.live || !self.memory.backoffs.is_ready("berths", observed.now) {
            return Ok(berths);
        }
        let list = self.kube.list(&self.kube.leases(), keys::LABEL_POOL).await;
        let Some(list) = self.outcome("berths", list)? else {
            return Ok(berths);
        };
        let berths = Berths::read(list.into_iter().map(LeaseView::of).collect());
        let names: BTreeSet<&str> = berths.leases.iter().map(LeaseView::name).collect();
        self.memory
            .leases
            .in_doubt
            .retain(|lease| names.contains(lease.as_str()));
        Ok(berths)
    }

    /// Logs each object that cannot be read, when it becomes unreadable.
    fn warn_unreadable(&mut self, snapshot: &Snapshot, berths: &Berths) {
        let before = std::mem::take(&mut self.memory.seen.unreadable);
        for Unreadable { kind, name, error } in unreadable(snapshot, &berths.leases) {
            let key = (kind, name.to_owned());
            if !before.contains(&key) {
                tracing::warn!(
                    kind,
                    name,
                    error,
                    "cannot read an object; repair it (reasons UnreadableObjects and FleetUnreadable in docs/conditions.md)"
                );
            }
            self.memory.seen.unreadable.insert(key);
        }
    }
}
