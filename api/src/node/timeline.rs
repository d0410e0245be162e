//! Record of a node's updates: the chapters (stages) of the latest updates, and the completed turns. All times are by
//! the node's own clock, in whole seconds.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::berth::Outcome;
use crate::digest::Digest;
use crate::reasons;

/// Maximum number of updates that are kept.
pub const MAX_UPDATES: usize = 2;
/// Maximum number of turns that are kept.
pub const MAX_TURNS: usize = 5;
/// Longest reboot that counts for estimates, in seconds. If a reboot seems to take longer, the clock was set or the
/// host was repaired.
const LONGEST_REBOOT: u32 = 24 * 3600;

/// Record of a node's updates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// Chapter of the machine's first-boot check, from `status.firstboot`; absent if the first boot was not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firstboot: Option<Chapter>,
    /// Pool that the node joined, and when. Absent if the node joined before its agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<Joined>,
    /// The newest update, followed by the latest earlier update that reached a reboot.
    #[schemars(length(max = 2))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<NodeUpdate>,
}

/// Start of a node's membership in a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Joined {
    /// Name of the pool.
    #[schemars(length(max = 63))]
    pub pool: String,
    /// Time when the agent first read this pool in its BootcNode's spec.
    pub start_time: Time,
}

/// An update of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeUpdate {
    /// Image that the node ran before; absent until it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<ImageVersion>,
    /// Image that the node is updated to.
    pub to: ImageVersion,
    /// Chapters, sorted by start. The last chapter is in progress if it has no end. If a turn is repeated, its chapters
    /// replace the chapters of the previous turn.
    #[schemars(length(max = 6))]
    #[serde(default)]
    pub chapters: Vec<Chapter>,
    /// Completed parts of the new boot's proof, in order. If the boot was not proven, the part after the last listed
    /// part was missing. Absent until the update has ended.
    #[schemars(length(max = 7))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proof: Vec<ProofStep>,
    /// True if the clock was set back during the update. The times recorded before the change are removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clock_set: bool,
}

/// A part of the proof of a boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProofStep {
    /// Name of the part.
    pub name: ProofPart,
    /// Seconds from the first start of the agent in the new boot until this part was complete.
    pub seconds: u32,
}

reasons! {
    /// Name of a part of the proof of a boot, in order.
    #[derive(PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    pub enum ProofPart {
        /// The host has a new boot ID and runs the target.
        Booted,
        /// systemd has started all units. If a unit wants `boot-complete.target`, the host has also reached this
        /// target.
        Started,
        /// No unit has failed in the new boot, except units that are ignored or had failed before the reboot.
        UnitsHealthy,
        /// Each required health check of the host has succeeded.
        ChecksPassed,
        /// The Node is Ready under the new boot.
        NodeReady,
        /// Each check of the pool has passed.
        PoolChecksPassed,
        /// The Node was continuously Ready for `health.soakTime`.
        Soaked,
    }
}

/// Digest and version of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageVersion {
    /// Digest of the image's manifest for this node's platform.
    pub digest: Digest,
    /// Version label of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
}

/// A chapter of an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Chapter {
    /// Name of the chapter.
    pub name: ChapterName,
    /// Time when the chapter began; absent if the clock was set back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time when the chapter ended; absent while the chapter is in progress, or if the clock was set back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
}

