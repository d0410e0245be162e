//! State of a pool, as the controller reports it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::boot_image::{BootImageLimit, BootImageStatus};
use crate::digest::Digest;
use crate::platform::{Choice, Platform, PlatformDigest};

/// State of a pool, as the controller sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootcNodePoolStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The resolved image, which is published to the members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Image that the tag points at, while it is not the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<Available>,
    /// The last `berth.dev/poll-requested-at` that was acted on, whether the registry answered or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub poll_request: Option<String>,
    /// Number of members in each state.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// Number of berths in each state.
    #[serde(default)]
    pub berths: BerthCounts,
    /// The digests that failed on members, the newest first. A failed turn's berth is not opened again before the
    /// failure stands here.
    #[schemars(length(max = 8))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<DigestFailures>,
    /// The last `rollout.retryToken` that was acted on: failures from before it are forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub retry_token: Option<String>,
    /// Progress of each wave, in order; empty for a pool without waves and control plane nodes.
    #[schemars(length(max = 20))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<WaveStatus>,
    /// The images that members were deployed to, the newest first: what the pool ran before.
    #[schemars(length(max = 10))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deploy_history: Vec<DeployedImage>,
    /// Boot image in use; absent while no machine has told what it was installed from, and none is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_image: Option<BootImageStatus>,
    /// Medians of what members measured lately, for estimates.
    #[serde(default)]
    pub phase_durations: PhaseDurations,
    /// `Updated`, `Progressing`, `Degraded`, `Paused`, `ImageResolved`, `FeedFailing`, `NodeConflict`,
    /// `RolloutHalted`, `WindowOpen`, `BootImageSkew`; `Ready`, `Reconciling` and `Stalled`, which sum them up.
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
    /// Digest that the registry answered: that of a manifest, or of an index.
    pub digest: Digest,
    /// The image's `org.opencontainers.image.version` label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Statements of its builder, for people. Absent while its configuration could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ImageMetadata>,
    /// The manifests, one for each architecture and variant. Hosts report these digests, never the digest of the index.
    #[schemars(length(max = 32))]
    pub platforms: Vec<PlatformDigest>,
    /// Time when this digest was first published to the members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_time: Option<Time>,
}

/// Statements of an image's builder. Of an index: about its first image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageMetadata {
    /// Time when it was built: the label `org.opencontainers.image.created`, else the configuration's `created`. Absent for
    /// an image that was built to be reproducible, without a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// Revision of the sources: the label `org.opencontainers.image.revision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub revision: Option<String>,
    /// Address of the sources: the label `org.opencontainers.image.source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub source: Option<String>,
    /// Limit for the boot images of the machines that it is deployed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_image: Option<BootImageLimit>,
    /// All labels of the image, as far as there is room: 64 of them, and 8 KiB. A label of a field above counts even where it is
    /// left out here.
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = { "type": "string", "maxLength": 512 }))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Number of labels that are left out: they are too many, too long (128 characters of a name, 512 of a value), no text, or
    /// contain control characters.
    #[serde(default, skip_serializing_if = "none")]
    pub labels_left_out: u32,
}

impl Target {
    /// The image for a node's platform.
    pub fn choose(&self, node: Platform<'_>) -> Choice<'_> {
        node.choose(&self.platforms)
    }

    /// Its platforms, for people.
    pub fn shown_platforms(&self) -> String {
        let shown: Vec<String> = self.platforms.iter().map(ToString::to_string).collect();
        shown.join(", ")
    }

    /// The manifest digest for a node's platform.
    pub fn digest_for(&self, node: Platform<'_>) -> Option<&Digest> {
        match self.choose(node) {
            Choice::Image(image) => Some(&image.digest),
            Choice::VariantUnknown | Choice::NoSuchPlatform => None,
        }
    }
}

/// An image that a tag points at, and that the pool does not run: the reference is pinned to another one, the image is too
/// young, or some members cannot run it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Available {
    /// Digest that the registry answered for the tag.
    pub digest: Digest,
    /// The image's version label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Time when the tag was first seen to point at it, by the leader's clock.
    pub since: Time,
    /// Seconds for which the tag has been known to point at it, up to `image.minimumAge`. Each leader adds to them by its own
    /// clock; at most a twentieth of that is counted again when the leader changes.
    #[serde(default)]
    pub seen_seconds: u64,
}

