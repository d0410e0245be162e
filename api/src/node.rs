//! BootcNode: the desired and the booted image of one node. The controller writes the spec, two conditions and, while
//! the agent is silent, the insight. The node's agent writes the rest of the status.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::{BackendRule, NodeBackend};
use crate::boot_image::NodeBootImage;
use crate::digest::Digest;
use crate::firstboot::NodeFirstboot;
use crate::image_ref::ImageRef;
use crate::insight::NodeInsight;
use crate::pool::{Drain, Health, PhaseDurations, RebootPolicy, RivalUpdaters, SignatureRule};
use crate::reasons;
use crate::written::Written;

pub mod timeline;

use self::timeline::{Measured, Timeline, TurnRecord};

/// Desired and booted image of one node. Has the name of its Node and is owned by it.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "BootcNode",
    plural = "bootcnodes",
    shortname = "bn",
    status = "BootcNodeStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Desired and booted image of one node. Has the name of its Node and is owned by it.",
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.poolName"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.booted.version"),
    printcolumn(name = "Desired", type_ = "string", json_path = ".spec.image.version"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Since", type_ = "date", json_path = ".status.phaseStartTime"),
    printcolumn(name = "Berth", type_ = "string", json_path = ".status.berth"),
    printcolumn(name = "Trouble", type_ = "string", json_path = ".status.insight.message"),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.booted.image", priority = 1),
    printcolumn(
        name = "Degraded",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='NodeDegraded')].reason",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct BootcNodeSpec {
    /// Name of the node's pool. Empty if the node has left its pool: the agent then undoes Berth's changes to the node,
    /// and reports when it has finished.
    #[schemars(length(max = 63))]
    #[serde(default)]
    pub pool_name: String,
    /// UID of the Node that this spec is for. An agent on a Node with another UID does nothing.
    #[serde(rename = "nodeUID")]
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub node_uid: String,
    /// The image that the node should run. Absent while the pool's image is not resolved for this node's platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<DesiredImage>,
    /// Permission to pull and stage the image now.
    #[serde(default)]
    pub staging: Staging,
    /// Rules for moving pods away before a reboot, copied from the pool.
    #[serde(default)]
    pub drain: Drain,
    /// Rules for a boot that is not proven in time, copied from the pool.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub health: Health,
    /// Treatment of other updaters that are active on the host, copied from the pool.
    #[serde(default)]
    pub rival_updaters: RivalUpdaters,
    /// Updaters that Berth ignores, copied from the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 64)))]
    pub tolerated_updaters: Vec<String>,
    /// Rule for choosing the host's backend, copied from the pool.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub backend: BackendRule,
    /// Retry token, copied from the pool. When it changes, digests that failed on this node are tried once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub retry_token: Option<String>,
    /// How long a rebooting node may be silent, and how long its new boot may stay unproven, before Berth reports the
    /// node. Copied from the pool.
    #[schemars(length(max = 16))]
    #[serde(default)]
    pub reboot_timeout: Written<Duration>,
    /// How the node reboots into a new image, copied from the pool.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub reboot_policy: RebootPolicy,
    /// Shortest time between two progress reports while staging, copied from the pool; `0` turns the reports off.
    #[schemars(length(max = 16))]
    #[serde(default)]
    pub progress_interval: Written<Duration>,
    /// True while the pool or the fleet is paused. Used only for `status.insight`. If the node does not run the desired
    /// image, a change is written immediately; otherwise it is written together with the next change of the spec.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Median durations in the pool, for `estToComplete`. A median is used if the node has not measured the duration
    /// itself. New medians are written together with the next change of the spec.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub estimates: PhaseDurations,
}

/// The image that a node should run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DesiredImage {
    /// Reference to pull: the repository at the digest for this node's platform.
    #[serde(rename = "ref")]
    #[schemars(length(max = 512))]
    pub reference: Written<ImageRef>,
    /// Digest for this node's platform. The host reports this digest when the image is booted.
    pub digest: Digest,
    /// Digest that the pool's reference was resolved to. Differs from `digest` if the reference names an image index.
    pub index_digest: Digest,
    /// Version label of the image, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Rule for signatures of the image, copied from the pool.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub signature: SignatureRule,
}

/// Permission to pull and stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Staging {
    /// The node must wait: enough other nodes are pulling.
    #[default]
    Held,
    /// The node may pull and stage the image.
    Allowed,
}

