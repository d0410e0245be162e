//! HTTP server of the dashboard. Any program of this machine can connect, so it limits the number of connections, and the
//! time until a request is complete.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Maximum number of connections.
const CONNECTIONS: usize = 64;
/// Timeout for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, such as for lack of file descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves the routes. Never returns. Dropping the future ends all connections.
pub(super) async fn serve(listener: TcpListener, routes: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        // Forget the connections that have ended.
        while connections.try_join_next().is_some() {}
        let service = TowerToHyperService::new(routes.clone());
        connections.spawn(async move {
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
            // Ignore errors: a client that is too slow or has left gets no answer.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
            drop(place);
        });
    }
}
