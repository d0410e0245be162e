//! Retry times of failed work.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_core::Moment;
use berth_shell::retry;

/// Failure counts and retry times, by object. Each object waits for its own retry time. So an object whose requests
/// keep failing does not delay other objects, and is not retried in every pass.
#[derive(Debug, Default)]
pub struct Backoffs(BTreeMap<String, (u32, Moment)>);

const RETRY_MIN: Duration = Duration::from_millis(150);
/// First delay after a conflict.
const CONFLICT_RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(20);

impl Backoffs {
    /// True if a request for the object may be sent now.
    pub fn is_ready(&self, key: &str, now: Moment) -> bool {
        self.0.get(key).is_none_or(|(_, until)| *until <= now)
    }

    /// Records the result of a request.
    pub fn note(&mut self, key: &str, ok: bool, now: Moment) {
        if ok {
            self.0.remove(key);
            return;
        }
        self.later(key, RETRY_MIN, now);
    }

    /// Records a conflict. The first delay is short, because the watch usually shows the changed object soon. Each
    /// further conflict makes the delay longer, because the watch may never show the change.
    pub fn conflict(&mut self, key: &str, now: Moment) {
        self.later(key, CONFLICT_RETRY_MIN, now);
    }

    fn later(&mut self, key: &str, first: Duration, now: Moment) {
        let failures = self.failures(key) + 1;
        let until = now + retry::delay(failures, first, RETRY_MAX);
        self.0.insert(key.to_owned(), (failures, until));
    }

    /// Number of failed requests for the object since the last success.
    pub fn failures(&self, key: &str) -> u32 {
        self.0.get(key).map_or(0, |(n, _)| *n)
    }

    /// Time of the earliest retry after `now`.
    pub fn due(&self, now: Moment) -> Option<Moment> {
        self.0.values().map(|(_, at)| *at).filter(|at| *at > now).min()
    }

    /// Forgets objects whose retry has been due for 20 s: they were deleted, or need no more requests.
    pub fn forget(&mut self, now: Moment) {
        self.0.retain(|_, (_, until)| *until + RETRY_MAX > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    #[test]
    fn one_failing_object_waits_alone() {
        let now = time::now();
        let mut backoffs = Backoffs::default();
        backoffs.note("a", false, now);
        assert!(!backoffs.is_ready("a", now) && backoffs.is_ready("b", now));
        let due = backoffs.due(now).unwrap();
        assert!(backoffs.is_ready("a", due));
        backoffs.note("a", true, due);
        assert!(backoffs.due(now).is_none());
    }

    #[test]
    fn repeated_conflicts_are_retried_ever_later() {
        let mut now = time::now();
        let mut backoffs = Backoffs::default();
        backoffs.conflict("a", now);
        assert!(backoffs.is_ready("a", now + CONFLICT_RETRY_MIN * 2));
        for _ in 0..20 {
            backoffs.conflict("a", now);
            now = backoffs.due(now).unwrap();
            backoffs.forget(now);
        }
        assert_eq!(backoffs.failures("a"), 21);
        backoffs.conflict("a", now);
        assert!(!backoffs.is_ready("a", now + RETRY_MAX / 2));
    }
}
