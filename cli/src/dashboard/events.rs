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

/// Longest time without an event. The page takes a longer silence for a lost connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Event that shows that the connection works. A page cannot see comments.
const ALIVE: &[u8] = b"event: alive\ndata: {}\n\n";

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
            Err(_) => Some(Bytes::from_static(ALIVE)),
        }
    }

    fn state(&mut self) -> Bytes {
        let (state, events) = self.hub.lock().subscribe();
        self.events = Some(events);
        state
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::pool::{BootcNodePool, BootcNodePoolSpec};
    use futures::StreamExt;
    use kube::runtime::watcher::Event;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::dashboard::about::About;
    use crate::dashboard::hub::Hub;
    use crate::watch::{Follower, Live, WatchEvent};

    fn hub() -> SharedHub {
        SharedHub::of(Hub::of(About::default(), Live::default(), String::new()))
    }

    /// Adds a pool, and shows the change.
    fn add(hub: &mut SharedHub, number: usize) {
        let pool = BootcNodePool::new(&format!("p{number}"), BootcNodePoolSpec::default());
        hub.take(WatchEvent::Pool(Box::new(Ok(Event::Apply(pool)))));
        assert!(hub.show().unwrap().is_continue());
    }

    fn connect(
        hub: &SharedHub,
        streams: &Arc<Semaphore>,
    ) -> impl Stream<Item = Result<Bytes, Infallible>> + Unpin + use<> {
        let permit = streams.clone().try_acquire_owned().unwrap();
        let connection = Connection {
            hub: hub.clone(),
            events: None,
            _permit: permit,
        };
        Box::pin(chunks(connection))
    }

    async fn next(stream: &mut (impl Stream<Item = Result<Bytes, Infallible>> + Unpin)) -> String {
        let bytes = stream.next().await.unwrap().unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_slow_page_gets_the_state_again() {
        let (mut hub, streams) = (hub(), Arc::new(Semaphore::new(2)));
        let (mut quick, mut slow) = (connect(&hub, &streams), connect(&hub, &streams));
        assert!(next(&mut quick).await.starts_with("event: state\nid: 0\n"));
        assert!(next(&mut slow).await.starts_with("event: state\nid: 0\n"));
        for number in 0..20 {
            add(&mut hub, number);
            let event = next(&mut quick).await;
            assert!(
                event.starts_with(&format!("event: change\nid: {}\n", number + 1)),
                "{event}"
            );
        }
        let state = next(&mut slow).await;
        assert!(
            state.starts_with("event: state\nid: 20\n") && state.contains("\"p19\""),
            "{state}"
        );
        add(&mut hub, 20);
        assert!(next(&mut slow).await.starts_with("event: change\nid: 21\n"));
    }

    #[tokio::test]
    async fn without_a_page_nothing_is_compared() {
        let (mut hub, streams) = (hub(), Arc::new(Semaphore::new(1)));
        add(&mut hub, 0);
        let mut page = connect(&hub, &streams);
        let state = next(&mut page).await;
        assert!(state.contains("id: 0\n") && state.contains("\"p0\""), "{state}");
        add(&mut hub, 1);
        drop(page);
        assert_eq!(streams.available_permits(), 1);
        add(&mut hub, 2);
        let state = next(&mut connect(&hub, &streams)).await;
        assert!(state.contains("id: 1\n") && state.contains("\"p2\""), "{state}");
    }
}
