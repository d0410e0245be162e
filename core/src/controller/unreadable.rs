//! Objects that cannot be read. Pure.

use std::fmt;

use berth_api::fleet;

use crate::controller::snapshot::Snapshot;
use crate::controller::view::LeaseView;

/// An object that cannot be decoded completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable<'a> {
    /// Kind of the object.
    pub kind: &'static str,
    /// Name of the object.
    pub name: &'a str,
    /// Why the object cannot be decoded.
    pub error: &'a str,
}

impl fmt::Display for Unreadable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.name, self.error)
    }
}

/// Returns the objects of the snapshot, and the berths, that cannot be read. Objects that stop pools come first, because
/// messages name only the first few.
pub fn unreadable<'a>(snapshot: &'a Snapshot, leases: &'a [LeaseView]) -> Vec<Unreadable<'a>> {
    let mut found = vec![];
    let mut add = |kind, name, error: Option<&'a str>| {
        found.extend(error.map(|error| Unreadable { kind, name, error }));
    };
    if let Some(fleet) = &snapshot.fleet {
        add("BootcFleet", fleet::NAME, fleet.view.error());
    }
    for (name, pool) in snapshot.pools.iter() {
        add("BootcNodePool", name, pool.view.error());
    }
    for lease in leases {
        add("Lease", lease.name(), lease.error());
    }
    for (name, host) in snapshot.bootc_nodes.iter() {
        add("BootcNode", name, host.view.error());
    }
    for (name, node) in snapshot.nodes.iter() {
        add("Node", name, node.view.error.as_deref());
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::decode::Decoded;
    use k8s_openapi::api::coordination::v1::Lease;
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::snapshot::Entry;
    use crate::controller::view::{BootcNodeView, FleetView, NodeView, PoolView};

    fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn each_unreadable_object_is_named() {
        let mut snapshot = Snapshot::default();
        let late = "9999-12-31T23:59:59Z";
        for (name, time) in [("n1", late), ("n2", "2026-01-01T00:00:00Z")] {
            let metadata = json!({ "name": name });
            let conditions = json!([{ "type": "Ready", "status": "True", "lastHeartbeatTime": time }]);
            let node = NodeView::of(&read(
                json!({ "metadata": metadata, "status": { "conditions": conditions } }),
            ));
            Arc::make_mut(&mut snapshot.nodes).insert(name.to_owned(), Entry::new(node));
            let host = BootcNodeView::of(read(
                json!({ "metadata": metadata, "spec": {}, "status": { "heartbeatTime": time } }),
            ));
            Arc::make_mut(&mut snapshot.bootc_nodes).insert(name.to_owned(), Entry::new(host));
        }
        let pool = PoolView::of(read(json!({ "metadata": { "name": "p" }, "spec": 7 })));
        Arc::make_mut(&mut snapshot.pools).insert("p".to_owned(), Entry::new(pool));
        let fleet = FleetView::of(read(json!({ "metadata": { "name": "cluster" }, "spec": 7 })));
        snapshot.fleet = Some(Entry::new(fleet));
        let lease = json!({ "metadata": { "name": "p-0" }, "spec": { "renewTime": late } });
        let leases = [LeaseView::of(read::<Decoded<Lease>>(lease))];
        let found = unreadable(&snapshot, &leases);
        let expected = [
            "BootcFleet cluster: spec: ",
            "BootcNodePool p: spec: ",
            "Lease p-0: ",
            "BootcNode n1: status: ",
            "Node n1: status.conditions: ",
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, start) in found.iter().zip(expected) {
            assert!(found.to_string().starts_with(start), "{found:?}");
        }
    }
}
