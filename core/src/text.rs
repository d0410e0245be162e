//! Words and numbers for people.

use std::time::Duration;

use berth_api::text;

/// Named nodes in a message; the rest is only counted.
pub const NAMED: usize = 5;

/// The first few of these names, and how many more there are.
pub fn few(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<String> = names.into_iter().collect();
    text::names(names.iter().take(NAMED), names.len())
}

/// Seconds of a time that goes on until it is `whole`, rounded down to a twentieth of that, so that a status is not written
/// every second.
pub fn rounded(time: Duration, whole: Duration) -> u64 {
    let step = (whole.as_secs() / 20).max(1);
    match time >= whole {
        true => whole.as_secs(),
        false => time.as_secs() / step * step,
    }
}