/// State of the node, as reported by its agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootcNodeStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// UID of the Node that the agent runs on.
    #[serde(rename = "nodeUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub node_uid: Option<String>,
    /// Boot ID of the host.
    #[serde(rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
    /// Version of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub agent_version: Option<String>,
    /// Version of bootc on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub bootc_version: Option<String>,
    /// Tool that updates the host, and why it was chosen. Absent until the agent has chosen a tool, or if the agent can
    /// use none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<NodeBackend>,
    /// Time of the last heartbeat, by this node's clock. Updated every few minutes while the agent runs. The controller
    /// checks only whether the time changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_time: Option<Time>,
    /// The booted deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub booted: Option<Deployment>,
    /// The deployment that is staged on the host for a later boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged: Option<Deployment>,
    /// The deployment that a rollback would boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Deployment>,
    /// True if the next boot would use the rollback deployment: a rollback is queued, or a deployment was finalized but
    /// not booted. While this is true, Berth does not reboot the node and does not count the node as updated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rollback_queued: bool,
    /// State of the node in one word, for people only. Derived from the other fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Time when `phase` last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_start_time: Option<Time>,
    /// Name of the berth (a Lease) that the node holds, for people only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    pub berth: Option<String>,
    /// Progress of a running pull.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Failure that the agent will retry after a backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The last turn, if it did not end in an update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_turn: Option<Turn>,
    /// Digests that failed on this node and are not tried again.
    #[schemars(length(max = 16))]
    #[serde(default)]
    pub failed_digests: Vec<Digest>,
    /// Digest that the node's reboots did not apply, and the number of such reboots. A copy of the host's record, in
    /// case the host loses the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_applied: Option<NotApplied>,
    /// Target of the current turn, if it has booted and is not proven yet. A copy of the host's record, in case the
    /// host loses the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried: Option<Digest>,
    /// Last `spec.retryToken` that the agent acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub retry_token: Option<String>,
    /// Duration of the last drain in seconds, as written by an agent of an earlier version. Absent if the timeline has
    /// this duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_seconds: Option<u32>,
    /// Duration of the last reboot in seconds, as written by an agent of an earlier version. Absent if the timeline has
    /// this duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_seconds: Option<u32>,
    /// Start and end of each stage of the node's latest updates, used for estimates.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub timeline: Timeline,
    /// The last completed turns, newest first.
    #[schemars(length(max = 5))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<TurnRecord>,
    /// True if the host's clock is synchronized. Reboot windows require a synchronized clock. Absent until the agent
    /// has checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_synchronized: Option<bool>,
    /// Most demanding CPU variant that the host can run, such as `v3` for amd64; absent if the agent cannot determine
    /// it. From an image index, the node gets the most demanding image that this variant can run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub platform_variant: Option<String>,
    /// Mechanisms of the host that protect the current boot even without an agent; absent until the agent has read
    /// them.
    #[schemars(length(max = 8))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_safeguards: Option<Vec<BootSafeguard>>,
    /// Image that the machine was first installed from; absent if the installer recorded none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_image: Option<NodeBootImage>,
    /// Record of the machine's first boot; absent if the first boot was not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firstboot: Option<NodeFirstboot>,
    /// Images deployed to this node, newest first. The oldest entry may be the image that the node ran when it joined
    /// the pool.
    #[schemars(length(max = 3))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<NodeDeployment>,
    /// Pods that block a drain.
    #[schemars(length(max = 10))]
    #[serde(default)]
    pub drain_blockers: Vec<DrainBlocker>,
    /// Summary of the node's update, written by its agent or, while the agent is silent, by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insight: Option<NodeInsight>,
    /// Conditions of the node, such as `Updated`, `Staged`, `UpdatePrepared` and `NodeDegraded`.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

impl BootcNodeStatus {
    /// Returns the latest measured durations. If the timeline lacks the drain or the reboot, uses the duration that an
    /// agent of an earlier version wrote.
    pub fn measured(&self) -> Measured {
        let measured = self.timeline.measured();
        Measured {
            drain: measured.drain.or(self.drain_seconds),
            reboot: measured.reboot.or(self.reboot_seconds),
            ..measured
        }
    }
}

reasons! {
    /// Mechanism of a host that protects the host's boots even without an agent.
    #[derive(PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    pub enum BootSafeguard {
        /// The boot loader counts the boots of a new image. After too many boots without success, it boots the previous
        /// image.
        BootCounting,
        /// greenboot sets GRUB's `boot_counter` when an image is finalized. After too many failed boots of that
        /// image, GRUB boots the previous image.
        GrubBootCounter,
        /// greenboot checks each boot, and rolls back after several failures.
        Greenboot,
        /// systemd feeds a hardware watchdog, which resets a host that hangs.
        HardwareWatchdog,
        /// A systemd unit wants `boot-complete.target`, the target for boots that passed all boot checks.
        BootComplete,
    }
}

