//! Settings of a run.

use std::time::Duration;

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
pub(super) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Number of runs of each repeatable measurement: `BERTH_BENCH_RUNS`.
pub(super) fn runs() -> u64 {
    setting("BERTH_BENCH_RUNS", 3)
}

/// Time for which a process is left alone before its memory is read: `BERTH_BENCH_IDLE`, in seconds.
pub(super) fn idle_time() -> Duration {
    Duration::from_secs(setting("BERTH_BENCH_IDLE", 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_a_list_of_beginnings() {
        let some = Selection::parse("agent, rollout-writes");
        assert!(some.wants("agent-memory") && some.wants("rollout-writes"));
        assert!(!some.wants("rollout-overhead") && some.wants_one(&["x", "agent-size"]));
        assert!(Selection::parse("").wants("anything"));
    }
}
