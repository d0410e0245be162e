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

/// The agent's record of earlier pulls, turns and failures. The host keeps the record in a file, and the BootcNode's
/// status has a part of it. A file from another agent version may lack a field; that field gets its default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Past {
    /// Last failed pull, with the time of the next attempt. Not stored in the file: after a restart, the agent takes it
    /// from the BootcNode's status.
    #[serde(skip)]
    pub failure: Option<Failure>,
    /// Last turn, unless it ended in an update.
    pub last_turn: Option<Turn>,
    /// Digests that failed on this node and are not tried here again.
    pub failed_digests: Vec<Digest>,
    /// Digest of the last image that Berth pulled. On a node without a pool, this becomes `None` as soon as the image
    /// is not staged any more.
    pub staged_by_us: Option<Digest>,
    /// Backend that staged `staged_by_us`. The other backend must not touch that image (see [`crate::agent::backend`]).
    pub staged_with: Option<Backend>,
    /// Digest whose last pull failed or was stopped. bootc pulls the logically bound images last, so they may be
    /// missing.
    pub incomplete: Option<Digest>,
    /// A digest that did not boot although a berth was committed for it, and the number of reboots that should have
    /// booted it.
    pub not_applied: Option<(Digest, u32)>,
    /// Target that has booted but is not proven. If the host boots another digest next, this target has failed.
    pub tried: Option<Digest>,
    /// The rollback that the agent began in this turn, to undo an unproven boot.
    pub undone: Option<Undone>,
    /// True if the host already had a deployment of the target when the node last committed, apart from the staged
    /// deployment. `None` if that commit was made by an agent version without this field.
    pub target_deployed: Option<bool>,
    /// The last target that fell back; see [`FellBack`].
    pub fell_back: Option<FellBack>,
    /// The image that the host ran when the agent last read its deployments. `None` before the first boot with a Ready
    /// Node, and on a node without a pool.
    pub last_booted: Option<LastBooted>,
    /// The last boot of an unexpected image without a berth; see [`OutsideBoot`] for how long it is kept.
    pub outside_boot: Option<OutsideBoot>,
    /// Health of the host in this turn, before its reboot. `None` if it was not read, for example by an older agent
    /// version. In that case, failed units do not count against the new image.
    pub health_before: Option<HealthBefore>,
    /// IDs of the containers in the pods of the pool's checks, from before the reboot of this turn. If a pod still has
    /// one of these containers, it was not started in the new boot.
    pub containers_before: Vec<String>,
    /// ID of an unproven boot, if the berth was committed again during that boot. Such a berth looks like a berth
    /// before its reboot, so only this field shows that the boot is unproven.
    pub unproven_boot: Option<BootId>,
    /// The image of the last pull, if the pull succeeded while the host enforced a signature policy. Cleared when the
    /// next pull begins.
    pub verified: Option<Verified>,
    /// The last retry token of the pool that the agent has acted on.
    pub retry_token: Option<String>,
    /// Start of the current drain, by this node's wall clock. Used only for display.
    pub drain_began: Option<Timestamp>,
    /// Start of the current drain, measured from the start of the boot. The drain's time limit counts from here. An
    /// edit of a cluster object or a change of the wall clock can therefore neither end nor force the drain early.
    pub drain_since: Option<BootMoment>,
    /// When the agent began to wait for the proof of the current boot.
    pub proof_since: Option<BootMoment>,
    /// Chapters of the latest updates. Stored on the host, since an update contains a reboot.
    pub timeline: Timeline,
    /// Turns, newest first. The running turn has no end time yet.
    pub turns: Vec<TurnRecord>,
}

/// A rollback that the agent began, to undo an unproven boot. Stored on the host before the rollback is queued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Undone {
    /// Digest of the unproven boot, before the rollback.
    pub digest: Digest,
    /// Boot ID of the boot that is undone.
    pub boot_id: BootId,
    /// Condition reason for the missing part of the proof. Empty if an agent version without this field began the
    /// rollback.
    #[serde(default)]
    pub reason: String,
    /// Message about the missing part of the proof. Empty if an agent version without this field began the rollback.
    #[serde(default)]
    pub why: String,
}

/// An image that was pulled while the host enforced a signature policy. The host did not have the image before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verified {
    /// Digest of the image.
    pub digest: Digest,
    /// Digest of the text of `policy.json` when the pull began.
    pub policy: Digest,
}

impl Past {
    /// True if Berth's last pull fetched this digest, and succeeded under this signature policy. `policy` is the digest
    /// of the policy's text.
    pub fn is_verified(&self, digest: &Digest, policy: Option<&Digest>) -> bool {
        let verified = self.verified.as_ref();
        verified.is_some_and(|verified| verified.digest == *digest && Some(&verified.policy) == policy)
    }

    /// Returns how long the node must still wait before it may pull this digest again; `None` if it may pull now.
    pub fn pull_backoff(&self, digest: &Digest, now: Timestamp) -> Option<Duration> {
        let failure = self.failure.as_ref().filter(|f| f.digest.as_ref() == Some(digest))?;
        remaining(failure.next_try_time.0, now)
    }

    /// True unless the last pull of this digest failed or was stopped.
    pub fn is_complete(&self, digest: &Digest) -> bool {
        self.incomplete.as_ref() != Some(digest)
    }

    /// Returns how long the node must still wait before it may take another turn for this digest; `None` if it may take
    /// one now.
    pub fn turn_backoff(&self, digest: &Digest, now: Timestamp) -> Option<Duration> {
        let turn = self.last_turn.as_ref().filter(|t| t.digest == *digest)?;
        remaining(turn.next_try_time.0, now)
    }
}

/// Longest wait that [`crate::agent::past`] can set, with jitter.
const BACKOFF_MAX: Duration = Duration::from_secs(75 * 60);

fn remaining(until: Timestamp, now: Timestamp) -> Option<Duration> {
    let left = Duration::try_from(until.duration_since(now)).ok()?;
    // If more time is left than any backoff lasts, the clock was set back. The wait then counts as over.
    let is_possible = left <= BACKOFF_MAX || Bug::BackoffUnlimited.is_awake();
    (!left.is_zero() && is_possible).then_some(left)
}
