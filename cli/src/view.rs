//! Data of the `status` report about one pool: its nodes, waves, berths and failures.

use berth_api::pool::{DigestFailures, ImageMetadata, WaveState};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use crate::insights::{Counts, NodeLine, PoolAssessment};
use crate::text::clean;

/// A pool as `status` shows it.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// Name of the pool.
    pub name: String,
    /// Assessment in one word.
    pub assessment: PoolAssessment,
    /// Numbers of nodes in each state.
    #[serde(flatten)]
    pub counts: Counts,
    /// Image reference in the spec.
    pub image: String,
    /// Version label of the target.
    pub version: Option<String>,
    /// Digest that the reference was resolved to.
    pub digest: Option<berth_api::Digest>,
    /// Metadata that the builder put into the target image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ImageMetadata>,
    /// Berths of the pool.
    pub berths: Berths,
    /// Condition `Progressing`.
    pub progressing: Option<Warning>,
    /// Condition `WindowOpen`; absent for a pool without windows or exclusions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Warning>,
    /// Names of the pools that are updated before this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Progress of each wave, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<WaveView>,
    /// Nodes where a digest of the current target has failed, by digest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<DigestFailures>,
    /// Excluded nodes that would otherwise be members.
    #[serde(rename = "excludedNodes", skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<String>,
    /// Number of excluded nodes, as last reported by the controller.
    pub excluded_count: usize,
    /// The rollout halts when one digest has failed on this many nodes.
    pub max_failures: usize,
    /// Conditions that need attention.
    pub warnings: Vec<Warning>,
    /// Nodes of the pool. The nodes with the worst state come first.
    pub nodes: Vec<NodeLine>,
}

/// A pool's berths.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Berths {
    /// The pool's capacity.
    pub total: usize,
    /// Nodes that hold a berth.
    pub held: Vec<String>,
    /// Nodes that are offered a berth.
    pub offered: Vec<String>,
    /// Closed berths whose last turn failed or was not ended by its node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<ClosedBerth>,
    /// Errors of Leases that cannot be read as berths.
    pub unreadable: Vec<String>,
}

/// A closed berth whose last turn failed or was not ended by its node.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClosedBerth {
    /// Name of the berth.
    pub berth: String,
    /// Why the berth is closed: `failed`, `gone`, `excluded` or `admin`.
    pub reason: String,
    /// Name of the node that held the berth last.
    pub last_node: Option<String>,
}

/// Progress of a wave.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaveView {
    /// Name of the wave.
    pub name: String,
    /// Number of members in the wave.
    pub total: u32,
    /// Number of members that run the target and are proven and available.
    pub updated: u32,
    /// State of the wave.
    pub state: WaveState,
    /// Seconds that the wave has soaked so far.
    pub soaked_seconds: u64,
    /// Seconds that the wave must soak.
    pub soak_seconds: u64,
}

/// A condition to show. If the controller has not read the newest spec, this program adds a condition of type `Unread`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Warning {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// Status of the condition.
    pub status: String,
    /// Reason of the condition.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
    /// Time of the last transition, if known.
    pub since: Option<Timestamp>,
}

impl From<&Condition> for Warning {
    fn from(condition: &Condition) -> Self {
        Self {
            type_: condition.type_.clone(),
            status: condition.status.clone(),
            reason: clean(&condition.reason),
            message: clean(&condition.message),
            since: Some(condition.last_transition_time.0),
        }
    }
}
