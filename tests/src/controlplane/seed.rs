//! Objects that are written directly to etcd. Creating tens of thousands of them by requests would take most of an
//! hour. The API server reads them in JSON as well as in its own encoding.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::plane::ControlPlane;
use super::servers::etcd_url;

const AT_ONCE: usize = 16;

impl ControlPlane {
    /// Writes objects to their keys below `/registry/`. The API server must be stopped: its watch cache would take minutes to see
    /// them all.
    pub async fn seed(&self, objects: impl Iterator<Item = (String, Value)>) -> Result<()> {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let url = format!("{}/v3/kv/put", etcd_url(self.layout.etcd_port()));
        stream::iter(objects.map(|(key, object)| put(&client, &url, key, object)))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }
}

async fn put(client: &Client<HttpConnector, Full<Bytes>>, url: &str, key: String, object: Value) -> Result<()> {
    let body = json!({
        "key": STANDARD.encode(format!("/registry/{key}")),
        "value": STANDARD.encode(object.to_string()),
    });
    let request = Request::post(url).body(Full::from(body.to_string()))?;
    let answer = client.request(request).await.context("etcd does not answer")?;
    let status = answer.status();
    let words = answer.into_body().collect().await?.to_bytes();
    ensure!(
        status.is_success(),
        "etcd: {status}: {}",
        String::from_utf8_lossy(&words)
    );
    Ok(())
}
