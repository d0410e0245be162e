//! Recorded figures: `tests/benchmarks.jsonl`, one line per figure. New figures are printed beside the recorded ones,
//! and `RECORD=1` replaces these.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::figure::{Figure, Last, round};
use crate::locked::locked;
use crate::programs::workspace_root;

/// A recorded figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// Name of the figure.
    pub bench: String,
    /// Number of nodes, if the figure depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u64>,
    /// Value of the figure.
    pub value: f64,
    /// Unit of the value.
    pub unit: String,
    /// Machine that ran the measurement.
    pub machine: String,
}

type Figures = BTreeMap<(String, Option<u64>), Recorded>;

/// Recorded figures, and the figures of this run.
#[derive(Debug, Default)]
pub struct Book {
    machine: String,
    last: Figures,
    new: Figures,
}

impl Book {
    /// Parses the file, for a run on this machine.
    pub fn parse(text: &str, machine: &str) -> Result<Self> {
        let mut last = Figures::new();
        for (number, line) in (1..).zip(text.lines()) {
            let recorded: Recorded = serde_json::from_str(line).with_context(|| format!("line {number}: {line}"))?;
            last.insert((recorded.bench.clone(), recorded.nodes), recorded);
        }
        Ok(Self {
            machine: machine.to_owned(),
            last,
            new: Figures::new(),
        })
    }

    /// Adds a figure of this run. Returns its recorded value, if there is one with the same unit.
    pub fn compare(&mut self, figure: &Figure) -> Option<Last> {
        let nodes = figure.detail.get("nodes").and_then(serde_json::Value::as_u64);
        let key = (figure.bench.to_owned(), nodes);
        let recorded = Recorded {
            bench: figure.bench.to_owned(),
            nodes,
            value: figure.value,
            unit: figure.unit.to_owned(),
            machine: self.machine.clone(),
        };
        self.new.insert(key.clone(), recorded);
        let last = self.last.get(&key).filter(|last| last.unit == figure.unit)?;
        Some(Last {
            value: last.value,
            ratio: (last.value != 0.0).then(|| round(figure.value / last.value)),
            machine: (last.machine != self.machine).then(|| last.machine.clone()),
        })
    }

    #[cfg(test)]
    pub(super) fn last(&self) -> impl Iterator<Item = &Recorded> {
        self.last.values()
    }

    /// Text of the file with the figures of this run. Figures that were not measured keep their recorded values.
    pub fn text(&self) -> String {
        let mut all = self.last.clone();
        all.extend(self.new.clone());
        all.values().map(|figure| json!(figure).to_string() + "\n").collect()
    }
}

/// Figures of this process. Empty before [`open`].
static BOOK: Mutex<Option<Book>> = Mutex::new(None);

pub(super) fn path() -> PathBuf {
    workspace_root().join("tests/benchmarks.jsonl")
}

/// Reads the recorded figures.
pub fn open() -> Result<()> {
    let path = path();
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let book = Book::parse(&text, &machine()).with_context(|| format!("{} is malformed", path.display()))?;
    *locked(&BOOK) = Some(book);
    Ok(())
}

impl Figure {
    /// Prints the figure, with its recorded value.
    pub fn print(mut self) {
        self.last = compare(&self);
        println!("{}", json!(self));
    }
}

fn compare(figure: &Figure) -> Option<Last> {
    let mut book = locked(&BOOK);
    book.as_mut()?.compare(figure)
}

/// Writes the figures of this run to the file.
pub fn save() -> Result<()> {
    let book = locked(&BOOK);
    let text = book.as_ref().map(Book::text).unwrap_or_default();
    let path = path();
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Number of cores and processor model of this machine.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores, {model}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: &str = concat!(
        r#"{"bench":"agent-size","machine":"2 cores, a","unit":"MiB","value":8.0}"#,
        "\n",
        r#"{"bench":"many-nodes-memory","machine":"2 cores, a","nodes":5000,"unit":"MiB","value":40.0}"#,
        "\n",
    );

    #[test]
    fn a_new_figure_is_compared_with_the_recorded_one() {
        let mut book = Book::parse(LAST, "2 cores, a").unwrap();
        let size = Figure::new("agent-size", "MiB", &[6.0]);
        let last = book.compare(&size).unwrap();
        assert_eq!((last.value, last.ratio, last.machine), (8.0, Some(0.75), None));
        let memory = Figure::new("many-nodes-memory", "MiB", &[50.0]);
        let other = memory.clone().detail("nodes", json!(1000));
        assert_eq!(book.compare(&other), None, "another number of nodes");
        let same = memory.detail("nodes", json!(5000));
        assert_eq!(book.compare(&same).unwrap().ratio, Some(1.25));
        assert_eq!(
            book.compare(&Figure::new("agent-size", "KiB", &[6.0])),
            None,
            "another unit"
        );
        let mut other = Book::parse(LAST, "64 cores, b").unwrap();
        assert_eq!(other.compare(&size).unwrap().machine.as_deref(), Some("2 cores, a"));
    }

    #[test]
    fn new_figures_replace_recorded_ones() {
        let mut book = Book::parse(LAST, "4 cores, b").unwrap();
        book.compare(&Figure::new("agent-size", "MiB", &[7.0]));
        let again = Book::parse(&book.text(), "c").unwrap();
        let values: Vec<_> = again.last.values().map(|f| (f.value, f.machine.as_str())).collect();
        assert_eq!(values, [(7.0, "4 cores, b"), (40.0, "2 cores, a")]);
        assert_eq!(again.text(), book.text());
        let error = Book::parse("{}", "a").unwrap_err();
        assert!(error.to_string().contains("line 1"), "{error:#}");
    }
}
