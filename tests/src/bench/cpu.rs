//! Measures the machine's CPU load, from the kernel's counters. Times that were measured without idle CPUs are not
//! reliable.

use anyhow::{Context, Result};

/// Time that all CPUs have spent so far, in ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    busy: u64,
    all: u64,
}

impl Usage {
    pub(super) fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        parse(&text).context("/proc/stat has no line of all processors")
    }

    /// Returns the share of the time since `self` that the CPUs were busy with any work, from 0 to 1.
    pub(super) fn busy_since(self) -> Result<f64> {
        let now = Self::now()?;
        let all = now.all.saturating_sub(self.all).max(1);
        Ok(now.busy.saturating_sub(self.busy) as f64 / all as f64)
    }
}

/// Parses the line for all CPUs in `/proc/stat`: `cpu  user nice system idle iowait irq softirq steal …`.
fn parse(text: &str) -> Option<Usage> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|t| t.parse().ok()).collect();
    let idle: u64 = ticks.get(3..5)?.iter().sum();
    let all: u64 = ticks.iter().sum();
    Some(Usage { busy: all - idle, all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_is_not_busy() {
        let usage = parse("cpu  10 0 20 60 10 0 0 0 5 5\ncpu0 1 2 3\n").unwrap();
        assert_eq!((usage.busy, usage.all), (30, 100));
        assert!(parse("cpu0 1 2 3 4 5").is_none());
    }
}
