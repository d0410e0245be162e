//! Insight: a summary of one node's update, with all that a client needs to show the node in one line.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Written;

/// Longest message of an insight, in characters.
pub const MAX_MESSAGE: usize = 100;

/// Condition types of an insight, and the reasons of `Updating`.
pub mod conditions {
    /// The node is being updated to the desired image.
    pub const UPDATING: &str = "Updating";
    /// The node is Ready, schedulable and under no pressure.
    pub const AVAILABLE: &str = "Available";
    /// A problem keeps the node from being updated.
    pub const DEGRADED: &str = "Degraded";
    /// All condition types of an insight.
    pub const ALL: &[&str] = &[UPDATING, AVAILABLE, DEGRADED];

    /// `Updating` is False: the node needs an update, and its turn has not come.
    pub const PENDING: &str = "Pending";
    /// `Updating` is False: the node runs the desired image.
    pub const UPDATED: &str = "Updated";
    /// `Updating` is False: the node needs an update, but the pool or the fleet is paused, or the node is excluded.
    pub const PAUSED: &str = "Paused";
    /// `Updating` is True: pods are being moved away.
    pub const DRAINING: &str = "Draining";
    /// `Updating` is True: the image is being pulled or staged, or the node is giving its berth back.
    pub const WORKING: &str = "Updating";
    /// `Updating` is True: the host reboots or is being proven after the reboot.
    pub const REBOOTING: &str = "Rebooting";
}

/// Summary of one node's update.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeInsight {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Reference to the Node.
    pub resource: ResourceRef,
    /// Reference to the pool of the node.
    pub pool_resource: ResourceRef,
    /// Role of the node.
    pub scope_type: ScopeType,
    /// Version of the booted image, or its digest if it has no version. Absent until it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Estimated time from the start of the current phase to the end of the update, such as `240s`; `0s` when the
    /// update is over. Based on the node's own last durations, and on the pool's medians for durations that the node
    /// has not measured. Absent if no estimate is possible, for example while the node waits for its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub est_to_complete: Option<Written<Duration>>,
    /// Message of at most 100 characters; may be empty.
    #[serde(default)]
    #[schemars(length(max = 100))]
    pub message: String,
    /// Conditions of the update: `Updating`, `Available`, `Degraded`.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 5))]
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Reference to a cluster-scoped object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRef {
    /// API group; empty for Nodes.
    #[schemars(length(max = 253))]
    #[serde(default)]
    pub group: String,
    /// Plural name of the kind, such as `nodes`.
    #[schemars(length(max = 63))]
    pub resource: String,
    /// Name of the object.
    #[schemars(length(max = 253))]
    pub name: String,
}

/// Role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScopeType {
    /// The node is part of the control plane.
    ControlPlane,
    /// The node is not part of the control plane.
    WorkerPool,
}
