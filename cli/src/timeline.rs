//! `kubectl berth timeline`: a picture of a rollout for a terminal or as SVG, with one row of chapters for each node.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

use berth_api::Digest;
use berth_api::node::BootcNode;
use berth_api::node::timeline::{ChapterName, NodeUpdate};
use berth_api::pool::BootcNodePool;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::snapshot::Snapshot;
use crate::story::from_to;
use crate::text::{clean, cut, seconds};
use crate::unreadable::pool_of;

/// Least width of the picture, in columns.
const LEAST_WIDTH: usize = 80;
/// Most columns of a node name on a terminal; longer names are cut.
const NAME: usize = 24;

/// Width of the names in the SVG.
const LEFT: usize = 200;
/// Width of the chapters in the SVG, in pixels.
pub(crate) const WIDE: u16 = 900;
/// Width at the right edge of the SVG, for half of the last time.
const RIGHT: usize = 30;
/// Height of a row in the SVG.
const HIGH: usize = 18;
/// Height of the part above the rows in the SVG.
const TOP: usize = 56;

/// The updates of a pool's nodes to one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// Name of the pool.
    pub pool: String,
    /// The images, such as `from 1.0 to 2.0`.
    pub what: String,
    /// Start of the first chapter.
    pub begin: Timestamp,
    /// End of the last chapter, or now.
    pub end: Timestamp,
    /// The nodes, in the order of their turns.
    pub rows: Vec<Row>,
}

/// A node's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Name of the node.
    pub name: String,
    /// Chapters of the node's update; empty if the update has not begun.
    pub spans: Vec<Span>,
}

/// A chapter of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// The chapter.
    pub chapter: ChapterName,
    /// Start of the chapter.
    pub start: Timestamp,
    /// End of the chapter, or now.
    pub end: Timestamp,
    /// True if the chapter has not ended.
    pub lasts: bool,
}

/// Returns the picture of a pool's newest rollout. Fails if no node has a timeline yet.
pub fn picture(snapshot: &Snapshot, pool: &str, now: Timestamp) -> Result<Picture, String> {
    let found = snapshot.pool(pool).ok_or_else(|| {
        let names: Vec<_> = snapshot.pools.iter().map(ResourceExt::name_any).collect();
        format!("there is no pool {pool:?}; existing pools: {}", names.join(", "))
    })?;
    let members: Vec<&BootcNode> = snapshot
        .bootc_nodes
        .iter()
        .filter(|bootc| pool_of(bootc) == pool)
        .map(|bootc| &bootc.object)
        .collect();
    let targets = targets(found);
    let mut newest = members.iter().filter_map(|node| last_update(node));
    let is_begun = newest.any(|update| targets.contains(&update.to.digest));
    let mut what = None;
    let mut rows: Vec<Row> = vec![];
    for node in members {
        // Until a node begins to update to the current target, show each node's last update.
        let update = last_update(node).filter(|update| !is_begun || targets.contains(&update.to.digest));
        what = what.or_else(|| update.map(from_to));
        rows.push(Row {
            name: clean(&node.name_any()),
            spans: update.map_or_else(Vec::new, |update| spans(update, now)),
        });
    }
    rows.sort_by(|a, b| (turn(a), &a.name).cmp(&(turn(b), &b.name)));
    let begin = rows.iter().flat_map(|row| &row.spans).map(|span| span.start).min();
    let end = rows.iter().flat_map(|row| &row.spans).map(|span| span.end).max();
    let (Some(begin), Some(end)) = (begin, end) else {
        return Err(format!(
            "no node of pool {pool} has been updated yet, so there is no timeline"
        ));
    };
    Ok(Picture {
        pool: clean(pool),
        what: what.unwrap_or_default(),
        begin,
        end,
        rows,
    })
}

/// Returns the digests of the pool's target, for all platforms.
pub(crate) fn targets(pool: &BootcNodePool) -> BTreeSet<&Digest> {
    let target = pool.status.as_ref().and_then(|status| status.target.as_ref());
    let platforms = target.iter().flat_map(|target| &target.platforms);
    platforms.map(|platform| &platform.digest).collect()
}

/// Returns the node's newest update; `None` if it was never updated.
pub(crate) fn last_update(node: &BootcNode) -> Option<&NodeUpdate> {
    node.status.as_ref()?.timeline.updates.first()
}

