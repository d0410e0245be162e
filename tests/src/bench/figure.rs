//! A measured figure.

use serde::Serialize;
use serde_json::{Map, Value, json};

pub(super) use crate::statistics::{median, round};

#[derive(Debug, Clone, Default, Serialize)]
pub struct Figure {
    /// Name of the figure.
    pub bench: &'static str,
    /// The result to quote: the median of the runs.
    pub value: f64,
    /// Unit of `value`, `runs`, `median`, `floor`, `aim` and `peer`.
    pub unit: &'static str,
    pub runs: Vec<f64>,
    pub median: f64,
    /// Cost of the same work without Berth, measured in the same run; the median if there were several runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// Target value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aim: Option<f64>,
    /// Value measured for bootc-operator on a machine with two cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Last>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub detail: Map<String, Value>,
}

impl Figure {
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

    #[must_use]
    pub fn aim(mut self, aim: f64) -> Self {
        self.aim = Some(aim);
        self
    }

    #[must_use]
    pub fn peer(mut self, peer: f64) -> Self {
        self.peer = Some(peer);
        self
    }

    #[must_use]
    pub fn floor(mut self, floors: &[f64]) -> Self {
        self.floor = Some(round(median(floors)));
        self
    }

    #[must_use]
    pub fn detail(mut self, name: &str, value: Value) -> Self {
        self.detail.insert(name.to_owned(), value);
        self
    }
}

pub fn skip(bench: &str, why: &str) {
    println!("{}", json!({ "bench": bench, "skipped": why }));
}

/// The recorded value of an earlier run, printed with the new figure for comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Last {
    pub value: f64,
    /// New value divided by the recorded value; absent if the recorded value is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Machine of the recorded value, if it is not this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}
