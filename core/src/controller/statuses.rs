//! Computes the statuses of the pools and the input for the fleet's status, from the results of one pass. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::{HoldPhase, Holding};
use berth_api::membership::Membership;
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus};
use berth_api::{NodeName, NodeUid, PoolName};
use jiff::Timestamp;

use crate::controller::aggregate::{self, MemberView, Polled, PoolStatusFacts};
use crate::controller::fleet::health::Agent;
use crate::controller::gates::Gates;
use crate::controller::plan::Plan;
use crate::controller::pool::Pool;
use crate::controller::snapshot::{Entry, Snapshot};
use crate::controller::unwritable::Unwritable;
use crate::controller::view::{BootcNodeView, LeaseView};

/// Results of one pass.
#[derive(Debug)]
pub struct PassResults<'a> {
    /// Watched objects.
    pub snapshot: &'a Snapshot,
    /// Pool of each node.
    pub membership: &'a Membership,
    /// All berths.
    pub leases: &'a [LeaseView],
    /// Gates of each pool.
    pub gates: &'a BTreeMap<PoolName, Gates>,
    /// Plan of each pool; empty if the berths could not be read.
    pub plans: &'a BTreeMap<PoolName, Plan>,
    /// Nodes whose agent reported recently.
    pub heard: &'a BTreeSet<NodeName>,
    /// UIDs of the Nodes that hold a berth and have been silent for too long, for example because they did not come
    /// back from their reboot.
    pub timed_out: &'a BTreeSet<NodeUid>,
    /// Held berth of each node: see [`holdings`].
    pub holdings: BTreeMap<&'a NodeUid, &'a Holding>,
}

/// Returns the held berth of each node, by the UID of its Node. If a node holds two berths, returns the first one.
pub fn holdings(leases: &[LeaseView]) -> BTreeMap<&NodeUid, &Holding> {
    let holdings = leases.iter().rev().filter_map(LeaseView::holding);
    holdings.map(|holding| (&holding.uid, holding)).collect()
}

impl<'a> PassResults<'a> {
    /// Returns a pool's status; `None` if the berths could not be read. The pool then keeps its old status, because a
    /// wrong status would be worse.
    pub fn pool_status(
        &self,
        (pool, object): (&Pool, &BootcNodePool),
        old: &BootcNodePoolStatus,
        polled: Polled<'_>,
        unwritable: Vec<&Unwritable>,
        now: Timestamp,
    ) -> Option<BootcNodePoolStatus> {
        let plan = self.plans.get(&pool.name)?;
        let members = self.views(self.membership.members(&pool.name));
        let away = self.views(self.strangers(pool));
        let excluded = self.membership.excluded.iter().filter(|(_, of)| **of == pool.name);
        let excluded: Vec<&NodeName> = excluded.map(|(name, _)| name).collect();
        let facts = PoolStatusFacts {
            generation: object.metadata.generation,
            spec: &object.spec,
            old,
            polled,
            pool: pool.name.as_str(),
            refused: pool.refused.as_deref(),
            gates: self.gates.get(&pool.name),
            excluded: &excluded,
            deleting: pool.deleting,
            bad_selector: pool.bad_selector(),
            members: &members,
            away: &away,
            conflicts: self.membership.conflicts_of(&pool.name).collect(),
            plan,
            unreadable: self.berths_of(pool).filter_map(read_error).collect(),
            unwritable,
        };
        Some(aggregate::status(&facts, now))
    }

