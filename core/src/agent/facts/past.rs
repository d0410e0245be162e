use std::time::Duration;

use berth_api::backend::Backend;
use berth_api::digest::Digest;
use berth_api::names::BootId;
use berth_api::node::timeline::{Timeline, TurnRecord};
use berth_api::node::{Failure, Turn};
use berth_api::seeded::Bug;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::boots::{FellBack, LastBooted, OutsideBoot};
use super::health::HealthBefore;
use crate::BootMoment;

/// Record of earlier pulls, turns and failures, kept on the host and in part in the BootcNode's status. A field that is
/// missing, because another agent version wrote the file, takes its default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Past {
    /// Last failed pull, with the time of the next attempt. After a restart, taken from the BootcNode's status.
    #[serde(skip)]
    pub failure: Option<Failure>,
    /// Last turn that did not end in an update.
    pub last_turn: Option<Turn>,
    /// Digests that failed on this node.
    pub failed_digests: Vec<Digest>,
    /// Digest of Berth's last pull. On a node without a pool, `None` as soon as that image is no longer staged.
    pub staged_by_us: Option<Digest>,
    /// Backend that staged `staged_by_us`: no other may touch that image (see [`crate::agent::backend`]).
    pub staged_with: Option<Backend>,
    /// Digest whose last pull failed or was stopped: bound images, which bootc pulls last, may be missing.
    pub incomplete: Option<Digest>,
    /// Digest that did not boot although a commit licensed the reboot, and how often that happened.
    pub not_applied: Option<(Digest, u32)>,
    /// Target digest that booted but is not proven. If another digest boots later, this one failed.
    pub tried: Option<Digest>,
    /// The rollback that the agent began in this turn.
    pub undone: Option<Undone>,
    /// True if the host had a deployment of the target, besides the staged one, when the node committed to its last
    /// reboot. `None` if an agent version that did not record it committed.
    pub target_deployed: Option<bool>,
    /// The last target that fell back.
    pub fell_back: Option<FellBack>,
    /// The image that the host ran when the agent last looked. `None` before the first Ready boot, and without a pool.
    pub last_booted: Option<LastBooted>,
    /// The last boot of another image without a berth, until it is over.
    pub outside_boot: Option<OutsideBoot>,
    /// Health of the host in this turn, before its reboot. `None` if it was not read, for example by an older agent
    /// version: then no failed unit counts.
    pub health_before: Option<HealthBefore>,
    /// Boot ID of an unproven boot whose berth was licensed again, so that the berth now names this boot.
    pub unproven_boot: Option<BootId>,
    /// The last pull, if it succeeded under an enforced signature policy. Cleared when another pull begins.
    pub verified: Option<Verified>,
    /// The last retry token that was applied.
    pub retry_token: Option<String>,
    /// Start of the current drain by this node's clock. Only reported.
    pub drain_began: Option<Timestamp>,
    /// Start of the current drain, kept on the host as a moment of its boot. So neither an edit of a cluster object nor
    /// a change of the clock makes the drain look overdue, which would end or force it.
    pub drain_since: Option<BootMoment>,
    /// Start of the wait for the proof of the current boot.
    pub proof_since: Option<BootMoment>,
    /// Chapters of the latest updates. Stored on the host to survive the reboot, which is one of the chapters.
    pub timeline: Timeline,
    /// Turns, newest first. A turn that still runs has no end.
    pub turns: Vec<TurnRecord>,
}

/// A rollback that the agent began. Stored on the host before the rollback is queued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Undone {
    /// The unproven digest that ran.
    pub digest: Digest,
    /// Boot ID of the boot that is undone.
    pub boot_id: BootId,
    /// Condition reason of the part that the proof lacked. Empty if an agent version that did not record it began the
    /// rollback.
    #[serde(default)]
    pub reason: String,
    /// Why the boot was not proven. Empty like `reason`.
    #[serde(default)]
    pub why: String,
}

/// An image that was pulled under an enforced signature policy and was not in the host's repository before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verified {
    /// Digest of the image.
    pub digest: Digest,
    /// Digest of the policy file's text when the pull began.
    pub policy: Digest,
}

impl Past {
    /// True if Berth's last pull was of this digest, under the signature policy whose text has the digest `policy`.
    pub fn is_verified(&self, digest: &Digest, policy: Option<&Digest>) -> bool {
        let verified = self.verified.as_ref();
        verified.is_some_and(|verified| verified.digest == *digest && Some(&verified.policy) == policy)
    }

    /// Returns the time left until the digest may be pulled again.
    pub fn pull_backoff(&self, digest: &Digest, now: Timestamp) -> Option<Duration> {
        let failure = self.failure.as_ref().filter(|f| f.digest.as_ref() == Some(digest))?;
        remaining(failure.next_try_time.0, now)
    }

    /// True unless the last pull of this digest failed or was stopped.
    pub fn is_complete(&self, digest: &Digest) -> bool {
        self.incomplete.as_ref() != Some(digest)
    }

    /// Returns the time left until the node may take another turn for this digest.
    pub fn turn_backoff(&self, digest: &Digest, now: Timestamp) -> Option<Duration> {
        let turn = self.last_turn.as_ref().filter(|t| t.digest == *digest)?;
        remaining(turn.next_try_time.0, now)
    }
}

/// Longest backoff of [`crate::agent::past`], jitter included.
const BACKOFF_MAX: Duration = Duration::from_secs(75 * 60);

fn remaining(until: Timestamp, now: Timestamp) -> Option<Duration> {
    let left = Duration::try_from(until.duration_since(now)).ok()?;
    // No backoff is longer: if more time is left, the clock was set back.
    let is_possible = left <= BACKOFF_MAX || Bug::BackoffUnlimited.is_awake();
    (!left.is_zero() && is_possible).then_some(left)
}
