//! Durations as an admin writes them: `90s`, `15m`, `12h`, `0`.

use std::time::Duration;

use crate::written::{Parse, Written};

/// Schema pattern of a duration, equal to the grammar of [`parse`].
pub const PATTERN: &str = "^(0|[0-9]{1,6}(s|m|h))$";

/// Error for a text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration; write a whole number and a unit, such as 90s, 15m or 12h")]
pub struct DurationError(String);

/// Reads a duration: a whole number with one of the units `s`, `m`, `h`, or a plain `0`. Compound durations such as
/// `1h30m` are not supported.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        _ => return Err(invalid(text)),
    };
    // The unit is one ASCII character, so the cut is on a character boundary.
    let digits = text.get(..text.len() - 1).unwrap_or_default();
    if digits.is_empty() || digits.len() > 6 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(invalid(text));
    }
    let count: u64 = digits.parse().map_err(|_| invalid(text))?;
    Ok(Duration::from_secs(count * unit))
}

fn invalid(text: &str) -> DurationError {
    DurationError(text.chars().take(40).collect())
}

impl Parse for Duration {
    type Raw = String;
    type Error = DurationError;

    fn parse(text: &String) -> Result<Self, DurationError> {
        parse(text)
    }
}

impl From<Duration> for Written<Duration> {
    /// Writes whole seconds. If they need more than six digits, writes minutes or hours instead, rounded up.
    fn from(duration: Duration) -> Self {
        let seconds = duration.as_secs();
        let text = match seconds {
            0..=999_999 => format!("{seconds}s"),
            1_000_000..=59_999_940 => format!("{}m", seconds.div_ceil(60)),
            _ => format!("{}h", seconds.div_ceil(3600)),
        };
        Self::new(text)
    }
}

/// Returns the duration in a field, or the fallback if the field is absent or invalid. Old objects may have fields that
/// today's schema rejects.
pub fn or(written: Option<&Written<Duration>>, fallback: Duration) -> Duration {
    match written.map(Written::get) {
        Some(Ok(duration)) => *duration,
        _ => fallback,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_the_pattern() {
        for (text, seconds) in [("0", 0), ("0s", 0), ("90s", 90), ("15m", 900), ("12h", 43_200)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "12", "-5m", "1h30m", "5 m", "5M", "m", "9999999s", "½h", "１２m"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn written_durations_can_be_read() {
        for text in ["0s", "999999s", "16667m", "999999m", "16667h", "999999h"] {
            let duration = parse(text).unwrap();
            assert_eq!(Written::from(duration).as_str(), text);
        }
        assert_eq!(
            Written::from(Duration::from_secs(1_000_001)),
            "16667m".into(),
            "rounded up"
        );
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,12}") {
            let _ = parse(&text);
        }
    }
}
