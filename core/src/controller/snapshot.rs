//! The controller's view of the cluster at one moment: projections of the watched objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::decode::Decoded;
use berth_api::fleet::{BootcFleet, BootcFleetSpec};
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use crate::Moment;
use crate::controller::gate::FleetGate;
use crate::controller::view::{BootcNodeView, FleetView, LeaseView, NodeView, PoolView};

/// A watched object.
#[derive(Debug)]
pub struct Entry<V> {
    /// Projection of the object.
    pub view: Arc<V>,
    /// resourceVersion of the object.
    pub version: String,
    /// Time when this process last saw a change of the object by an agent.
    pub heard: Moment,
}

impl<V> Entry<V> {
    /// Returns an entry with only the content. The version is empty, and the time of an agent's last change is zero.
    pub fn new(view: impl Into<Arc<V>>) -> Self {
        Self {
            view: view.into(),
            version: String::new(),
            heard: Moment::default(),
        }
    }
}

impl<V> Clone for Entry<V> {
    fn clone(&self) -> Self {
        Self {
            view: self.view.clone(),
            version: self.version.clone(),
            heard: self.heard,
        }
    }
}

fn entry<V>(object: &impl ResourceExt, view: V) -> (String, Entry<V>) {
    let entry = Entry {
        version: object.resource_version().unwrap_or_default(),
        ..Entry::new(view)
    };
    (object.name_any(), entry)
}

/// All objects of one kind, by name.
pub type Objects<V> = BTreeMap<String, Entry<V>>;

/// Watched objects at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// BootcNodePools.
    pub pools: Arc<Objects<PoolView>>,
    /// BootcNodes.
    pub bootc_nodes: Arc<Objects<BootcNodeView>>,
    /// Nodes.
    pub nodes: Arc<Objects<NodeView>>,
    /// Berths.
    pub leases: Arc<Objects<LeaseView>>,
    /// The BootcFleet `cluster`, if there is one.
    pub fleet: Option<Entry<FleetView>>,
    /// Kinds of objects whose watch may have been stale when the snapshot was taken.
    pub stale: BTreeSet<&'static str>,
}

impl Snapshot {
    /// Returns the snapshot of these objects. No entry has a time of an agent's change, and the entries of Nodes have no resourceVersion.
    pub fn of<'a>(
        pools: &[BootcNodePool],
        bootc_nodes: &[Decoded<BootcNode>],
        nodes: impl Iterator<Item = Arc<NodeView>>,
        berths: impl Iterator<Item = &'a Decoded<Lease>>,
        fleet: Option<&BootcFleet>,
    ) -> Self {
        let pools = pools.iter().map(|o| entry(o, PoolView::of(o.clone().into())));
        let bootc_nodes = bootc_nodes.iter();
        let bootc_nodes = bootc_nodes.map(|o| entry(o, BootcNodeView::of(o.clone())));
        let fleet = fleet.map(|o| entry(o, FleetView::of(o.clone().into())));
        Self {
            pools: Arc::new(pools.collect()),
            bootc_nodes: Arc::new(bootc_nodes.collect()),
            nodes: Arc::new(nodes.map(|node| (node.name.to_string(), Entry::new(node))).collect()),
            leases: Arc::new(berths.map(|o| entry(o, LeaseView::of(o.clone()))).collect()),
            fleet: fleet.map(|(_, entry)| entry),
            stale: BTreeSet::new(),
        }
    }

    /// Returns copies of the berths' projections, sorted by name.
    pub fn lease_views(&self) -> Vec<LeaseView> {
        self.leases.values().map(|entry| entry.view.as_ref().clone()).collect()
    }

    /// Returns why the BootcFleet closes the gates of all pools: the BootcFleet is paused or unreadable. `None` if it
    /// closes no gates.
    pub fn fleet_gate(&self) -> Option<FleetGate> {
        match &self.fleet.as_ref()?.view.object {
            Ok(fleet) => fleet.spec.paused.then_some(FleetGate::Paused),
            Err(_) => Some(FleetGate::Unreadable),
        }
    }

    /// Returns the spec of the fleet; the default if no BootcFleet exists, and `None` if it cannot be read.
    pub fn fleet_spec(&self) -> Option<BootcFleetSpec> {
        match &self.fleet {
            Some(fleet) => fleet.view.object.as_ref().ok().map(|fleet| fleet.spec.clone()),
            None => Some(BootcFleetSpec::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_fleet_is_a_closed_gate() {
        assert_eq!(Snapshot::default().fleet_gate(), None);
        for (spec, gate) in [
            (serde_json::json!({}), None),
            (serde_json::json!({"paused": true}), Some(FleetGate::Paused)),
            (serde_json::json!({"paused": "perhaps"}), Some(FleetGate::Unreadable)),
        ] {
            let object = serde_json::json!({"metadata": {"name": "cluster"}, "spec": spec});
            let fleet = FleetView::of(serde_json::from_value(object).unwrap());
            let snapshot = Snapshot {
                fleet: Some(Entry::new(fleet)),
                ..Snapshot::default()
            };
            assert_eq!(snapshot.fleet_gate(), gate, "{spec}");
        }
    }
}
