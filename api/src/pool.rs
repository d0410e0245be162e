//! BootcNodePool: which nodes should run which image, and how fast they may get there. An admin writes the spec.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::duration;
use crate::quantity::Quantity;

/// A set of nodes, the OS image they should run, and how they may be brought there.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "BootcNodePool",
    plural = "bootcnodepools",
    shortname = "bnp",
    status = "BootcNodePoolStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A set of nodes, the OS image they should run, and how they may be brought there.",
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image.ref"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.target.version"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes.total"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.nodes.updated"),
    printcolumn(name = "Degraded", type_ = "integer", json_path = ".status.nodes.degraded"),
    printcolumn(name = "Progressing", type_ = "string", json_path = ".status.conditions[?(@.type=='Progressing')].reason"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Progressing')].message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("the name of a BootcNodePool must have at most 63 characters, because it is also a label value; choose a shorter name"),
)]
#[x_kube(
    validation = Rule::new("has(self.nodeSelector)")
        .message("nodeSelector is missing; write the labels of the nodes, or nodeSelector: {} to select all nodes"),
    validation = Rule::new("has(self.image)")
        .message("image is missing; write image.ref, such as quay.io/example/os:stable"),
)]
#[serde(rename_all = "camelCase")]
pub struct BootcNodePoolSpec {
    /// Which nodes are members. Required; `{}` written out selects all nodes. A node that two pools select is
    /// taken by neither, except that it stays where it already is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::selector::schema")]
    pub node_selector: Option<LabelSelector>,
    /// The OS image that the members should run. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<PoolImage>,
    /// How many nodes may be worked on at once, and for how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// How pods are moved away before a reboot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
}

/// The image of a pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.ref)")
        .message("image.ref is missing; write the whole reference, such as quay.io/example/os:stable"),
    validation = Rule::new("!has(self.ref) || (!self.ref.startsWith('-') && self.ref.matches('^[A-Za-z0-9._:/@_-]+$'))")
        .message("image.ref is not an image reference; write one without spaces or options, such as quay.io/example/os:stable"),
    validation = Rule::new("!has(self.ref) || self.ref.matches('^([^/@]*[.:][^/@]*|localhost)/')")
        .message("image.ref names no registry; write the whole reference, such as quay.io/example/os:stable"),
    validation = Rule::new("!has(self.ref) || self.ref.contains('@') || self.ref.matches('/[^/]*:[^/]+$')")
        .message("image.ref has neither a tag nor a digest; add one, such as :stable or @sha256:…"),
    validation = Rule::new("!has(self.ref) || !self.ref.contains('@') || self.ref.matches('@sha256:[0-9a-f]{64}$')")
        .message("the part of image.ref behind @ is not a digest; write @sha256: followed by 64 lower-case hex digits"),
    validation = Rule::new("!has(self.ref) || self.ref.matches('^[^/]+(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)+(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@.*)?$')")
        .message("image.ref has a repository or tag that no registry accepts; repositories are lower case, tags are letters, digits, '.', '_' and '-'"),
)]
#[serde(rename_all = "camelCase")]
pub struct PoolImage {
    /// Reference with a tag, a digest, or both (then the digest counts): `quay.io/example/os:stable`.
    /// It is resolved once each time it changes; an image index is resolved to the manifest of each platform.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub reference: Option<String>,
}

/// How fast a pool may go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// While true, no node is offered a berth and a node that has not committed gives its berth back. Staging
    /// goes on, and nodes that have committed finish.
    #[serde(default)]
    pub paused: bool,
    /// How many members may be unavailable at once: a number of at least 1, or 1% to 100% of the members,
    /// rounded down but never below 1. Nodes that are unavailable for another reason use it up as well. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 && self <= 1000000 : string(self).matches('^([1-9][0-9]?|100)%$')")
        .message("maxUnavailable must be a whole number from 1 to 1000000, or a percentage from 1% to 100%, such as 25%"))]
    pub max_unavailable: Option<Quantity>,
    /// How many members may pull an image at once: a number of at least 1, or 1% to 100% of the members, rounded
    /// up. Default 25%.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 && self <= 1000000 : string(self).matches('^([1-9][0-9]?|100)%$')")
        .message("maxStaging must be a whole number from 1 to 1000000, or a percentage from 1% to 100%, such as 25%"))]
    pub max_staging: Option<Quantity>,
    /// How long a node may take from its reboot until it is proven, before it is reported as not coming back. It
    /// keeps its berth all the same. Default 15m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,5}(s|m|h)$')")
        .message("rebootTimeout must be a duration above zero: a whole number and a unit, such as 90s, 15m or 1h"))]
    pub reboot_timeout: Option<String>,
    /// How often a node that stages an image may write its progress. Default 5s; 0 writes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^(0|[0-9]{1,6}(s|m|h))$')")
        .message("progressInterval must be a duration: 0, or a whole number and a unit, such as 5s or 1m"))]
    pub progress_interval: Option<String>,
}

/// How pods are moved away before a reboot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// How long a drain may take before the node is uncordoned and gives its berth back. Default 15m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,5}(s|m|h)$')")
        .message("drain.timeout must be a duration above zero: a whole number and a unit, such as 90s, 15m or 1h"))]
    pub timeout: Option<String>,
}

/// Default of `rollout.rebootTimeout`.
pub const DEFAULT_REBOOT_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Default of `drain.timeout`.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Default of `rollout.progressInterval`.
pub const DEFAULT_PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

impl BootcNodePoolSpec {
    /// The image reference as written; the server refuses a pool without one.
    pub fn image_ref(&self) -> &str {
        self.image.as_ref().and_then(|i| i.reference.as_deref()).unwrap_or_default()
    }

    fn rollout(&self) -> Rollout {
        self.rollout.clone().unwrap_or_default()
    }

    /// Whether the admin has paused the pool.
    pub fn paused(&self) -> bool {
        self.rollout().paused
    }

    /// The pool's capacity `k` for that many members.
    pub fn capacity(&self, members: usize) -> usize {
        self.rollout().max_unavailable.unwrap_or(Quantity::Nodes(1)).rounded_down(members)
    }

    /// How many of that many members may stage at once.
    pub fn max_staging(&self, members: usize) -> usize {
        self.rollout().max_staging.unwrap_or(Quantity::Percent(25)).rounded_up(members)
    }

    /// `rollout.rebootTimeout`, or its default.
    pub fn reboot_timeout(&self) -> Duration {
        duration::parse_or(self.rollout().reboot_timeout.as_deref(), DEFAULT_REBOOT_TIMEOUT)
    }

    /// `rollout.progressInterval`, or its default.
    pub fn progress_interval(&self) -> Duration {
        duration::parse_or(self.rollout().progress_interval.as_deref(), DEFAULT_PROGRESS_INTERVAL)
    }

    /// `drain.timeout`, or its default.
    pub fn drain_timeout(&self) -> Duration {
        duration::parse_or(self.drain.as_ref().and_then(|d| d.timeout.as_deref()), DEFAULT_DRAIN_TIMEOUT)
    }
}

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
    /// `Updated`, `Progressing`, `Degraded`, `Paused`, `ImageResolved`, `NodeConflict`.
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
        self.platforms.iter().find(|p| p.architecture == architecture).map(|p| &p.digest)
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
