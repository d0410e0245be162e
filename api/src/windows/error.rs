//! Errors of windows and exclusions. Each message includes what to write instead.

use std::time::Duration;

use jiff::Timestamp;

/// Error of a window or an exclusion. `index` is its position in `windows` or `exclusions`, from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The schedule is empty.
    #[error(
        "windows[{index}] has an empty schedule; write five fields (minute, hour, day of month, month, day of week), \
         such as \"0 22 * * FRI\""
    )]
    Empty {
        /// Position of the window in `windows`.
        index: usize,
    },
    /// The schedule is a name such as `@daily`.
    #[error("windows[{index}] {schedule:?} is a nickname; write it as five fields, such as {instead:?}")]
    Nickname {
        /// Position of the window in `windows`.
        index: usize,
        /// Its schedule.
        schedule: String,
        /// Schedule equivalent to the nickname, or an example.
        instead: &'static str,
    },
    /// The schedule does not have five fields.
    #[error(
        "windows[{index}] {schedule:?} has {fields} fields; write five (minute, hour, day of month, month, day of \
         week), without seconds or years, and the time zone in timeZone"
    )]
    FieldCount {
        /// Position of the window in `windows`.
        index: usize,
        /// Its schedule.
        schedule: String,
        /// Number of its fields.
        fields: usize,
    },
    /// A field of the schedule cannot be read.
    #[error("windows[{index}] {schedule:?}: {text:?} is not a valid {field}; write {instead}")]
    Field {
        /// Position of the window in `windows`.
        index: usize,
        /// Its schedule.
        schedule: String,
        /// The field as it is written.
        text: String,
        /// Name of the field.
        field: &'static str,
        /// Values that may be written.
        instead: &'static str,
    },
    /// The schedule matches no day of any year.
    #[error("windows[{index}] {schedule:?} never matches: no month has such a day; correct the day or the month")]
    NeverMatches {
        /// Position of the window in `windows`.
        index: usize,
        /// Its schedule.
        schedule: String,
    },
    /// The duration is out of bounds.
    #[error("windows[{index}] {schedule:?} has a duration of {}; write 1m to 168h", text(.duration))]
    Duration {
        /// Position of the window in `windows`.
        index: usize,
        /// Its schedule.
        schedule: String,
        /// Its duration.
        duration: Duration,
    },
    /// The splay may be as long as the window.
    #[error(
        "windows[{index}] {schedule:?} has a splay of {}, which must be shorter than its duration of {}; write less",
        text(.splay), text(.duration)
    )]
    Splay {
        /// Position of the window in `windows`.
        index: usize,
        /// Its schedule.
        schedule: String,
        /// Its splay.
        splay: Duration,
        /// Its duration.
        duration: Duration,
    },
    /// The time zone is not in the database.
    #[error(
        "windows[{index}] {schedule:?} has the unknown time zone {time_zone:?}; write an IANA name, such as \
         Europe/Berlin or UTC"
    )]
    TimeZone {
        /// Position of the window in `windows`.
        index: usize,
        /// Its schedule.
        schedule: String,
        /// Its time zone.
        time_zone: String,
    },
    /// The exclusion does not end after its start.
    #[error("exclusions[{index}] ends at {to}, which is not after its start {from}; write a later time in to")]
    EmptyExclusion {
        /// Position of the exclusion.
        index: usize,
        /// Its start.
        from: Timestamp,
        /// Its end.
        to: Timestamp,
    },
}

/// Shortens a text written by an admin, for a message.
pub(super) fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut short: String = text.chars().take(LONGEST).collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

/// Formats a duration as in a pool, in the largest unit that divides it.
fn text(duration: &Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        s if duration.subsec_nanos() != 0 => format!("{s}.{:03}s", duration.subsec_millis()),
        s if s % 3600 == 0 => format!("{}h", s / 3600),
        s if s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}
