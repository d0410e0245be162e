//! Changes the agent's record of failures, and computes the backoff that follows a failure. Pure.

use std::time::Duration;

use berth_api::berth::{HoldPhase, Holding, Outcome};
use berth_api::condition::{CommonReason, one_line};
use berth_api::digest::Digest;
use berth_api::names::BootId;
use berth_api::node::{BootcNodeStatus, Failure, Turn};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::agent::facts::{Fired, Past, Undone};
use crate::agent::reason::Reason;
use crate::{BootMoment, Moment};

/// Maximum number of reboots that do not boot the expected digest. After this number, the digest counts as failed on
/// this node (I5, I8).
pub const MAX_NOT_APPLIED: u32 = 3;
/// Maximum number of failed digests in the record. If there are more, the oldest are dropped.
pub const MAX_FAILED: usize = 16;

/// Longest wait before the next pull of an image whose pulls fail, without jitter.
pub(super) const PULL_BACKOFF_MAX: Duration = Duration::from_secs(3600);

/// Returns the wait after this number of attempts. The wait is `first` after one attempt, doubles with each further
/// attempt, and is at most `most`.
pub(super) fn backoff(first: Duration, most: Duration, attempts: u32) -> Duration {
    first.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(most)
}

fn after(now: Timestamp, wait: Duration, jitter: f64) -> Time {
    let wait = wait.mul_f64(1.0 + 0.2 * jitter.clamp(0.0, 1.0));
    Time::from(now.checked_add(wait).unwrap_or(now))
}

impl Past {
    /// Records that a pull of this digest is about to start.
    pub fn pull_begins(&mut self, digest: &Digest) {
        self.staged_by_us = Some(digest.clone());
        self.incomplete = None;
        self.verified = None;
    }

    /// Allows the next pull at once if the last pull failed authentication. Called after the credentials have changed.
    pub fn retry_unauthorized(&mut self, now: Timestamp) {
        if let Some(failure) = &mut self.failure
            && failure.reason == Reason::Unauthorized.as_str()
        {
            failure.next_try_time = Time::from(now);
        }
    }

    /// Records a failed or stopped pull, and when it is retried. A pull is retried after any error, because the text of
    /// the error may come from the registry.
    pub fn pull_failed(&mut self, reason: &str, message: &str, digest: &Digest, now: Timestamp, jitter: f64) {
        let before = self.failure.as_ref().filter(|f| f.digest.as_ref() == Some(digest));
        let attempts = before.map_or(0, |f| f.attempts).saturating_add(1);
        let wait = backoff(Duration::from_secs(5), PULL_BACKOFF_MAX, attempts);
        self.failure = Some(Failure {
            reason: reason.to_owned(),
            message: one_line(message),
            digest: Some(digest.clone()),
            attempts,
            next_try_time: after(now, wait, jitter),
        });
    }

    /// Records the end of a turn, and how long the node must wait before it takes another turn for the same digest.
    pub fn turn_ended(&mut self, outcome: Outcome, message: &str, digest: &Digest, now: Timestamp, jitter: f64) {
        match outcome {
            Outcome::NotApplied => self.count_not_applied(digest),
            Outcome::Failed => self.digest_failed(digest),
            _ => {}
        }
        self.tried = None;
        self.undone = None;
        self.unproven_boot = None;
        self.target_deployed = None;
        let (first, most) = match outcome {
            // The turn ended without a failure of this node, so the node may take the next offer at once.
            Outcome::Updated | Outcome::Revoked | Outcome::Withdrawn | Outcome::Lapsed => {
                self.last_turn = None;
                return;
            }
            Outcome::NotStaged => (Duration::from_secs(2), Duration::from_secs(300)),
            Outcome::NotApplied => (Duration::from_secs(10), Duration::from_secs(600)),
            Outcome::DrainTimeout | Outcome::RebootBlocked => (Duration::from_secs(60), Duration::from_secs(1800)),
            // The failed digest gets no other turn here, so no wait is needed.
            Outcome::Failed => (Duration::ZERO, Duration::ZERO),
        };
        let word = outcome.as_str();
        let before = self
            .last_turn
            .as_ref()
            .filter(|t| t.digest == *digest && t.outcome == word);
        let attempts = before.map_or(0, |t| t.attempts).saturating_add(1);
        self.last_turn = Some(Turn {
            outcome: word.to_owned(),
            message: one_line(message),
            digest: digest.clone(),
            attempts,
            next_try_time: after(now, backoff(first, most, attempts), jitter),
        });
    }

