//! Monotonic time, and the current time as an input of decisions.

use std::ops::Add;
use std::time::Duration;

use berth_api::names::BootId;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

/// A moment on a monotonic clock, stored as the time since the clock's start. An agent's clock starts when its
/// machine boots, the clock of any other program when its process starts. Changes of the wall clock have no effect on
/// it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// Returns the moment when the clock has run for this long.
    pub const fn after(began: Duration) -> Self {
        Self(began)
    }

    /// Time since the clock's start.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// Time since an earlier moment; zero if `earlier` is later.
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

/// A moment during one boot of a machine, with the boot's ID, so that it stays valid when the process restarts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BootMoment {
    boot_id: BootId,
    /// Milliseconds since the boot began.
    milliseconds: u64,
}

impl BootMoment {
    /// Returns a moment of this boot.
    pub fn new(boot_id: &BootId, moment: Moment) -> Self {
        Self {
            boot_id: boot_id.clone(),
            milliseconds: u64::try_from(moment.since_start().as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Returns the moment if it belongs to this boot, else `None`: only the wall clock spans boots, and it can be
    /// set, so durations across boots are not measured.
    pub fn under(&self, boot_id: &BootId) -> Option<Moment> {
        (self.boot_id == *boot_id).then(|| Moment::after(Duration::from_millis(self.milliseconds)))
    }
}

/// Rounds down to whole seconds, as the API server stores times. So a time in memory equals the time read from the
/// API server.
pub(crate) fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// The clocks and the random number that a decision depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Now {
    /// Time of the machine's wall clock. Compared with times that this machine wrote earlier, and with the end of a
    /// window.
    pub wall: Timestamp,
    /// Time of the monotonic clock.
    pub clock: Moment,
    /// A random number from 0 to 1, which spreads retries over time.
    pub chance: f64,
}
