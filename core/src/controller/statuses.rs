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
use crate::controller::implausible::Implausible;
use crate::controller::plan::Plan;
use crate::controller::pool::Pool;
use crate::controller::snapshot::{Entry, Snapshot};
use crate::controller::unreadable::unreadable;
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
    /// Nodes whose reports cannot be true, by the UID of the Node.
    pub implausible: &'a BTreeMap<NodeUid, Implausible>,
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
            unreadable: self.berths_of(pool).filter_map(LeaseView::error).collect(),
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
            implausible: self.implausible.get(&node.uid),
        })
    }

    /// Returns the agents of all pool members, sorted by node name. `quiet` returns the time since an agent's last
    /// report, given the node's name and BootcNode.
    pub fn agents(&self, quiet: impl Fn(&str, &Entry<BootcNodeView>) -> Duration) -> Vec<Agent<'a>> {
        let committed = self.committed();
        let agents = self.snapshot.bootc_nodes.iter().filter_map(|(name, host)| {
            // An unreadable status does not show whether the agent is guarded or when it reported; `Degraded` names it.
            let content = host.view.readable()?;
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
        let unreadable = unreadable(self.snapshot, self.leases);
        unreadable.iter().map(ToString::to_string).collect()
    }
}

fn is_member(host: &BootcNodeView) -> bool {
    let pool = host.spec().map(|spec| &spec.pool_name);
    pool.is_some_and(|pool| !pool.is_empty()) && !host.deleting
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::controller::view::NodeView;

    #[test]
    fn an_agent_with_an_unreadable_status_does_not_count_as_silent() {
        let mut snapshot = Snapshot::default();
        for (name, time) in [("n1", "9999-12-31T23:59:59Z"), ("n2", "2026-01-01T00:00:00Z")] {
            let metadata = json!({ "name": name });
            let node = NodeView::of(&serde_json::from_value(json!({ "metadata": metadata })).unwrap());
            Arc::make_mut(&mut snapshot.nodes).insert(name.to_owned(), Entry::new(node));
            let host =
                json!({ "metadata": metadata, "spec": { "poolName": "p" }, "status": { "heartbeatTime": time } });
            let host = BootcNodeView::of(serde_json::from_value(host).unwrap());
            Arc::make_mut(&mut snapshot.bootc_nodes).insert(name.to_owned(), Entry::new(host));
        }
        let results = PassResults {
            snapshot: &snapshot,
            membership: &Membership::default(),
            leases: &[],
            gates: &BTreeMap::new(),
            plans: &BTreeMap::new(),
            heard: &BTreeSet::new(),
            timed_out: &BTreeSet::new(),
            implausible: &BTreeMap::new(),
            holdings: BTreeMap::new(),
        };
        let agents = results.agents(|_, _| Duration::from_secs(3600));
        let names: Vec<&str> = agents.iter().map(|agent| agent.node).collect();
        assert_eq!(names, ["n2"]);
    }
}
