//! Access to this agent's Node and its pods, with the kubelet's identity.
//!
//! The API server permits the kubelet to write this Node and to evict or delete its pods, and rejects writes to other
//! nodes (invariant I6). The objects are parsed into small types of this crate: the agent needs few of their fields,
//! and the full types would noticeably enlarge the program.

pub mod cordon;
pub mod drain;
pub mod evict;
pub mod lifecycle;
pub mod pods;
pub mod ready_pods;
pub mod rivals;
pub mod settings;
mod volumes;

use http::Request;
use kube::Client;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::clients::{REQUEST_TIMEOUT, RequestError, with_deadline};

async fn send<T: DeserializeOwned>(client: &Client, request: Request<Vec<u8>>) -> Result<T, RequestError> {
    with_deadline(REQUEST_TIMEOUT, client.request(request)).await
}

/// Sends an empty patch of a Node as a dry run, which shows whether the API server would accept a write.
pub async fn try_patch(client: &Client, name: &str) -> Result<(), RequestError> {
    let path = format!("/api/v1/nodes/{name}?dryRun=All");
    let request = request("PATCH", &path, b"{}".to_vec(), "application/merge-patch+json")?;
    send::<IgnoredAny>(client, request).await.map(drop)
}

/// Builds a request. Fails only for an invalid path. Names from the API server give a valid path.
fn request(method: &str, path: &str, body: Vec<u8>, content_type: &str) -> Result<Request<Vec<u8>>, RequestError> {
    Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", content_type)
        .body(body)
        .map_err(|error| kube::Error::HttpError(error).into())
}
