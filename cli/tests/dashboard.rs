//! `dashboard` with a simulated API server, over HTTP: access, headers, files, events, a node's drawer, and an outage.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail like the test")]

mod server;

use std::io::Write;
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use kube::Client;
use kubectl_berth::dashboard::{About, Dashboard, serve};
use kubectl_berth::{Scope, Snapshot, explanation, render_explanation};
use serde_json::{Value, json};
use server::kept::Kept;
use server::watched::{AWAY, BACK, DRAINS, bootc_node, client};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch as steps};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

fn digest(c: &str) -> String {
    format!("sha256:{}", c.repeat(64))
}

fn node(name: &str, uid: &str, annotations: Value, is_cordoned: bool) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": uid, "resourceVersion": "1", "annotations": annotations,
            "labels": { "topology.kubernetes.io/zone": "a", "role": "worker" },
        },
        "spec": { "unschedulable": is_cordoned },
        "status": {
            "conditions": [{
                "type": "Ready", "status": "True",
                "lastHeartbeatTime": "2026-03-01T11:00:00Z", "lastTransitionTime": "2026-03-01T11:00:00Z",
            }],
            "nodeInfo": {
                "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "linux",
                "osImage": "", "systemUUID": "",
            },
        },
    })
}

/// Returns a pool with two nodes. Berth has cordoned the second one.
fn items(path: &str) -> Vec<Value> {
    let noise = json!({ "example.com/note": "x" });
    let cordoned = json!({ "example.com/note": "x", "berth.dev/cordon": "workers" });
    if path.ends_with("/nodes") {
        return vec![node("n1", "u", noise, false), node("n2", "u2", cordoned, true)];
    }
    if path.ends_with("/bootcnodes") {
        let mut second = bootc_node("Waiting");
        second["metadata"]["name"] = json!("n2");
        second["spec"]["nodeUID"] = json!("u2");
        second["status"]["nodeUID"] = json!("u2");
        second["status"]["timeline"] = json!({ "updates": [{
            "to": { "digest": digest("2"), "version": "v2" },
            "chapters": [{ "name": "Prepared", "startTime": "2026-03-01T11:00:00Z", "endTime": "2026-03-01T11:01:00Z" }],
        }] });
        return vec![bootc_node("Waiting"), second];
    }
    if path.ends_with("/bootcnodepools") {
        let target = json!({
            "image": "quay.io/example/os:2", "digest": digest("3"), "version": "v2",
            "platforms": [{ "architecture": "amd64", "digest": digest("2") }],
        });
        return vec![json!({
            "metadata": { "name": "workers", "uid": "p", "resourceVersion": "1" },
            "spec": { "nodeSelector": { "matchLabels": { "role": "worker" } }, "image": { "ref": "quay.io/example/os:2" } },
            "status": { "target": target, "berths": { "total": 1, "held": 0, "offered": 0 } },
        })];
    }
    vec![]
}

/// A dashboard that runs, and its address.
struct Running {
    port: u16,
    token: String,
    client: Client,
    step: steps::Sender<u8>,
    end: Option<oneshot::Sender<()>>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Running {
    async fn start(only: Option<&str>) -> Self {
        let (step, seen) = steps::channel(0);
        let (end, ended) = oneshot::channel::<()>();
        let client = client(seen, items);
        let about = About::of("kind-test".to_owned(), None, Some("kind-test"), None);
        let dashboard = Dashboard {
            about: About {
                only: only.map(str::to_owned),
                ..about
            },
            namespace: "berth-system".to_owned(),
            port: 0,
            opens: false,
            limit: Duration::from_secs(5),
        };
        let out = Kept::default();
        let (of_task, printed) = (client.clone(), out.clone());
        let task = tokio::spawn(async move {
            let end = async { drop(ended.await) };
            serve(&of_task, dashboard, printed, end).await
        });
        out.says("Ctrl-C").await;
        let text = out.text();
        let address = text
            .split_whitespace()
            .find(|word| word.starts_with("http://"))
            .unwrap();
        let (port, token) = address
            .strip_prefix("http://127.0.0.1:")
            .and_then(|rest| rest.split_once("/?token="))
            .unwrap();
        Self {
            port: port.parse().unwrap(),
            token: token.to_owned(),
            client,
            step,
            end: Some(end),
            task,
        }
    }

    async fn send(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> http::Response<Incoming> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(target);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", format!("127.0.0.1:{}", self.port));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let response = timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
        has_headers(response.headers());
        response
    }

    async fn get(&self, target: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, String) {
        let response = self.send("GET", target, headers).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Uses the token. Returns the cookie to send.
    async fn log_in(&self) -> String {
        let (status, headers, body) = self.get(&format!("/?token={}", self.token), &[]).await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.contains("content=\"0; url=/\""), "{body}");
        let cookie = headers["set-cookie"].to_str().unwrap();
        for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(cookie.split("; ").any(|found| found == part), "{cookie}");
        }
        cookie.split(';').next().unwrap().to_owned()
    }

