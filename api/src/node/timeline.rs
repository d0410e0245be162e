//! The record of a node's updates: the chapters of the latest ones, and the turns that ended. All times are of the node's
//! own clock, in whole seconds.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::berth::Outcome;
use crate::digest::Digest;

/// Number of updates that are remembered.
pub const MAX_UPDATES: usize = 2;
/// Number of turns that are remembered.
pub const MAX_TURNS: usize = 5;
/// Seconds of a reboot that say nothing of how long the next one takes: a clock was set, or a host was repaired.
const LONGEST_REBOOT: u32 = 24 * 3600;

/// Record of a node's updates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// The first boot of the machine, where that was checked: from the record in `status.firstboot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firstboot: Option<Chapter>,
    /// Pool that the node joined, and when; absent when the agent was not there to see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<Joined>,
    /// The newest update; and behind it the last one before that went as far as a reboot.
    #[schemars(length(max = 2))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<NodeUpdate>,
}

/// Beginning of a node's membership.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Joined {
    /// Name of the pool.
    #[schemars(length(max = 63))]
    pub pool: String,
    /// Time when the agent was first asked to follow it.
    pub start_time: Time,
}

/// One update of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeUpdate {
    /// Image that the node ran before, once that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<ImageVersion>,
    /// Image that it goes to.
    pub to: ImageVersion,
    /// Chapters in the order in which they began; the last one lasts on unless it has an end. A turn that is tried again
    /// begins its chapters anew.
    #[schemars(length(max = 6))]
    #[serde(default)]
    pub chapters: Vec<Chapter>,
    /// True when the clock was set back meanwhile: times from before that are left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clock_set: bool,
}

/// An image, for programs and for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageVersion {
    /// Digest of its manifest for this node's platform.
    pub digest: Digest,
    /// The image's version label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub version: Option<String>,
}

/// Chapter of an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Chapter {
    /// Name of the chapter.
    pub name: ChapterName,
    /// Beginning; absent when the clock was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// End; absent while it lasts, and when the clock was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
}

/// Name of a chapter. The order is the one in which they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ChapterName {
    /// The machine was checked, before its kubelet ran for the first time.
    Firstboot,
    /// The image is pulled and staged, pauses between tries included.
    Prepared,
    /// Staged and locked; no berth was taken yet.
    Waited,
    /// The berth is taken, and the pods move away.
    Drained,
    /// Committed; the host reboots, until an agent looks at the new boot.
    Rebooted,
    /// The new boot is looked at, until it is proven or given up.
    Proven,
    /// Proven, and given back.
    Completed,
    /// The image ran, was not proven, and the host went back to what it ran before.
    RolledBack,
    /// The image failed on this node, or was never proven here.
    Failed,
    /// The host rebooted, and runs what it ran before.
    NotApplied,
    /// The drain took too long.
    TimedOut,
    /// The reboot was refused, or inhibited.
    RebootBlocked,
    /// The staged image was gone, or another one.
    NotStaged,
    /// The controller asked for the berth back.
    Revoked,
    /// The image was no longer desired here.
    Withdrawn,
    /// Not proven, and left for another image under the same berth.
    Replaced,
    /// The berth was closed by an admin or the controller.
    TakenAway,
}

impl ChapterName {
    /// The word, as the API shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Firstboot => "Firstboot",
            Self::Prepared => "Prepared",
            Self::Waited => "Waited",
            Self::Drained => "Drained",
            Self::Rebooted => "Rebooted",
            Self::Proven => "Proven",
            Self::Completed => "Completed",
            Self::RolledBack => "RolledBack",
            Self::Failed => "Failed",
            Self::NotApplied => "NotApplied",
            Self::TimedOut => "TimedOut",
            Self::RebootBlocked => "RebootBlocked",
            Self::NotStaged => "NotStaged",
            Self::Revoked => "Revoked",
            Self::Withdrawn => "Withdrawn",
            Self::Replaced => "Replaced",
            Self::TakenAway => "TakenAway",
        }
    }

    /// Says whether no other chapter comes behind it.
    pub const fn is_ending(self) -> bool {
        !matches!(
            self,
            Self::Firstboot | Self::Prepared | Self::Waited | Self::Drained | Self::Rebooted | Self::Proven
        )
    }
}

/// End of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TurnOutcome {
    /// The target runs, and the Node was Ready under its boot.
    Proven,
    /// The target ran, was not proven, and the host went back to what it ran before.
    RolledBack,
    /// The target failed on this node, or was never proven here.
    Failed,
    /// The host rebooted, and runs what it ran before.
    NotApplied,
    /// The drain took too long.
    TimedOut,
    /// The reboot was refused, or inhibited.
    RebootBlocked,
    /// The staged image was gone, or another one.
    NotStaged,
    /// The controller asked for the berth back.
    Revoked,
    /// The target was no longer desired here.
    Withdrawn,
    /// The berth was closed by an admin or the controller.
    TakenAway,
}

