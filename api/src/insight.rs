//! Insight into one node's update: all that any client needs to print one line of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest message of an insight, in characters.
pub const MAX_MESSAGE: usize = 100;

/// Condition types of an insight, and the reasons of `Updating`.
pub mod conditions {
    /// The node is on its way to the desired image.
    pub const UPDATING: &str = "Updating";
    /// The node is Ready, schedulable and under no pressure.
    pub const AVAILABLE: &str = "Available";
    /// Something is wrong that keeps the node from its update.
    pub const DEGRADED: &str = "Degraded";
    /// All of them.
    pub const ALL: &[&str] = &[UPDATING, AVAILABLE, DEGRADED];

    /// `Updating` is False: the node should change, and its turn has not come.
    pub const PENDING: &str = "Pending";
    /// `Updating` is False: the node runs the desired image.
    pub const UPDATED: &str = "Updated";
    /// `Updating` is False: the node should change, and an admin holds it back.
    pub const PAUSED: &str = "Paused";
    /// `Updating` is True: pods are moved away.
    pub const DRAINING: &str = "Draining";
    /// `Updating` is True: the image is pulled, staged, or given its last touch after the reboot.
    pub const WORKING: &str = "Updating";
    /// `Updating` is True: the host reboots, or is proven after it.
    pub const REBOOTING: &str = "Rebooting";
}

/// Insight into the update of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeInsight {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The Node.
    pub resource: ResourceRef,
    /// The pool that the node belongs to.
    pub pool_resource: ResourceRef,
    /// Sort of the node.
    pub scope_type: ScopeType,
    /// Version of the image that runs; its digest when it has no version. Absent while nobody has told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Time from the start of the phase to the end of the update, such as `240s`: `0s` once it is over. Measured by the
    /// node's last turn, or by those of its pool. Absent where nobody can tell, as while the node waits for its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub est_to_complete: Option<String>,
    /// Line for people, of at most 100 characters; may be empty.
    #[serde(default)]
    #[schemars(length(max = 100))]
    pub message: String,
    /// `Updating`, `Available`, `Degraded`.
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

/// Sort of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScopeType {
    /// The node carries the control plane.
    ControlPlane,
    /// Any other node.
    WorkerPool,
}
