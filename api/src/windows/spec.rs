//! A window as written in a pool, and its bounds.

use std::time::Duration;

/// The shortest duration of a window.
pub const MIN_DURATION: Duration = Duration::from_secs(60);

/// The longest duration of a window: a week. Several windows together may stay open for longer.
pub const MAX_DURATION: Duration = Duration::from_secs(168 * 3600);

/// A window as written in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSpec<'a> {
    /// Start: a cron schedule of five fields (minute, hour, day of month, month, day of week).
    pub schedule: &'a str,
    /// Duration in elapsed time: [`MIN_DURATION`] to [`MAX_DURATION`].
    pub duration: Duration,
    /// IANA time zone of `schedule`, such as `Europe/Berlin` or `UTC`.
    pub time_zone: &'a str,
    /// Longest delay of the start, in whole seconds; less than `duration`.
    pub splay: Duration,
}