    async fn json(&self, cookie: &str, target: &str) -> (StatusCode, Value) {
        let (status, headers, body) = self.get(target, &[("cookie", cookie)]).await;
        assert_eq!(headers["content-type"], "application/json", "{target}");
        (status, serde_json::from_str(&body).unwrap())
    }

    /// Asserts that the answer has this status, and an error in words.
    async fn fails(&self, cookie: &str, target: &str, expected: StatusCode) {
        let (status, error) = self.json(cookie, target).await;
        assert_eq!(status, expected, "{target}");
        assert!(error["error"].is_string(), "{target}");
    }

    async fn events(&self, cookie: &str) -> Events {
        let response = self.send("GET", "/api/events", &[("cookie", cookie)]).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events {
            body: response.into_body(),
            text: String::new(),
            id: None,
        }
    }

    async fn end(mut self) {
        self.end.take().unwrap().send(()).unwrap();
        let ended = timeout(Duration::from_secs(2), self.task).await;
        assert!(ended.is_ok(), "the dashboard ends at once");
        ended.unwrap().unwrap().unwrap();
    }
}

fn has_headers(headers: &HeaderMap) {
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri \
                  'none'; form-action 'none'; frame-ancestors 'none'";
    for (name, value) in [
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
}

/// Events of a connected page.
struct Events {
    body: Incoming,
    text: String,
    id: Option<u64>,
}

impl Events {
    /// Returns the name and the data of the next event.
    async fn next(&mut self) -> (String, Value) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let event = event.to_owned();
                self.text = rest.to_owned();
                if event.starts_with(':') {
                    continue;
                }
                return self.parsed(&event);
            }
            let frame = timeout(PATIENCE, self.body.frame()).await.unwrap().unwrap().unwrap();
            self.text += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
        }
    }

    fn parsed(&mut self, event: &str) -> (String, Value) {
        let lines: Vec<_> = event.lines().map(|line| line.split_once(": ").unwrap()).collect();
        let [("event", name), ("id", id), ("data", data)] = lines.as_slice() else {
            panic!("{event}");
        };
        let id = id.parse().unwrap();
        assert!(self.id.is_none_or(|last| last < id), "{:?} {id}", self.id);
        self.id = Some(id);
        ((*name).to_owned(), serde_json::from_str(data).unwrap())
    }

    /// Returns the first change that is as expected.
    async fn change(&mut self, is_expected: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (name, data) = self.next().await;
            assert_eq!(name, "change");
            assert!(data["now"].is_string() && data.get("stale").is_some(), "{data}");
            if is_expected(&data) {
                return data;
            }
        }
    }
}

