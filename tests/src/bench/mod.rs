//! Measurements, and how they are told: one JSON line for each figure. Nothing here judges a time.

mod cpu;
pub mod firstboot;
pub mod fleet;
pub mod handover;
mod handovers;
pub mod hundred;
pub mod idle;
pub mod leader;
pub mod many;
pub mod memory;
pub mod planner;
pub mod polls;
pub mod publish;
pub mod record;
pub mod rollout;
pub mod staging;
pub mod status;
mod thousand;
mod turns;
mod waiting;

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Map, Value, json};

/// One measured figure.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figure {
    /// Its name.
    pub bench: &'static str,
    /// Value to quote: the median of the runs.
    pub value: f64,
    /// Unit of `value`, `runs`, `median`, `floor`, `aim` and `peer`.
    pub unit: &'static str,
    /// Each run.
    pub runs: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// Cost of the same thing without Berth, measured in the same run; the median where there were several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// Value that we want.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aim: Option<f64>,
    /// Value of bootc-operator, measured on a machine with two cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<f64>,
    /// The same figure as it was at the last landing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<record::Last>,
    /// Facts that explain the figure.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub detail: Map<String, Value>,
}

impl Figure {
    /// A figure with its runs.
    pub fn new(bench: &'static str, unit: &'static str, runs: &[f64]) -> Self {
        let median = round(median(runs));
        let runs = runs.iter().map(|run| round(*run)).collect();
        Self {
            bench,
            value: median,
            unit,
            runs,
            median,
            ..Self::default()
        }
    }

    /// Adds the value that is wanted.
    #[must_use]
    pub fn aim(mut self, aim: f64) -> Self {
        self.aim = Some(aim);
        self
    }

    /// Adds the value of bootc-operator.
    #[must_use]
    pub fn peer(mut self, peer: f64) -> Self {
        self.peer = Some(peer);
        self
    }

    /// Adds the floor's runs.
    #[must_use]
    pub fn floor(mut self, floors: &[f64]) -> Self {
        self.floor = Some(round(median(floors)));
        self
    }

    /// Adds one more fact that explains it.
    #[must_use]
    pub fn detail(mut self, name: &str, value: Value) -> Self {
        self.detail.insert(name.to_owned(), value);
        self
    }

    /// Prints the figure beside that of the last landing.
    pub fn print(mut self) {
        self.last = record::compare(&self);
        println!("{}", json!(self));
    }
}

/// Says why a figure is not there.
pub fn skip(bench: &str, why: &str) {
    println!("{}", json!({ "bench": bench, "skipped": why }));
}

/// The middle one; the mean of the two in the middle when their number is even; 0 of none.
pub fn median(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
    match sorted.len() % 2 {
        0 => {
            (upper
                + sorted
                    .get((sorted.len() / 2).saturating_sub(1))
                    .copied()
                    .unwrap_or_default())
                / 2.0
        }
        _ => upper,
    }
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Tells on standard error what is going on, with the time since the start.
#[derive(Debug, Clone, Copy)]
pub struct Progress(Instant);

impl Default for Progress {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Progress {
    /// One line.
    pub fn say(&self, what: &str) {
        eprintln!("{:>6.1} s  {what}", self.0.elapsed().as_secs_f64());
    }
}

/// Selection of figures: those that begin with one of the names in `BERTH_BENCH_ONLY`, or all.
#[derive(Debug, Clone, Default)]
pub struct Selection(Vec<String>);

impl Selection {
    /// Reads the text of the variable.
    pub fn parse(text: &str) -> Self {
        Self(
            text.split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Says whether a figure is wanted.
    pub fn wants(&self, bench: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|name| bench.starts_with(name.as_str()))
    }

    /// Says whether one of some figures is wanted.
    pub fn wants_one(&self, benches: &[&str]) -> bool {
        benches.iter().any(|bench| self.wants(bench))
    }
}

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Number of runs of each repeatable measurement: `BERTH_BENCH_RUNS`.
fn runs() -> u64 {
    setting("BERTH_BENCH_RUNS", 3)
}

/// Time for which a process is left alone before its memory is read: `BERTH_BENCH_IDLE`, in seconds.
fn idle() -> Duration {
    Duration::from_secs(setting("BERTH_BENCH_IDLE", 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn a_selection_is_a_list_of_beginnings() {
        let some = Selection::parse("agent, rollout-writes");
        assert!(some.wants("agent-memory") && some.wants("rollout-writes"));
        assert!(!some.wants("rollout-overhead") && some.wants_one(&["x", "agent-size"]));
        assert!(Selection::parse("").wants("anything"));
    }
}
