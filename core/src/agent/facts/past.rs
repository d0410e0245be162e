//! Memory of earlier tries. Its rules are in [`crate::agent::past`].

use std::time::Duration;

use berth_api::backend::Backend;
use berth_api::digest::Digest;
use berth_api::names::BootId;
use berth_api::node::timeline::{Timeline, TurnRecord};
use berth_api::node::{Failure, Turn};
use berth_api::seeded::Bug;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::BootMoment;

/// Memory of earlier tries, kept on the host; some of it in the BootcNode's status as well. Fields that are absent in a
/// file of another version are as if nothing had happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Past {
    /// The failure that it backs off from. A new process tries at once.
    #[serde(skip)]
    pub failure: Option<Failure>,
    /// The last turn that did not end in an update.
    pub last_turn: Option<Turn>,
    /// Digests that failed here.
    pub failed_digests: Vec<Digest>,
    /// The digest that Berth pulled or staged here last; `None` once it was seen to be gone, on a node that no pool has.
    pub staged_by_us: Option<Digest>,
    /// Backend that staged it, until it is gone and no turn goes on: nothing else may touch it (see [`crate::agent::backend`]).
    pub staged_with: Option<Backend>,
    /// The digest whose last pull failed or was stopped. Its image may be staged all the same, without the images that
    /// are bound to it: bootc pulls those last.
    pub incomplete: Option<Digest>,
    /// A digest that was committed and not booted, and how often.
    pub not_applied: Option<(Digest, u32)>,
    /// The target of this turn, once it was seen to run unproven: should something else run later, it has failed.
    pub tried: Option<Digest>,
    /// The boot under which the berth was licensed anew because the boot could not be proven: still unproven, whatever
    /// the berth says.
    pub unproven_boot: Option<BootId>,
    /// The last pull of Berth's that ended well under an enforced signature policy, unless another pull has begun since.
    pub verified: Option<Verified>,
    /// The last retry token that was obeyed.
    pub retry_token: Option<String>,
    /// Time at which the running drain began, by this node's clock: for people.
    pub drain_began: Option<Timestamp>,
    /// Moment at which the running drain began under this boot. Kept here and not in an object that others can edit: a drain that
    /// seems old may be ended, or forced. A wall clock that is set must not make it seem old either.
    pub drain_since: Option<BootMoment>,
    /// Moment at which the proof of a boot began.
    pub proof_since: Option<BootMoment>,
    /// Chapters of the latest updates. Kept on the host, since they must survive the reboot that is one of them.
    pub timeline: Timeline,
    /// The turns, the newest first, which has no end while it runs.
    pub turns: Vec<TurnRecord>,
}

/// An image that was pulled under an enforced signature policy, and not found in the host's repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verified {
    /// Digest of the image.
    pub digest: Digest,
    /// Digest of the policy file's text, as it was when the pull began.
    pub policy: Digest,
}

impl Past {
    /// True if Berth's last pull was of this digest and ran under the signature policy whose text has this digest.
    pub fn is_verified(&self, digest: &Digest, policy: Option<&Digest>) -> bool {
        let verified = self.verified.as_ref();
        verified.is_some_and(|verified| verified.digest == *digest && Some(&verified.policy) == policy)
    }

    /// Time left until a digest may be pulled again after a failure.
    pub fn pull_backoff(&self, digest: &Digest, now: Timestamp) -> Option<Duration> {
        let failure = self.failure.as_ref().filter(|f| f.digest.as_ref() == Some(digest))?;
        remaining(failure.next_try_time.0, now)
    }

    /// Says whether a staged image with this digest has all that belongs to it, as far as is known.
    pub fn is_complete(&self, digest: &Digest) -> bool {
        self.incomplete.as_ref() != Some(digest)
    }

    /// Time left until the node is ready for another turn for this digest.
    pub fn turn_backoff(&self, digest: &Digest, now: Timestamp) -> Option<Duration> {
        let turn = self.last_turn.as_ref().filter(|t| t.digest == *digest)?;
        remaining(turn.next_try_time.0, now)
    }
}

/// Longest backoff that [`crate::agent::past`] makes, jitter included.
const LONGEST_BACKOFF: Duration = Duration::from_secs(75 * 60);

fn remaining(until: Timestamp, now: Timestamp) -> Option<Duration> {
    let left = Duration::try_from(until.duration_since(now)).ok()?;
    // No backoff is longer than that, so one that seems to be was made before the clock was set back.
    let is_possible = left <= LONGEST_BACKOFF || Bug::BackoffUnlimited.is_awake();
    (!left.is_zero() && is_possible).then_some(left)
}
