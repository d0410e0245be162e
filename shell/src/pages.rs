//! HTTP server for metrics and probes.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::{prometheus_text, text};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

mod families;

pub use families::{Board, Families};

/// Most connections that one server handles at a time.
const MAX_CONNECTIONS: usize = 8;
/// Timeout for reading a request, and for a connection as a whole.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Content type of the OpenMetrics format, which a client such as Prometheus requests. Other clients get the older text
/// format, the only one that `promtool check metrics` reads.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Health of a process, for liveness and readiness probes. An error is one line of text.
pub trait Health: Send + Sync + 'static {
    /// Liveness: fails if the process hangs, so that only a restart helps.
    fn alive(&self) -> Result<(), String>;

    /// Readiness: fails if the process cannot do its work at the moment.
    fn ready(&self) -> Result<(), String>;
}

/// The pages that one server serves.
#[expect(missing_debug_implementations, reason = "dyn Health has none")]
pub enum Page {
    /// Metrics, at `/metrics`.
    Metrics(Families),
    /// Probes, at `/healthz` and `/readyz`.
    Health(Arc<dyn Health>),
}

/// Listens on the address that a command line option names. `:PORT` stands for all addresses of this machine. Fails if
/// the address is invalid, does not belong to this machine, or is in use.
pub async fn listen(option: &str, address: &str) -> anyhow::Result<TcpListener> {
    bind(address).await.with_context(|| format!("{option} {address}"))
}

async fn bind(address: &str) -> anyhow::Result<TcpListener> {
    let Some(port) = address.strip_prefix(':') else {
        let address: SocketAddr = address.parse()?;
        return Ok(TcpListener::bind(address).await?);
    };
    let port: u16 = port.parse()?;
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        // The machine may have no IPv6, so try IPv4.
        Err(_) => Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?),
    }
}

/// Starts a server in the background for each page whose address is not empty. Each page has its own server, so that
/// many requests for one page cannot block another. Fails if an address cannot be used.
///
/// Each entry of `pages` is the command line option, its address, and the page.
pub async fn start(pages: impl IntoIterator<Item = (&str, &str, Page)>) -> anyhow::Result<()> {
    for (option, address, page) in pages {
        if !address.is_empty() {
            let listener = listen(option, address).await?;
            tokio::spawn(serve(listener, page));
        }
    }
    Ok(())
}

/// Serves one page. Never returns.
pub async fn serve(listener: TcpListener, page: Page) {
    let page = Arc::new(page);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for metrics or probes");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let page = page.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| std::future::ready(answer(&page, &request)));
            let mut server = http1::Builder::new();
            server
                .timer(TokioTimer::new())
                .header_read_timeout(CONNECTION_TIMEOUT)
                .keep_alive(false);
            let connection = server.serve_connection(TokioIo::new(stream), service);
            // Ignore errors: a client that is too slow or disconnects simply gets no response.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
            drop(place);
        });
    }
}

fn answer(page: &Page, request: &Request<Incoming>) -> Result<Response<Full<Bytes>>, http::Error> {
    match (page, request.method(), request.uri().path()) {
        (Page::Metrics(families), &Method::GET, "/metrics") => metrics(families, request.headers()),
        (Page::Health(health), &Method::GET, "/healthz") => probed(health.alive()),
        (Page::Health(health), &Method::GET, "/readyz") => probed(health.ready()),
        _ => Response::builder().status(StatusCode::NOT_FOUND).body(Full::default()),
    }
}

fn metrics(families: &Families, asked: &HeaderMap) -> Result<Response<Full<Bytes>>, http::Error> {
    let accepted = asked.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let is_open_metrics = accepted.is_some_and(|accept| accept.contains("application/openmetrics-text"));
    let (mut text, registry) = (String::new(), families.registry());
    let (type_, encoded) = if is_open_metrics {
        (OPEN_METRICS, text::encode(&mut text, registry))
    } else {
        (
            prometheus_text::CONTENT_TYPE,
            prometheus_text::encode(&mut text, registry),
        )
    };
    if encoded.is_err() {
        let failed = Response::builder().status(StatusCode::INTERNAL_SERVER_ERROR);
        return failed.body(Full::default());
    }
    Response::builder()
        .header(header::CONTENT_TYPE, type_)
        .body(Full::from(text))
}

fn probed(answer: Result<(), String>) -> Result<Response<Full<Bytes>>, http::Error> {
    match answer {
        Ok(()) => Response::builder().body(Full::from("ok")),
        Err(why) => Response::builder()
            .status(StatusCode::SERVICE_UNAVAILABLE)
            .body(Full::from(why)),
    }
}

#[cfg(test)]
mod tests;
