//! A client that tells when the API server sends something on a watch. A watch itself does not tell of bookmarks, and not
//! that it has gone on without a change.

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;

/// Makes such a client. `hear(true)`: the API server has answered a new watch. `hear(false)`: it has sent something on one.
pub fn listening(client: &Client, hear: impl Fn(bool) + Clone + Send + Sync + 'static) -> Client {
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
