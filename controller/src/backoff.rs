//! Times at which failed work is tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_core::Moment;
use berth_shell::retry;

/// Failures by object, so that one that always fails does not hold up the others, nor is tried at every pass.
#[derive(Debug, Default)]
pub struct Backoffs(BTreeMap<String, (u32, Moment)>);

const FIRST: Duration = Duration::from_millis(150);
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
        let failures = self.0.get(key).map_or(0, |(n, _)| *n) + 1;
        let until = now + retry::delay(failures, FIRST, LAST);
        self.0.insert(key.to_owned(), (failures, until));
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
}
