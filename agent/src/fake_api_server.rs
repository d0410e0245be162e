//! A fake API server for unit tests: a function answers each request.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// A request to the fake server. `path` includes the query. `user` is the impersonated user.
pub(crate) struct Call {
    pub user: Option<String>,
    pub method: Method,
    pub path: String,
    pub body: Value,
}

/// Returns a client of a fake API server. `answer` returns the status code and the object for each request.
pub(crate) fn client(answer: impl Fn(&Call) -> (u16, Value) + Send + Sync + 'static) -> Client {
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let user = head.headers.get("impersonate-user");
            let call = Call {
                user: user.map(|value| value.to_str().unwrap().to_owned()),
                method: head.method,
                path: head.uri.to_string(),
                body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            };
            let (code, object) = answer(&call);
            let body = Body::from(object.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(service, "ns")
}
