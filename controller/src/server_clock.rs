//! The API server's clock, read from the header `Date` of its answers.

use std::sync::{Arc, Mutex};

use berth_core::controller::implausible::ServerTime;
use berth_shell::listen::with_header_listener;
use berth_shell::locked;
use http::HeaderMap;
use http::header::DATE;
use jiff::fmt::rfc2822::DateTimeParser;
use kube::Client;

use crate::time;

static PARSER: DateTimeParser = DateTimeParser::new();

/// Last known time of the API server's clock. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ServerClock(Arc<Mutex<Option<ServerTime>>>);

impl ServerClock {
    /// Returns a client that reads the API server's clock from each answer.
    pub fn listening(&self, client: &Client) -> Client {
        let clock = self.clone();
        with_header_listener(client, move |headers| clock.hear(headers))
    }

    /// Returns the time in the last answer; `None` until an answer has a readable header `Date`.
    pub fn last(&self) -> Option<ServerTime> {
        *locked(&self.0)
    }

    fn hear(&self, headers: &HeaderMap) {
        let date = headers.get(DATE).and_then(|date| date.to_str().ok());
        let time = date.and_then(|date| PARSER.parse_timestamp(date).ok());
        if let Some(time) = time {
            *locked(&self.0) = Some(ServerTime { time, at: time::now() });
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_date_of_an_answer_is_the_servers_time() {
        let clock = ServerClock::default();
        assert_eq!(clock.last(), None);
        for (date, seconds) in [
            ("Fri, 15 Jan 2027 08:00:00 GMT", 1_800_000_000),
            ("yesterday", 1_800_000_000),
            ("Fri, 15 Jan 2027 08:00:01 GMT", 1_800_000_001),
        ] {
            let headers = [(DATE, HeaderValue::from_static(date))].into_iter().collect();
            clock.hear(&headers);
            let known = clock.last().map(|last| last.time.as_second());
            assert_eq!(known, Some(seconds), "{date}");
        }
    }
}
