//! Metrics for Prometheus, and the small server that they are read from. A controller that waits for leadership serves
//! them too, but only the leader has numbers of pools.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::pulse::Pulse;

/// Requests answered at once.
const CONNECTIONS: usize = 8;
/// Longest time that a client may take for its request, and for its answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Content type that Prometheus reads.
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPool {
    pool: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InState {
    pool: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ForReason {
    pool: String,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WithResult {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfNode {
    pool: String,
    node: String,
}

/// Numbers of one pool.
#[derive(Debug, Clone, Default)]
pub struct PoolNumbers {
    /// Name of the pool.
    pub pool: String,
    /// Members by state; a node may be in more than one.
    pub nodes: Vec<(&'static str, u32)>,
    /// Berths by state.
    pub berths: Vec<(&'static str, u32)>,
    /// True while the rollout is halted by failures.
    pub halted: bool,
    /// Reason for which no berth of the pool is opened.
    pub gate: Option<String>,
    /// Nodes that hold a berth and do not come back.
    pub timed_out: Vec<String>,
}

/// All metrics. Cheap to clone; the clones are the same metrics.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    leader: Gauge,
    passes: Counter,
    write_errors: Counter,
    registry_polls: Family<WithResult, Counter>,
    nodes: Family<InState, Gauge>,
    berths: Family<InState, Gauge>,
    halted: Family<OfPool, Gauge>,
    gate_closed: Family<ForReason, Gauge>,
    timed_out: Family<OfPool, Gauge>,
    node_timed_out: Family<OfNode, Gauge>,
}

impl Metrics {
    /// Notes that this process has begun to lead.
    pub fn leads(&self) {
        self.leader.set(1);
    }

    /// Counts a pass.
    pub fn pass(&self) {
        self.passes.inc();
    }

    /// Counts a failed request to the API server, other than a conflict.
    pub fn error(&self) {
        self.write_errors.inc();
    }

    /// Counts a question to a registry: `Changed`, `Unchanged`, or the reason for which it was not answered.
    pub fn polled(&self, result: &'static str) {
        self.registry_polls.get_or_create(&WithResult { result }).inc();
    }

    /// Replaces the numbers of all pools by these. Pools that are not among them disappear. Requests are served by the
    /// same thread, so none can see half of the change.
    pub fn pools(&self, pools: &[PoolNumbers]) {
        self.nodes.clear();
        self.berths.clear();
        self.halted.clear();
        self.gate_closed.clear();
        self.timed_out.clear();
        self.node_timed_out.clear();
        for numbers in pools {
            self.one(numbers);
        }
    }

    fn one(&self, numbers: &PoolNumbers) {
        let pool = || numbers.pool.clone();
        for (family, states) in [(&self.nodes, &numbers.nodes), (&self.berths, &numbers.berths)] {
            for (state, count) in states {
                family
                    .get_or_create(&InState { pool: pool(), state })
                    .set((*count).into());
            }
        }
        self.halted
            .get_or_create(&OfPool { pool: pool() })
            .set(numbers.halted.into());
        if let Some(reason) = &numbers.gate {
            self.gate_closed
                .get_or_create(&ForReason {
                    pool: pool(),
                    reason: reason.clone(),
                })
                .set(1);
        }
        let count = i64::try_from(numbers.timed_out.len()).unwrap_or(i64::MAX);
        self.timed_out.get_or_create(&OfPool { pool: pool() }).set(count);
        for node in &numbers.timed_out {
            self.node_timed_out
                .get_or_create(&OfNode {
                    pool: pool(),
                    node: node.clone(),
                })
                .set(1);
        }
    }

    /// Registry of all of them, to be served.
    pub fn registry(&self) -> Registry {
        let mut r = Registry::with_prefix("berth");
        r.register(
            "leader",
            "1 for the controller that leads, 0 for one that waits",
            self.leader.clone(),
        );
        r.register("passes", "Passes over all pools", self.passes.clone());
        let help = "Requests to the API server that failed, other than by a conflict";
        r.register("write_errors", help, self.write_errors.clone());
        let help = "Questions to registries by result: Changed, Unchanged, or the reason for which there was no answer";
        r.register("registry_polls", help, self.registry_polls.clone());
        let help = "Members of a pool by state; a node is counted in each that is true of it, and in total";
        r.register("pool_nodes", help, self.nodes.clone());
        r.register(
            "pool_berths",
            "Berths of a pool by state; total is its capacity",
            self.berths.clone(),
        );
        let help = "1 when the image failed on so many nodes that no other one is tried";
        r.register("rollout_halted", help, self.halted.clone());
        let help = "1 while no berth of the pool is opened, for this reason";
        r.register("gate_closed", help, self.gate_closed.clone());
        let help = "Nodes that hold a berth of the pool and do not come back";
        r.register("reboot_timed_out", help, self.timed_out.clone());
        r.register(
            "node_reboot_timed_out",
            "1 for a node that holds a berth and does not come back",
            self.node_timed_out.clone(),
        );
        r
    }
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

/// Page that a server has.
#[derive(Debug)]
pub enum Page {
    /// `/metrics`
    Metrics(Registry),
    /// `/healthz`, for probes that check whether this process is alive.
    Health(Pulse),
}

/// Serves one page, so that nobody who reads the one keeps others from the other.
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
    let response = Response::builder();
    match (page, request.method(), request.uri().path()) {
        (Page::Metrics(registry), &Method::GET, "/metrics") => {
            let mut text = String::new();
            match encode(&mut text, registry) {
                Ok(()) => response.header(header::CONTENT_TYPE, TEXT).body(Full::from(text)),
                Err(_) => response.status(StatusCode::INTERNAL_SERVER_ERROR).body(Full::default()),
            }
        }
        (Page::Health(pulse), &Method::GET, "/healthz") => match pulse.is_lost() {
            false => response.body(Full::from("ok")),
            true => response
                .status(StatusCode::SERVICE_UNAVAILABLE)
                .body(Full::from("the passes hang")),
        },
        _ => response.status(StatusCode::NOT_FOUND).body(Full::default()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn served(page: Page) -> SocketAddr {
        let listener = listen("--metrics-address", "127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, page));
        address
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        let read = tokio::time::timeout(DEADLINE, stream.read_to_string(&mut text));
        read.await.expect("the server ends the connection").unwrap();
        text
    }

    #[tokio::test]
    async fn what_is_told_can_be_scraped_and_what_is_gone_is_not() {
        let metrics = Metrics::default();
        let address = served(Page::Metrics(metrics.registry())).await;
        let page = get(address, "/metrics").await;
        assert!(
            page.contains("berth_leader 0\n") && page.contains("berth_passes_total 0\n"),
            "{page}"
        );
        metrics.leads();
        metrics.pass();
        metrics.error();
        metrics.polled("Unchanged");
        let lost = PoolNumbers {
            pool: "workers".into(),
            nodes: vec![("total", 3), ("updated", 1)],
            berths: vec![("held", 1)],
            halted: true,
            gate: Some("Paused".into()),
            timed_out: vec!["n7".into()],
        };
        metrics.pools(&[lost]);
        let page = get(address, "/metrics").await;
        for line in [
            "HTTP/1.1 200 OK",
            "berth_leader 1",
            "berth_passes_total 1",
            "berth_write_errors_total 1",
            "berth_registry_polls_total{result=\"Unchanged\"} 1",
            "berth_pool_nodes{pool=\"workers\",state=\"total\"} 3",
            "berth_pool_berths{pool=\"workers\",state=\"held\"} 1",
            "berth_rollout_halted{pool=\"workers\"} 1",
            "berth_gate_closed{pool=\"workers\",reason=\"Paused\"} 1",
            "berth_reboot_timed_out{pool=\"workers\"} 1",
            "berth_node_reboot_timed_out{pool=\"workers\",node=\"n7\"} 1",
            "# EOF",
        ] {
            assert!(page.lines().any(|l| l == line), "no {line} in {page}");
        }
        metrics.pools(&[PoolNumbers {
            pool: "workers".into(),
            ..PoolNumbers::default()
        }]);
        let page = get(address, "/metrics").await;
        assert!(!page.contains("n7") && !page.contains("Paused"), "{page}");
        assert!(page.contains("berth_reboot_timed_out{pool=\"workers\"} 0\n"), "{page}");
        assert!(get(address, "/").await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn a_probe_is_answered_while_others_fill_the_metrics_and_told_when_the_passes_hang() {
        let (metrics, health) = (
            served(Page::Metrics(Metrics::default().registry())).await,
            served(Page::Health(Pulse::default())).await,
        );
        let mut silent = vec![];
        for _ in 0..CONNECTIONS {
            silent.push(TcpStream::connect(metrics).await.unwrap());
        }
        let answer = tokio::time::timeout(DEADLINE / 2, get(health, "/healthz"))
            .await
            .unwrap();
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
        let answer = get(served(Page::Health(Pulse::lost())).await, "/healthz").await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_had_is_named() {
        let first = listen("--metrics-address", ":0").await.unwrap();
        let taken = format!(":{}", first.local_addr().unwrap().port());
        for bad in ["nonsense", ":x", "127.0.0.1", taken.as_str()] {
            let error = listen("--metrics-address", bad).await.unwrap_err();
            assert!(
                format!("{error:#}").starts_with(&format!("--metrics-address {bad}: ")),
                "{error:#}"
            );
        }
    }
}
