//! Spreading retries over time, so that thousands of agents do not come back at once.

use std::time::Duration;

use berth_api::names::NodeName;
use jiff::Timestamp;
use kube::runtime::utils::Backoff;

/// A small generator, seeded by the node's name and the clock. Not for secrets.
#[derive(Debug, Clone)]
pub struct Jitter(u64);

impl Jitter {
    /// A generator of this node's own.
    pub fn new(node: &NodeName) -> Self {
        // FNV over the name: nodes that start in the same instant still differ.
        let clock = Timestamp::now().as_nanosecond() as u64;
        let seed = node
            .as_str()
            .bytes()
            .fold(clock, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Self(seed | 1)
    }

    /// A number from 0 to 1.
    pub fn fraction(&mut self) -> f64 {
        // xorshift64: any full-period generator serves here.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Wait before a broken watch is tried again: longer each time, but never so long that an offer lapses between the API
/// server's return and the agent's. Spread widely, since all agents lose their watches together.
#[derive(Debug)]
pub struct Reconnect {
    jitter: Jitter,
    next: Duration,
}

impl Reconnect {
    const FIRST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(8);

    /// Starts with a watch that has not broken yet.
    pub fn new(jitter: Jitter) -> Self {
        Self {
            jitter,
            next: Self::FIRST,
        }
    }
}

impl Iterator for Reconnect {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.next.mul_f64(0.5 + self.jitter.fraction());
        self.next = (self.next * 2).min(Self::LONGEST);
        Some(wait)
    }
}

impl Backoff for Reconnect {
    fn reset(&mut self) {
        self.next = Self::FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_watch_waits_longer_each_time_but_never_long() {
        let mut waits = Reconnect::new(Jitter::new(&NodeName::from("n1")));
        for most in [0.75, 1.5, 3.0, 6.0, 12.0, 12.0, 12.0] {
            let wait = waits.next().unwrap().as_secs_f64();
            assert!(wait >= most / 3.0 && wait <= most, "{wait} of {most}");
        }
        waits.reset();
        assert!(waits.next().unwrap() <= Duration::from_millis(750));
    }

    #[test]
    fn fractions_differ_and_stay_in_bounds() {
        let mut jitter = Jitter::new(&NodeName::from("n1"));
        let drawn: Vec<_> = (0..100).map(|_| jitter.fraction()).collect();
        assert!(drawn.iter().all(|f| (0.0..1.0).contains(f)));
        assert!(drawn.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
