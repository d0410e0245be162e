//! Words and numbers for people.

use std::time::Duration;

use berth_api::text;

/// Named nodes in a message; the rest is only counted.
pub const NAMED: usize = 5;

/// The longest note of an Event that the API server takes, in bytes.
pub const MAX_NOTE: usize = 1024;

/// The first few of these names, and how many more there are.
pub fn few(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<String> = names.into_iter().collect();
    text::names(names.iter().take(NAMED), names.len())
}

/// As much of a text as the note of an Event may have.
pub fn note(text: &str) -> &str {
    let mut end = text.len().min(MAX_NOTE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_between_characters() {
        let fits = "x".repeat(MAX_NOTE);
        let split = format!("{}é", "x".repeat(MAX_NOTE - 1));
        for (text, length) in [
            ("", 0),
            ("two words", 9),
            (&fits, MAX_NOTE),
            (&format!("{fits}x"), MAX_NOTE),
            (&split, MAX_NOTE - 1),
        ] {
            let note = note(text);
            assert_eq!(note.len(), length);
            assert!(text.starts_with(note), "{note}");
        }
    }
}
