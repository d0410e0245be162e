//! Text for a terminal: ages, sizes, bars and lines of a given width.

use berth_api::{Digest, foreign};
use jiff::Timestamp;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Returns a number and its noun: `1 node`, `2 nodes`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

/// Width of a progress bar, in characters.
const BAR: u64 = 20;

/// Returns an age in at most two units: `45s`, `12m`, `3h20m`, `5d`.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    span(now.as_second().saturating_sub(since.as_second()))
}

/// Returns the time left, such as `in 5m`, or `now` if it has passed.
pub(crate) fn until(then: Timestamp, now: Timestamp) -> String {
    match then.as_second().saturating_sub(now.as_second()) {
        left if left > 0 => format!("in {}", span(left)),
        _ => "now".to_owned(),
    }
}

/// Formats a number of seconds like [`age`].
pub(crate) fn seconds(seconds: u64) -> String {
    span(i64::try_from(seconds).unwrap_or(i64::MAX))
}

fn span(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (2.., ..) => format!("{days}d"),
        (_, 1.., _) if minutes % 60 > 0 && hours < 10 => format!("{hours}h{}m", minutes % 60),
        (_, 1.., _) => format!("{hours}h"),
        (_, _, 10..) => format!("{minutes}m"),
        (_, _, 1..) if seconds % 60 > 0 => format!("{minutes}m{}s", seconds % 60),
        (_, _, 1..) => format!("{minutes}m"),
        _ => format!("{seconds}s"),
    }
}

/// Returns a number of bytes in decimal units.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 999.5 {
            let digits = usize::from(unit != "B" && value < 99.95);
            return format!("{value:.digits$} {unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

pub(crate) fn bar(part: u64, whole: u64) -> String {
    let filled = (part.min(whole) * BAR / whole.max(1)) as usize;
    let empty = BAR as usize - filled;
    format!("[{}{}]", "#".repeat(filled), "-".repeat(empty))
}

/// Returns the first twelve digits of a digest, as container tools print image IDs.
pub(crate) fn short(digest: &Digest) -> String {
    digest.short().chars().take(12).collect()
}

/// Returns the text as one line without control characters, since hosts and registries must not control the terminal.
pub(crate) fn clean(text: &str) -> String {
    foreign::line(text)
}

/// Returns the pools to wait for, such as `is updated after workers, infra`. `None` if there are none.
pub(crate) fn after_text(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| format!("is updated after {}", names.join(", ")))
}

/// Returns the width of a text on a terminal: East Asian characters take two columns, combining characters none.
pub(crate) fn wide(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// Cuts a line to at most `width` columns, with an ellipsis at the end if it was cut; 0 means unlimited.
pub(crate) fn cut(line: &str, width: usize) -> String {
    let line = line.trim_end();
    if width == 0 || wide(line) <= width {
        return line.to_owned();
    }
    let mut used = 0;
    let mut kept = String::new();
    for c in line.chars() {
        used += c.width().unwrap_or(0);
        if used >= width {
            break;
        }
        kept.push(c);
    }
    kept.push('…');
    kept
}

/// Wraps a line at `width` columns and indents all lines but the first. A word that is wider than a line is cut.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let room = if width == 0 { usize::MAX } else { width };
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.trim().is_empty() || wide(line) + 1 + wide(word) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("{:indent$}{word}", "")),
            None => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| cut(line, width) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_at_most_two_units() {
        for (seconds, text) in [
            (-5, "0s"),
            (59, "59s"),
            (60, "1m"),
            (61, "1m1s"),
            (600, "10m"),
            (3_600, "1h"),
            (12_000, "3h20m"),
            (90_000, "25h"),
            (200_000, "2d"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (999_400, "999 kB"),
            (3_140_000, "3.1 MB"),
            (2_000_000_000, "2.0 GB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn bars_and_lines_keep_their_bounds() {
        assert_eq!(bar(0, 10), format!("[{}]", "-".repeat(20)));
        assert_eq!(bar(99, 10), format!("[{}]", "#".repeat(20)));
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!(cut("abcd", 0), "abcd");
        assert_eq!(
            (cut("日本語", 6).as_str(), cut("日本語", 5).as_str()),
            ("日本語", "日本…")
        );
        assert_eq!(cut("日本語", 4), "日…", "a character of two columns is not cut in half");
        assert_eq!(wrapped("  a bb cc", 6, 4), "  a bb\n    cc\n");
        assert_eq!(clean("a\u{1b}[2J\nb"), "a [2J b");
    }
}
