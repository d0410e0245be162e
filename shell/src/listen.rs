//! Clients that report the answers of the API server. One reports when a watch receives data: kube's own watch stream
//! does not report bookmarks, and does not report a restarted watch without new events.

use http::HeaderMap;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;

/// Returns a client that calls `hear` with true when the API server accepts a watch, and with false when it sends data
/// on a watch.
pub fn with_watch_listener(client: &Client, hear: impl Fn(bool) + Clone + Send + Sync + 'static) -> Client {
    let inner = client.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (hear, inner) = (hear.clone(), inner.clone());
        let parameters = request.uri().query().unwrap_or_default();
        let watches = parameters.split('&').any(|parameter| parameter == "watch=true");
        async move {
            let answer = inner.send(request).await?;
            let hears = watches && answer.status().is_success();
            if hears {
                hear(true);
            }
            Ok::<_, kube::Error>(answer.map(|body| {
                body.map_frame(move |frame| {
                    if hears {
                        hear(false);
                    }
                    frame
                })
            }))
        }
    });
    Client::new(service, client.default_namespace())
}

/// Returns a client that calls `hear` with the headers of each answer.
pub fn with_header_listener(client: &Client, hear: impl Fn(&HeaderMap) + Clone + Send + Sync + 'static) -> Client {
    let inner = client.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (hear, inner) = (hear.clone(), inner.clone());
        async move {
            let answer = inner.send(request).await?;
            hear(answer.headers());
            Ok::<_, kube::Error>(answer)
        }
    });
    Client::new(service, client.default_namespace())
}
