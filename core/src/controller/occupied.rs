//! Nodes that hold berths or are offered one.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::Holding;
use berth_api::{NodeName, NodeUid, PoolName, keys};

use crate::controller::snapshot::Snapshot;
use crate::controller::view::{LeaseView, made_for};

/// Nodes that hold berths or are offered one.
#[derive(Debug, Clone, Default)]
pub struct Occupied {
    /// Pools of the berths that each node holds or is offered.
    pub by_uid: BTreeMap<NodeUid, BTreeSet<PoolName>>,
    /// Names of the nodes in `by_uid`.
    pub names: BTreeMap<NodeUid, NodeName>,
    /// State of each held berth, by the UID of its holder.
    pub holdings: BTreeMap<NodeUid, Holding>,
    /// Node names from the labels of Leases that cannot be read.
    pub unclear: BTreeSet<String>,
}

impl Occupied {
    /// Returns the nodes that hold or are offered a berth, from all Leases.
    pub fn of(leases: &[LeaseView]) -> Self {
        let mut occupied = Self::default();
        for lease in leases {
            match &lease.berth {
                Ok(berth) => {
                    if let Some((node, uid)) = berth.node() {
                        let pools = occupied.by_uid.entry(uid.clone()).or_default();
                        pools.insert(lease.pool.clone());
                        occupied.names.insert(uid.clone(), node.clone());
                    }
                    if let Some(holding) = berth.holding() {
                        occupied.holdings.insert(holding.uid.clone(), holding.clone());
                    }
                }
                Err(_) => {
                    let labels = lease.lease.metadata.labels.as_ref();
                    if let Some(node) = labels.and_then(|l| l.get(keys::LABEL_NODE)) {
                        occupied.unclear.insert(node.clone());
                    }
                }
            }
        }
        occupied
    }
}

/// Returns the Nodes that a BootcNode or a berth names, but that the watch does not show. The caller must read each of
/// these Nodes from the API server to confirm that it is gone.
pub fn missing_nodes(snapshot: &Snapshot, occupied: &Occupied) -> BTreeMap<NodeUid, NodeName> {
    // A Node whose UID exists under another name is not missing: the BootcNode or the berth only has a wrong name for
    // it.
    let of_any = LazyCell::new(|| -> BTreeSet<&str> { snapshot.nodes.values().map(|n| n.view.uid.as_str()).collect() });

    let bootc_nodes = snapshot
        .bootc_nodes
        .iter()
        .filter_map(|(name, host)| Some((made_for(&host.view)?, name.as_str())));
    let holders = occupied.names.iter().map(|(uid, name)| (uid.as_str(), name.as_str()));
    let missing = bootc_nodes.chain(holders).filter(|(uid, name)| {
        let node = snapshot.nodes.get(*name);
        let is_there = node.is_some_and(|n| n.view.uid.as_str() == *uid) || of_any.contains(uid);
        !is_there
    });
    missing.map(|(uid, name)| (uid.into(), name.into())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::controller::round::facts::tests::lease;
    use crate::controller::snapshot::Entry;
    use crate::controller::view::NodeView;

    #[test]
    fn a_node_without_its_uid_is_missing() {
        let mut snapshot = Snapshot::default();
        let node = serde_json::from_value(serde_json::json!({ "metadata": { "name": "n1", "uid": "u1" } })).unwrap();
        Arc::make_mut(&mut snapshot.nodes).insert("n1".to_owned(), Entry::new(NodeView::of(&node)));
        for (uid, name, is_missing) in [
            ("u1", "n1", false),
            // The BootcNode or berth has a wrong name.
            ("u1", "n2", false),
            // A new Node has the name.
            ("u2", "n1", true),
        ] {
            let occupied = Occupied {
                names: [(NodeUid::from(uid), NodeName::from(name))].into(),
                ..Occupied::default()
            };
            let missing = missing_nodes(&snapshot, &occupied);
            assert_eq!(!missing.is_empty(), is_missing, "{uid} {name}");
        }
    }

    #[test]
    fn every_lease_says_who_is_occupied() {
        let offered = lease("a", 0, ("n1", "u1"), false);
        let held = lease("b", 0, ("n1", "u1"), true);
        let mut unreadable = lease("a", 1, ("n2", "u2"), true);
        unreadable.berth = Err("no phase".to_owned());
        let occupied = Occupied::of(&[offered, held, unreadable]);
        assert_eq!(occupied.by_uid, [("u1".into(), ["a".into(), "b".into()].into())].into());
        assert_eq!(occupied.names, [("u1".into(), "n1".into())].into());
        assert!(occupied.holdings.keys().eq([&NodeUid::from("u1")]));
        assert_eq!(occupied.unclear, ["n2".to_owned()].into());
    }
}
