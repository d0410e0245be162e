//! Live view on a terminal: redraws a text in place.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::live::Stale;
use crate::render::{Detail, render_report};
use crate::status::Report;
use crate::table::Look;
use crate::text::cut;

pub(super) const HIDE: &str = "\x1b[?25l";
/// Clears the line and shows the cursor again.
pub(super) const SHOW: &str = "\r\x1b[K\x1b[?25h";

/// Width and height of a terminal, in columns and lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Columns.
    pub width: usize,
    /// Lines.
    pub height: usize,
}

/// Redraws a text in place on a terminal.
#[derive(Debug, Default)]
pub struct Frames {
    /// Size of the terminal and number of lines at the last drawing.
    last: Option<(Size, usize)>,
    text: String,
}

impl Frames {
    /// Returns the terminal output that replaces the last text; empty if nothing changed. Cuts the text to the
    /// terminal's height. To avoid flicker, overwrites line by line; clears the screen only after a resize.
    pub fn next(&mut self, text: &str, size: Size) -> String {
        let same = self.last.is_some_and(|(last, _)| last == size);
        if same && text == self.text {
            return String::new();
        }
        let mut out = match self.last {
            Some((_, lines)) if same && lines > 0 => format!("\x1b[{lines}A"),
            // After a resize the positions of the lines are unknown.
            Some(_) => "\x1b[H\x1b[2J".to_owned(),
            None => String::new(),
        };
        let room = size.height.saturating_sub(1);
        let all = text.lines().count();
        let shown = if all > room { room.saturating_sub(1) } else { all };
        for line in text.lines().take(shown) {
            let _ = write!(out, "{line}\x1b[K\r\n");
        }
        if shown < all && room > 0 {
            let _ = write!(out, "… {} more lines\x1b[K\r\n", all - shown);
        }
        text.clone_into(&mut self.text);
        self.last = Some((size, all.min(room)));
        out + "\x1b[J"
    }
}

pub(super) fn text(mut report: Report, stale: Option<&Stale>, now: Timestamp, look: Look, detail: Detail) -> String {
    report.notes.extend(stale.map(|stale| stale.text(now)));
    let text = render_report(&report, now, look, detail);
    let first = cut(&format!("{now:.0}  Ctrl-C to quit"), look.width);
    format!("{first}\n{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { width: 80, height: 24 };

    #[test]
    fn a_frame_overwrites_the_one_before() {
        let mut frames = Frames::default();
        assert_eq!(frames.next("a\nb\n", SIZE), "a\x1b[K\r\nb\x1b[K\r\n\x1b[J");
        assert_eq!(frames.next("a\nb\n", SIZE), "", "nothing is new");
        assert_eq!(frames.next("c\n", SIZE), "\x1b[2Ac\x1b[K\r\n\x1b[J");
        let narrow = Size { width: 40, ..SIZE };
        assert_eq!(
            frames.next("c\n", narrow),
            "\x1b[H\x1b[2Jc\x1b[K\r\n\x1b[J",
            "a new size"
        );
    }

    #[test]
    fn a_frame_fits_the_screen_height() {
        let low = Size { width: 80, height: 3 };
        let mut frames = Frames::default();
        let expected = "a\x1b[K\r\n… 2 more lines\x1b[K\r\n\x1b[J";
        assert_eq!(frames.next("a\nb\nc\n", low), expected);
        assert_eq!(frames.next("d\n", low), "\x1b[2Ad\x1b[K\r\n\x1b[J");
        assert_eq!(Frames::default().next("a\n", Size { width: 80, height: 1 }), "\x1b[J");
    }

    #[test]
    fn a_view_reports_stale_data() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let report = crate::report(&crate::Snapshot::default(), now);
        let stale = Stale {
            kinds: "Nodes".to_owned(),
            since: now - jiff::SignedDuration::from_secs(12),
            why: "connection refused".to_owned(),
        };
        let look = Look {
            width: 60,
            colours: false,
        };
        let text = text(report, Some(&stale), now, look, Detail::default());
        let expected = "2026-03-01T12:00:00Z  Ctrl-C to quit\n! the data is 12s old (Nodes): connection refused\n";
        assert!(text.starts_with(expected), "{text}");
        let narrow = Look {
            width: 12,
            colours: false,
        };
        let text = super::text(
            crate::report(&crate::Snapshot::default(), now),
            None,
            now,
            narrow,
            Detail::default(),
        );
        assert!(text.starts_with("2026-03-01T…\n"), "{text}");
    }
}
