//! The nodes that run the listed API servers, found by address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use berth_api::NodeName;
use berth_api::waves::is_control_plane;

use crate::controller::view::NodeView;
use crate::text::few;

/// Address of an API server that several nodes report as their own. Each of these nodes counts as a control plane node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddressConflict {
    address: IpAddr,
    nodes: Vec<NodeName>,
}

impl AddressConflict {
    pub(super) fn words(&self) -> String {
        let nodes = few(self.nodes.iter().map(ToString::to_string));
        format!(
            "the Nodes {nodes} have the same API server address, {}, so each counts as a control plane node; delete \
             each Node whose machine is gone, or correct the address",
            self.address
        )
    }
}

pub(super) struct Owners<'a> {
    /// The control plane nodes, each with its addresses that have a listed API server.
    pub(super) nodes: Vec<(&'a NodeView, BTreeSet<IpAddr>)>,
}

impl<'a> Owners<'a> {
    /// Returns the nodes with the control plane label, and other nodes at the address of a listed API server. An
    /// address of a labeled node does not count for a node without the label: a kubelet can write the addresses of its
    /// Node, but not the label.
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

fn listed(node: &NodeView, servers: &BTreeMap<IpAddr, Vec<SocketAddr>>) -> BTreeSet<IpAddr> {
    // Skips parsing the addresses in passes without a list of servers.
    if servers.is_empty() {
        return BTreeSet::new();
    }
    let addresses = node.addresses.iter().filter_map(|address| address.parse().ok());
    addresses.filter(|address| servers.contains_key(address)).collect()
}