impl BootSafeguard {
    /// Returns the mechanism's name, for use in a sentence.
    pub const fn words(self) -> &'static str {
        match self {
            Self::BootCounting => "boot counting",
            Self::GrubBootCounter => "GRUB's boot counter",
            Self::Greenboot => "greenboot",
            Self::HardwareWatchdog => "a hardware watchdog",
            Self::BootComplete => "boot-complete.target",
        }
    }
}

/// An image that was deployed to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeDeployment {
    /// Pool that the node belonged to when the agent recorded the image.
    #[schemars(length(max = 63))]
    pub pool: String,
    /// Digest that the pool's reference was resolved to. For an image that the node ran when it joined the pool: digest
    /// of its manifest.
    pub digest: Digest,
    /// Digest of the image's manifest for this node's platform.
    pub manifest: Digest,
    /// Version label of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Time when the image was proven, by this node's clock. Absent for the image that the node ran when it joined the
    /// pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_time: Option<Time>,
}

/// A deployment on the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deployment {
    /// Reference that the deployment was pulled from.
    #[schemars(length(max = 512))]
    #[serde(default)]
    pub image: String,
    /// Digest of the image's manifest for this platform. For a deployment that is not from a container image: checksum
    /// of its commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Version label of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// OCI architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub architecture: Option<String>,
    /// Build time of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
    /// True for a staged deployment with finalization locked. A reboot discards such a deployment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub locked: bool,
    /// True for a deployment that an admin has pinned (`ostree admin pin`). The host keeps a pinned deployment when
    /// newer deployments are added.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// True for a staged deployment that the host can boot by a soft reboot. Its kernel, initramfs, kernel arguments
    /// and SELinux policy are equal to the booted deployment's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub soft_reboot_capable: bool,
}

reasons! {
    /// State of a node in one word.
    #[derive(Serialize, Deserialize, JsonSchema)]
    pub enum Phase {
        /// No image is published for this Node yet, or the agent has not read its berths yet.
        Idle,
        /// The node needs an update but may not pull yet.
        Pending,
        /// The host is pulling or staging the image.
        Staging,
        /// The image is staged and locked; the node waits for a berth.
        Waiting,
        /// The node holds a berth and moves its pods away.
        Draining,
        /// The update is committed, and the host is rebooting.
        Rebooting,
        /// The host is back from the reboot but not proven yet.
        Proving,
        /// The node is giving its berth back.
        Releasing,
        /// The node runs the desired image.
        Updated,
        /// Something is wrong; see `NodeDegraded`.
        Degraded,
        /// The node left its pool, and Berth's changes to it are undone.
        Released,
    }
}

/// Progress of a pull. Covers the bytes to download, without the layers that the host already has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Progress {
    /// Bytes downloaded.
    pub bytes: u64,
    /// Bytes to download; 0 if the host tool does not report the number.
    pub bytes_total: u64,
    /// Bytes per second since the last report.
    pub bytes_per_second: u64,
}

/// A failure and the time of the next attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Reason of the failure: one CamelCase word.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Message of the host tool, in one line.
    #[schemars(length(max = 1100))]
    pub message: String,
    /// Digest that was being deployed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Time of the next attempt, by this node's clock.
    pub next_try_time: Time,
}

/// Reboots that left the host on its previous image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotApplied {
    /// Digest that was committed but not booted.
    pub digest: Digest,
    /// Number of reboots that did not boot the digest.
    pub attempts: u32,
}

/// A turn that did not end in an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// Outcome in one CamelCase word, such as `DrainTimeout`.
    #[schemars(length(max = 64))]
    pub outcome: String,
    /// Cause in one line, such as the pod, disruption budget or inhibitor that blocked the turn.
    #[schemars(length(max = 1100))]
    pub message: String,
    /// Target of the turn.
    pub digest: Digest,
    /// Number of turns for this digest that ended with this outcome.
    pub attempts: u32,
    /// Earliest time of the next turn, by this node's clock.
    pub next_try_time: Time,
}

/// A pod that blocks a drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainBlocker {
    /// `namespace/name`.
    #[schemars(length(max = 320))]
    pub pod: String,
    /// Why the pod is still there. Names the disruption budget if one blocks the eviction.
    #[schemars(length(max = 512))]
    pub reason: String,
    /// Time when the pod began to block the drain.
    pub since: Time,
}
