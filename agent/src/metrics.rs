//! Prometheus metrics of this node and its agent. They show each status that the agent reports, even if the API server
//! rejects it.

use berth_api::Digest;
use berth_api::node::{BootcNodeSpec, BootcNodeStatus};
use berth_core::agent::gauges::gauges;
use berth_shell::pages::{Board, Families};
use prometheus_client::metrics::counter::Counter;

/// Counters and gauges of one agent.
#[derive(Debug)]
pub struct Metrics {
    passes: Counter,
    failures: Counter,
    pulled: Counter,
    node: Board,
    /// Image digest and byte count of the pull in the last report; `None` if that report had no pull.
    pull: Option<(Option<Digest>, u64)>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            passes: Counter::default(),
            failures: Counter::default(),
            pulled: Counter::default(),
            node: Board::new(gauges(None)),
            pull: None,
        }
    }
}

impl Metrics {
    /// Counts a pass of the agent's loop.
    pub fn pass(&self) {
        self.passes.inc();
    }

    /// Counts a pass that failed.
    pub fn failed(&self) {
        self.failures.inc();
    }

    /// Updates the metrics from this spec and status.
    pub fn show(&mut self, spec: &BootcNodeSpec, status: &BootcNodeStatus) {
        self.node.show(gauges(Some((spec, status))));
        let digest = spec.image.as_ref().map(|image| image.digest.clone());
        let now = status.progress.map(|progress| (digest, progress.bytes));
        if let Some((digest, bytes)) = &now {
            // A restarted pull counts from zero again.
            let before = self.pull.as_ref().filter(|(of, known)| of == digest && known <= bytes);
            self.pulled.inc_by(bytes - before.map_or(0, |(_, known)| *known));
        }
        self.pull = now;
    }

    /// Returns all metrics for the server.
    pub fn families(&self) -> Families {
        let mut families = Families::default();
        families.counter("berth_agent_passes", "Passes of the agent's loop", self.passes.clone());
        let help = "Failed passes of the agent's loop";
        families.counter("berth_agent_failures", help, self.failures.clone());
        let help = "Bytes that pulls have downloaded since this agent started, as far as bootc reports them";
        families.counter("berth_node_pulled_bytes", help, self.pulled.clone());
        families.board(&self.node);
        families
    }
}

#[cfg(test)]
mod tests {
    use berth_api::node::{Phase, Progress};

    use super::*;

    #[test]
    fn bytes_of_all_pulls_add_up() {
        let mut metrics = Metrics::default();
        let spec = BootcNodeSpec::default();
        let seen = [Some(10), Some(60), Some(60), Some(5), None, Some(7)].map(|bytes| {
            let status = BootcNodeStatus {
                phase: Some(Phase::Staging),
                progress: bytes.map(|bytes| Progress {
                    bytes,
                    bytes_total: 100,
                    bytes_per_second: 0,
                }),
                ..BootcNodeStatus::default()
            };
            metrics.show(&spec, &status);
            metrics.pulled.get()
        });
        assert_eq!(seen, [10, 60, 60, 65, 65, 72]);
        metrics.pass();
        metrics.failed();
        let names = metrics.families();
        assert!(names.names().iter().any(|name| name == "berth_node_pulled_bytes_total"));
        assert!(names.names().iter().any(|name| name == "berth_node_phase"));
    }
}