reasons! {
    /// Name of a chapter, in chronological order.
    #[derive(PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    pub enum ChapterName {
        /// The machine is checked before its kubelet runs for the first time.
        Firstboot,
        /// The image is pulled and staged, including pauses between attempts.
        Prepared,
        /// The image is staged and locked, and the node waits for a berth.
        Waited,
        /// The node has taken a berth and moves its pods away.
        Drained,
        /// The update is committed and the host reboots. The chapter ends when an agent first sees the new boot.
        Rebooted,
        /// The agent checks the new boot, until the boot is proven or has failed.
        Proven,
        /// The update is proven and the berth is given back.
        Completed,
        /// The image booted but was not proven, and the host returned to the previous image.
        RolledBack,
        /// The image failed on this node or was never proven on it.
        Failed,
        /// The host rebooted but still runs its previous image.
        NotApplied,
        /// The drain took too long.
        TimedOut,
        /// The reboot was refused or inhibited.
        RebootBlocked,
        /// No image was staged, or a different image was staged.
        NotStaged,
        /// The controller asked for the berth back.
        Revoked,
        /// The image is no longer desired on this node.
        Withdrawn,
        /// The image was not proven, and the node updated to another image with the same berth.
        Replaced,
        /// The berth was closed by an admin or the controller.
        TakenAway,
    }
}

impl ChapterName {
    /// True if the update ends with this chapter.
    pub const fn is_ending(self) -> bool {
        !matches!(
            self,
            Self::Firstboot | Self::Prepared | Self::Waited | Self::Drained | Self::Rebooted | Self::Proven
        )
    }
}

/// Outcome of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TurnOutcome {
    /// The target was booted, and the Node became Ready in that boot.
    Proven,
    /// The target booted but was not proven, and the host returned to the previous image.
    RolledBack,
    /// The target failed on this node or was never proven on it.
    Failed,
    /// The host rebooted but still runs its previous image.
    NotApplied,
    /// The drain took too long.
    TimedOut,
    /// The reboot was refused or inhibited.
    RebootBlocked,
    /// No image was staged, or a different image was staged.
    NotStaged,
    /// The controller asked for the berth back.
    Revoked,
    /// The target is no longer desired on this node.
    Withdrawn,
    /// The berth was closed by an admin or the controller.
    TakenAway,
}

impl TurnOutcome {
    /// Returns the turn outcome for a berth outcome. `is_back`: the host runs its previous image again.
    pub const fn of(outcome: Outcome, is_back: bool) -> Self {
        match outcome {
            Outcome::Updated => Self::Proven,
            Outcome::Failed if is_back => Self::RolledBack,
            Outcome::Failed => Self::Failed,
            Outcome::NotApplied => Self::NotApplied,
            Outcome::DrainTimeout => Self::TimedOut,
            Outcome::RebootBlocked => Self::RebootBlocked,
            Outcome::NotStaged => Self::NotStaged,
            Outcome::Revoked => Self::Revoked,
            Outcome::Withdrawn => Self::Withdrawn,
            Outcome::Lapsed => Self::TakenAway,
        }
    }

    /// The last chapter of an update with this outcome.
    pub const fn chapter(self) -> ChapterName {
        match self {
            Self::Proven => ChapterName::Completed,
            Self::RolledBack => ChapterName::RolledBack,
            Self::Failed => ChapterName::Failed,
            Self::NotApplied => ChapterName::NotApplied,
            Self::TimedOut => ChapterName::TimedOut,
            Self::RebootBlocked => ChapterName::RebootBlocked,
            Self::NotStaged => ChapterName::NotStaged,
            Self::Revoked => ChapterName::Revoked,
            Self::Withdrawn => ChapterName::Withdrawn,
            Self::TakenAway => ChapterName::TakenAway,
        }
    }

    /// Returns the word for this outcome in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proven => "Proven",
            other => other.chapter().as_str(),
        }
    }
}