    /// Counts a reboot that should have booted the digest but did not. [`crate::agent::step`] compares the count with
    /// [`MAX_NOT_APPLIED`] and ends the turn as [`Outcome::Failed`].
    fn count_not_applied(&mut self, digest: &Digest) {
        self.not_applied = Some((digest.clone(), self.times_not_applied(digest).saturating_add(1)));
    }

    /// Returns how many reboots should have booted this digest but did not.
    pub fn times_not_applied(&self, digest: &Digest) -> u32 {
        self.not_applied
            .as_ref()
            .filter(|(d, _)| d == digest)
            .map_or(0, |(_, times)| *times)
    }

    /// Clears the leftovers of an earlier turn before the node takes a berth. Returns true if the record changed in a
    /// way that must be stored.
    pub fn turn_begins(&mut self) -> bool {
        self.health_before = None;
        self.tried.take().is_some() | self.undone.take().is_some() | self.unproven_boot.take().is_some()
    }

    /// Returns when the agent began to wait for the proof of this boot. If no time is stored for this boot, stores and
    /// returns the current time.
    pub fn proof_begins(&mut self, boot_id: &BootId, now: Moment) -> Moment {
        let remembered = self.proof_since.as_ref().and_then(|since| since.under(boot_id));
        if remembered.is_none() {
            self.proof_since = Some(BootMoment::new(boot_id, now));
        }
        remembered.unwrap_or(now)
    }

    /// Records that the agent is about to commit the berth again for this digest. `boot_id` is the ID of the current,
    /// unproven boot.
    pub fn relicensed(&mut self, holding: &Holding, digest: &Digest, boot_id: &BootId) {
        let again = holding.target == *digest && holding.phase == HoldPhase::Committed;
        // Count only once per boot: the write may be retried.
        if again && self.unproven_boot.as_ref() != Some(boot_id) {
            self.count_not_applied(digest);
        }
        // The berth is about to get another target. The end of the turn will then not record that the digest of the
        // undone boot failed (I8), so record it now.
        if let Some(undone) = self.undone.take() {
            self.digest_failed(&undone.digest);
        }
        self.tried = None;
        self.unproven_boot = Some(boot_id.clone());
    }

    /// Records that the agent is about to queue a rollback of the running boot. `reason` and `why` name the missing
    /// part of the boot's proof.
    pub fn undo_begins(&mut self, booted: Option<&Digest>, boot_id: &BootId, reason: CommonReason, why: &str) {
        if self.undone.as_ref().is_some_and(|undone| undone.boot_id == *boot_id) {
            return;
        }
        self.undone = booted.map(|digest| Undone {
            digest: digest.clone(),
            boot_id: boot_id.clone(),
            reason: reason.as_str().to_owned(),
            why: one_line(why),
        });
    }

    /// Records that the host's rollback guard has begun to undo a boot, and that the image of this boot has failed.
    /// Changes nothing if the agent itself began to undo the same boot.
    pub fn guard_fired(&mut self, fired: &Fired) {
        if self
            .undone
            .as_ref()
            .is_some_and(|undone| undone.boot_id == fired.boot_id)
        {
            return;
        }
        // Perhaps no agent has seen the target run. The target has failed all the same.
        self.digest_failed(&fired.digest);
        self.undone = Some(Undone {
            digest: fired.digest.clone(),
            boot_id: fired.boot_id.clone(),
            reason: CommonReason::RollbackGuardFired.as_str().to_owned(),
            why: String::new(),
        });
    }

    /// Records that the target of a committed berth has booted, still unproven. Returns true if the record changed.
    pub fn runs(&mut self, holding: &Holding, booted: Option<&Digest>) -> bool {
        let new = holding.phase == HoldPhase::Committed
            && booted == Some(&holding.target)
            && self.tried.as_ref() != Some(&holding.target);
        if new {
            self.tried = Some(holding.target.clone());
        }
        new
    }

    /// Clears all failures and returns true if the retry token is new. Keeps the record of a rollback of the running
    /// boot. Without this record, the agent would mistake its own queued rollback for an admin's.
    pub fn retry(&mut self, token: Option<&str>, boot_id: &BootId) -> bool {
        let Some(token) = token.filter(|token| self.retry_token.as_deref() != Some(token)) else {
            return false;
        };
        self.retry_token = Some(token.to_owned());
        self.failed_digests.clear();
        self.failure = None;
        self.last_turn = None;
        self.not_applied = None;
        // Clear `tried` and `undone` even during a turn. A node that runs an unproven image may then try that image
        // again.
        self.tried = None;
        if self.undone.as_ref().is_some_and(|undone| undone.boot_id != *boot_id) {
            self.undone = None;
        }
        true
    }

