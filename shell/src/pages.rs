//! The small HTTP server from which metrics and probes are read.

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
use prometheus_client::encoding::text::encode;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

mod families;

pub use families::{Board, Families};

/// Requests answered at once.
const CONNECTIONS: usize = 8;
/// Longest time that a client may take for its request, and for its answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Content type of OpenMetrics, which Prometheus asks for.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of the older text, for everybody else: `promtool check metrics` reads no other.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Health of a process, for those who probe it. An error says in one line what is wrong.
pub trait Health: Send + Sync + 'static {
    /// Says whether the process makes progress.
    ///
    /// # Errors
    /// When it hangs, so that only a restart helps.
    fn alive(&self) -> Result<(), String>;

    /// Says whether the process does what it is for.
    ///
    /// # Errors
    /// When it does not, for now.
    fn ready(&self) -> Result<(), String>;
}

/// Page that a server has.
#[expect(missing_debug_implementations, reason = "dyn Health has none")]
pub enum Page {
    /// `/metrics`
    Metrics(Families),
    /// `/healthz` and `/readyz`
    Health(Arc<dyn Health>),
}

/// Listens on the address that this option of the command line gives. `:PORT` is every address of this machine.
///
/// # Errors
/// When that is no address, or not this machine's, or taken.
pub async fn listen(option: &str, address: &str) -> anyhow::Result<TcpListener> {
    let context = || format!("{option} {address}");
    let Some(port) = address.strip_prefix(':') else {
        let address: SocketAddr = address.parse().with_context(context)?;
        return TcpListener::bind(address).await.with_context(context);
    };
    let port: u16 = port.parse().with_context(context)?;
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        // A machine without IPv6.
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            .await
            .with_context(context),
    }
}

/// Listens on the addresses that are not empty, and serves each page there from now on, in the background. Each has a
/// server of its own, so that nobody who reads the one keeps others from the other.
///
/// # Errors
/// When an address cannot be listened on.
pub async fn start(pages: impl IntoIterator<Item = (&str, &str, Page)>) -> anyhow::Result<()> {
    for (option, address, page) in pages {
        if !address.is_empty() {
            let listener = listen(option, address).await?;
            tokio::spawn(serve(listener, page));
        }
    }
    Ok(())
}

/// Serves one page.
pub async fn serve(listener: TcpListener, page: Page) {
    let page = Arc::new(page);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "metrics: cannot accept a connection");
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
                .header_read_timeout(DEADLINE)
                .keep_alive(false);
            let connection = server.serve_connection(TokioIo::new(stream), service);
            // Who is too slow, or goes away, has no metrics; that is nobody's trouble here.
            let _ = tokio::time::timeout(DEADLINE, connection).await;
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
    let mut text = String::new();
    if encode(&mut text, families.registry()).is_err() {
        let failed = Response::builder().status(StatusCode::INTERNAL_SERVER_ERROR);
        return failed.body(Full::default());
    }
    let accepted = asked.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let (type_, text) = match accepted.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
        true => (OPEN_METRICS, text),
        false => (TEXT, classic(&text)),
    };
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

/// The same in the older format, which knows a counter by the name of its samples, and neither units nor an end.
fn classic(open_metrics: &str) -> String {
    let mut counters = vec![];
    for line in open_metrics.lines() {
        counters.extend(
            line.strip_prefix("# TYPE ")
                .and_then(|rest| rest.strip_suffix(" counter")),
        );
    }
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let about = ["# HELP ", "# TYPE "].into_iter();
        let mut about = about.filter_map(|kind| Some((kind, line.strip_prefix(kind)?.split_once(' ')?)));
        match about.next() {
            Some((kind, (name, rest))) if counters.contains(&name) => {
                text.extend([kind, name, "_total ", rest, "\n"]);
            }
            None if line.starts_with("# ") => {}
            _ => text.extend([line, "\n"]),
        }
    }
    text
}

#[cfg(test)]
mod tests;
