//! One window as a pool has it, and its bounds.

use std::time::Duration;

/// The shortest duration of a window.
pub const MIN_DURATION: Duration = Duration::from_secs(60);

/// The longest duration of a window, a week. An opening made of several windows may be longer.
pub const MAX_DURATION: Duration = Duration::from_secs(168 * 3600);

/// One window as it is written in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSpec<'a> {
    /// Start: a cron schedule of five fields (minute, hour, day of month, month, day of week).
    pub schedule: &'a str,
    /// Length in elapsed time: [`MIN_DURATION`] to [`MAX_DURATION`].
    pub duration: Duration,
    /// The IANA time zone of `schedule`, such as `Europe/Berlin` or `UTC`.
    pub time_zone: &'a str,
    /// Greatest delay of the start, in whole seconds: less than `duration`.
    pub splay: Duration,
}