/// Returns the start of a node's turn. A node without a turn sorts last.
fn turn(row: &Row) -> Timestamp {
    let began = row.spans.iter().find(|s| s.chapter >= ChapterName::Drained);
    began.map_or(Timestamp::MAX, |span| span.start)
}

fn spans(update: &NodeUpdate, now: Timestamp) -> Vec<Span> {
    let spans = update.chapters.iter().filter_map(|chapter| {
        let start = chapter.start_time.as_ref()?.0;
        Some(Span {
            chapter: chapter.name,
            start,
            end: chapter.end_time.as_ref().map_or(now.max(start), |end| end.0),
            lasts: chapter.end_time.is_none(),
        })
    });
    spans.collect()
}

const fn look(chapter: ChapterName) -> (char, &'static str, &'static str) {
    match chapter {
        ChapterName::Prepared => ('p', "#8ecae6", "prepared"),
        ChapterName::Waited => ('.', "#dfe3e8", "waited"),
        ChapterName::Drained => ('d', "#ffb703", "drained"),
        ChapterName::Rebooted => ('r', "#fb8500", "rebooted"),
        ChapterName::Proven => ('v', "#219ebc", "proven"),
        ChapterName::Completed => ('C', "#2a9d4a", "done"),
        _ => ('X', "#c1121f", "stopped"),
    }
}

const LEGEND: [ChapterName; 7] = [
    ChapterName::Prepared,
    ChapterName::Waited,
    ChapterName::Drained,
    ChapterName::Rebooted,
    ChapterName::Proven,
    ChapterName::Completed,
    ChapterName::Failed,
];

impl Picture {
    /// Returns the number of the first row whose update has not ended, from 0.
    pub(crate) fn first_running(&self) -> Option<usize> {
        self.rows.iter().position(|row| row.spans.iter().any(|span| span.lasts))
    }

    fn span_seconds(&self) -> i64 {
        (self.end.as_second() - self.begin.as_second()).max(1)
    }

    fn title(&self) -> String {
        format!(
            "Pool {} {}: {} to {}",
            self.pool,
            self.what,
            at(self.begin),
            at(self.end)
        )
    }

    /// Returns the picture for a terminal with `width` columns, but at least 80.
    pub fn render(&self, width: usize) -> String {
        let width = width.max(LEAST_WIDTH);
        let longest = self.rows.iter().map(|row| row.name.chars().count()).max();
        let names = longest.unwrap_or_default().min(NAME);
        let cells = width.saturating_sub(names + 4).max(1);
        let mut out = cut(&self.title(), width) + "\n";
        for row in &self.rows {
            let line: String = (0..cells).map(|cell| self.sign(row, cell, cells)).collect();
            let name = cut(&row.name, NAME);
            out += &(cut(&format!("  {name:<names$}  {line}"), width) + "\n");
        }
        let words: Vec<String> = LEGEND
            .iter()
            .map(|chapter| {
                let (sign, _, word) = look(*chapter);
                format!("{sign} {word}")
            })
            .collect();
        out += &(cut(&format!("  {}", words.join("  ")), width) + "\n");
        let cell = u64::try_from(self.span_seconds()).unwrap_or_default() / cells as u64;
        let column = match cell {
            0 => "less than a second".to_owned(),
            cell => seconds(cell),
        };
        out + &cut(
            &format!("  each column is {column}; times are by each node's own clock"),
            width,
        ) + "\n"
    }

    /// Returns the letter of a cell. If several chapters fall into the cell, the letter shows the last chapter.
    fn sign(&self, row: &Row, cell: usize, cells: usize) -> char {
        let last = row.spans.iter().rev().find(|span| {
            let first = self.cell(span.start, cells).min(cells - 1);
            // A chapter that ends where the next cell begins does not extend into that cell.
            let last = self.cell(span.end, cells).saturating_sub(1).clamp(first, cells - 1);
            (first..=last).contains(&cell)
        });
        last.map_or(' ', |span| look(span.chapter).0)
    }

    fn cell(&self, time: Timestamp, cells: usize) -> usize {
        let done = i128::from(time.as_second() - self.begin.as_second()) * cells as i128;
        usize::try_from(done / i128::from(self.span_seconds())).unwrap_or_default()
    }

