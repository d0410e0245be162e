//! Nodes with their BootcNodes, and the pools that the controller would assign the nodes to.

use std::collections::BTreeMap;

use berth_api::decode::Decoded;
use berth_api::node::{BootcNode, BootcNodeStatus};
use berth_api::platform::{Machine, Variant};
use berth_api::pool::Target;
use berth_api::{Digest, NodeName, PoolName, keys};
use berth_core::controller::view::NodeView;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::snapshot::Snapshot;
use crate::world::World;

#[derive(Debug, Clone)]
pub(crate) struct Member<'a> {
    pub(crate) name: String,
    pub(crate) node: &'a NodeView,
    pub(crate) bootc: Option<&'a Decoded<BootcNode>>,
}

impl Member<'_> {
    pub(crate) fn status(&self) -> BootcNodeStatus {
        self.bootc.and_then(|b| b.status.clone()).unwrap_or_default()
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.node.machine
    }

    /// Returns the CPU variant that the node's agent reports: the most demanding variant that the node can run.
    pub(crate) fn reported_variant(&self) -> Variant<'_> {
        let status = self.bootc.and_then(|bootc| bootc.status.as_ref());
        // A report under another Node UID is about another machine with this name.
        let status = status.filter(|status| status.node_uid.as_deref() == Some(self.node.uid.as_str()));
        let has_reported = status.is_some_and(|status| status.agent_version.is_some());
        Variant::reported(
            has_reported,
            status.and_then(|status| status.platform_variant.as_deref()),
        )
    }

    /// True if the controller counts the Node as Ready. A Node that cannot be decoded completely does not count.
    pub(crate) fn is_ready(&self) -> bool {
        self.node.ready
    }

    pub(crate) fn is_cordoned(&self) -> bool {
        self.node.unschedulable
    }

    /// Returns the target's digest for the node's platform.
    pub(crate) fn wanted<'t>(&self, target: Option<&'t Target>) -> Option<&'t Digest> {
        let machine = self.machine();
        target?.digest_for(machine.platform(self.reported_variant()))
    }

    pub(crate) fn is_up_to_date(&self, target: Option<&Target>) -> bool {
        let booted = self.status().booted.and_then(|b| b.digest);
        booted.is_some() && booted.as_ref() == self.wanted(target)
    }
}

pub(crate) fn is_excluded(node: &NodeView) -> bool {
    node.labels.contains_key(keys::LABEL_EXCLUDE)
}

pub(crate) fn is_held_back(node: &NodeView) -> bool {
    node.labels.contains_key(keys::LABEL_HOLD)
}

#[derive(Debug)]
pub(crate) struct Roster<'a> {
    nodes: BTreeMap<String, Member<'a>>,
    pub(crate) world: World,
}

impl<'a> Roster<'a> {
    pub(crate) fn of(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        let bootcs = snapshot.bootc_nodes.iter().map(|bootc| (bootc.name_any(), bootc));
        let bootcs: BTreeMap<String, &Decoded<BootcNode>> = bootcs.collect();
        let nodes = snapshot.nodes.iter().map(|node| {
            let (name, node) = (node.name().to_owned(), node.view.as_ref());
            let bootc = bootcs.get(&name).copied();
            (name.clone(), Member { name, node, bootc })
        });
        Self {
            nodes: nodes.collect(),
            world: World::of(snapshot, now),
        }
    }

    pub(crate) fn node(&self, name: &str) -> Option<&Member<'a>> {
        self.nodes.get(name)
    }

    /// Returns a node's pool; for an excluded node, the pool that it would belong to.
    pub(crate) fn pool_of(&self, name: &str) -> Option<&PoolName> {
        let (membership, name) = (&self.world.membership, NodeName::from(name));
        membership.pool_of(&name).or(membership.excluded.get(&name))
    }

    /// Returns a pool's members, sorted by name.
    pub(crate) fn members(&self, pool: &str) -> Vec<&Member<'a>> {
        let pool = PoolName::from(pool);
        let names = self.world.membership.members(&pool);
        names.filter_map(|name| self.node(name.as_str())).collect()
    }

    /// Returns the excluded nodes that would otherwise be members of the pool, sorted by name.
    pub(crate) fn excluded(&self, pool: &str) -> Vec<&Member<'a>> {
        let excluded = self.world.membership.excluded.iter();
        let of_pool = excluded.filter(|(_, of)| of.as_str() == pool);
        of_pool.filter_map(|(name, _)| self.node(name.as_str())).collect()
    }
}
