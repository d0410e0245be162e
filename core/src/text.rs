//! Helpers for the texts and numbers in messages.

use std::time::Duration;

use berth_api::{foreign, text};

/// Maximum number of names that a message lists. Further names are only counted.
pub const NAMED: usize = 5;

/// Maximum length of an Event's note, as the API server requires, in bytes.
pub const MAX_NOTE: usize = 1024;

/// Returns the first [`NAMED`] names as a list, with the number of further names.
pub fn few(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<String> = names.into_iter().collect();
    text::names(names.iter().take(NAMED), names.len())
}

/// Returns the beginning of a text as one line of at most [`MAX_NOTE`] bytes.
pub fn note(text: &str) -> String {
    let mut line = foreign::line(text);
    let mut end = line.len().min(MAX_NOTE);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line
}

/// Returns `time` in whole seconds, but at most `whole`, rounded down to a multiple of 5 % of `whole`. So a status with
/// a growing time is not written every second.
pub fn rounded(time: Duration, whole: Duration) -> u64 {
    let step = (whole.as_secs() / 20).max(1);
    if time >= whole {
        whole.as_secs()
    } else {
        time.as_secs() / step * step
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
            assert!(text.starts_with(&note), "{note}");
        }
    }
    #[test]
    fn a_note_is_one_line_without_credentials() {
        assert_eq!(note("a\n b\u{202e} http://me:hush@r.io"), "a b http://***@r.io");
    }
}
