//! The stream of events to one page.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::Stream;
use futures::stream::unfold;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::time::timeout;

use super::hub::SharedHub;

/// Longest time without data. Then a comment is sent, so that both sides notice a broken connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Connection of one page.
struct Connection {
    hub: SharedHub,
    /// Events after the state; `None` before the state was sent.
    events: Option<Receiver<Bytes>>,
    /// Counts the connection until it ends.
    _permit: OwnedSemaphorePermit,
}

/// Returns the state as the first event, then all changes. A page that is too slow gets the state again.
pub(super) fn stream(hub: SharedHub, permit: OwnedSemaphorePermit) -> Body {
    let connection = Connection {
        hub,
        events: None,
        _permit: permit,
    };
    Body::from_stream(chunks(connection))
}

fn chunks(connection: Connection) -> impl Stream<Item = Result<Bytes, Infallible>> {
    unfold(connection, async |mut connection| {
        let chunk = connection.next().await?;
        Some((Ok(chunk), connection))
    })
}

impl Connection {
    /// Returns the next part of the stream; `None` at its end.
    async fn next(&mut self) -> Option<Bytes> {
        let Some(events) = &mut self.events else {
            return Some(self.state());
        };
        match timeout(KEEP_ALIVE, events.recv()).await {
            Ok(Ok(event)) => Some(event),
            Ok(Err(RecvError::Lagged(_))) => Some(self.state()),
            Ok(Err(RecvError::Closed)) => None,
            Err(_) => Some(Bytes::from_static(b": the connection is alive\n\n")),
        }
    }

    fn state(&mut self) -> Bytes {
        let (state, events) = self.hub.lock().subscribe();
        self.events = Some(events);
        state
    }
}