    /// Fills gaps in the host's record from the BootcNode's status. Ignores the failures in the status if the host has
    /// acted on a retry token that the status does not have yet: these failures are older than the retry.
    pub fn adopt(&mut self, status: &BootcNodeStatus) {
        if self.timeline.updates.is_empty() {
            self.timeline.updates.clone_from(&status.timeline.updates);
        }
        if self.timeline.joined.is_none() {
            self.timeline.joined.clone_from(&status.timeline.joined);
        }
        if self.turns.is_empty() {
            self.turns.clone_from(&status.turns);
        }
        if self.retry_token.is_some() && self.retry_token != status.retry_token {
            return;
        }
        self.retry_token = status.retry_token.clone();
        self.failure = self.failure.take().or_else(|| status.failure.clone());
        self.last_turn = self.last_turn.take().or_else(|| status.last_turn.clone());
        let not_applied = status.not_applied.as_ref().map(|n| (n.digest.clone(), n.attempts));
        self.not_applied = self.not_applied.take().or(not_applied);
        self.tried = self.tried.take().or_else(|| status.tried.clone());
        for digest in &status.failed_digests {
            self.digest_failed(digest);
        }
    }

    /// Records that the digest is proven on this node, and clears its failures.
    pub fn proven(&mut self, digest: &Digest) {
        self.incomplete = self.incomplete.take().filter(|d| d != digest);
        self.succeeded(digest);
        self.failed_digests.retain(|d| d != digest);
        self.not_applied = self.not_applied.take().filter(|(d, _)| d != digest);
    }

    pub(super) fn digest_failed(&mut self, digest: &Digest) {
        if !self.failed_digests.contains(digest) {
            self.failed_digests.push(digest.clone());
            let extra = self.failed_digests.len().saturating_sub(MAX_FAILED);
            self.failed_digests.drain(..extra);
        }
    }

    /// Clears the failed pull of this digest, because the image is now staged or runs. Keeps the failure if the staged
    /// image is incomplete.
    pub fn succeeded(&mut self, digest: &Digest) {
        if self.is_complete(digest) && self.failure.as_ref().is_some_and(|f| f.digest.as_ref() == Some(digest)) {
            self.failure = None;
        }
    }

    /// Clears the failed pull and the failed turn of every other digest, because the pool now desires this digest.
    /// Keeps all digests in `failed_digests`.
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
    use berth_api::node::NotApplied;
    use berth_api::node::timeline::Timeline;

    use super::*;
    use crate::agent::timeline;

    fn digest(n: u8) -> Digest {
        format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
    }

    #[test]
    fn backoff_doubles_is_bounded_and_is_about_one_digest() {
        let mut past = Past::default();
        let now = Timestamp::UNIX_EPOCH;
        let mut waits = vec![];
        for _ in 0..12 {
            past.pull_failed("RegistryUnavailable", "error: no\nroute", &digest(1), now, 0.0);
            waits.push(past.pull_backoff(&digest(1), now).unwrap().as_secs());
        }
        assert_eq!(waits[..4], [5, 10, 20, 40]);
        assert_eq!(waits[8..], [1280, 2560, 3600, 3600]);
        assert_eq!(past.pull_backoff(&digest(2), now), None);
        assert_eq!(past.failure.as_ref().unwrap().message, "error: no route");
        past.desire(&digest(2));
        assert_eq!(past.failure, None);
        past.pull_failed("RegistryUnavailable", "", &digest(2), now, 1.0);
        assert_eq!(
            past.pull_backoff(&digest(2), now),
            Some(Duration::from_secs(6)),
            "agents that fail together do not try together"
        );
    }

    #[test]
    fn turns_that_end_alike_wait_longer() {
        let drain = Outcome::DrainTimeout;
        for (outcome, of, attempts) in [
            (drain, 1, 2),
            (Outcome::RebootBlocked, 1, 1),
            (drain, 2, 1),
            (Outcome::RebootBlocked, 2, 1),
        ] {
            let mut past = Past::default();
            let now = Timestamp::UNIX_EPOCH;
            past.turn_ended(drain, "", &digest(1), now, 0.0);
            past.turn_ended(outcome, "", &digest(of), now, 0.0);
            assert_eq!(past.last_turn.as_ref().map(|t| t.attempts), Some(attempts));
            let wait = Duration::from_secs(60 * u64::from(attempts));
            assert_eq!(past.turn_backoff(&digest(of), now), Some(wait), "{outcome:?} {of}");
        }
    }