    fn x(&self, time: Timestamp) -> f64 {
        let done = (time.as_second() - self.begin.as_second()) as f64 / self.span_seconds() as f64;
        LEFT as f64 + done * f64::from(WIDE)
    }

    /// Adds a row to the SVG; `y` is its upper edge.
    fn svg_row(&self, out: &mut String, y: usize, row: &Row) {
        let name = cut(&row.name, 28);
        let _ = writeln!(
            out,
            "<text class=\"node\" x=\"10\" y=\"{}\">{}<title>{}</title></text>",
            y + 13,
            escaped(&name),
            escaped(&row.name)
        );
        for span in &row.spans {
            let (_, colour, word) = look(span.chapter);
            // Keep a chapter without duration visible.
            let wide = (self.x(span.end) - self.x(span.start)).max(2.0);
            let lasts = if span.lasts { ", not ended" } else { "" };
            let took = span.end.as_second().saturating_sub(span.start.as_second());
            let _ = writeln!(
                out,
                "<rect class=\"{word}\" x=\"{:.1}\" y=\"{}\" width=\"{wide:.1}\" height=\"{}\" fill=\"{colour}\"><title>{}: {} from {} for {}{lasts}</title></rect>",
                self.x(span.start),
                y + 2,
                HIGH - 4,
                escaped(&row.name),
                span.chapter.as_str(),
                at(span.start),
                seconds(u64::try_from(took).unwrap_or_default()),
            );
        }
    }

    /// Returns the picture as a self-contained SVG file.
    pub fn svg(&self) -> String {
        self.svg_part(0..self.rows.len())
    }

    /// Returns a picture of some of the rows as an SVG file. Rows that do not exist are left out.
    pub fn svg_part(&self, part: Range<usize>) -> String {
        let shown = part.len();
        let rows: Vec<&Row> = self.rows.iter().skip(part.start).take(shown).collect();
        let height = TOP + HIGH * rows.len() + 52;
        let total = LEFT + usize::from(WIDE) + RIGHT;
        let title = escaped(&self.title());
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {total} {height}\" width=\"{total}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <title>{title}</title>\n\
             <rect class=\"paper\" width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"10\" y=\"20\" font-size=\"14\">{title}</text>\n",
        );
        for (at, chapter) in LEGEND.iter().enumerate() {
            let (_, colour, word) = look(*chapter);
            let left = LEFT + at * 115;
            let _ = writeln!(
                out,
                "<rect class=\"{word}\" x=\"{left}\" y=\"30\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"40\">{word}</text>",
                left + 16
            );
        }
        for (n, row) in rows.iter().enumerate() {
            self.svg_row(&mut out, TOP + n * HIGH, row);
        }
        let floor = TOP + HIGH * rows.len() + 18;
        for part in 0..=4 {
            let time = self.begin.as_second() + self.span_seconds() * part / 4;
            let Ok(time) = Timestamp::from_second(time) else {
                continue;
            };
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{floor}\" text-anchor=\"middle\" font-size=\"10\">{}</text>",
                self.x(time),
                time.strftime("%H:%M:%S")
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"10\" y=\"{}\" font-size=\"10\">UTC, by each node's own clock</text>\n</svg>",
            floor + 20
        );
        out
    }
}

fn at(time: Timestamp) -> String {
    format!("{time:.0}")
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, lasts: Option<bool>) -> Row {
        let span = lasts.map(|lasts| Span {
            chapter: ChapterName::Drained,
            start: Timestamp::UNIX_EPOCH,
            end: Timestamp::UNIX_EPOCH,
            lasts,
        });
        Row {
            name: name.to_owned(),
            spans: span.into_iter().collect(),
        }
    }

    #[test]
    fn the_first_running_row_is_found() {
        let mut picture = Picture {
            pool: "p".to_owned(),
            what: String::new(),
            begin: Timestamp::UNIX_EPOCH,
            end: Timestamp::UNIX_EPOCH,
            rows: vec![row("a", Some(false)), row("b", None)],
        };
        assert_eq!(picture.first_running(), None);
        picture.rows.extend([row("c", Some(true)), row("d", Some(true))]);
        assert_eq!(picture.first_running(), Some(2));
    }
}
