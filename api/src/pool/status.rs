//! State of a pool, as reported by the controller.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::boot_image::{BootImageLimit, BootImageStatus};
use crate::digest::Digest;
use crate::image_ref::ImageRef;
use crate::platform::{Choice, Platform, PlatformDigest};
use crate::written::Written;

/// State of a pool, as reported by the controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootcNodePoolStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The resolved image that the members should run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Image that the tag points to, if it is not the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<Available>,
    /// Last value of `berth.dev/poll-requested-at` that the controller acted on. Set even if the registry did not
    /// answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub poll_request: Option<String>,
    /// Number of members in each state.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// Number of berths in each state.
    #[serde(default)]
    pub berths: BerthCounts,
    /// Digests that failed under a berth: first the digests of the target, then the digests with the newest failures.
    /// After a failed turn, the controller offers the berth again only when this list has the failure.
    #[schemars(length(max = 8))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<DigestFailures>,
    /// Last `rollout.retryToken` that the controller acted on. Failures from before the change of the token no longer
    /// count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub retry_token: Option<String>,
    /// Progress of each wave, in order; empty for a pool without waves and without control plane nodes.
    #[schemars(length(max = 20))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<WaveStatus>,
    /// Images deployed to members: first the images that were the pool's target, the latest target first, then other
    /// images that at least two members report.
    #[schemars(length(max = 10))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deploy_history: Vec<DeployedImage>,
    /// Boot image of new machines; absent until a machine reports its own boot image, or the admin records one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_image: Option<BootImageStatus>,
    /// Medians of durations that members measured recently, for estimates.
    #[serde(default)]
    pub phase_durations: PhaseDurations,
    /// Conditions of the pool: `Updated`, `Progressing`, `Degraded`, `Paused`, `ImageResolved`, `FeedFailing`,
    /// `NodeConflict`, `RolloutHalted`, `WindowOpen`, `BootImageSkew`; and their summary `Ready`, `Reconciling`,
    /// `Stalled`.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// A resolved image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Reference that was resolved, as written by the admin.
    #[schemars(length(max = 512))]
    pub image: Written<ImageRef>,
    /// Digest returned by the registry, of a manifest or an image index.
    pub digest: Digest,
    /// Version of the image (label `org.opencontainers.image.version`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Metadata from the image's builder, for people. Absent while the image's configuration cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ImageMetadata>,
    /// Manifests, one for each architecture and variant. Hosts report the digests of manifests, never the digest of the
    /// index.
    #[schemars(length(max = 32))]
    pub platforms: Vec<PlatformDigest>,
    /// Time when this digest became the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_time: Option<Time>,
}

/// Metadata from the builder of an image. For an index: the metadata of its first image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageMetadata {
    /// Build time: the label `org.opencontainers.image.created`, otherwise `created` in the image's configuration.
    /// Absent if a reproducible image has neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// Revision of the sources (label `org.opencontainers.image.revision`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub revision: Option<String>,
    /// Address of the sources (label `org.opencontainers.image.source`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub source: Option<String>,
    /// Age limit for the boot images of machines that run this image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_image: Option<BootImageLimit>,
    /// Labels of the image: at most 64, and 8 KiB in all. Labels that Berth uses take effect even if they are left out
    /// here.
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = { "type": "string", "maxLength": 512 }))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Number of labels that are left out of `labels`. A label is left out if there are too many labels, if its name
    /// has more than 128 characters or its value more than 512, or if it is not text or contains control characters.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub labels_left_out: u32,
}

impl Target {
    /// True if this target was resolved from the given reference, and the reference is valid.
    pub fn is_of(&self, reference: &Written<ImageRef>) -> bool {
        self.image == *reference && reference.get().is_ok()
    }

    /// Chooses the image for a node's platform.
    pub fn choose(&self, node: Platform<'_>) -> Choice<'_> {
        node.choose(&self.platforms)
    }

    /// Lists the platforms, for people.
    pub fn shown_platforms(&self) -> String {
        let shown: Vec<String> = self.platforms.iter().map(ToString::to_string).collect();
        shown.join(", ")
    }

    /// Returns the digest of the manifest for a node's platform.
    pub fn digest_for(&self, node: Platform<'_>) -> Option<&Digest> {
        match self.choose(node) {
            Choice::Image(image) => Some(&image.digest),
            Choice::VariantUnknown | Choice::NoSuchPlatform => None,
        }
    }
}

/// An image that the pool does not use although the tag points to it. For example, the reference is pinned to another
/// digest, the image is younger than `image.minimumAge`, or some members cannot run it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Available {
    /// Digest returned by the registry for the tag.
    pub digest: Digest,
    /// Version label of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Time when the tag was first seen to point to this digest, by the leader's clock.
    pub since: Time,
    /// Seconds that the tag is known to have pointed to this digest, at most `image.minimumAge`. Rounded down to a
    /// multiple of 1/20 of `image.minimumAge`. A new leader continues from this number, so up to 1/20 of
    /// `image.minimumAge` is lost when the leader changes.
    #[serde(default)]
    pub seen_seconds: u64,
}

