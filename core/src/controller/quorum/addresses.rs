//! The nodes that run the listed API servers, by their addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use berth_api::NodeName;
use berth_api::waves::is_control_plane;

use crate::controller::view::NodeView;
use crate::text::few;

/// An address of an API server that several nodes have. Each of them counts as a node of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddressConflict {
    address: IpAddr,
    nodes: Vec<NodeName>,
}

impl AddressConflict {
    /// Returns a message for the admin.
    pub(super) fn words(&self) -> String {
        let nodes = few(self.nodes.iter().map(ToString::to_string));
        format!(
            "the Nodes {nodes} have the same address, {}, of an API server, so each counts as a control plane node; delete \
             those whose machine is gone, or correct the address",
            self.address
        )
    }
}

/// The nodes of the control plane.
pub(super) struct Owners<'a> {
    /// Each of them, with its addresses at which an API server is listed.
    pub(super) nodes: Vec<(&'a NodeView, BTreeSet<IpAddr>)>,
}

impl<'a> Owners<'a> {
    /// Returns the nodes that have the label or the address of a listed server. An address of a node with the label is not
    /// another node's: a kubelet writes its node's addresses, but cannot give its node the label.
    pub(super) fn of(nodes: impl Iterator<Item = &'a NodeView>, servers: &BTreeMap<IpAddr, Vec<SocketAddr>>) -> Self {
        let (mut labelled, mut others) = (vec![], vec![]);
        for node in nodes {
            let addresses = listed(node, servers);
            if is_control_plane(&node.labels) {
                labelled.push((node, addresses));
            } else if !addresses.is_empty() {
                others.push((node, addresses));
            }
        }
        let taken: BTreeSet<IpAddr> = labelled.iter().flat_map(|(_, own)| own.iter().copied()).collect();
        for (node, mut addresses) in others {
            addresses.retain(|address| !taken.contains(address));
            if !addresses.is_empty() {
                labelled.push((node, addresses));
            }
        }
        Self { nodes: labelled }
    }

    /// Returns the addresses that more than one node has.
    pub(super) fn conflicts(&self) -> Vec<AddressConflict> {
        let mut at: BTreeMap<IpAddr, Vec<NodeName>> = BTreeMap::new();
        for (node, addresses) in &self.nodes {
            for address in addresses {
                at.entry(*address).or_default().push(node.name.clone());
            }
        }
        let shared = at.into_iter().filter(|(_, nodes)| nodes.len() > 1);
        shared
            .map(|(address, nodes)| AddressConflict { address, nodes })
            .collect()
    }
}

/// Returns the node's addresses at which an API server is listed.
fn listed(node: &NodeView, servers: &BTreeMap<IpAddr, Vec<SocketAddr>>) -> BTreeSet<IpAddr> {
    // Most clusters have more nodes than servers, and most passes need to know of none.
    if servers.is_empty() {
        return BTreeSet::new();
    }
    let addresses = node.addresses.iter().filter_map(|address| address.parse().ok());
    addresses.filter(|address| servers.contains_key(address)).collect()
}
