//! Phase 1, client required: from a snapshot of the watches to a picture that may be acted on. What is absent from
//! a watch and would be acted on is looked up on the server first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::pool::BootcNodePool;
use berth_api::{NodeName, NodeUid, PoolName, keys};
use berth_core::controller::facts::{self, Pool};
use berth_core::controller::snapshot::Snapshot;
use berth_core::controller::view::LeaseView;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::{Pass, Reconciler};
use crate::api::CallError;
use crate::leader::Lost;
use crate::time;

impl Reconciler {
    pub(super) async fn dereference(&mut self, snapshot: Snapshot) -> Result<Pass, Lost> {
        let now = time::now();
        let leases: Vec<LeaseView> = snapshot
            .leases
            .values()
            .map(|entry| entry.view.as_ref().clone())
            .collect();
        let occupied = facts::occupied(&leases);
        let heard = snapshot
            .hosts
            .iter()
            .filter(|(_, host)| now.since(host.heard) < self.settings.agent_silence)
            .map(|(name, _)| NodeName::from(name.as_str()))
            .collect();
        let mut pass = Pass {
            pools: Pool::readable(&snapshot.pools),
            membership: Arc::default(),
            leases,
            live: false,
            occupied,
            heard,
            confirmed_gone: BTreeSet::new(),
            answers: None,
            clock_synchronized: true,
            resolutions: BTreeMap::new(),
            gates: BTreeMap::new(),
            plans: BTreeMap::new(),
            touched: BTreeSet::new(),
            timed_out: BTreeSet::new(),
            now,
            wall: Timestamp::now(),
            snapshot,
        };
        self.warn_unreadable(&pass);
        self.confirm_nodes(&mut pass).await?;
        self.orphans(&mut pass).await?;
        Ok(pass)
    }

    fn warn_unreadable(&self, pass: &Pass) {
        for entry in pass.snapshot.pools.values() {
            if let Err(error) = &entry.view.object {
                tracing::warn!(pool = %entry.view.name, %error, "pool cannot be read; it is left as it is");
            }
        }
        for (name, entry) in pass.snapshot.hosts.iter() {
            if let Err(error) = &entry.view.content {
                tracing::warn!(node = %name, %error, "BootcNode cannot be read; it is left as it is");
            }
        }
    }

    /// Reads the Nodes that something of ours refers to and the watch does not show.
    async fn confirm_nodes(&mut self, pass: &mut Pass) -> Result<(), Lost> {
        for (uid, name) in facts::missing_nodes(&pass.snapshot, &pass.occupied) {
            let key = format!("node/{name}");
            if !self.backoffs.ready(&key, pass.now) {
                continue;
            }
            let found = self.kube.get(&self.kube.all::<Node>(), name.as_str()).await;
            let found = match found {
                Err(CallError::Conflict(_)) => Ok(None),
                other => other,
            };
            let Some(found) = self.outcome(&key, found)? else {
                continue;
            };
            let there = found.and_then(|n| n.metadata.uid).map(NodeUid::new);
            if there.as_ref() != Some(&uid) {
                tracing::info!(node = %name, %uid, "Node is gone");
                pass.confirmed_gone.insert(uid);
            }
        }
        Ok(())
    }

    /// Finds berths whose pool is gone: they are closed and deleted like those of one that is being deleted.
    async fn orphans(&mut self, pass: &mut Pass) -> Result<(), Lost> {
        let named: BTreeSet<PoolName> = pass.leases.iter().map(|l| l.pool.clone()).collect();
        for pool in named {
            let key = format!("pool/{pool}");
            let known = pass.snapshot.pools.contains_key(pool.as_str());
            if known || pool.as_str().is_empty() || !self.backoffs.ready(&key, pass.now) {
                continue;
            }
            let api = self.kube.all::<BootcNodePool>();
            let found = self.kube.get(&api, pool.as_str()).await;
            if let Some(None) = self.outcome(&key, found)? {
                pass.pools.push(Pool::orphaned(pool));
            }
        }
        Ok(())
    }

    /// Reads all berths from the server, unless this pass has done so already. Plans that give something away are
    /// made from this, never from a watch that may lag behind our own writes.
    ///
    /// Says whether the picture is live now.
    pub(super) async fn live_leases(&mut self, pass: &mut Pass) -> Result<bool, Lost> {
        if pass.live {
            return Ok(true);
        }
        if !self.backoffs.ready("berths", pass.now) {
            return Ok(false);
        }
        let list = self.kube.list(&self.kube.leases(), keys::LABEL_POOL).await;
        let Some(list) = self.outcome("berths", list)? else {
            return Ok(false);
        };
        pass.leases = list.into_iter().map(LeaseView::of).collect();
        pass.occupied = facts::occupied(&pass.leases);
        pass.live = true;
        let names: BTreeSet<&str> = pass.leases.iter().map(LeaseView::name).collect();
        self.in_doubt.retain(|lease| names.contains(lease.as_str()));
        Ok(true)
    }
}
