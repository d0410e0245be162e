//! A simulated API server that changes in steps, for commands that watch.

use futures::stream::{BoxStream, StreamExt, once, pending};
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch as steps;
use tower::service_fn;

type Answer = Response<StreamBody<BoxStream<'static, std::io::Result<Frame<Bytes>>>>>;

/// Steps of the simulated server, in order.
pub const DRAINS: u8 = 1;
pub const AWAY: u8 = 2;
pub const BACK: u8 = 3;
/// The server answers all reads with 404, as if Berth were not installed.
pub const MISSING: u8 = 4;
/// The server answers all reads with 403.
pub const FORBIDDEN: u8 = 5;

pub fn bootc_node(phase: &str) -> Value {
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

/// Returns the objects of the list at a path: one pool with one node.
pub fn items(path: &str) -> Vec<Value> {
    match path {
        path if path.ends_with("/bootcnodes") => vec![bootc_node("Waiting")],
        path if path.ends_with("/bootcnodepools") => {
            let spec = json!({ "nodeSelector": {}, "image": { "ref": "r" } });
            vec![json!({ "metadata": { "name": "workers", "resourceVersion": "1" }, "spec": spec })]
        }
        _ => vec![],
    }
}

/// Returns the objects of the list at a path.
pub type Items = fn(&str) -> Vec<Value>;

/// Returns a client of a simulated server with these objects.
pub fn client(step: steps::Receiver<u8>, items: Items) -> Client {
    Client::new(
        service_fn(move |request| answer(request, step.clone(), items)),
        "default",
    )
}

fn list(items: Vec<Value>) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items })
}

/// Returns the body of an error.
fn refusal(code: u16, message: &str) -> Value {
    let reason = if code == 404 { "NotFound" } else { "" };
    json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code,
    })
}

/// Answers a write, which is always a dry run. Refuses the number 99.
async fn dry_run(request: Request<Body>) -> std::io::Result<Answer> {
    assert!(
        request.uri().query().unwrap_or_default().contains("dryRun=All"),
        "{request:?}"
    );
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect_bytes().await.unwrap();
    let is_refused = String::from_utf8_lossy(&body).contains("99");
    let (code, answer) = match is_refused {
        true => (422, refusal(422, "maxUnavailable is too high")),
        false => (
            200,
            json!({ "metadata": { "name": path.rsplit('/').next() }, "spec": { "image": { "ref": "r" } } }),
        ),
    };
    let body = once(async move { line(&answer) }).boxed();
    Ok(Response::builder().status(code).body(StreamBody::new(body)).unwrap())
}

fn line(value: &Value) -> std::io::Result<Frame<Bytes>> {
    Ok(Frame::data(Bytes::from(format!("{value}\n"))))
}

/// Answers a request to the simulated server. A list is answered at once. The watch of BootcNodes reports the drain.
/// Every watch breaks when the server goes down (`AWAY`).
async fn answer(request: Request<Body>, mut step: steps::Receiver<u8>, items: Items) -> std::io::Result<Answer> {
    if *step.borrow() == AWAY {
        return Err(std::io::Error::other("connection refused"));
    }
    let refused = match *step.borrow() {
        MISSING => Some((404, "404 page not found")),
        FORBIDDEN => Some((403, "bootcnodepools.berth.dev is forbidden: you may not list them")),
        _ => None,
    };
    if let Some((code, message)) = refused {
        let status = refusal(code, message);
        let body = once(async move { line(&status) }).boxed();
        return Ok(Response::builder().status(code).body(StreamBody::new(body)).unwrap());
    }
    if request.method() != "GET" {
        return dry_run(request).await;
    }
    let (path, query) = (
        request.uri().path().to_owned(),
        request.uri().query().unwrap_or_default(),
    );
    let body = match query.contains("watch=true") {
        false => match path.ends_with("/bootcfleets/cluster") {
            true => {
                let missing = line(&refusal(404, "not found"));
                let body = once(async move { missing }).boxed();
                return Ok(Response::builder().status(404).body(StreamBody::new(body)).unwrap());
            }
            false => once(async move { line(&list(items(&path))) }).boxed(),
        },
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
