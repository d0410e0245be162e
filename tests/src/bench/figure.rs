//! A measured figure.

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
    pub last: Option<Last>,
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

pub(super) fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The value and machine of the last landing beside a new figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Last {
    /// The value then.
    pub value: f64,
    /// The new value divided by that one; absent if that is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Machine on which it was measured, if that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
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
}
