//! The cluster's API servers: when each said last that it is ready, and what that is worth now.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::Moment;

/// Time for which an answer counts, and for which a server is asked in vain before it counts as away.
const FRESH: Duration = Duration::from_secs(15);

/// Everything that the servers have said.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// The servers were listed at least once since they were asked for.
    pub listed: bool,
    /// Each server of the latest list.
    pub servers: BTreeMap<SocketAddr, Asked>,
}

/// A server that is asked whether it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The moment since when it is asked.
    pub since: Moment,
    /// The moment when it last said that it is ready.
    pub ready: Option<Moment>,
}

/// The state of a server, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The server has not said for a while that it is ready, although it was asked all the time.
    Away,
    /// The server has not been asked for long enough.
    Unknown,
    /// The server has said lately that it is ready.
    Ready,
}

impl Asked {
    /// The state of the server now.
    pub fn state(&self, now: Moment) -> State {
        let lately = |at: Moment| now.since(at) < FRESH;
        match self.ready {
            Some(ready) if lately(ready) => State::Ready,
            None if lately(self.since) => State::Unknown,
            _ => State::Away,
        }
    }
}

impl Answers {
    /// The state of every server now.
    pub fn states(&self, now: Moment) -> BTreeMap<SocketAddr, State> {
        let state = |(server, asked): (&SocketAddr, &Asked)| (*server, asked.state(now));
        self.servers.iter().map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_away_once_it_was_asked_in_vain_for_a_while() {
        let at = |seconds| Moment::after(Duration::from_secs(seconds));
        let state = |ready: Option<u64>, now| {
            let asked = Asked {
                since: at(100),
                ready: ready.map(at),
            };
            asked.state(at(now))
        };
        assert_eq!(state(None, 100), State::Unknown);
        assert_eq!(state(None, 114), State::Unknown, "nothing is known yet");
        assert_eq!(state(None, 115), State::Away);
        assert_eq!(state(Some(101), 115), State::Ready);
        assert_eq!(state(Some(101), 116), State::Away);
    }
}
