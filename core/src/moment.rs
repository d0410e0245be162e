//! Time as one process measures it.

use std::ops::Add;
use std::time::Duration;

/// A moment on a process's own monotonic clock: the time since that clock began. It is never compared with a moment of
/// another process, and setting the wall clock does not move it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The moment that lies so long after the clock began.
    pub const fn after(began: Duration) -> Self {
        Self(began)
    }

    /// Time since an earlier moment; zero when that one is later.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

/// The present, as far as a decision or the memory of it may depend on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Now {
    /// The machine's wall clock. Compared with what this machine wrote earlier, and with the end of a window.
    pub wall: jiff::Timestamp,
    /// The process's monotonic clock.
    pub clock: Moment,
    /// A random number from 0 to 1, which spreads retries over time.
    pub chance: f64,
}
