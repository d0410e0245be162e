//! BootcNode: the image that one node should run, and the one that it runs. The controller writes the spec, two
//! conditions and the insight while the agent is silent, the node's agent the rest of the status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::{BackendRule, NodeBackend};
use crate::boot_image::NodeBootImage;
use crate::digest::Digest;
use crate::firstboot::NodeFirstboot;
use crate::insight::NodeInsight;
use crate::pool::{Drain, PhaseDurations, RivalUpdaters, SignatureRule};

pub mod timeline;

use self::timeline::{Measured, Timeline, TurnRecord};

/// The image that one node should run, and the one that it runs. Named as its Node, and owned by it.
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
    doc = "What one node should run, and what it runs. Named as its Node, and owned by it.",
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
    /// The pool that the node belongs to. Empty: the agent undoes what Berth did on this node, and reports when that is
    /// done.
    #[schemars(length(max = 63))]
    #[serde(default)]
    pub pool_name: String,
    /// UID of the Node that this was published for. An agent on a Node with another UID does nothing.
    #[serde(rename = "nodeUID")]
    #[schemars(length(max = 64))]
    #[serde(default)]
    pub node_uid: String,
    /// The image that the node should run. Absent while the pool's image is not resolved for this platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<DesiredImage>,
    /// Permission to pull and stage the image now.
    #[serde(default)]
    pub staging: Staging,
    /// Rules for moving pods away before a reboot (from the pool).
    #[serde(default)]
    pub drain: Drain,
    /// Treatment of other updaters that are active on the host (from the pool).
    #[serde(default)]
    pub rival_updaters: RivalUpdaters,
    /// Updaters that are neither waited for nor named (from the pool).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 64)))]
    pub tolerated_updaters: Vec<String>,
    /// Rule by which the host's backend is chosen (from the pool).
    #[serde(default, skip_serializing_if = "BackendRule::is_default")]
    pub backend: BackendRule,
    /// Token of the pool. When it changes, digests that failed here are tried again, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub retry_token: Option<String>,
    /// Longest time from a reboot until the node is proven (from the pool).
    #[schemars(length(max = 16))]
    #[serde(default)]
    pub reboot_timeout: String,
    /// Least time between two reports of progress while staging (from the pool); `0` reports none.
    #[schemars(length(max = 16))]
    #[serde(default)]
    pub progress_interval: String,
    /// True while the pool or the fleet is paused, for `status.insight`; no decision reads it. It is brought up to date at once on
    /// a node that does not run the image, and together with another change on one that does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Medians of the pool, for the `estToComplete` of a node that was never measured. They are brought up to date together with
    /// another change of the spec.
    #[serde(default, skip_serializing_if = "PhaseDurations::is_unknown")]
    pub estimates: PhaseDurations,
}

/// The image that a node should run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DesiredImage {
    /// Reference to pull: the repository at the digest of this node's platform.
    #[serde(rename = "ref")]
    #[schemars(length(max = 512))]
    pub reference: String,
    /// Digest of this node's platform, which the host will report as booted.
    pub digest: Digest,
    /// Digest that the reference was resolved to. Differs from `digest` when the reference names an index.
    pub index_digest: Digest,
    /// The image's version label, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Rule for signatures of the image (from the pool).
    #[serde(default, skip_serializing_if = "SignatureRule::is_default")]
    pub signature: SignatureRule,
}

/// Permission to pull.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Staging {
    /// Wait: enough other nodes are pulling.
    #[default]
    Held,
    /// Pull and stage the image.
    Allowed,
}

/// State of the node, as its agent sees it.
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
    /// The host's boot ID.
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
    /// Tool by which the host is updated; absent until it was chosen, and where none can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<NodeBackend>,
    /// Changes every few minutes while the agent lives. Readers only look whether it changes; the value is from this
    /// node's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_time: Option<Time>,
    /// The deployment that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub booted: Option<Deployment>,
    /// The deployment that is staged for a later boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged: Option<Deployment>,
    /// The deployment that a rollback would boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Deployment>,
    /// True when the next boot takes that one: somebody has queued a rollback, or it was finalized and not booted. The
    /// node is then neither rebooted by Berth nor called updated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rollback_queued: bool,
    /// State of the node in one word, for people. Derived from the rest; no decision reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Start of that phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_start_time: Option<Time>,
    /// Name of the berth (a Lease) that the node holds, for people; no decision reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    pub berth: Option<String>,
    /// Progress of a running pull.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The failure that the agent is backing off from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Last turn with a berth, when it ended without an update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_turn: Option<Turn>,
    /// Digests that failed here and are not tried again.
    #[schemars(length(max = 16))]
    #[serde(default)]
    pub failed_digests: Vec<Digest>,
    /// Reboots for a digest that did not apply it, in case the host forgets them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_applied: Option<NotApplied>,
    /// Target of the running turn, once it was seen to run and not proven, in case the host forgets that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried: Option<Digest>,
    /// The last `spec.retryToken` that was acted on here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub retry_token: Option<String>,
    /// Length of the last drain in seconds, as an agent of an earlier version measured it; absent once the timeline tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_seconds: Option<u32>,
    /// Length of the last reboot in seconds, as an agent of an earlier version measured it; absent once the timeline tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_seconds: Option<u32>,
    /// Chapters of the node's latest updates. Estimates are made from them.
    #[serde(default, skip_serializing_if = "Timeline::is_empty")]
    pub timeline: Timeline,
    /// The last turns that ended, the newest first.
    #[schemars(length(max = 5))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<TurnRecord>,
    /// True when the host's clock is synchronised; absent until the agent has asked. Windows need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_synchronized: Option<bool>,
    /// Most demanding variant of its architecture that the host's CPU runs, such as `v3` of amd64; absent where the agent
    /// cannot tell. The node gets the most demanding image of an index that this variant runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub platform_variant: Option<String>,
    /// Image that the machine was first installed from; absent where the installer noted none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_image: Option<NodeBootImage>,
    /// Record of the machine's first boot; absent where nothing was checked then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firstboot: Option<NodeFirstboot>,
    /// Images that this node was deployed to, the newest first; the oldest may be the one that it was found with.
    #[schemars(length(max = 3))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<NodeDeployment>,
    /// Pods that block a drain.
    #[schemars(length(max = 10))]
    #[serde(default)]
    pub drain_blockers: Vec<DrainBlocker>,
    /// Insight into the node's update, as its agent knows of it; while the agent is silent, as the controller does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insight: Option<NodeInsight>,
    /// Conditions; `berth_api::condition::node` lists the types.
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 32))]
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