impl TurnOutcome {
    /// End of a turn with this outcome of its berth, on a host that runs what it ran before, or something else.
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

    /// The chapter with which an update ends like this.
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

    /// The word, as the API shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proven => "Proven",
            other => other.chapter().as_str(),
        }
    }
}

/// Record of a turn: what was licensed, and what was seen at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnRecord {
    /// Name of the berth.
    #[schemars(length(max = 128))]
    pub berth: String,
    /// UID of the Node that it licensed.
    #[serde(rename = "nodeUID")]
    #[schemars(length(max = 64))]
    pub node_uid: String,
    /// Digest that the node ran when it took the berth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Digest>,
    /// Digest that the berth licensed, at the end.
    pub to: Digest,
    /// Boot under which the berth was taken.
    #[serde(rename = "bootIDBefore")]
    #[schemars(length(max = 64))]
    pub boot_id_before: String,
    /// Time when it was taken.
    pub start_time: Time,
    /// Seconds of the drain, once it was committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_seconds: Option<u32>,
    /// Sight of the host on which the outcome was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<TurnProof>,
    /// Time when it was given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<TurnOutcome>,
}

/// Sight of a host at the end of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnProof {
    /// Digest that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<Digest>,
    /// The boot; another one than that under which the berth was taken after a reboot.
    #[serde(rename = "bootID")]
    #[schemars(length(max = 64))]
    pub boot_id: String,
    /// True when the Node was seen to be Ready under this boot.
    #[serde(default)]
    pub node_ready: bool,
}

/// Lengths in seconds of what a node went through last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// From the beginning of the pull until the image was staged.
    pub staging: Option<u32>,
    /// From the taken berth to the end of the drain.
    pub drain: Option<u32>,
    /// From the commit to the proof.
    pub reboot: Option<u32>,
}

impl Chapter {
    /// Seconds from its beginning to its end, where both are known.
    pub fn seconds(&self) -> Option<u32> {
        between(self.start_time.as_ref()?.0, self.end_time.as_ref()?.0)
    }
}

impl NodeUpdate {
    /// The chapter of that name.
    pub fn chapter(&self, name: ChapterName) -> Option<&Chapter> {
        self.chapters.iter().find(|c| c.name == name)
    }

    /// Says whether the update has ended, well or not.
    pub fn is_over(&self) -> bool {
        self.chapters.last().is_some_and(|c| c.name.is_ending())
    }

    /// The pull, if it led to a staged image.
    fn staged(&self) -> Option<&Chapter> {
        self.chapter(ChapterName::Waited)
            .or(self.chapter(ChapterName::Drained))?;
        self.chapter(ChapterName::Prepared)
    }

    /// Lengths that it has measured so far.
    pub fn measured(&self) -> Measured {
        let ended = |name| self.chapter(name)?.seconds();
        let started = |name| Some(self.chapter(name)?.start_time.as_ref()?.0);
        let reboot = || {
            self.chapter(ChapterName::Completed)?;
            let proven = self.chapter(ChapterName::Proven)?.end_time.as_ref()?.0;
            between(started(ChapterName::Rebooted)?, proven).filter(|s| *s <= LONGEST_REBOOT)
        };
        Measured {
            staging: self.staged().and_then(Chapter::seconds),
            // A drain that came to nothing is no measure of one that did not.
            drain: self
                .chapter(ChapterName::Rebooted)
                .and_then(|_| ended(ChapterName::Drained)),
            reboot: reboot(),
        }
    }
}

impl Timeline {
    /// Lengths of what the node went through last, each from the newest update that has it.
    pub fn measured(&self) -> Measured {
        let newest = |of: fn(Measured) -> Option<u32>| self.updates.iter().find_map(|u| of(u.measured()));
        Measured {
            staging: newest(|m| m.staging),
            drain: newest(|m| m.drain),
            reboot: newest(|m| m.reboot),
        }
    }

    /// End of the newest pull that led to a staged image and has a length.
    pub fn staging_ended(&self) -> Option<Timestamp> {
        let pulls = self.updates.iter().filter_map(NodeUpdate::staged);
        let mut measured = pulls.filter(|pull| pull.seconds().is_some());
        Some(measured.next()?.end_time.as_ref()?.0)
    }

    /// True when nothing is recorded.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn between(start: Timestamp, end: Timestamp) -> Option<u32> {
    u32::try_from(end.as_second().checked_sub(start.as_second())?).ok()
}
