//! A control plane node, and the severity of its state.

use berth_api::waves::is_control_plane;
use berth_api::{NodeName, NodeUid, keys};

use crate::controller::servers::State;
use crate::controller::view::NodeView;

/// Progress of a node's turn. If two control plane nodes have berths, the node with more progress continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    Offered,
    Taken,
    /// The node has committed or is giving the berth back, or the Lease cannot be read.
    Committed,
}

/// How bad a node's state is. Nodes in the worst state are updated first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    Nothing,
    CordonedByOthers,
    /// The node no longer has a berth but still has Berth's cordon.
    CordonedByUs,
    NotReady,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Carrier {
    pub(super) uid: NodeUid,
    pub(super) name: NodeName,
    /// True if the node has the control plane label, so that it is assumed to run an etcd member.
    pub(super) member: bool,
    pub(super) excluded: bool,
    pub(super) ready: bool,
    pub(super) unschedulable: bool,
    pub(super) our_cordon: bool,
    pub(super) at_work: Option<Work>,
    /// Number of API servers listed at the node's addresses.
    pub(super) servers: usize,
    pub(super) server: Option<State>,
}

impl Carrier {
    pub(super) fn of(node: &NodeView, own: &[State]) -> Self {
        Self {
            uid: node.uid.clone(),
            name: node.name.clone(),
            member: is_control_plane(&node.labels),
            excluded: node.labels.contains_key(keys::LABEL_EXCLUDE),
            ready: node.ready,
            unschedulable: node.unschedulable,
            our_cordon: node.our_cordon,
            at_work: None,
            servers: own.len(),
            server: own.iter().max().copied(),
        }
    }

    pub(super) fn severity(&self) -> Severity {
        if !self.ready {
            Severity::NotReady
        } else if self.our_cordon && self.at_work.is_none() {
            Severity::CordonedByUs
        } else if self.unschedulable && !self.our_cordon {
            Severity::CordonedByOthers
        } else {
            Severity::Nothing
        }
    }

    /// True if the node is expected to stay up. A cordon by others does not stop an etcd member, so a cordoned node
    /// usually stays up. But if the node is also excluded, an admin is probably about to take it down.
    pub(super) fn stays_up(&self) -> bool {
        match self.severity() {
            Severity::Nothing => true,
            Severity::CordonedByOthers => !self.excluded,
            Severity::CordonedByUs | Severity::NotReady => false,
        }
    }
}