/// Record of a turn: the image that the berth allowed the node to boot, and the observed result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnRecord {
    /// Name of the berth.
    #[schemars(length(max = 128))]
    pub berth: String,
    /// UID of the Node that held the berth.
    #[serde(rename = "nodeUID")]
    #[schemars(length(max = 64))]
    pub node_uid: String,
    /// Digest that the node ran when it took the berth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Digest>,
    /// Last digest that the berth allowed the node to boot.
    pub to: Digest,
    /// Boot ID of the host when it took the berth.
    #[serde(rename = "bootIDBefore")]
    #[schemars(length(max = 64))]
    pub boot_id_before: String,
    /// Time when the berth was taken.
    pub start_time: Time,
    /// Duration of the drain in seconds; absent if the turn was not committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_seconds: Option<u32>,
    /// State of the host at the end of the turn. The outcome is based on this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<TurnProof>,
    /// Time when the berth was given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// Outcome of the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<TurnOutcome>,
    /// Why the node rolled back, as a condition reason: the missing part of the proof, such as `NodeNotReady`, or
    /// `FellBack`. Absent if the node did not roll back.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// State of the host at the end of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnProof {
    /// Booted digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<Digest>,
    /// Boot ID of the host; differs from `bootIDBefore` after a reboot.
    #[serde(rename = "bootID")]
    #[schemars(length(max = 64))]
    pub boot_id: String,
    /// True if the Node was Ready in this boot.
    #[serde(default)]
    pub node_ready: bool,
}

/// Latest measured durations, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// From the start of the pull until the image is staged.
    pub staging: Option<u32>,
    /// From taking the berth to the end of the drain.
    pub drain: Option<u32>,
    /// From the commit to the proof.
    pub reboot: Option<u32>,
}

impl Chapter {
    /// Duration of the chapter in seconds, if its start and end are known.
    pub fn seconds(&self) -> Option<u32> {
        between(self.start_time.as_ref()?.0, self.end_time.as_ref()?.0)
    }
}

impl NodeUpdate {
    /// Returns the chapter with this name.
    pub fn chapter(&self, name: ChapterName) -> Option<&Chapter> {
        self.chapters.iter().find(|c| c.name == name)
    }

    /// True if the update has ended, successfully or not.
    pub fn is_over(&self) -> bool {
        self.chapters.last().is_some_and(|c| c.name.is_ending())
    }

    /// Returns the chapter of the pull, if the pull led to a staged image.
    fn staged(&self) -> Option<&Chapter> {
        self.chapter(ChapterName::Waited)
            .or(self.chapter(ChapterName::Drained))?;
        self.chapter(ChapterName::Prepared)
    }

    /// Durations measured in this update so far.
    pub fn measured(&self) -> Measured {
        Measured {
            staging: self.staged().and_then(Chapter::seconds),
            drain: self.drain_seconds(),
            reboot: self.reboot_seconds(),
        }
    }

    fn drain_seconds(&self) -> Option<u32> {
        // Only a drain that led to a reboot counts: any other drain may have ended early or timed out.
        self.chapter(ChapterName::Rebooted)?;
        self.chapter(ChapterName::Drained)?.seconds()
    }

    fn reboot_seconds(&self) -> Option<u32> {
        self.chapter(ChapterName::Completed)?;
        let start = self.chapter(ChapterName::Rebooted)?.start_time.as_ref()?.0;
        let proven = self.chapter(ChapterName::Proven)?.end_time.as_ref()?.0;
        between(start, proven).filter(|seconds| *seconds <= LONGEST_REBOOT)
    }
}

impl Timeline {
    /// Latest measured durations. Each duration is from the newest update that has measured it.
    pub fn measured(&self) -> Measured {
        let mut newest = Measured::default();
        for update in &self.updates {
            let measured = update.measured();
            newest.staging = newest.staging.or(measured.staging);
            newest.drain = newest.drain.or(measured.drain);
            newest.reboot = newest.reboot.or(measured.reboot);
        }
        newest
    }

    /// End of the newest pull that led to a staged image and has a known duration.
    pub fn staging_ended(&self) -> Option<Timestamp> {
        let pulls = self.updates.iter().filter_map(NodeUpdate::staged);
        let mut measured = pulls.filter(|pull| pull.seconds().is_some());
        Some(measured.next()?.end_time.as_ref()?.0)
    }
}

fn between(start: Timestamp, end: Timestamp) -> Option<u32> {
    u32::try_from(end.as_second().checked_sub(start.as_second())?).ok()
}