    #[test]
    fn a_turn_begins_without_what_an_earlier_one_left() {
        for (tried, unproven) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut past = Past {
                tried: tried.then(|| digest(1)),
                unproven_boot: unproven.then(|| "b1".into()),
                ..Past::default()
            };
            assert_eq!(past.turn_begins(), tried || unproven, "it has to be stored");
            assert_eq!(past, Past::default());
        }
    }

    #[test]
    fn only_a_committed_target_counts_as_tried() {
        for (phase, booted, tried) in [
            (HoldPhase::Committed, Some(2), true),
            (HoldPhase::Committed, Some(1), false),
            (HoldPhase::Committed, None, false),
            (HoldPhase::Taken, Some(2), false),
            (HoldPhase::Releasing(Outcome::Updated), Some(2), false),
        ] {
            let mut past = Past::default();
            let holding = Holding {
                phase: phase.clone(),
                ..holding("b1")
            };
            assert_eq!(past.runs(&holding, booted.map(digest).as_ref()), tried, "{phase:?}");
            assert_eq!(past.tried.is_some(), tried, "{phase:?} {booted:?}");
        }
    }

    #[test]
    fn a_proof_is_about_one_digest() {
        for (proven, kept) in [(1, false), (2, true)] {
            let mut past = Past {
                incomplete: Some(digest(1)),
                failed_digests: vec![digest(1)],
                not_applied: Some((digest(1), 1)),
                ..Past::default()
            };
            past.proven(&digest(proven));
            assert_eq!(!past.is_complete(&digest(1)), kept);
            assert_eq!(past.failed_digests.contains(&digest(1)), kept);
            assert_eq!(past.times_not_applied(&digest(1)), u32::from(kept));
        }
    }

    #[test]
    fn another_image_clears_the_failures_of_the_former() {
        for (desired, kept) in [(1, true), (2, false)] {
            let mut past = Past::default();
            let now = Timestamp::UNIX_EPOCH;
            past.pull_failed("ImageNotFound", "", &digest(1), now, 0.0);
            past.turn_ended(Outcome::DrainTimeout, "", &digest(1), now, 0.0);
            past.desire(&digest(desired));
            assert_eq!((past.failure.is_some(), past.last_turn.is_some()), (kept, kept));
        }
    }

    #[test]
    fn digests_that_do_not_apply_are_counted() {
        let mut past = Past::default();
        for turn in 1..MAX_NOT_APPLIED {
            past.turn_ended(Outcome::NotApplied, "", &digest(1), Timestamp::UNIX_EPOCH, 0.0);
            // Other outcomes in between do not reset the count.
            past.turn_ended(Outcome::Revoked, "", &digest(1), Timestamp::UNIX_EPOCH, 0.0);
            assert_eq!(
                (past.times_not_applied(&digest(1)), past.times_not_applied(&digest(2))),
                (turn, 0)
            );
        }
        assert!(past.failed_digests.is_empty(), "the berth says when it is enough");
        past.turn_ended(Outcome::Failed, "again", &digest(1), Timestamp::UNIX_EPOCH, 0.0);
        assert_eq!(past.failed_digests, [digest(1)]);
        assert_eq!(past.turn_backoff(&digest(1), Timestamp::UNIX_EPOCH), None);
        assert_eq!(past.last_turn.as_ref().map(|t| t.message.as_str()), Some("again"));
        past.proven(&digest(1));
        assert_eq!((past.failed_digests, past.not_applied), (vec![], None));
    }

    fn holding(boot_id: &str) -> Holding {
        Holding {
            node: "n1".into(),
            uid: "u1".into(),
            target: digest(2),
            from: Some(digest(1)),
            boot_id: boot_id.into(),
            phase: HoldPhase::Committed,
            revoke: None,
            open_until: None,
        }
    }

    #[test]
    fn a_relicence_counts_a_repeated_target_once_per_boot() {
        let mut past = Past::default();
        let boot = BootId::from("b2");
        assert!(past.runs(&holding("b1"), Some(&digest(2))));
        assert!(!past.runs(&holding("b1"), Some(&digest(2))), "it is known");
        past.relicensed(&holding("b1"), &digest(3), &boot);
        assert_eq!(
            (&past.tried, &past.unproven_boot, &past.not_applied),
            (&None, &Some(boot.clone()), &None)
        );

        let mut past = Past::default();
        for _ in 0..3 {
            past.relicensed(&holding("b1"), &digest(2), &boot);
        }
        assert_eq!(
            past.times_not_applied(&digest(2)),
            1,
            "a write that is tried again is one try"
        );
        past.relicensed(&holding("b2"), &digest(2), &BootId::from("b3"));
        assert_eq!(past.times_not_applied(&digest(2)), 2);
        assert!(past.turn_begins() && !past.turn_begins());
        assert_eq!(past.unproven_boot, None);
    }

    #[test]
    fn a_retry_token_forgets_failures_once() {
        for (token, retried) in [(None, false), (Some("one"), false), (Some("two"), true)] {
            let mut past = Past {
                retry_token: Some("one".into()),
                ..Past::default()
            };
            past.turn_ended(Outcome::NotApplied, "", &digest(1), Timestamp::UNIX_EPOCH, 0.0);
            past.turn_ended(Outcome::Failed, "", &digest(1), Timestamp::UNIX_EPOCH, 0.0);
            past.pull_failed("RegistryUnavailable", "", &digest(1), Timestamp::UNIX_EPOCH, 0.0);
            past.tried = Some(digest(1));
            assert_eq!(past.retry(token, &"b2".into()), retried);
            assert_eq!(
                (past.failed_digests.is_empty(), past.tried.is_none()),
                (retried, retried)
            );
            assert_eq!(
                past.failure.is_none() && past.last_turn.is_none() && past.not_applied.is_none(),
                retried
            );
            assert!(!past.retry(token, &"b2".into()), "once");
        }
    }

    #[test]
    fn a_retry_does_not_stop_a_rollback_that_has_begun() {
        for (boot, kept) in [("b2", true), ("b3", false)] {
            let mut past = Past::default();
            past.undo_begins(
                Some(&digest(2)),
                &"b2".into(),
                CommonReason::UnitsFailed,
                "a unit failed",
            );
            assert!(past.retry(Some("again"), &boot.into()));
            assert_eq!(past.undone.is_some(), kept, "{boot}");
        }
    }

    fn joined(pool: &str) -> Timeline {
        let mut timeline = Timeline::default();
        timeline::join(&mut timeline, pool, Timestamp::UNIX_EPOCH);
        timeline
    }

    #[test]
    fn a_memory_of_another_version_is_read() {
        let old = r#"{"failedDigests": [], "times": {"committed": null, "drainSeconds": 3, "rebootSeconds": 40}}"#;
        assert_eq!(serde_json::from_str::<Past>(old).unwrap(), Past::default());
        let now = Past {
            timeline: joined("p"),
            ..Past::default()
        };
        let text = serde_json::to_string(&now).unwrap();
        assert_eq!(serde_json::from_str::<Past>(&text).unwrap(), now);
    }

    #[test]
    fn a_status_from_before_a_retry_says_nothing() {
        for (host, object, adopted) in [
            (None, None, true),
            (None, Some("a"), true),
            (Some("b"), Some("a"), false),
            (Some("b"), Some("b"), true),
        ] {
            let mut past = Past {
                retry_token: host.map(str::to_owned),
                ..Past::default()
            };
            past.adopt(&BootcNodeStatus {
                failed_digests: vec![digest(1)],
                retry_token: object.map(str::to_owned),
                not_applied: Some(NotApplied {
                    digest: digest(1),
                    attempts: 2,
                }),
                tried: Some(digest(1)),
                timeline: joined("p"),
                ..BootcNodeStatus::default()
            });
            assert_eq!(!past.failed_digests.is_empty(), adopted, "{host:?} {object:?}");
            // A host that lost its record continues with the count in the status.
            assert_eq!(past.times_not_applied(&digest(1)), if adopted { 2 } else { 0 });
            assert_eq!(past.tried.is_some(), adopted);
            assert_eq!(past.retry_token.as_deref(), host.or(object));
            assert_eq!(past.timeline, joined("p"), "a retry does not undo the timeline");
        }
    }

    #[test]
    fn a_revoked_berth_is_not_a_failure() {
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
            past.turn_ended(Outcome::Failed, "", &digest(n), Timestamp::UNIX_EPOCH, 0.0);
        }
        assert_eq!(past.failed_digests.len(), MAX_FAILED);
        assert_eq!(past.failed_digests.last(), Some(&digest(39)));
    }
}
