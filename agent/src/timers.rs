//! Timers of the agent's loop: its clock, the heartbeats, and the next read of the berths.

use std::time::{Duration, Instant};

use berth_api::condition::lifecycle::MAINTENANCE_PLANNED;
use berth_core::agent::lifecycle::Change;
use berth_core::{Moment, Now};
use berth_shell::retry;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nix::time::{ClockId, clock_gettime};

use crate::node::cordon::NodeError;

/// Longest sleep of the loop. Must be much shorter than systemd's watchdog timeout (`WatchdogSec=` in
/// systemd/berth-agent.service), because only a pass of the loop resets the watchdog.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Timers {
    clock: Clock,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) refresh: Refresh,
    /// Delays the next write of the Node's lifecycle conditions.
    pub(crate) signs: Pause,
}

impl Timers {
    pub(crate) fn begin(heartbeat: Duration) -> Self {
        Self {
            clock: Clock::begin(),
            heartbeat: Heartbeat::every(heartbeat),
            refresh: Refresh::default(),
            signs: Pause::default(),
        }
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    pub(crate) fn due(&self) -> Duration {
        let signs = self.signs.left().unwrap_or(LONGEST_WAIT);
        self.heartbeat.next().min(self.refresh.next()).min(signs)
    }
}

#[derive(Debug)]
pub(crate) struct Heartbeat {
    every: Duration,
    last: Instant,
    pub(crate) time: Time,
}

impl Heartbeat {
    /// Starts the timer. The first heartbeat is due after one interval.
    pub(crate) fn every(interval: Duration) -> Self {
        Self {
            every: interval,
            last: Instant::now(),
            time: Time::from(Timestamp::now()),
        }
    }

    /// True if a heartbeat is due; the next interval then begins.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = self.last.elapsed() >= self.every;
        if due {
            *self = Self::every(self.every);
        }
        due
    }

    pub(crate) fn next(&self) -> Duration {
        self.every.saturating_sub(self.last.elapsed())
    }
}

/// Schedule for reading the berths from the API server's storage, independent of the watch.
#[derive(Debug, Default)]
pub(crate) struct Refresh {
    at: Option<Instant>,
    failures: u32,
}

impl Refresh {
    pub(crate) fn is_due(&self) -> bool {
        self.at.is_some_and(|at| at <= Instant::now())
    }

    pub(crate) fn ask_now(&mut self) {
        self.at = Some(Instant::now());
    }

    /// Schedules the next retry after a request without an answer.
    pub(crate) fn ask_soon(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.at = Some(Instant::now() + retry::delay(self.failures, Duration::from_secs(1), LONGEST_WAIT));
    }

    pub(crate) fn done(&mut self) {
        *self = Self::default();
    }

    /// Returns the time until the next read; [`LONGEST_WAIT`] if none is scheduled.
    pub(crate) fn next(&self) -> Duration {
        self.at
            .map_or(LONGEST_WAIT, |at| at.saturating_duration_since(Instant::now()))
    }
}

/// First and longest delay after consecutive failures.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);

/// How long a node waits for its turn before the agent announces the turn on the Node. If the turn begins earlier, the
/// announcement is not written.
const PLANNED_DELAY: Duration = Duration::from_secs(60);

/// Delays writes of the Node's lifecycle conditions: after a failed write, and if the write would only announce a
/// planned turn.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    until: Option<Instant>,
    failures: u32,
    /// When the announcement of the turn became the only change to write; `None` if there are other changes or none.
    planned: Option<Instant>,
}

impl Pause {
    pub(crate) fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    /// Returns the time until the next attempt; `None` if the attempt is due.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// True if the announcement of a planned turn is the only change to write, and is younger than [`PLANNED_DELAY`].
    pub(crate) fn is_early(&mut self, changes: &[Change], now: Instant) -> bool {
        let is_planned = matches!(changes, [change] if change.set && change.type_ == MAINTENANCE_PLANNED);
        if !is_planned {
            self.planned = None;
            return false;
        }
        now.duration_since(*self.planned.get_or_insert(now)) < PLANNED_DELAY
    }

