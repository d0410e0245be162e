//! Metrics for Prometheus. A controller that waits for leadership serves them too, but without metrics of pools.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::berth::Outcome;
use berth_core::controller::gauges::{self, GaugeFacts};
use berth_core::controller::stagings::StagingNews;
use berth_core::controller::turns::{Happened, TAKEN_AWAY, TurnNews};
use berth_core::gauges::Gauge as Gauges;
use berth_shell::locked;
use berth_shell::pages::{Board, Families};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

/// Histogram buckets for pulls, drains and reboots, in seconds.
const SECONDS: [f64; 11] = [
    5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPool {
    pool: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WithOutcome {
    pool: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WithResult {
    result: &'static str,
}

type Lengths = Family<OfPool, Histogram, fn() -> Histogram>;

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

/// All metrics. Cheap to clone; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    passes: Counter,
    write_errors: Counter,
    registry_polls: Family<WithResult, Counter>,
    turns: Family<WithOutcome, Counter>,
    stagings: Lengths,
    drains: Lengths,
    reboots: Lengths,
    process: Board,
    pools: Board,
    /// Pools with counters and histograms.
    known: Arc<Mutex<Vec<String>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            passes: Counter::default(),
            write_errors: Counter::default(),
            registry_polls: Family::default(),
            turns: Family::default(),
            stagings: Lengths::new_with_constructor(histogram),
            drains: Lengths::new_with_constructor(histogram),
            reboots: Lengths::new_with_constructor(histogram),
            process: Board::new(process(false)),
            pools: Board::new(gauges::gauges(&GaugeFacts::default())),
            known: Arc::default(),
        }
    }
}

fn measure(lengths: &Lengths, pool: String, length: Option<Duration>) {
    if let Some(length) = length {
        lengths.get_or_create(&OfPool { pool }).observe(length.as_secs_f64());
    }
}

fn process(leads: bool) -> Vec<Gauges> {
    let mut leader = Gauges::new("berth_leader", "1 for the controller that leads, 0 for one that waits.");
    leader.add([], i64::from(leads));
    let mut info = Gauges::new("berth_controller_info", "1, with the version of this controller.");
    info.add([("version", env!("CARGO_PKG_VERSION"))], 1);
    vec![leader, info]
}

impl Metrics {
    /// Records that this process leads.
    pub fn leads(&self) {
        self.process.show(process(true));
    }

    /// Counts a pass.
    pub fn pass(&self) {
        self.passes.inc();
    }

    /// Counts a failed request to the API server, other than a conflict.
    pub fn error(&self) {
        self.write_errors.inc();
    }

    /// Counts a request to a registry by its result: `Changed`, `Unchanged`, or the reason of its failure.
    pub fn polled(&self, result: &'static str) {
        self.registry_polls.get_or_create(&WithResult { result }).inc();
    }

    /// Records that the pool has counters and histograms. If the pool is already gone, the next `show` removes its
    /// series.
    fn know(&self, pool: &str) {
        let mut known = locked(&self.known);
        if !known.iter().any(|known| known == pool) {
            known.push(pool.to_owned());
        }
    }

    /// Records the duration of a pull.
    pub fn staged(&self, news: &StagingNews) {
        let pool = news.pool.to_string();
        self.know(&pool);
        self.stagings
            .get_or_create(&OfPool { pool })
            .observe(news.took.as_secs_f64());
    }

    /// Counts a turn that ended, and records the durations of its drain and reboot.
    pub fn turn(&self, news: &TurnNews) {
        let pool = news.pool.to_string();
        self.know(&pool);
        match news.what {
            Happened::Taken => {}
            Happened::Committed { drain, .. } => measure(&self.drains, pool, drain),
            Happened::Ended { outcome, reboot, .. } => {
                let labels = WithOutcome {
                    pool: pool.clone(),
                    outcome,
                };
                self.turns.get_or_create(&labels).inc();
                measure(&self.reboots, pool, reboot);
            }
        }
    }

    /// Replaces the gauges of the pools and the fleet. Removes all series of pools that are not in `facts`.
    pub fn show(&self, facts: &GaugeFacts<'_>) {
        self.pools.show(gauges::gauges(facts));
        let now: Vec<String> = facts.pools.iter().map(|pool| pool.name.to_owned()).collect();
        let mut known = locked(&self.known);
        for pool in known.iter().filter(|pool| !now.contains(pool)) {
            for outcome in Outcome::ALL.iter().map(|o| o.as_str()).chain([TAKEN_AWAY]) {
                let pool = pool.clone();
                self.turns.remove(&WithOutcome { pool, outcome });
            }
            let pool = OfPool { pool: pool.clone() };
            self.stagings.remove(&pool);
            self.drains.remove(&pool);
            self.reboots.remove(&pool);
        }
        *known = now;
    }

