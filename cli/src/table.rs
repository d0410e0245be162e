//! Tables for a terminal: columns of words, with sentences in the last column.

use std::ffi::OsStr;
use std::ops::Range;

use crate::text::{cut, wide};

/// Text of an empty cell.
const NOTHING: &str = "-";
/// Minimum width of the last column. If a sentence does not fit into a narrower column, every sentence gets a line of
/// its own.
const ROOM: usize = 48;
/// Least width of the first column (names) when it is shortened to make room.
const NAME: usize = 20;
/// Indent of a sentence on its own line.
const BELOW: usize = 6;

/// Color of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tint {
    /// A problem.
    Red,
    /// Needs attention.
    Yellow,
    /// Work in progress.
    Cyan,
    /// All is well.
    Green,
}

impl Tint {
    const fn code(self) -> &'static str {
        match self {
            Self::Red => "\x1b[31m",
            Self::Yellow => "\x1b[33m",
            Self::Cyan => "\x1b[36m",
            Self::Green => "\x1b[32m",
        }
    }

    /// Returns the word in this color.
    pub(crate) fn painted(self, word: &str) -> String {
        format!("{}{word}\x1b[0m", self.code())
    }
}

/// Properties of the terminal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// Width in columns; 0 means unlimited, as for a file.
    pub width: usize,
    /// True to use colors.
    pub colours: bool,
}

/// True if `NO_COLOR` and `TERM` allow colors on a terminal.
pub fn has_colours(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_some_and(|term| term != "dumb")
}

/// A line and its colored byte ranges.
#[derive(Debug, Default)]
struct Line {
    text: String,
    tints: Vec<(Range<usize>, Tint)>,
}

impl Line {
    fn push(&mut self, cell: &str, room: usize, tint: Option<Tint>) {
        self.text.push(' ');
        let start = self.text.len();
        self.text.push_str(cell);
        self.tints.extend(tint.map(|tint| (start..self.text.len(), tint)));
        let pad = room.saturating_sub(wide(cell)) + 1;
        self.text.extend(std::iter::repeat_n(' ', pad));
    }

    /// Returns the line as printed. A word that is cut has no color.
    fn painted(&self, look: Look) -> String {
        let mut line = cut(&self.text, look.width);
        if !look.colours {
            return line + "\n";
        }
        let whole = line.len().min(self.text.trim_end().len());
        let kept = if line.ends_with('…') {
            whole.saturating_sub('…'.len_utf8())
        } else {
            whole
        };
        for (range, tint) in self.tints.iter().rev().filter(|(range, _)| range.end <= kept) {
            line.insert_str(range.end, "\x1b[0m");
            line.insert_str(range.start, tint.code());
        }
        line + "\n"
    }
}

/// Shortens a name to `most` columns by cutting out its middle, because node names usually differ at their ends.
fn shortened(name: &str, most: usize) -> String {
    if wide(name) <= most {
        return name.to_owned();
    }
    let characters: Vec<char> = name.chars().collect();
    let head: String = characters.iter().take(most / 2 - 1).collect();
    let tail: String = characters
        .iter()
        .skip(characters.len().saturating_sub(most - most / 2))
        .collect();
    cut(&format!("{head}…{tail}"), most)
}

/// Returns a table with columns as wide as their widest cell. Leaves out columns without content. Empty cells show a
/// dash, except in the last column, which holds sentences. Lines are at most `width` columns long; 0 means unlimited.
pub(crate) fn columns(heads: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let plain = Look { width, colours: false };
    tinted(heads, rows, plain, |_, _| None)
}

fn cell(row: &[String], column: usize) -> String {
    row.get(column).cloned().unwrap_or_default()
}

fn width(head: &str, cells: &[String]) -> usize {
    let widest = cells.iter().map(|cell| wide(cell)).max();
    widest.unwrap_or(0).max(wide(head))
}

/// Returns the number, head, cells and width of each column. Leaves out empty columns and the last column.
fn filled<'a>(heads: &[&'a str], rows: &[Vec<String>]) -> Vec<(usize, &'a str, Vec<String>, usize)> {
    let last = heads.len().saturating_sub(1);
    let mut filled = Vec::new();
    for (i, head) in heads.iter().enumerate().take(last) {
        let cells: Vec<String> = rows.iter().map(|row| cell(row, i)).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            let room = width(head, &cells);
            filled.push((i, *head, cells, room));
        }
    }
    filled
}