#[tokio::test]
async fn the_token_works_once_and_gives_a_cookie() {
    let running = Running::start(None).await;
    let right = format!("/?token={}", running.token);
    let (status, headers, body) = running.get("/?token=0123", &[]).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(
        body.contains("kubectl berth dashboard") && !headers.contains_key("set-cookie"),
        "{body}"
    );
    let head = running.send("HEAD", &right, &[]).await;
    assert_eq!(head.status(), StatusCode::OK);
    assert!(!head.headers().contains_key("set-cookie"));
    let cookie = running.log_in().await;
    assert!(cookie.starts_with(&format!("berth-{}=", running.port)), "{cookie}");
    let (status, headers, _) = running.get(&right, &[("cookie", &cookie)]).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "the token was used");
    assert!(!headers.contains_key("set-cookie"));
    let (status, _, body) = running.get("/", &[("cookie", &cookie)]).await;
    assert!(status == StatusCode::OK && body.contains("/assets/app.js"), "{body}");
    running.end().await;
}

#[tokio::test]
async fn requests_without_access_are_refused() {
    let running = Running::start(None).await;
    let cookie = running.log_in().await;
    let targets = [
        "/",
        "/assets/app.js",
        "/api/events",
        "/api/nodes/n1",
        "/api/timeline/workers",
        "/x",
    ];
    for target in targets {
        let (status, ..) = running.get(target, &[]).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{target} without a cookie");
        let wrong = format!("berth-{}=0", running.port);
        let (status, ..) = running.get(target, &[("cookie", &wrong)]).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{target} with a wrong cookie");
        for host in ["evil.example", "127.0.0.1", "127.0.0.1:1"] {
            let (status, _, body) = running.get(target, &[("cookie", &cookie), ("host", host)]).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{target} of {host}");
            assert_eq!(body.lines().count(), 1, "{body}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let response = running.send(method, target, &[("cookie", &cookie)]).await;
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {target}");
        }
    }
    let host = format!("localhost:{}", running.port);
    let (status, ..) = running.get("/", &[("cookie", &cookie), ("host", &host)]).await;
    assert_eq!(status, StatusCode::OK);
    running.end().await;
}

#[tokio::test]
async fn files_have_their_types() {
    let running = Running::start(None).await;
    let cookie = running.log_in().await;
    for (target, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/assets/index.html", "text/html; charset=utf-8"),
        ("/assets/app.js", "text/javascript; charset=utf-8"),
        ("/assets/style.css", "text/css; charset=utf-8"),
        ("/assets/icon.svg", "image/svg+xml"),
    ] {
        let (status, headers, body) = running.get(target, &[("cookie", &cookie)]).await;
        assert_eq!(
            (status, headers["content-type"].to_str().unwrap()),
            (StatusCode::OK, kind),
            "{target}"
        );
        assert!(!body.is_empty(), "{target}");
        let head = running.send("HEAD", target, &[("cookie", &cookie)]).await;
        assert_eq!(head.status(), StatusCode::OK, "{target}");
    }
    for target in [
        "/x",
        "/assets/x.js",
        "/assets/../mod.rs",
        "/assets/",
        "/api",
        "/api/nodes/",
    ] {
        running.fails(&cookie, target, StatusCode::NOT_FOUND).await;
    }
    running.end().await;
}

#[tokio::test]
async fn a_page_gets_the_state_and_then_the_changes() {
    let running = Running::start(None).await;
    let cookie = running.log_in().await;
    let mut events = running.events(&cookie).await;
    let (name, state) = events.next().await;
    assert_eq!(name, "state");
    assert_eq!(
        (&state["cluster"], &state["command"], &state["only"], &state["stale"]),
        (
            &json!("kind-test"),
            &json!("kubectl berth --context kind-test"),
            &Value::Null,
            &Value::Null
        )
    );
    let pool = &state["pools"][0];
    assert_eq!(
        (
            &pool["name"],
            &pool["assessment"],
            &pool["completion"],
            &pool["percent"]
        ),
        (&json!("workers"), &json!("Pending"), &json!("0% (0/2)"), &json!(0))
    );
    assert!(pool["nodes"].as_array().is_none_or(Vec::is_empty), "{pool}");
    assert_eq!((&pool["gate"], &pool["estimate"]), (&Value::Null, &json!("?")));
    assert_eq!(pool["summary"][0], "quay.io/example/os:2 = v2 (333333333333)");
    assert_eq!(
        pool["commands"][0],
        json!({ "label": "Pause the rollout", "command": "kubectl berth --context kind-test pause workers" })
    );
    let node = &state["nodes"][0];
    for (field, value) in [
        ("name", json!("n1")),
        ("pool", json!("workers")),
        ("wave", json!("")),
        ("zone", json!("a")),
        ("role", json!("worker")),
        ("assessment", json!("Outdated")),
        ("phase", json!("Pending")),
        ("version", json!("v1")),
        ("target", json!("v2")),
        ("percent", Value::Null),
        ("berth", json!("")),
    ] {
        assert_eq!(node[field], value, "{field}: {node}");
    }
    running.step.send(DRAINS).unwrap();
    let change = events.change(|data| data.get("nodes").is_some()).await;
    let nodes = change["nodes"].as_array().unwrap();
    assert!(
        nodes.len() == 1 && nodes[0]["phase"] == "Draining",
        "only n1 has changed: {change}"
    );
    assert!(
        change.get("gone").is_none() && change.get("fleet").is_none(),
        "{change}"
    );
    let mut second = running.events(&cookie).await;
    let (name, state) = second.next().await;
    assert_eq!((&*name, &state["nodes"][0]["phase"]), ("state", &json!("Draining")));
    running.end().await;
}

#[tokio::test]
async fn an_outage_is_shown_until_it_is_over() {
    let running = Running::start(Some("workers")).await;
    let cookie = running.log_in().await;
    let mut events = running.events(&cookie).await;
    let (_, state) = events.next().await;
    assert_eq!(state["only"], "workers");
    running.step.send(AWAY).unwrap();
    let lost = events.change(|data| data["stale"].is_object()).await;
    assert!(
        lost["stale"]["why"].is_string() && lost["stale"]["since"].is_string(),
        "{lost}"
    );
    let (status, drawer) = running.json(&cookie, "/api/nodes/n1").await;
    assert_eq!(
        (status, &drawer["node"]["name"]),
        (StatusCode::OK, &json!("n1")),
        "the last objects stay"
    );
    running.step.send(BACK).unwrap();
    events.change(|data| data["stale"].is_null()).await;
    running.end().await;
}

#[tokio::test]
async fn the_drawer_explains_as_the_command_does() {
    let running = Running::start(None).await;
    let cookie = running.log_in().await;
    let snapshot = Snapshot::read(&running.client, "berth-system", Scope::Preview)
        .await
        .unwrap();
    for name in ["n1", "n2"] {
        let (status, drawer) = running.json(&cookie, &format!("/api/nodes/{name}")).await;
        assert_eq!(status, StatusCode::OK, "{drawer}");
        let now: Timestamp = drawer["now"].as_str().unwrap().parse().unwrap();
        let expected = explanation(&snapshot, name, now).unwrap();
        assert!(!expected.why.is_empty(), "{expected:?}");
        assert_eq!(drawer["explanation"], serde_json::to_value(expected).unwrap());
        let text = render_explanation(&snapshot, name, now, 0).unwrap();
        assert_eq!(drawer["explanationText"], json!(text));
        assert_eq!(drawer["story"]["name"], json!(name));
        assert!(
            drawer["storyText"]
                .as_str()
                .unwrap()
                .starts_with(&format!("Node {name}, of pool workers"))
        );
        assert_eq!(drawer["node"]["name"], json!(name));
        assert!(
            drawer["fields"]
                .as_array()
                .unwrap()
                .contains(&json!("rollout.maxUnavailable"))
        );
        assert_eq!(drawer["whatIf"], json!([]));
        assert_eq!(
            drawer["commands"][2]["command"],
            format!("kubectl berth --context kind-test hold {name}")
        );
    }
    let (_, second) = running.json(&cookie, "/api/nodes/n2").await;
    let text = second["explanationText"].as_str().unwrap();
    assert!(text.contains("n2"), "{text}");
    running.end().await;
}

#[tokio::test]
async fn a_setting_is_tried_without_a_change() {
    let running = Running::start(None).await;
    let cookie = running.log_in().await;
    let (_, before) = running.json(&cookie, "/api/nodes/n1").await;
    let paused = "/api/nodes/n1?whatIf=rollout.paused%3Dtrue&whatIf=rollout.maxUnavailable%3D2";
    let (status, then) = running.json(&cookie, paused).await;
    assert_eq!(status, StatusCode::OK, "{then}");
    assert_eq!(
        then["whatIf"],
        json!(["rollout.paused=true", "rollout.maxUnavailable=2"])
    );
    assert!(then["explanationText"].as_str().unwrap().contains("paused"), "{then}");
    let (_, after) = running.json(&cookie, "/api/nodes/n1").await;
    assert_eq!(
        before["explanation"], after["explanation"],
        "the pool keeps its own settings"
    );
    for (wrong, words) in [
        ("rollout", "write a field"),
        ("rollout.nothing%3D1", "existing fields"),
        ("rollout.maxFailures%3D65", "a whole number from 1 to 64"),
        ("rollout.maxUnavailable%3D99", "the API server would refuse this change"),
    ] {
        let (status, error) = running.json(&cookie, &format!("/api/nodes/n1?whatIf={wrong}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}: {error}");
        assert!(error["error"].as_str().unwrap().contains(words), "{wrong}: {error}");
    }
    running.end().await;
}

#[tokio::test]
async fn a_timeline_is_drawn_in_parts() {
    let running = Running::start(None).await;
    let cookie = running.log_in().await;
    let (status, headers, svg) = running.get("/api/timeline/workers", &[("cookie", &cookie)]).await;
    assert_eq!(
        (status, &headers["berth-rows"]),
        (StatusCode::OK, &"2".parse().unwrap())
    );
    assert_eq!(headers["content-type"], "image/svg+xml");
    assert!(svg.contains(">n1<") && svg.contains(">n2<"), "{svg}");
    assert_eq!(headers.get("berth-running"), None, "each update has ended");
    let part = "/api/timeline/workers?from=1&rows=1";
    let (_, headers, svg) = running.get(part, &[("cookie", &cookie)]).await;
    assert!(
        headers["berth-rows"] == "2" && svg.matches("class=\"node\"").count() == 1,
        "{svg}"
    );
    for (target, expected) in [
        ("/api/timeline/infra", StatusCode::NOT_FOUND),
        ("/api/timeline/workers?rows=x", StatusCode::BAD_REQUEST),
        ("/api/timeline/workers?from=-1", StatusCode::BAD_REQUEST),
        ("/api/nodes/n9", StatusCode::NOT_FOUND),
        ("/api/nodes/N1", StatusCode::NOT_FOUND),
        ("/api/nodes/n%2F1", StatusCode::NOT_FOUND),
    ] {
        running.fails(&cookie, target, expected).await;
    }
    running.end().await;
}

#[tokio::test]
async fn the_number_of_pages_is_limited() {
    let running = Running::start(None).await;
    let cookie = running.log_in().await;
    let mut open = vec![];
    for _ in 0..4 {
        open.push(running.events(&cookie).await);
    }
    let (status, error) = running.json(&cookie, "/api/events").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{error}");
    open.pop();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let response = running.send("GET", "/api/events", &[("cookie", &cookie)]).await;
        if response.status() == StatusCode::OK {
            running.end().await;
            return;
        }
    }
    panic!("the place of a closed page stays taken");
}

#[tokio::test]
async fn requests_that_never_end_shut_nobody_out() {
    let running = Running::start(None).await;
    let mut open = vec![];
    for _ in 0..100 {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", running.port)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
        open.push(stream);
    }
    running.log_in().await;
    running.end().await;
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (_step, seen) = steps::channel(0);
    let dashboard = Dashboard {
        about: About::of("c".to_owned(), None, None, None),
        namespace: "berth-system".to_owned(),
        port,
        opens: false,
        limit: Duration::from_secs(5),
    };
    let client = client(seen, items);
    let failed = serve(&client, dashboard, Kept::default(), std::future::pending()).await;
    let error = format!("{:#}", failed.unwrap_err());
    assert!(
        error.contains(&format!("port {port}")) && error.contains("--port"),
        "{error}"
    );
}
