//! Metric families of a program, and their names.

use std::sync::{Arc, Mutex};

use crate::locked;
use berth_core::gauges::Gauge;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Metric, Registry};

/// All metrics of a program, and the names of their series. Families without series are named too.
#[derive(Debug, Default)]
pub struct Families {
    registry: Registry,
    names: Vec<String>,
}

impl Families {
    /// Adds a counter, or a family of counters. Its series are named `NAME_total`.
    pub fn counter(&mut self, name: &'static str, help: &str, metric: impl Metric) {
        self.names.push(format!("{name}_total"));
        self.registry.register(name, help, metric);
    }

    /// Adds a histogram, or a family of histograms.
    pub fn histogram(&mut self, name: &'static str, help: &str, metric: impl Metric) {
        self.names
            .extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
        self.registry.register(name, help, metric);
    }

    /// Adds a board, with all its gauges.
    pub fn board(&mut self, board: &Board) {
        self.names.extend(board.names());
        self.registry.register_collector(Box::new(board.clone()));
    }

    /// Names of all series, as used in queries.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Registry of all metrics, for encoding.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

/// Gauges that are replaced together. A clone shares the gauges.
#[derive(Debug, Clone)]
pub struct Board(Arc<Mutex<Vec<Gauge>>>);

impl Board {
    /// Returns a board with these gauges.
    pub fn new(gauges: Vec<Gauge>) -> Self {
        Self(Arc::new(Mutex::new(gauges)))
    }

    /// Replaces all gauges at once: a reader never sees a mix of old and new.
    pub fn show(&self, gauges: Vec<Gauge>) {
        *locked(&self.0) = gauges;
    }

    fn names(&self) -> Vec<String> {
        let gauges = locked(&self.0);
        gauges.iter().map(|gauge| gauge.name.to_owned()).collect()
    }
}

impl Collector for Board {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let gauges = locked(&self.0);
        for gauge in gauges.iter().filter(|gauge| !gauge.series.is_empty()) {
            let mut family = encoder.encode_descriptor(gauge.name, gauge.help, None, MetricType::Gauge)?;
            for series in &gauge.series {
                ConstGauge::new(series.value).encode(family.encode_family(&series.labels)?)?;
            }
        }
        Ok(())
    }
}
