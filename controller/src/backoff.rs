//! Times at which failed work is tried again.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use berth_core::Moment;

/// Makes a random number, from the seed that the standard library draws for its hash maps: enough for jitter and for
/// telling two processes apart.
pub fn random() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// Wait after so many failures: doubling from `first` to `last`, plus or minus a fifth, so that requests that failed
/// together are not repeated together.
pub fn delay(failures: u32, first: Duration, last: Duration) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let delay = first.saturating_mul(1 << doublings).min(last);
    let percent = 80 + u32::try_from(random() % 41).unwrap_or_default();
    delay * percent / 100
}

/// Failures by object, so that one that always fails does not hold up the others, nor is tried at every pass.
#[derive(Debug, Default)]
pub struct Backoffs(BTreeMap<String, (u32, Moment)>);

const FIRST: Duration = Duration::from_millis(200);
const LAST: Duration = Duration::from_secs(30);

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
        let until = now + delay(failures, FIRST, LAST);
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
    fn delays_double_up_to_a_limit() {
        let (first, last) = (Duration::from_secs(2), Duration::from_secs(300));
        for (failures, seconds) in [(0, 2.0), (1, 2.0), (2, 4.0), (5, 32.0), (9, 300.0), (u32::MAX, 300.0)] {
            let delay = delay(failures, first, last).as_secs_f64();
            assert!((seconds * 0.79..seconds * 1.21).contains(&delay), "{failures}: {delay}");
        }
    }

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
