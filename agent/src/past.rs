//! What the agent remembers of what went wrong, and how long it stays away from it. Pure.

use std::time::Duration;

use berth_api::berth::Outcome;
use berth_api::condition::one_line;
use berth_api::digest::Digest;
use berth_api::node::{Failure, Turn};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::facts::Past;

/// After so many reboots that did not apply a digest, it counts as failed on this node (I5, I8).
pub const MAX_NOT_APPLIED: u32 = 3;
/// How many failed digests are remembered.
pub const MAX_FAILED: usize = 16;

/// Doubles from `first` with each attempt, up to `most`.
fn backoff(first: Duration, most: Duration, attempts: u32) -> Duration {
    first.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(most)
}

fn after(now: Timestamp, wait: Duration, jitter: f64) -> Time {
    let wait = wait.mul_f64(1.0 + 0.2 * jitter.clamp(0.0, 1.0));
    Time::from(now.checked_add(wait).unwrap_or(now))
}

impl Past {
    /// A pull or another host step failed. `retry` says whether trying again can help at all.
    pub fn host_failed(
        &mut self,
        reason: &str,
        message: &str,
        digest: &Digest,
        retry: bool,
        now: Timestamp,
        jitter: f64,
    ) {
        let before = self.failure.as_ref().filter(|f| f.digest.as_ref() == Some(digest));
        let attempts = before.map_or(0, |f| f.attempts).saturating_add(1);
        let wait = backoff(Duration::from_secs(5), Duration::from_secs(600), attempts);
        self.failure = Some(Failure {
            reason: reason.to_owned(),
            message: one_line(message),
            digest: Some(digest.clone()),
            attempts,
            next_try_time: after(now, wait, jitter),
        });
        if !retry {
            self.digest_failed(digest);
        }
    }

    /// A turn with a berth ended.
    pub fn turn_ended(&mut self, outcome: Outcome, message: &str, digest: &Digest, now: Timestamp, jitter: f64) {
        if outcome == Outcome::NotApplied {
            self.count_not_applied(digest);
        }
        let (first, most) = match outcome {
            // Nothing went wrong here: the node is ready for the next offer at once.
            Outcome::Updated | Outcome::Revoked | Outcome::Withdrawn | Outcome::Lapsed => {
                self.last_turn = None;
                return;
            }
            Outcome::NotStaged => (Duration::from_secs(2), Duration::from_secs(300)),
            Outcome::NotApplied => (Duration::from_secs(10), Duration::from_secs(600)),
            Outcome::DrainTimeout | Outcome::RebootBlocked | Outcome::Failed => {
                (Duration::from_secs(60), Duration::from_secs(1800))
            }
        };
        let word = outcome.as_str();
        let before = self.last_turn.as_ref().filter(|t| t.digest == *digest && t.outcome == word);
        let attempts = before.map_or(0, |t| t.attempts).saturating_add(1);
        self.last_turn = Some(Turn {
            outcome: word.to_owned(),
            message: one_line(message),
            digest: digest.clone(),
            attempts,
            next_try_time: after(now, backoff(first, most, attempts), jitter),
        });
    }

    /// Reboots that did not apply a digest are counted whatever happened in between.
    fn count_not_applied(&mut self, digest: &Digest) {
        let before = self.not_applied.as_ref().filter(|(d, _)| d == digest).map_or(0, |(_, n)| *n);
        self.not_applied = Some((digest.clone(), before.saturating_add(1)));
        if before + 1 >= MAX_NOT_APPLIED {
            self.digest_failed(digest);
        }
    }

    /// The digest runs here, proven: it has not failed, whatever was thought before.
    pub fn proven(&mut self, digest: &Digest) {
        self.succeeded(digest);
        self.failed_digests.retain(|d| d != digest);
        self.not_applied = self.not_applied.take().filter(|(d, _)| d != digest);
    }

    /// Never try this digest here again.
    fn digest_failed(&mut self, digest: &Digest) {
        if !self.failed_digests.contains(digest) {
            self.failed_digests.push(digest.clone());
            let extra = self.failed_digests.len().saturating_sub(MAX_FAILED);
            self.failed_digests.drain(..extra);
        }
    }

    /// The digest is staged or runs: earlier failures to get there are over.
    pub fn succeeded(&mut self, digest: &Digest) {
        if self.failure.as_ref().is_some_and(|f| f.digest.as_ref() == Some(digest)) {
            self.failure = None;
        }
    }

    /// Something else is desired now: what was about the former digest is no longer shown, but a failed digest stays
    /// failed.
    pub fn desire(&mut self, digest: &Digest) {
        if self.failure.as_ref().is_some_and(|f| f.digest.as_ref() != Some(digest)) {
            self.failure = None;
        }
        if self.last_turn.as_ref().is_some_and(|t| t.digest != *digest) {
            self.last_turn = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(n: u8) -> Digest {
        format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
    }

    #[test]
    fn backoff_doubles_is_bounded_and_is_about_one_digest() {
        let mut past = Past::default();
        let now = Timestamp::UNIX_EPOCH;
        let mut waits = vec![];
        for _ in 0..12 {
            past.host_failed("RegistryUnavailable", "error: no\nroute", &digest(1), true, now, 0.0);
            waits.push(past.pull_backoff(&digest(1), now).unwrap().as_secs());
        }
        assert_eq!(waits[..4], [5, 10, 20, 40]);
        assert_eq!(waits[11], 600);
        assert_eq!(past.pull_backoff(&digest(2), now), None);
        assert_eq!(past.failure.as_ref().unwrap().message, "error: no route");
        past.desire(&digest(2));
        assert_eq!(past.failure, None);
    }

    #[test]
    fn a_digest_that_never_applies_fails_after_a_bounded_number_of_turns() {
        let mut past = Past::default();
        for turn in 1..=MAX_NOT_APPLIED {
            assert!(past.failed_digests.is_empty());
            past.turn_ended(Outcome::NotApplied, "", &digest(1), Timestamp::UNIX_EPOCH, 0.0);
            assert_eq!(past.not_applied, Some((digest(1), turn)));
            // What happens in between does not make it forget.
            past.turn_ended(Outcome::Revoked, "", &digest(1), Timestamp::UNIX_EPOCH, 0.0);
        }
        assert_eq!(past.failed_digests, [digest(1)]);
        past.proven(&digest(1));
        assert_eq!((past.failed_digests, past.not_applied), (vec![], None));
    }

    #[test]
    fn being_asked_for_the_berth_is_nobodys_failure() {
        let mut past = Past::default();
        past.turn_ended(Outcome::DrainTimeout, "pod", &digest(1), Timestamp::UNIX_EPOCH, 0.5);
        assert!(past.turn_backoff(&digest(1), Timestamp::UNIX_EPOCH).is_some());
        past.turn_ended(Outcome::Revoked, "Paused", &digest(1), Timestamp::UNIX_EPOCH, 0.5);
        assert_eq!(past.last_turn, None);
    }

    #[test]
    fn failed_digests_are_bounded() {
        let mut past = Past::default();
        for n in 0..40 {
            past.host_failed("NotBootable", "", &digest(n), false, Timestamp::UNIX_EPOCH, 0.0);
        }
        assert_eq!(past.failed_digests.len(), MAX_FAILED);
        assert_eq!(past.failed_digests.last(), Some(&digest(39)));
    }
}