/// An image that members of a pool were deployed to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeployedImage {
    /// Digest that the pool's reference was resolved to; of an image that nodes were only found with, its manifest's.
    pub digest: Digest,
    /// Digests of its manifests, if it is an index. A node that was found with the image knows it by one of them.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub manifests: Vec<Digest>,
    /// The image's version label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Number of members that were deployed to it. It does not fall when some of them go away.
    pub node_count: u32,
    /// Time when the update of a member to it was last proven, by that node's clock, but no later than the controller first
    /// heard of it. Absent for an image that members ran
    /// when they joined, and that none was deployed to since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_deployed: Option<Time>,
}

/// Number of members in each state. A node is counted in `total`, and in each of the others that is true of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Members.
    #[serde(default)]
    pub total: u32,
    /// Members that run the target and are not being worked on.
    #[serde(default)]
    pub updated: u32,
    /// Members that pull or stage the target.
    #[serde(default)]
    pub staging: u32,
    /// Members that have the target staged and locked, and wait for a berth.
    #[serde(default)]
    pub staged: u32,
    /// Members that are cordoned and drained under a berth.
    #[serde(default)]
    pub draining: u32,
    /// Members that have committed, and reboot or are being proven.
    #[serde(default)]
    pub rebooting: u32,
    /// Members that do not run the target, and none of the above is true of them yet.
    #[serde(default)]
    pub pending: u32,
    /// Nodes that would be members but carry the label `berth.dev/exclude`. Not counted in `total`.
    #[serde(default)]
    pub excluded: u32,
    /// Members that report that something is wrong.
    #[serde(default)]
    pub degraded: u32,
    /// Members that are not Ready or not schedulable, for whatever reason.
    #[serde(default)]
    pub unavailable: u32,
}

/// Number of berths in each state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BerthCounts {
    /// The pool's capacity now.
    #[serde(default)]
    pub total: u32,
    /// Berths held by a node.
    #[serde(default)]
    pub held: u32,
    /// Berths offered to a node.
    #[serde(default)]
    pub offered: u32,
    /// Closed berths.
    #[serde(default)]
    pub closed: u32,
}

/// Nodes on which a digest failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DigestFailures {
    /// Digest of a platform's manifest, as the nodes report it.
    pub digest: Digest,
    /// Names of the first 64 of them. A deleted node is marked as such: a Node created again under its name is another
    /// one.
    #[schemars(length(max = 64), inner(length(max = 263)))]
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Number of all of them.
    #[serde(default)]
    pub count: u32,
}

/// Progress of a wave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaveStatus {
    /// Name of the wave; `rest` for nodes in no wave, `control-plane` for control plane nodes in no wave.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Number of members in the wave.
    pub total: u32,
    /// Number of those members that run the target, proven and available.
    pub updated: u32,
    /// State of the wave.
    pub state: WaveState,
    /// Seconds for which it has been soaking. Each leader adds to them by its own clock; a few seconds are lost when
    /// the leader changes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub soaked_seconds: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn none(n: &u32) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// State of a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WaveState {
    /// The wave waits for an earlier one.
    Waiting,
    /// Nodes of the wave are offered berths.
    Active,
    /// All nodes of the wave are proven; the next wave waits until it has soaked.
    Soaking,
    /// The wave is proven and has soaked.
    Done,
}

/// Medians of what the members' timelines show, in seconds; known once three members have. Once three have with the image that
/// they should run, what others measured before has no say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseDurations {
    /// Seconds from the beginning of a pull until the image was staged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging_seconds: Option<u32>,
    /// Seconds from taking a berth to the end of the drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_seconds: Option<u32>,
    /// Seconds from the commit to the proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_seconds: Option<u32>,
}

impl PhaseDurations {
    /// True if no median is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// These durations, with those of `others` where one is not known.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            staging_seconds: self.staging_seconds.or(others.staging_seconds),
            drain_seconds: self.drain_seconds.or(others.drain_seconds),
            reboot_seconds: self.reboot_seconds.or(others.reboot_seconds),
        }
    }
}
