//! Times at which failed work is tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_core::Moment;
use berth_shell::retry;

/// Failures by object, so that one that always fails does not hold up the others, nor is tried at every pass.
#[derive(Debug, Default)]
pub struct Backoffs(BTreeMap<String, (u32, Moment)>);

const FIRST: Duration = Duration::from_millis(150);
/// First wait after a conflict.
const CONFLICT: Duration = Duration::from_millis(50);
const LAST: Duration = Duration::from_secs(20);

impl Backoffs {
    /// Says whether the object may be tried now.
    pub fn ready(&self, key: &str, now: Moment) -> bool {
        self.0.get(key).is_none_or(|(_, until)| *until <= now)
    }

    /// Notes how a try ended.
    pub fn note(&mut self, key: &str, ok: bool, now: Moment) {
        if ok {
            self.0.remove(key);
            return;
        }
        self.later(key, FIRST, now);
    }

    /// Notes that the object was not as it was known. Mostly the watch shows it at any moment; but it may never.
    pub fn conflict(&mut self, key: &str, now: Moment) {
        self.later(key, CONFLICT, now);
    }

    fn later(&mut self, key: &str, first: Duration, now: Moment) {
        let failures = self.failures(key) + 1;
        let until = now + retry::delay(failures, first, LAST);
        self.0.insert(key.to_owned(), (failures, until));
    }

    /// Number of failures of the object since it last succeeded.
    pub fn failures(&self, key: &str) -> u32 {
        self.0.get(key).map_or(0, |(n, _)| *n)
    }

    /// Time at which the next object may be tried again.
    pub fn due(&self, now: Moment) -> Option<Moment> {
        self.0.values().map(|(_, at)| *at).filter(|at| *at > now).min()
    }

    /// Forgets objects that have been quiet for a while: they are gone, or somebody else has repaired them.
    pub fn forget(&mut self, now: Moment) {
        self.0.retain(|_, (_, until)| *until + LAST > now);
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
        assert!(!backoffs.ready("a", now) && backoffs.ready("b", now));
        let due = backoffs.due(now).unwrap();
        assert!(backoffs.ready("a", due));
        backoffs.note("a", true, due);
        assert!(backoffs.due(now).is_none());
    }

    #[test]
    fn a_conflict_is_tried_again_soon_and_one_that_lasts_ever_later() {
        let mut now = time::now();
        let mut backoffs = Backoffs::default();
        backoffs.conflict("a", now);
        assert!(backoffs.ready("a", now + CONFLICT * 2));
        for _ in 0..20 {
            backoffs.conflict("a", now);
            now = backoffs.due(now).unwrap();
            backoffs.forget(now);
        }
        assert_eq!(backoffs.failures("a"), 21);
        backoffs.conflict("a", now);
        assert!(!backoffs.ready("a", now + LAST / 2));
    }
}
