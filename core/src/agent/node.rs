//! The agent's own Node, as far as its decisions depend on it.

use berth_api::{BootId, NodeUid};
use serde::{Deserialize, Serialize};

/// The parts of a Node that matter to its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its UID.
    pub uid: NodeUid,
    /// The version that was read.
    pub resource_version: String,
    /// Cordoned, by whomever.
    pub unschedulable: bool,
    /// True if its kubelet reports Ready. `boot_id` tells under which boot.
    pub ready: bool,
    /// The boot ID under which the kubelet last reported.
    pub boot_id: Option<BootId>,
    /// Our cordon, when there is one.
    pub cordon: Option<CordonRecord>,
    /// An admin has excluded it: see [`berth_api::keys::LABEL_EXCLUDE`].
    pub excluded: bool,
    /// The node carries the control plane.
    pub control_plane: bool,
}

/// Record of our cordon patch on the Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CordonRecord {
    /// The berth under which the node was cordoned.
    #[serde(default)]
    pub berth: String,
    /// True if it was unschedulable before.
    #[serde(default)]
    pub unschedulable: bool,
}
