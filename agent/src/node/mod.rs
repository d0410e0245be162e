//! Access to the agent's own Node and its pods, with the kubelet's identity.
//!
//! The kubelet may write this Node and evict or delete its pods; the API server rejects everything beyond that
//! (invariant I6). Small types of our own parse the objects: the agent needs few fields, and the full types would be a
//! good part of its size.

pub mod cordon;
pub mod drain;
pub mod evict;
pub mod lifecycle;
pub mod pods;
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

/// Sends an empty patch of a Node as a dry run, to find out whether a write would be accepted.
///
/// # Errors
/// When the write is rejected, or there is no answer.
pub async fn try_patch(client: &Client, name: &str) -> Result<(), RequestError> {
    let path = format!("/api/v1/nodes/{name}?dryRun=All");
    let request = request("PATCH", &path, b"{}".to_vec(), "application/merge-patch+json")?;
    send::<IgnoredAny>(client, request).await.map(drop)
}

/// Builds a request. Fails only for an invalid path, which names from the API server never make.
fn request(method: &str, path: &str, body: Vec<u8>, content_type: &str) -> Result<Request<Vec<u8>>, RequestError> {
    Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", content_type)
        .body(body)
        .map_err(|error| kube::Error::HttpError(error).into())
}
