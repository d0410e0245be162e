use berth_core::gauges::Gauge;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

async fn served(page: Page) -> SocketAddr {
    let listener = listen("--metrics-address", "127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, page));
    address
}

async fn ask(address: SocketAddr, path: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    let read = tokio::time::timeout(CONNECTION_TIMEOUT, stream.read_to_string(&mut text));
    read.await.expect("the server ends the connection").unwrap();
    text
}

async fn get(address: SocketAddr, path: &str) -> String {
    ask(address, path, "").await
}

fn nodes(pool: &str, count: u32) -> Gauge {
    let mut gauge = Gauge::new("t_nodes", "Nodes of a pool.");
    gauge.add([("pool", pool)], count);
    gauge
}

#[tokio::test]
async fn metrics_are_served_in_both_formats() {
    let mut leader = Gauge::new("t_leader", "1 for the leader.");
    leader.add([], 1);
    let board = Board::new(vec![nodes("a", 3), leader, Gauge::new("t_none", "Nothing yet.")]);
    let (counter, histogram) = (Counter::<u64>::default(), Histogram::new([1.0]));
    let mut families = Families::default();
    families.counter("t_passes", "Passes", counter.clone());
    families.histogram("t_seconds", "Seconds", histogram.clone());
    families.board(&board);
    let names = [
        "t_passes_total",
        "t_seconds_bucket",
        "t_seconds_sum",
        "t_seconds_count",
        "t_nodes",
        "t_leader",
        "t_none",
    ];
    assert_eq!(families.names(), names);
    counter.inc();
    histogram.observe(0.5);
    let address = served(Page::Metrics(families)).await;

    let page = get(address, "/metrics").await;
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK") && head.contains("text/plain; version=0.0.4"),
        "{head}"
    );
    let expected = "\
# HELP t_passes_total Passes.
# TYPE t_passes_total counter
t_passes_total 1
# HELP t_seconds Seconds.
# TYPE t_seconds histogram
t_seconds_bucket{le=\"1\"} 1
t_seconds_bucket{le=\"+Inf\"} 1
t_seconds_sum 0.5
t_seconds_count 1
# HELP t_nodes Nodes of a pool.
# TYPE t_nodes gauge
t_nodes{pool=\"a\"} 3
# HELP t_leader 1 for the leader.
# TYPE t_leader gauge
t_leader 1
";
    assert_eq!(body, expected);

    board.show(vec![nodes("b", 1)]);
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let page = ask(address, "/metrics", accept).await;
    assert!(page.contains("application/openmetrics-text; version=1.0.0"), "{page}");
    assert!(
        page.contains("# TYPE t_passes counter\n") && page.ends_with("# EOF\n"),
        "{page}"
    );
    assert!(
        page.contains("t_nodes{pool=\"b\"} 1\n") && !page.contains("pool=\"a\""),
        "{page}"
    );
    assert!(get(address, "/").await.starts_with("HTTP/1.1 404"));
}

struct Patient {
    alive: bool,
}

impl Health for Patient {
    fn alive(&self) -> Result<(), String> {
        self.alive.then_some(()).ok_or_else(|| "it hangs".to_owned())
    }

    fn ready(&self) -> Result<(), String> {
        Err("it waits".to_owned())
    }
}

#[tokio::test]
async fn probes_are_answered_while_metrics_are_busy() {
    let (metrics, health) = (
        served(Page::Metrics(Families::default())).await,
        served(Page::Health(Arc::new(Patient { alive: true }))).await,
    );
    let mut silent = vec![];
    for _ in 0..MAX_CONNECTIONS {
        silent.push(TcpStream::connect(metrics).await.unwrap());
    }
    let answer = tokio::time::timeout(CONNECTION_TIMEOUT / 2, get(health, "/healthz"))
        .await
        .unwrap();
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    let answer = get(health, "/readyz").await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.ends_with("it waits"),
        "{answer}"
    );
    let dead = served(Page::Health(Arc::new(Patient { alive: false }))).await;
    let answer = get(dead, "/healthz").await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.ends_with("it hangs"),
        "{answer}"
    );
}

#[tokio::test]
async fn an_unusable_address_is_named() {
    let first = listen("--metrics-address", ":0").await.unwrap();
    let taken = format!(":{}", first.local_addr().unwrap().port());
    for bad in ["nonsense", ":x", "127.0.0.1", taken.as_str()] {
        let error = listen("--metrics-address", bad).await.unwrap_err();
        assert!(
            format!("{error:#}").starts_with(&format!("--metrics-address {bad}: ")),
            "{error:#}"
        );
    }
    start([("--metrics-address", "", Page::Metrics(Families::default()))])
        .await
        .unwrap();
}
