//! Times of the agent's loop: its clock, its signs of life, and when the berths are read anew.

use std::time::{Duration, Instant};

use berth_core::{Moment, Now};
use berth_shell::retry;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nix::time::{ClockId, clock_gettime};

/// Longest sleep of the loop: also how often a service manager's watchdog hears of us, at least.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Signs of life.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    every: Duration,
    last: Instant,
    /// Time of the last one.
    pub(crate) time: Time,
}

impl Heartbeat {
    /// Starts them: the first is due after one interval.
    pub(crate) fn every(interval: Duration) -> Self {
        Self {
            every: interval,
            last: Instant::now(),
            time: Time::from(Timestamp::now()),
        }
    }

    /// The next one is due; it is given with this call.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = self.last.elapsed() >= self.every;
        if due {
            *self = Self::every(self.every);
        }
        due
    }

    /// Time until the next one.
    pub(crate) fn next(&self) -> Duration {
        self.every.saturating_sub(self.last.elapsed())
    }
}

/// The time at which the berths are read from the API server's own storage, whatever the watch says.
#[derive(Debug, Default)]
pub(crate) struct Refresh {
    at: Option<Instant>,
    in_vain: u32,
}

impl Refresh {
    /// Says whether it is time.
    pub(crate) fn is_due(&self) -> bool {
        self.at.is_some_and(|at| at <= Instant::now())
    }

    /// Makes it due now.
    pub(crate) fn ask_now(&mut self) {
        self.at = Some(Instant::now());
    }

    /// The API server did not answer something: this is asked until it does.
    pub(crate) fn ask_soon(&mut self) {
        self.in_vain = self.in_vain.saturating_add(1);
        self.at = Some(Instant::now() + retry::delay(self.in_vain, Duration::from_secs(1), LONGEST_WAIT));
    }

    /// They were read.
    pub(crate) fn done(&mut self) {
        *self = Self::default();
    }

    /// Time until the next one.
    pub(crate) fn next(&self) -> Duration {
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        self.at.map_or(LONGEST_WAIT, left)
    }
}

/// The clocks of this machine.
#[derive(Debug)]
pub(crate) struct Clock {
    /// In place of the time since boot, should the kernel not say it.
    began: Instant,
}

impl Clock {
    /// A clock that begins now.
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now() }
    }

    /// The present.
    pub(crate) fn now(&self) -> Now {
        Now {
            wall: Timestamp::now(),
            clock: Moment::after(self.since_boot()),
            chance: fastrand::f64(),
        }
    }

    /// Time since boot, including sleep (`CLOCK_BOOTTIME`). It cannot be set.
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
    fn a_refresh_without_an_answer_is_repeated_before_the_next_sign_of_life() {
        let mut refresh = Refresh::default();
        assert!(!refresh.is_due());
        refresh.ask_now();
        assert!(refresh.is_due());
        refresh.ask_soon();
        assert!(!refresh.is_due() && refresh.next() <= Duration::from_secs(2));
        for _ in 0..40 {
            refresh.ask_soon();
        }
        // The jitter included.
        assert!(refresh.next() <= 2 * LONGEST_WAIT);
        refresh.done();
        assert_eq!((refresh.is_due(), refresh.next()), (false, LONGEST_WAIT));
    }
}
