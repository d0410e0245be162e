//! Settings of a run.

use std::path::PathBuf;
use std::time::Duration;

use super::progress::Progress;

/// Selected figures: those whose names begin with an entry of `BERTH_BENCH_ONLY`; all if it is empty.
#[derive(Debug, Clone, Default)]
pub struct Selection(Vec<String>);

impl Selection {
    /// Parses the value of the variable.
    pub fn parse(text: &str) -> Self {
        Self(
            text.split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    }

    /// True if the figure is selected.
    pub fn wants(&self, bench: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|name| bench.starts_with(name.as_str()))
    }
}

/// A run of the measurements.
#[derive(Debug, Clone)]
pub struct Run {
    /// The selected figures.
    pub selection: Selection,
    /// The shipped agent.
    pub agent: PathBuf,
    /// Output of the run's progress.
    pub progress: Progress,
}

impl Run {
    pub(super) fn wants(&self, bench: &str) -> bool {
        self.selection.wants(bench)
    }

    pub(super) fn wants_one(&self, benches: &[&str]) -> bool {
        benches.iter().any(|bench| self.wants(bench))
    }
}

pub(super) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Number of runs of each repeatable measurement (`BERTH_BENCH_RUNS`).
pub(super) fn runs() -> u64 {
    setting("BERTH_BENCH_RUNS", 3)
}

/// How long a process is left idle before its memory is read (`BERTH_BENCH_IDLE`, in seconds).
pub(super) fn idle_time() -> Duration {
    Duration::from_secs(setting("BERTH_BENCH_IDLE", 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_a_list_of_prefixes() {
        let some = Selection::parse("agent, rollout-writes");
        assert!(some.wants("agent-memory") && some.wants("rollout-writes"));
        assert!(!some.wants("rollout-overhead") && some.wants("agent-size"));
        assert!(Selection::parse("").wants("anything"));
    }
}
