//! What the controller reports of a pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// What the controller sees of a pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootcNodePoolStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What the reference was resolved to, and what is published to the members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// How many members are where.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// How many berths are where.
    #[serde(default)]
    pub berths: BerthCounts,
    /// The digests that failed on members, the newest first. A berth whose turn failed is not opened again before the
    /// failure stands here.
    #[schemars(length(max = 8))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<DigestFailures>,
    /// The `rollout.retryToken` that was last obeyed: failures from before it are forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub retry_token: Option<String>,
    /// How far each wave is, in order; empty for a pool without waves and control plane nodes.
    #[schemars(length(max = 20))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<WaveStatus>,
    /// How long members took lately, for estimates.
    #[serde(default)]
    pub phase_durations: PhaseDurations,
    /// `Updated`, `Progressing`, `Degraded`, `Paused`, `ImageResolved`, `NodeConflict`, `RolloutHalted`,
    /// `WindowOpen`.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// A resolved image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The reference that was resolved, as the admin wrote it.
    #[schemars(length(max = 512))]
    pub image: String,
    /// What the registry answered: the digest of a manifest, or of an index.
    pub digest: Digest,
    /// The image's `org.opencontainers.image.version` label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// The manifest of each platform. Hosts report these digests, never that of the index.
    #[schemars(length(max = 32))]
    pub platforms: Vec<PlatformDigest>,
    /// When this digest was first published to the members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_time: Option<Time>,
}

impl Target {
    /// The manifest digest for a node's architecture, in OCI (and Kubernetes) words: `amd64`, `arm64`.
    pub fn digest_for(&self, architecture: &str) -> Option<&Digest> {
        self.platforms
            .iter()
            .find(|p| p.architecture == architecture)
            .map(|p| &p.digest)
    }
}

/// The manifest of one platform.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlatformDigest {
    /// OCI architecture, such as `amd64`.
    #[schemars(length(max = 32))]
    pub architecture: String,
    /// Digest of that platform's manifest.
    pub digest: Digest,
}

/// How many members are where. A node is counted in `total`, and in each of the others that is true of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Members.
    #[serde(default)]
    pub total: u32,
    /// Run the target, and are not being worked on.
    #[serde(default)]
    pub updated: u32,
    /// Pull or stage the target.
    #[serde(default)]
    pub staging: u32,
    /// Have the target staged and locked, and wait for a berth.
    #[serde(default)]
    pub staged: u32,
    /// Are cordoned and drained under a berth.
    #[serde(default)]
    pub draining: u32,
    /// Have committed, and reboot or are being proven.
    #[serde(default)]
    pub rebooting: u32,
    /// Do not run the target and do none of the above yet.
    #[serde(default)]
    pub pending: u32,
    /// Would be members, and are taken out by the label `berth.dev/exclude`. Not counted in `total`.
    #[serde(default)]
    pub excluded: u32,
    /// Report that something is wrong.
    #[serde(default)]
    pub degraded: u32,
    /// Are not Ready or not schedulable, for whatever reason.
    #[serde(default)]
    pub unavailable: u32,
}

/// How many berths are where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BerthCounts {
    /// The pool's capacity now.
    #[serde(default)]
    pub total: u32,
    /// Held by a node.
    #[serde(default)]
    pub held: u32,
    /// Offered to a node.
    #[serde(default)]
    pub offered: u32,
    /// Closed.
    #[serde(default)]
    pub closed: u32,
}

/// Nodes on which a digest failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DigestFailures {
    /// Digest of a platform's manifest, as the nodes report it.
    pub digest: Digest,
    /// Names of the first 64 of them. One that was deleted says so: a Node made anew under its name is another one.
    #[schemars(length(max = 64), inner(length(max = 263)))]
    #[serde(default)]
    pub nodes: Vec<String>,
    /// How many there are.
    #[serde(default)]
    pub count: u32,
}

/// How far a wave is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaveStatus {
    /// Its name; `rest` for nodes in no wave, `control-plane` for control plane nodes in no wave.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Members in it.
    pub total: u32,
    /// Of those, how many run the target, proven and available.
    pub updated: u32,
    /// Whether it is its turn.
    pub state: WaveState,
    /// For how many seconds it has been soaking, added up by each leader by its own clock; a few seconds are lost when
    /// the leader changes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub soaked_seconds: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Whether it is a wave's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WaveState {
    /// Waits for an earlier one.
    Waiting,
    /// Its nodes are offered berths.
    Active,
    /// All its nodes are proven; the next one waits until it has soaked.
    Soaking,
    /// Proven and soaked.
    Done,
}

/// Medians of what the members measured, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseDurations {
    /// From taking a berth to the end of the drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_seconds: Option<u32>,
    /// From the commit to the proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_seconds: Option<u32>,
}