impl BootcNodeStatus {
    /// Lengths of what the node went through last: by its timeline, and before that has any, as an agent of an earlier
    /// version measured them.
    pub fn measured(&self) -> Measured {
        let measured = self.timeline.measured();
        Measured {
            drain: measured.drain.or(self.drain_seconds),
            reboot: measured.reboot.or(self.reboot_seconds),
            ..measured
        }
    }
}

/// An image that a node was deployed to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeDeployment {
    /// Pool that the node belonged to then.
    #[schemars(length(max = 63))]
    pub pool: String,
    /// Digest that the pool's reference was resolved to; of an image that the node was only found with, its manifest's.
    pub digest: Digest,
    /// Digest of its manifest for this node's platform.
    pub manifest: Digest,
    /// The image's version label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
    /// Time when it was proven, by this node's clock; absent for the image that the node ran when it joined the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_time: Option<Time>,
}

/// One deployment on the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deployment {
    /// The reference that it was pulled by.
    #[schemars(length(max = 512))]
    #[serde(default)]
    pub image: String,
    /// Digest of its manifest, for this platform. Of a deployment that came from no container image, the checksum of its commit.
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
    /// True for a staged deployment with finalization locked: a reboot discards it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[serde(default)]
    pub locked: bool,
    /// True for a deployment that somebody has pinned (`ostree admin pin`): the host keeps it, whatever is deployed later.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[serde(default)]
    pub pinned: bool,
}

/// State of a node in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Nothing is asked of the node yet.
    Idle,
    /// The node should change, and may not pull yet.
    Pending,
    /// The host pulls or stages the image.
    Staging,
    /// Staged and locked; waits for a berth.
    Waiting,
    /// Holds a berth, and moves its pods away.
    Draining,
    /// Committed; the reboot is on its way.
    Rebooting,
    /// Back from the reboot; not proven yet.
    Proving,
    /// Gives its berth back.
    Releasing,
    /// The node runs the desired image.
    Updated,
    /// Something is wrong; see `NodeDegraded`.
    Degraded,
    /// Left its pool; what Berth did is undone.
    Released,
}

impl Phase {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Idle,
        Self::Pending,
        Self::Staging,
        Self::Waiting,
        Self::Draining,
        Self::Rebooting,
        Self::Proving,
        Self::Releasing,
        Self::Updated,
        Self::Degraded,
        Self::Released,
    ];

    /// The word, as the API shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Pending => "Pending",
            Self::Staging => "Staging",
            Self::Waiting => "Waiting",
            Self::Draining => "Draining",
            Self::Rebooting => "Rebooting",
            Self::Proving => "Proving",
            Self::Releasing => "Releasing",
            Self::Updated => "Updated",
            Self::Degraded => "Degraded",
            Self::Released => "Released",
        }
    }
}

/// Progress of a pull. Bytes are those to be downloaded; layers that are on the host already do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Bytes downloaded.
    #[serde(default)]
    pub bytes: u64,
    /// Bytes to download; 0 when the host tool does not say.
    #[serde(default)]
    pub bytes_total: u64,
    /// Bytes per second since the last report.
    #[serde(default)]
    pub bytes_per_second: u64,
}

/// A failure, and when the agent tries again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// CamelCase reason.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// The host tool's own words, in one line.
    #[schemars(length(max = 1100))]
    pub message: String,
    /// Digest that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Number of tries so far.
    pub attempts: u32,
    /// Time of the next try, by this node's clock.
    pub next_try_time: Time,
}

/// Reboots that did not apply a digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotApplied {
    /// Digest that was committed and not booted.
    pub digest: Digest,
    /// Number of such reboots.
    pub attempts: u32,
}

/// A turn with a berth that did not end in an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// Outcome in one CamelCase word, such as `DrainTimeout`.
    #[schemars(length(max = 64))]
    pub outcome: String,
    /// One line: which pod, which budget, which inhibitor.
    #[schemars(length(max = 1100))]
    pub message: String,
    /// Target of that turn.
    pub digest: Digest,
    /// Number of turns for this digest that ended like this.
    pub attempts: u32,
    /// Time from which the node is ready for another turn, by this node's clock.
    pub next_try_time: Time,
}

/// A pod that blocks a drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainBlocker {
    /// `namespace/name`.
    #[schemars(length(max = 320))]
    pub pod: String,
    /// Reason for which it is still there, with the name of the budget where one blocks.
    #[schemars(length(max = 512))]
    pub reason: String,
    /// Start of that.
    pub since: Time,
}