/// An image that was deployed to members of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeployedImage {
    /// Digest that the pool's reference was resolved to. For an image that nodes ran when they joined the pool: digest
    /// of its manifest.
    pub digest: Digest,
    /// Digests of the image's manifests, if the image is an index: from the registry if the image was the pool's target,
    /// otherwise as reported by at least two members. A node that ran the image when it joined the pool reports one of
    /// these digests instead of `digest`.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub manifests: Vec<Digest>,
    /// Version label of the image: from the registry if the image was the pool's target, otherwise as reported by at
    /// least two members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Time when the image last became the pool's target, by the leader's clock. Absent if the image never was the
    /// target of this pool, as far as the controller knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_time: Option<Time>,
    /// Number of members that the image was deployed to. The number does not decrease when members leave.
    pub node_count: u32,
    /// Time of the latest proof of the image on a member, by that node's clock. A time in the future counts as the time
    /// when the controller read it. For people only. Absent if members never updated to the image but already ran it
    /// when they joined the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_deployed: Option<Time>,
}

/// Number of members in each state. A member counts in `total` and in every state that applies to the member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeCounts {
    /// Number of members.
    pub total: u32,
    /// Members that run the target and are not being updated.
    pub updated: u32,
    /// Members that pull or stage the target.
    pub staging: u32,
    /// Members that have the target staged and locked and wait for a berth.
    pub staged: u32,
    /// Members that are cordoned and drained under a berth.
    pub draining: u32,
    /// Members that have committed and are rebooting or being proven.
    pub rebooting: u32,
    /// Members that do not run the target and are in none of the states above.
    pub pending: u32,
    /// Nodes that would be members but have the label `berth.dev/exclude`. Not counted in `total`.
    pub excluded: u32,
    /// Members with a problem that needs attention, such as `NodeDegraded` or `RebootTimedOut`.
    pub degraded: u32,
    /// Members that are not Ready or not schedulable, for any reason.
    pub unavailable: u32,
}

/// Number of berths in each state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BerthCounts {
    /// Capacity of the pool. After a decrease, the old value may stay until all remaining offers fit the new capacity.
    pub total: u32,
    /// Berths held by a node. Includes berths that the controller cannot read, and closed berths that it cannot write.
    pub held: u32,
    /// Berths offered to a node.
    pub offered: u32,
    /// Closed berths.
    pub closed: u32,
}

/// Nodes where a digest failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DigestFailures {
    /// Digest of a manifest, as reported by the nodes.
    pub digest: Digest,
    /// Names of the first 64 nodes. A deleted node is listed as `NAME (deleted)`, because a new Node with the same name
    /// is a different node. A node that was excluded after its commit and did not come back is listed as
    /// `NAME (excluded)`.
    #[schemars(length(max = 64), inner(length(max = 264)))]
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Number of all nodes where the digest failed.
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
    /// Number of members of the wave that run the target, are proven and are available.
    pub updated: u32,
    /// State of the wave.
    pub state: WaveState,
    /// Seconds that the wave has been soaking, rounded down to a multiple of 1/20 of its soak time. A new leader
    /// continues from this number, so up to 1/20 of the soak time is lost when the leader changes.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub soaked_seconds: u64,
}

/// State of a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WaveState {
    /// The wave waits for an earlier wave.
    Waiting,
    /// Nodes of the wave are offered berths.
    Active,
    /// All nodes of the wave are proven. The next wave waits for the end of this wave's soak time.
    Soaking,
    /// The wave is proven and has soaked.
    Done,
}

/// Medians of the durations that members measured, in seconds. Each median needs measurements of at least three
/// members. A measurement of more than a day counts as a day. If at least three members that run the target have
/// measurements, the median is from these members only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseDurations {
    /// Seconds from the start of a pull until the image is staged.
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
    /// Returns these durations. Each missing duration is taken from `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            staging_seconds: self.staging_seconds.or(others.staging_seconds),
            drain_seconds: self.drain_seconds.or(others.drain_seconds),
            reboot_seconds: self.reboot_seconds.or(others.reboot_seconds),
        }
    }
}
