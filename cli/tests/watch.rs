//! `status --watch` with a simulated API server: its output after a change, while the server is down, and at the end.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail like the test")]

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt, once, pending};
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use kubectl_berth::Detail;
use kubectl_berth::watch::{Watching, watch};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch as steps};
use tower::service_fn;

type Answer = Response<StreamBody<BoxStream<'static, std::io::Result<Frame<Bytes>>>>>;

/// Steps of the simulated server, in order.
const DRAINS: u8 = 1;
const AWAY: u8 = 2;
const BACK: u8 = 3;
/// The server answers all reads with 404, as if Berth were not installed.
const MISSING: u8 = 4;
/// The server answers all reads with 403.
const FORBIDDEN: u8 = 5;

fn bootc_node(phase: &str) -> Value {
    let digest = |c: &str| format!("sha256:{}", c.repeat(64));
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode", "metadata": { "name": "n1", "resourceVersion": "2" },
        "spec": {
            "poolName": "workers", "nodeUID": "u",
            "image": { "ref": "r", "digest": digest("2"), "indexDigest": digest("2"), "version": "v2" },
        },
        "status": {
            "phase": phase,
            "booted": { "image": "r", "digest": digest("1"), "version": "v1", "architecture": "amd64" },
        },
    })
}

fn list(path: &str) -> Value {
    let items = match path {
        path if path.ends_with("/bootcnodes") => vec![bootc_node("Waiting")],
        path if path.ends_with("/bootcnodepools") => {
            let spec = json!({ "nodeSelector": {}, "image": { "ref": "r" } });
            vec![json!({ "metadata": { "name": "workers", "resourceVersion": "1" }, "spec": spec })]
        }
        _ => vec![],
    };
    json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items })
}

fn line(value: &Value) -> std::io::Result<Frame<Bytes>> {
    Ok(Frame::data(Bytes::from(format!("{value}\n"))))
}

/// Answers a request to the simulated server. A list is answered at once. The watch of BootcNodes reports the drain.
/// Every watch breaks when the server goes down (`AWAY`).
async fn answer(request: Request<Body>, mut step: steps::Receiver<u8>) -> std::io::Result<Answer> {
    if *step.borrow() == AWAY {
        return Err(std::io::Error::other("connection refused"));
    }
    let refusal = match *step.borrow() {
        MISSING => Some((404, "404 page not found")),
        FORBIDDEN => Some((403, "bootcnodepools.berth.dev is forbidden: you may not list them")),
        _ => None,
    };
    if let Some((code, message)) = refusal {
        let status =
            json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": message, "code": code });
        let body = once(async move { line(&status) }).boxed();
        return Ok(Response::builder().status(code).body(StreamBody::new(body)).unwrap());
    }
    let (path, query) = (
        request.uri().path().to_owned(),
        request.uri().query().unwrap_or_default(),
    );
    let body = match query.contains("watch=true") {
        false => once(async move { line(&list(&path)) }).boxed(),
        true => {
            let is_back = *step.borrow() == BACK;
            let mut waits = step.clone();
            let drains = once(async move {
                waits.wait_for(|step| *step == DRAINS).await.unwrap();
                line(&json!({ "type": "MODIFIED", "object": bootc_node("Draining") }))
            });
            let breaks = once(async move {
                step.wait_for(|step| *step == AWAY).await.unwrap();
                Err(std::io::Error::other("connection reset"))
            });
            match (is_back, path.ends_with("/bootcnodes")) {
                (true, _) => pending().boxed(),
                (false, true) => drains.chain(breaks).boxed(),
                (false, false) => breaks.boxed(),
            }
        }
    };
    Ok(Response::new(StreamBody::new(body)))
}

/// Output that is collected in memory.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Kept {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Waits until the output contains the text.
    async fn says(&self, text: &str) {
        for _ in 0..600 {
            if self.text().contains(text) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{text:?} is not said:\n{}", self.text());
    }
}

fn watching(pool: Option<&str>, colours: Option<bool>) -> Watching {
    Watching {
        namespace: "berth-system".to_owned(),
        pool: pool.map(str::to_owned),
        detail: Detail::default(),
        limit: Duration::from_secs(2),
        colours,
    }
}

/// Runs a watch through these steps: each must print its text before the next begins. Returns the whole output and the
/// result of the watch.
async fn story(watching: Watching, at: u8, says: &[(u8, &str)]) -> (String, anyhow::Result<()>) {
    let (step, seen) = steps::channel(at);
    let client = Client::new(service_fn(move |request| answer(request, seen.clone())), "default");
    let out = Kept::default();
    let (end, ended) = oneshot::channel::<()>();
    let watched = watch(&client, &watching, out.clone(), async { drop(ended.await) });
    let script = async {
        for (next, text) in says {
            step.send(*next).unwrap();
            out.says(text).await;
        }
        if !says.is_empty() {
            end.send(()).unwrap();
        } else {
            std::future::pending::<()>().await;
        }
    };
    let mut watched = std::pin::pin!(watched);
    let done = tokio::select! {
        done = &mut watched => done,
        () = script => watched.await,
    };
    (out.text(), done)
}

#[tokio::test]
async fn lines_follow_the_watches_through_an_outage() {
    let says = [
        (
            0,
            "pool workers: Pending, 0% (0/1): 1 Available, 0 Progressing, 0 Draining\n",
        ),
        (DRAINS, "node n1: Progressing, Draining, v1\n"),
        (AWAY, " old ("),
        (BACK, "up to date again\n"),
    ];
    let (text, done) = story(watching(Some("workers"), None), 0, &says).await;
    done.unwrap();
    assert!(!text.contains('\x1b'), "{text}");
    assert_eq!(text.matches(" old (").count(), 1, "{text}");
}

#[tokio::test]
async fn a_terminal_is_drawn_again_and_given_back() {
    let says = [(0, "Outdated"), (DRAINS, "1 Draining"), (AWAY, "! the data is ")];
    let (text, done) = story(watching(None, Some(true)), 0, &says).await;
    done.unwrap();
    assert!(text.starts_with("\x1b[?25l"), "the cursor is hidden: {text:?}");
    assert!(text.ends_with("\x1b[?25h"), "and shown again: {text:?}");
    assert!(text.contains("\x1b[36mProgressing\x1b[0m"), "{text:?}");
}

#[tokio::test]
async fn a_missing_server_or_pool_ends_the_watch() {
    let (text, done) = story(watching(None, Some(false)), AWAY, &[]).await;
    let error = format!("{:#}", done.unwrap_err());
    assert!(
        error.contains("did not return all objects within 2 s") && error.contains("connection refused"),
        "{error}"
    );
    assert_eq!(text, "", "nothing is drawn");
    let (_, done) = story(watching(Some("infra"), None), 0, &[]).await;
    assert_eq!(
        done.unwrap_err().to_string(),
        "there is no pool \"infra\"; existing pools: workers"
    );
}

#[tokio::test]
async fn a_cluster_without_berth_or_access_ends_the_watch() {
    for (step, words) in [
        (MISSING, "Berth is not installed in this cluster"),
        (FORBIDDEN, "is forbidden"),
    ] {
        let begun = std::time::Instant::now();
        let watching = Watching {
            limit: Duration::from_secs(60),
            ..watching(None, Some(false))
        };
        let (text, done) = story(watching, step, &[]).await;
        let error = format!("{:#}", done.unwrap_err());
        assert!(error.contains(words), "{error}");
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "the watch does not wait for another answer"
        );
        assert_eq!(text, "", "nothing is drawn");
    }
}
