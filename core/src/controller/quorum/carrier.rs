//! A node of the control plane, and how badly off it is.

use berth_api::waves::is_control_plane;
use berth_api::{NodeName, NodeUid, keys};

use crate::controller::servers::State;
use crate::controller::view::NodeView;

/// Progress of a berth, in the order in which its node is preferred over another that is at work as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    Offered,
    Taken,
    /// Or giving back; or its Lease cannot be read.
    Committed,
}

/// Rank of a node by how badly off it is: one that is worse off goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    Nothing,
    CordonedByOthers,
    /// The node has no berth any more, and still carries our cordon.
    CordonedByUs,
    NotReady,
}

/// A node of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Carrier {
    pub(super) uid: NodeUid,
    pub(super) name: NodeName,
    /// True if it has the label, and so an etcd member.
    pub(super) member: bool,
    pub(super) excluded: bool,
    pub(super) ready: bool,
    pub(super) unschedulable: bool,
    pub(super) our_cordon: bool,
    pub(super) at_work: Option<Work>,
    /// Number of servers that are listed at its addresses, and the state of the best of them.
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

    pub(super) fn trouble(&self) -> Trouble {
        match () {
            () if !self.ready => Trouble::NotReady,
            () if self.our_cordon && self.at_work.is_none() => Trouble::CordonedByUs,
            () if self.unschedulable && !self.our_cordon => Trouble::CordonedByOthers,
            () => Trouble::Nothing,
        }
    }

    /// True if the node is expected to stay up, as far as its Node says. A cordon by somebody else does not stop an etcd member;
    /// on an excluded node it announces that the node is about to be taken down.
    pub(super) fn stays_up(&self) -> bool {
        match self.trouble() {
            Trouble::Nothing => true,
            Trouble::CordonedByOthers => !self.excluded,
            Trouble::CordonedByUs | Trouble::NotReady => false,
        }
    }
}
