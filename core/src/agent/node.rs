//! The agent's own Node, as far as its decisions depend on it.

use berth_api::{BootId, NodeUid};
use serde::{Deserialize, Serialize};

/// What matters of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its UID.
    pub uid: NodeUid,
    /// The version that was read.
    pub resource_version: String,
    /// Cordoned, by whomever.
    pub unschedulable: bool,
    /// Its kubelet says that it is ready. Says nothing about which boot it was said under: see `boot_id`.
    pub ready: bool,
    /// The boot ID under which the kubelet last reported.
    pub boot_id: Option<BootId>,
    /// Our cordon, when there is one.
    pub cordon: Option<CordonRecord>,
    /// An admin has excluded it: see [`berth_api::keys::LABEL_EXCLUDE`].
    pub excluded: bool,
}

/// What our cordon patch records on the Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CordonRecord {
    /// The berth under which the node was cordoned.
    #[serde(default)]
    pub berth: String,
    /// Whether it was unschedulable before.
    #[serde(default)]
    pub unschedulable: bool,
}
