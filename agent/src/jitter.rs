//! Spreading retries over time, so that thousands of agents do not come back at once.

use std::time::Duration;

use berth_api::names::NodeName;
use berth_shell::retry;
use kube::runtime::watcher::ExponentialBackoff;

/// A source of random fractions.
#[derive(Debug, Clone)]
pub struct Jitter;

impl Jitter {
    /// A source for this node. Each process has numbers of its own.
    pub fn new(_: &NodeName) -> Self {
        Self
    }

    /// A number from 0 to 1.
    pub fn fraction(&mut self) -> f64 {
        fastrand::f64()
    }
}

/// Wait before a broken watch is tried again: longer each time, but never so long that an offer lapses between the API
/// server's return and the agent's. Spread widely, since all agents lose their watches together.
pub fn reconnect() -> ExponentialBackoff {
    retry::delays(Duration::from_millis(250), Duration::from_secs(6)).into()
}

#[cfg(test)]
mod tests {
    use kube::runtime::utils::Backoff;

    use super::*;

    #[test]
    fn a_broken_watch_waits_longer_each_time_but_never_long() {
        let mut waits = reconnect();
        for most in [0.5, 1.0, 2.0, 4.0, 8.0, 12.0, 12.0, 12.0] {
            let wait = waits.next().unwrap().as_secs_f64();
            assert!(wait >= most / 2.0 && wait <= most, "{wait} of {most}");
        }
        waits.reset();
        assert!(waits.next().unwrap() <= Duration::from_millis(500));
    }
}
