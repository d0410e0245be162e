//! Slows pulls down for a test that must interrupt them.

use std::time::{Duration, Instant};

/// File with the speed limit of a test host's pulls (`rate=BYTES_PER_SECOND`).
const FILE: &str = "/etc/standin-bootc.conf";

#[derive(Debug)]
pub(crate) struct Throttle {
    rate: Option<u64>,
    begin: Instant,
    bytes: u64,
}

impl Throttle {
    /// Reads the limit from the host's file; unlimited if it has none.
    pub(crate) fn from_host() -> Self {
        Self::at(set())
    }

    fn at(rate: Option<u64>) -> Self {
        Self {
            rate,
            begin: Instant::now(),
            bytes: 0,
        }
    }

    /// Maximum number of bytes to read at once. Small for slow rates, so that the bytes arrive evenly.
    pub(crate) fn chunk(&self) -> usize {
        match self.rate {
            Some(rate) => usize::try_from(rate / 20).unwrap_or(usize::MAX).clamp(512, 1 << 20),
            None => 1 << 20,
        }
    }

    /// Counts bytes and sleeps for the rest of the time that they should take. Starts a new count if the rate in the
    /// file changed.
    pub(crate) fn pass(&mut self, bytes: u64) {
        let rate = set();
        if rate != self.rate {
            *self = Self::at(rate);
        }
        self.bytes += bytes;
        let Some(rate) = self.rate else { return };
        let due = Duration::from_millis(self.bytes.saturating_mul(1000) / rate);
        let spent = self.begin.elapsed();
        if due > spent {
            std::thread::sleep(due - spent);
        }
    }
}

fn set() -> Option<u64> {
    parse(&std::fs::read_to_string(FILE).unwrap_or_default())
}

fn parse(text: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("rate="))
        .find_map(|value| value.trim().parse().ok())
        .filter(|rate| *rate > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_the_file() {
        assert_eq!(parse("# slow\nrate=1000\n"), Some(1000));
        assert_eq!(parse("rate=0\n"), None);
        assert_eq!(parse(""), None);
    }
}