    /// Returns all metrics for serving.
    pub fn families(&self) -> Families {
        let mut families = Families::default();
        families.board(&self.process);
        families.counter("berth_passes", "Passes over all pools", self.passes.clone());
        let help = "Failed requests to the API server, not counting conflicts";
        families.counter("berth_write_errors", help, self.write_errors.clone());
        let help = "Requests to registries by result: Changed, Unchanged, or the reason of the failure";
        families.counter("berth_registry_polls", help, self.registry_polls.clone());
        let help = "Ended turns by outcome; TakenAway if not ended by the holder";
        families.counter("berth_turns", help, self.turns.clone());
        let help = "Time from the start of a pull until the image was staged, measured by the node";
        families.histogram("berth_staging_seconds", help, self.stagings.clone());
        let help = "Time from taking a berth until the commit, measured by this controller";
        families.histogram("berth_drain_seconds", help, self.drains.clone());
        let help =
            "Time from the commit until the update was proven and the berth given back, measured by this controller";
        families.histogram("berth_reboot_seconds", help, self.reboots.clone());
        families.board(&self.pools);
        families
    }
}

#[cfg(test)]
mod tests {
    use berth_api::pool::BootcNodePoolStatus;
    use berth_core::controller::gauges::MeasuredPool;
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn page(metrics: &Metrics) -> String {
        let mut text = String::new();
        encode(&mut text, metrics.families().registry()).unwrap();
        text
    }

    fn pool<'a>(name: &'a str, status: &'a BootcNodePoolStatus) -> MeasuredPool<'a> {
        MeasuredPool {
            name,
            status,
            gate: None,
            gates: None,
            timed_out: vec![],
            implausible: vec![],
            members: vec![],
            waiting: vec![],
        }
    }

    fn turn(metrics: &Metrics, pool: &str, what: Happened) {
        let target = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        metrics.turn(&TurnNews {
            pool: pool.into(),
            berth: "p-0".to_owned(),
            node: "n1".into(),
            uid: "u1".into(),
            target,
            what,
        });
    }

    fn ended(reboot: Option<Duration>) -> Happened {
        Happened::Ended {
            outcome: "Updated",
            reboot,
            given_back: true,
        }
    }

    fn show(metrics: &Metrics, pools: &[&'static str]) -> String {
        let status = BootcNodePoolStatus::default();
        metrics.show(&GaugeFacts {
            pools: pools.iter().map(|name| pool(name, &status)).collect(),
            fleet: None,
        });
        page(metrics)
    }

    #[test]
    fn series_of_deleted_pools_disappear() {
        let metrics = Metrics::default();
        let before = page(&metrics);
        assert!(
            before.contains("berth_leader 0\n") && before.contains("berth_passes_total 0\n"),
            "{before}"
        );
        metrics.leads();
        metrics.pass();
        metrics.error();
        metrics.polled("Unchanged");
        let minute = Duration::from_secs(60);
        for pool in ["a", "b"] {
            metrics.staged(&StagingNews {
                pool: pool.into(),
                took: minute,
            });
            turn(&metrics, pool, Happened::Taken);
            let (drain, announced) = (Some(minute), false);
            turn(&metrics, pool, Happened::Committed { drain, announced });
            turn(&metrics, pool, ended(Some(minute)));
        }
        let both = show(&metrics, &["a", "b"]);
        for line in [
            "berth_leader 1",
            "berth_passes_total 1",
            "berth_write_errors_total 1",
            "berth_registry_polls_total{result=\"Unchanged\"} 1",
            "berth_turns_total{pool=\"b\",outcome=\"Updated\"} 1",
            "berth_staging_seconds_count{pool=\"b\"} 1",
            "berth_drain_seconds_count{pool=\"b\"} 1",
            "berth_reboot_seconds_bucket{le=\"60.0\",pool=\"b\"} 1",
            "berth_reboot_seconds_bucket{le=\"30.0\",pool=\"b\"} 0",
            "berth_pool_nodes{pool=\"b\",state=\"total\"} 0",
        ] {
            assert!(both.lines().any(|l| l == line), "no {line} in {both}");
        }
        let one = show(&metrics, &["a"]);
        assert!(one.contains("pool=\"a\"") && !one.contains("pool=\"b\""), "{one}");
        // The pool's last berth closes after the pool is gone.
        turn(&metrics, "b", ended(None));
        let one = show(&metrics, &["a"]);
        assert!(one.contains("pool=\"a\"") && !one.contains("pool=\"b\""), "{one}");
    }
}
