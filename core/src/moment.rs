//! Moments on a monotonic clock, and the current time as an input of decisions.

use std::ops::Add;
use std::time::Duration;

use berth_api::names::BootId;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

/// A moment on a monotonic clock, stored as the time since the clock's start. The agent's clock starts when its machine
/// boots. The clock of every other program starts with its process. Changes of the wall clock have no effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// Returns the moment that is this long after the clock's start.
    pub const fn after(began: Duration) -> Self {
        Self(began)
    }

    /// Returns the time from the clock's start to this moment.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is in fact later.
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

/// A moment during one boot of a machine, stored with the boot's ID. An agent that restarts during this boot can still
/// use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BootMoment {
    boot_id: BootId,
    /// Milliseconds from the start of the boot to the moment.
    milliseconds: u64,
}

impl BootMoment {
    /// Returns `moment` as a moment of the boot with this ID.
    pub fn new(boot_id: &BootId, moment: Moment) -> Self {
        Self {
            boot_id: boot_id.clone(),
            milliseconds: u64::try_from(moment.since_start().as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Returns the moment if it belongs to the boot with this ID; `None` otherwise. Moments of different boots cannot
    /// be compared, because the monotonic clock starts again at each boot.
    pub fn under(&self, boot_id: &BootId) -> Option<Moment> {
        (self.boot_id == *boot_id).then(|| Moment::after(Duration::from_millis(self.milliseconds)))
    }
}

/// Rounds a time down to whole seconds, as the API server stores it. A time in memory then equals that time after it
/// was read back from the API server.
pub(crate) fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// The clocks and the random number that a decision may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Now {
    /// Time of the machine's wall clock. Decisions compare it with times that this machine wrote earlier, and with the
    /// end of a maintenance window.
    pub wall: Timestamp,
    /// Time of the monotonic clock.
    pub clock: Moment,
    /// A random number from 0 to 1, to spread retries over time.
    pub chance: f64,
}