    /// Records a failed write. True if the Node has changed since it was read, so that it must be read again. Such a
    /// conflict does not lengthen the delay.
    pub(crate) fn after(&mut self, error: &anyhow::Error) -> bool {
        let is_stale = matches!(error.downcast_ref(), Some(NodeError::Conflict));
        let attempts = if is_stale {
            1
        } else {
            self.failures = self.failures.saturating_add(1);
            self.failures
        };
        self.until = Some(Instant::now() + retry::delay(attempts, RETRY_MIN, RETRY_MAX));
        is_stale
    }
}

#[derive(Debug)]
pub(crate) struct Clock {
    /// Used in place of the time since boot if the kernel does not report that time.
    began: Instant,
}

impl Clock {
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now() }
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            wall: Timestamp::now(),
            clock: Moment::after(self.since_boot()),
            chance: fastrand::f64(),
        }
    }

    /// Returns the time since boot, including sleep (`CLOCK_BOOTTIME`). It does not change when the clock is set.
    fn since_boot(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or_else(|_| self.began.elapsed(), Duration::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_is_due_after_its_interval() {
        let mut often = Heartbeat::every(Duration::ZERO);
        assert!(often.is_due() && often.next().is_zero());
        let hour = Duration::from_secs(3600);
        let mut seldom = Heartbeat::every(hour);
        assert!(!seldom.is_due() && seldom.next() > hour / 2);
    }

    #[test]
    fn the_clock_counts_from_the_boot() {
        assert!(Clock::begin().since_boot() > Duration::ZERO);
    }

    #[test]
    fn an_unanswered_refresh_is_retried_soon() {
        let mut refresh = Refresh::default();
        assert!(!refresh.is_due());
        refresh.ask_now();
        assert!(refresh.is_due());
        refresh.ask_soon();
        assert!(!refresh.is_due() && refresh.next() <= Duration::from_secs(2));
        for _ in 0..40 {
            refresh.ask_soon();
        }
        // The bounds leave room for the jitter.
        assert!(refresh.next() <= 2 * LONGEST_WAIT);
        refresh.done();
        assert_eq!((refresh.is_due(), refresh.next()), (false, LONGEST_WAIT));
    }

    #[test]
    fn retries_slow_down() {
        let mut pause = Pause::default();
        assert!(pause.is_over() && pause.left().is_none());
        fn error() -> anyhow::Error {
            anyhow::anyhow!("the API server is away")
        }
        assert!(!pause.after(&error()));
        assert!(!pause.is_over() && pause.left().is_some());
        let first = pause.until.unwrap();
        for _ in 0..40 {
            pause.after(&error());
        }
        let last = pause.until.unwrap();
        // The bounds leave room for the jitter.
        assert!(last > first + RETRY_MAX / 2 && last <= Instant::now() + 2 * RETRY_MAX);
    }

    #[test]
    fn an_early_turn_is_not_announced() {
        let mut pause = Pause::default();
        fn change(type_: &'static str, set: bool) -> Change {
            Change { type_, set }
        }
        let planned = [change(MAINTENANCE_PLANNED, true)];
        let now = Instant::now();
        assert!(pause.is_early(&planned, now));
        assert!(pause.is_early(&planned, now + PLANNED_DELAY / 2));
        assert!(!pause.is_early(&planned, now + PLANNED_DELAY));
        // The turn begins. Later the next turn is planned, and its delay starts from zero.
        assert!(!pause.is_early(&[change("DrainInProgress", true)], now + PLANNED_DELAY));
        assert!(
            pause.is_early(&planned, now + 2 * PLANNED_DELAY),
            "counted from the beginning"
        );
        assert!(
            !pause.is_early(&[change(MAINTENANCE_PLANNED, false)], now),
            "an ended sign is removed at once"
        );
    }

    #[test]
    fn a_conflict_is_not_a_failure() {
        let mut pause = Pause::default();
        for _ in 0..40 {
            assert!(pause.after(&NodeError::Conflict.into()), "the Node must be read again");
        }
        assert!(pause.failures == 0 && pause.left().unwrap() <= 2 * RETRY_MIN);
        // The first failure after a conflict gets the first delay.
        assert!(!pause.after(&NodeError::Gone.into()));
        assert!(pause.left().unwrap() <= 2 * RETRY_MIN);
    }
}