/// Returns the table of [`columns`]; `tint` gives the color of a cell from its column and text.
pub(crate) fn tinted(
    heads: &[&str],
    rows: &[Vec<String>],
    look: Look,
    tint: impl Fn(usize, &str) -> Option<Tint>,
) -> String {
    let last = heads.len().saturating_sub(1);
    let mut lines: Vec<Line> = (0..=rows.len())
        .map(|_| Line {
            text: " ".to_owned(),
            tints: vec![],
        })
        .collect();
    let mut kept = filled(heads, rows);
    let over = (1 + kept.iter().map(|(.., room)| room + 2).sum::<usize>()).saturating_sub(look.width + 1);
    if let Some((_, head, cells, room)) = kept.first_mut().filter(|_| look.width > 0 && over > 0) {
        let most = room.saturating_sub(over).max(NAME);
        cells.iter_mut().for_each(|cell| *cell = shortened(cell, most));
        *room = width(head, cells);
    }
    for (i, head, cells, room) in kept {
        let mut of_rows = lines.iter_mut();
        if let Some(line) = of_rows.next() {
            line.push(head, room, None);
        }
        for (line, text) in of_rows.zip(&cells) {
            let shown = if text.is_empty() { NOTHING } else { text };
            line.push(shown, room, tint(i, text));
        }
    }
    let sentences: Vec<String> = rows.iter().map(|row| cell(row, last)).collect();
    let longest = sentences.iter().map(|s| wide(s)).max().unwrap_or(0);
    if longest == 0 {
        return lines.iter().map(|line| line.painted(look)).collect();
    }
    let left = look
        .width
        .saturating_sub(lines.first().map_or(0, |line| wide(&line.text)) + 1);
    let below = look.width > 0 && left < longest.min(ROOM);
    let mut out = String::new();
    for (i, mut line) in lines.into_iter().enumerate() {
        let sentence = match i.checked_sub(1) {
            None => heads.get(last).filter(|_| !below).map(|head| (*head).to_owned()),
            Some(row) => sentences.get(row).cloned(),
        };
        let sentence = sentence.unwrap_or_default();
        if !below {
            line.text.push(' ');
            line.text.push_str(&sentence);
        }
        out += &line.painted(look);
        if below && !sentence.is_empty() {
            out += &(cut(&format!("{:BELOW$}{sentence}", ""), look.width) + "\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter()
            .map(|row| row.iter().map(|c| (*c).to_owned()).collect())
            .collect()
    }

    #[test]
    fn colours_are_left_out_where_they_are_not_wanted() {
        for (no_color, term, wanted) in [
            (None, Some("xterm"), true),
            (Some(""), Some("xterm"), true),
            (Some("1"), Some("xterm"), false),
            (Some("0"), Some("xterm"), false),
            (None, Some("dumb"), false),
            (None, None, false),
        ] {
            let found = has_colours(no_color.map(OsStr::new), term.map(OsStr::new));
            assert_eq!(found, wanted, "NO_COLOR {no_color:?}, TERM {term:?}");
        }
    }

    #[test]
    fn columns_fit_wide_characters() {
        let rows = rows(&[&["日本", "a", "x"], &["n", "b", "y"]]);
        let text = columns(&["NAME", "B", "MESSAGE"], &rows, 0);
        assert_eq!(text, "  NAME  B  MESSAGE\n  日本  a  x\n  n     b  y\n");
    }

    #[test]
    fn sentences_that_do_not_fit_get_their_own_lines() {
        let long = "a sentence that is rather long for such a place";
        let rows = rows(&[&["n1", "Degraded", long], &["n2", "", ""]]);
        let heads = ["NAME", "STATE", "MESSAGE"];
        let text = columns(&heads, &rows, 60);
        let expected = format!("  NAME  STATE\n  n1    Degraded\n      {long}\n  n2    -\n");
        assert_eq!(text, expected);
        assert!(columns(&heads, &rows, 80).contains(&format!("Degraded  {long}")));
    }

    #[test]
    fn a_long_name_leaves_room_for_the_other_columns() {
        let rows = rows(&[&["build0-gstfj-ci-prowjobs-worker-b-00001", "Degraded", ""]]);
        let text = columns(&["NAME", "STATE", "MESSAGE"], &rows, 40);
        let expected = format!("  {:<28}  STATE\n  build0-gstfj-…worker-b-00001  Degraded\n", "NAME");
        assert_eq!(text, expected);
    }

    #[test]
    fn colours_change_no_width_and_are_not_cut() {
        let rows = rows(&[&["n1", "Degraded", "words"]]);
        let heads = ["NAME", "STATE", "MESSAGE"];
        fn red(column: usize, word: &str) -> Option<Tint> {
            (column == 1 && word == "Degraded").then_some(Tint::Red)
        }
        fn look(width: usize) -> Look {
            Look { width, colours: true }
        }
        let text = tinted(&heads, &rows, look(0), red);
        assert!(text.contains("\x1b[31mDegraded\x1b[0m  words"), "{text:?}");
        let bare = text.replace("\x1b[31m", "").replace("\x1b[0m", "");
        assert_eq!(bare, columns(&heads, &rows, 0));
        let narrow = tinted(&heads, &rows, look(12), red);
        assert!(!narrow.contains('\x1b') && narrow.contains("Deg…"), "{narrow:?}");
    }
}
