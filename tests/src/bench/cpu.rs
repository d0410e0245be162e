//! Load of the machine, by the kernel's account. A measurement on a machine that is full measures the machine.

use anyhow::{Context, Result};

/// The time that all processors have spent so far, in ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    busy: u64,
    all: u64,
}

impl Usage {
    /// Reads the account as of now.
    pub(super) fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        parse(&text).context("/proc/stat has no line of all processors")
    }

    /// The share of the time since then that the processors were busy, with whatever: from 0 to 1.
    pub(super) fn busy_since(self) -> Result<f64> {
        let now = Self::now()?;
        let all = now.all.saturating_sub(self.all).max(1);
        Ok(now.busy.saturating_sub(self.busy) as f64 / all as f64)
    }
}

/// `cpu  user nice system idle iowait irq softirq steal …`
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
