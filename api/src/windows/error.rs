//! Errors of windows and exclusions. Each message includes what to write instead.

use std::time::Duration;

/// Error of a window or an exclusion. The message names its position in `windows` or `exclusions`, from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WindowError(pub(super) String);

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
pub(super) fn text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        s if duration.subsec_nanos() != 0 => format!("{s}.{:03}s", duration.subsec_millis()),
        s if s % 3600 == 0 => format!("{}h", s / 3600),
        s if s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}