    fn berths_of(&self, pool: &Pool) -> impl Iterator<Item = &'a LeaseView> {
        self.leases.iter().filter(|lease| lease.pool == pool.name)
    }

    /// Returns the nodes that hold a berth of the pool but are no longer members.
    fn strangers(&self, pool: &Pool) -> impl Iterator<Item = &'a NodeName> {
        let holders = self.berths_of(pool).filter_map(|lease| Some(&lease.holding()?.node));
        holders.filter(|name| self.membership.pool_of(name) != Some(&pool.name))
    }

    fn views<'n>(&self, names: impl Iterator<Item = &'n NodeName>) -> Vec<MemberView<'a>> {
        names.filter_map(|name| self.member(name)).collect()
    }

    fn member(&self, name: &NodeName) -> Option<MemberView<'a>> {
        let node = self.snapshot.nodes.get(name.as_str())?.view.as_ref();
        let host = self.snapshot.bootc_nodes.get(name.as_str());
        Some(MemberView {
            node,
            host: host.map(|entry| entry.view.as_ref()),
            holding: self.holdings.get(&node.uid).copied(),
            overdue: self.timed_out.contains(&node.uid),
            heard: self.heard.contains(name),
        })
    }

    /// Returns the agents of all pool members, sorted by node name. `quiet` returns the time since an agent's last
    /// report, given the node's name and BootcNode.
    pub fn agents(&self, quiet: impl Fn(&str, &Entry<BootcNodeView>) -> Duration) -> Vec<Agent<'a>> {
        let committed = self.committed();
        let agents = self.snapshot.bootc_nodes.iter().filter_map(|(name, host)| {
            let content = host.view.content.as_ref().ok()?;
            let uid = &self.snapshot.nodes.get(name)?.view.uid;
            is_member(&host.view).then(|| Agent {
                node: name,
                quiet: quiet(name, host),
                rebooting: committed.contains(uid) && !self.timed_out.contains(uid),
                unguarded: content.report.unguarded,
                firstboot: content.report.host.firstboot,
            })
        });
        agents.collect()
    }

    /// Returns the nodes with a committed berth, which may be silent while they reboot.
    fn committed(&self) -> BTreeSet<&'a NodeUid> {
        let holdings = self.leases.iter().filter_map(LeaseView::holding);
        let committed = holdings.filter(|holding| holding.phase == HoldPhase::Committed);
        committed.map(|holding| &holding.uid).collect()
    }

    /// Returns a message for each object that cannot be read.
    pub fn unreadable(&self) -> Vec<String> {
        let mut unreadable = vec![];
        for (name, pool) in self.snapshot.pools.iter() {
            if let Err(error) = &pool.view.object {
                unreadable.push(format!("BootcNodePool {name}: {error}"));
            }
        }
        for lease in self.leases {
            if let Some(error) = read_error(lease) {
                unreadable.push(format!("Lease {}: {error}", lease.name()));
            }
        }
        for (name, host) in self.snapshot.bootc_nodes.iter() {
            if let Some(error) = host.view.error() {
                unreadable.push(format!("BootcNode {name}: {error}"));
            }
        }
        for (name, node) in self.snapshot.nodes.iter() {
            if let Some(error) = &node.view.error {
                unreadable.push(format!("Node {name}: {error}"));
            }
        }
        unreadable
    }
}

fn read_error(lease: &LeaseView) -> Option<&str> {
    lease.berth.as_ref().err().map(String::as_str)
}

fn is_member(host: &BootcNodeView) -> bool {
    let pool = host.spec().map(|spec| &spec.pool_name);
    pool.is_some_and(|pool| !pool.is_empty()) && !host.deleting
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::decode::Decoded;
    use k8s_openapi::api::coordination::v1::Lease;
    use serde_json::json;

    use super::*;
    use crate::controller::view::NodeView;

    #[test]
    fn each_unreadable_object_is_named() {
        let mut snapshot = Snapshot::default();
        let late = "9999-12-31T23:59:59Z";
        for (name, time) in [("n1", late), ("n2", "2026-01-01T00:00:00Z")] {
            let metadata = json!({ "name": name });
            let conditions = json!([{ "type": "Ready", "status": "True", "lastHeartbeatTime": time }]);
            let node = json!({ "metadata": metadata, "status": { "conditions": conditions } });
            let node = NodeView::of(&serde_json::from_value(node).unwrap());
            Arc::make_mut(&mut snapshot.nodes).insert(name.to_owned(), Entry::new(node));
            let host = json!({ "metadata": metadata, "spec": {}, "status": { "heartbeatTime": time } });
            let host = BootcNodeView::of(serde_json::from_value(host).unwrap());
            Arc::make_mut(&mut snapshot.bootc_nodes).insert(name.to_owned(), Entry::new(host));
        }
        let lease = json!({ "metadata": { "name": "p-0" }, "spec": { "renewTime": late } });
        let lease = LeaseView::of(serde_json::from_value::<Decoded<Lease>>(lease).unwrap());
        let results = PassResults {
            snapshot: &snapshot,
            membership: &Membership::default(),
            leases: &[lease],
            gates: &BTreeMap::new(),
            plans: &BTreeMap::new(),
            heard: &BTreeSet::new(),
            timed_out: &BTreeSet::new(),
            holdings: BTreeMap::new(),
        };
        let unreadable = results.unreadable();
        let expected = ["Lease p-0: ", "BootcNode n1: status: ", "Node n1: status.conditions: "];
        assert!(
            unreadable.len() == 3
                && unreadable
                    .iter()
                    .zip(expected)
                    .all(|(found, start)| found.starts_with(start)),
            "{unreadable:?}"
        );
    }
}
