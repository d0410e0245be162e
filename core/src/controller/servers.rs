//! API servers of the cluster, and when each one last answered that it is ready.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::Moment;

/// A server counts as away if its last answer "ready" is older than this.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Readiness answers of all API servers.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// True if the servers were listed at least once.
    pub listed: bool,
    /// Servers in the latest list.
    pub servers: BTreeMap<SocketAddr, Asked>,
}

/// A server that is polled for readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Time when the controller first queried the server.
    pub since: Moment,
    /// Time of the server's last answer "ready".
    pub ready: Option<Moment>,
}

/// State of a server, as far as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The server has not answered "ready" in the last 15 s.
    Away,
    /// The server has never answered "ready", but was first queried less than 15 s ago.
    Unknown,
    /// The server has answered "ready" in the last 15 s.
    Ready,
}

impl Asked {
    /// Returns the server's current state.
    pub fn state(&self, now: Moment) -> State {
        match self.ready {
            Some(ready) if now.since(ready) < ANSWER_TIMEOUT => State::Ready,
            None if now.since(self.since) < ANSWER_TIMEOUT => State::Unknown,
            _ => State::Away,
        }
    }
}

impl Answers {
    /// Returns the current state of every server.
    pub fn states(&self, now: Moment) -> BTreeMap<SocketAddr, State> {
        let servers = self.servers.iter();
        servers.map(|(server, asked)| (*server, asked.state(now))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_answers_is_away() {
        for (ready, now, state) in [
            (None, 100, State::Unknown),
            (None, 114, State::Unknown),
            (None, 115, State::Away),
            (Some(101), 115, State::Ready),
            (Some(101), 116, State::Away),
        ] {
            let asked = Asked {
                since: Moment::after(Duration::from_secs(100)),
                ready: ready.map(|second| Moment::after(Duration::from_secs(second))),
            };
            let found = asked.state(Moment::after(Duration::from_secs(now)));
            assert_eq!(found, state, "{ready:?} {now}");
        }
    }
}
