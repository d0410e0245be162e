//! Caches whether the host's clock is synchronized. The agent compares the end of a maintenance window only with a
//! synchronized clock.

use std::time::{Duration, Instant};

use super::handle::Host;

/// How long an answer is cached while the node's berth has a maintenance window. The cache limits how often the agent's
/// queries start timedated.
const CACHED_IN_WINDOW: Duration = Duration::from_secs(10);
/// How long an answer other than "synchronized" is cached without a maintenance window. Short, because an update may be
/// waiting for the clock to be synchronized.
const OTHER_CACHED: Duration = Duration::from_secs(20);
/// How long the answer "synchronized" is cached without a maintenance window.
const YES_CACHED: Duration = Duration::from_secs(60);

/// Cached state of the host's clock.
#[derive(Debug)]
pub struct Clock {
    trusted: bool,
    asked: Option<(Instant, Option<bool>)>,
    yes: Option<Instant>,
}

impl Clock {
    /// Creates an empty cache. If `trusted`, the clock always counts as synchronized.
    pub fn new(trusted: bool) -> Self {
        Self {
            trusted,
            asked: None,
            yes: None,
        }
    }

    /// Returns the last known answer, even if it is old; `None` if the answer is unknown.
    pub fn known(&self) -> Option<bool> {
        if self.trusted {
            Some(true)
        } else {
            self.asked.and_then(|(_, answer)| answer)
        }
    }

    /// True if the clock is synchronized; `None` if the host does not report its state. Queries the host if the cached
    /// answer has expired.
    pub async fn is_synchronized(&mut self, host: &Host, under_window: bool) -> Option<bool> {
        if self.trusted {
            return Some(true);
        }
        if let Some((at, answer)) = self.asked {
            let age = match answer {
                _ if under_window => CACHED_IN_WINDOW,
                Some(true) => YES_CACHED,
                _ => OTHER_CACHED,
            };
            if at.elapsed() < age {
                return answer;
            }
        }
        let answer = host.clock_synchronized().await;
        if let Err(error) = &answer {
            tracing::debug!(%error, "cannot read whether the host's clock is synchronized");
        }
        self.note(answer.ok(), Instant::now());
        self.known()
    }

    /// Records an answer. A missing answer does not replace a recent "synchronized", because timedated may only be slow
    /// to start. Otherwise a turn in a window could end although the node is already drained.
    fn note(&mut self, answer: Option<bool>, now: Instant) {
        match answer {
            Some(true) => self.yes = Some(now),
            Some(false) => self.yes = None,
            None => {}
        }
        let is_recent = self
            .yes
            .is_some_and(|yes| now.saturating_duration_since(yes) < YES_CACHED);
        self.asked = Some((now, answer.or(is_recent.then_some(true))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_answer_keeps_a_recent_yes() {
        let start = Instant::now();
        let mut clock = Clock::new(false);
        fn note(clock: &mut Clock, start: Instant, answer: Option<bool>, seconds: u64) -> Option<bool> {
            clock.note(answer, start + Duration::from_secs(seconds));
            clock.known()
        }
        assert_eq!(note(&mut clock, start, None, 0), None);
        assert_eq!(note(&mut clock, start, Some(true), 1), Some(true));
        assert_eq!(note(&mut clock, start, None, 11), Some(true));
        assert_eq!(note(&mut clock, start, None, 60), Some(true));
        assert_eq!(
            note(&mut clock, start, None, 61),
            None,
            "for as long as a yes counts, and no longer"
        );
        assert_eq!(note(&mut clock, start, Some(true), 70), Some(true));
        assert_eq!(
            note(&mut clock, start, Some(false), 71),
            Some(false),
            "a no counts at once"
        );
        assert_eq!(note(&mut clock, start, None, 72), None);
    }
}
