//! The metrics of a program, and the names of their series.

use std::sync::{Arc, Mutex};

use crate::locked;
use berth_core::gauges::Gauge;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Metric, Registry};

/// All metrics of a program, and the names of their series. A series name is listed even if its metric has no series
/// now.
#[derive(Debug, Default)]
pub struct Families {
    registry: Registry,
    names: Vec<String>,
}

impl Families {
    /// Adds a counter, which may have labels. Its series are named `NAME_total`.
    pub fn counter(&mut self, name: &'static str, help: &str, metric: impl Metric) {
        self.names.push(format!("{name}_total"));
        self.registry.register(name, help, metric);
    }

    /// Adds a histogram, which may have labels.
    pub fn histogram(&mut self, name: &'static str, help: &str, metric: impl Metric) {
        self.names
            .extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
        self.registry.register(name, help, metric);
    }

    /// Adds all gauges of a board.
    pub fn board(&mut self, board: &Board) {
        self.names.extend(board.names());
        self.registry.register_collector(Box::new(board.clone()));
    }

    /// Returns the names of all series, as queries use them.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the registry of all metrics, which the server encodes as text.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

/// A set of gauges that a program replaces as a whole. Clones share the same gauges.
#[derive(Debug, Clone)]
pub struct Board(Arc<Mutex<Vec<Gauge>>>);

impl Board {
    /// Returns a board with these gauges.
    pub fn new(gauges: Vec<Gauge>) -> Self {
        Self(Arc::new(Mutex::new(gauges)))
    }

    /// Replaces all gauges at once. A reader never sees a mix of old and new gauges.
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
