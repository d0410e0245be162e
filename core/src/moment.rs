//! Time as one process measures it.

use std::ops::Add;
use std::time::Duration;

use berth_api::names::BootId;
use serde::{Deserialize, Serialize};

/// A moment on a monotonic clock: the time since that clock began. An agent's clock begins with the boot of its machine, that of any
/// other program with its process. Setting the wall clock does not move it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The moment that lies so long after the clock began.
    pub const fn after(began: Duration) -> Self {
        Self(began)
    }

    /// Time since the clock began.
    pub const fn since_start(self) -> Duration {
        self.0
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

/// A moment that outlives the process that saw it: a moment of one boot of a machine, with that boot's ID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BootMoment {
    /// The boot.
    boot_id: BootId,
    /// Milliseconds since it began.
    milliseconds: u64,
}

impl BootMoment {
    /// A moment of this boot.
    pub fn new(boot_id: &BootId, moment: Moment) -> Self {
        Self {
            boot_id: boot_id.clone(),
            milliseconds: u64::try_from(moment.since_start().as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// The moment, if it was in this boot. Durations across boots are not measured: only a clock that can be
    /// set spans them.
    pub fn under(&self, boot_id: &BootId) -> Option<Moment> {
        (self.boot_id == *boot_id).then(|| Moment::after(Duration::from_millis(self.milliseconds)))
    }
}

/// The present, as far as a decision or the memory of it may depend on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Now {
    /// The machine's wall clock. Compared with what this machine wrote earlier, and with the end of a window.
    pub wall: jiff::Timestamp,
    /// The monotonic clock.
    pub clock: Moment,
    /// A random number from 0 to 1, which spreads retries over time.
    pub chance: f64,
}
