//! The agent's own Node and the pods on it, under the kubelet's identity.
//!
//! That identity can write this Node and evict or delete the pods of this Node, and the API server sees to it that it
//! can do no more (invariant I6). The objects are read into small types of our own: of a Node and a Pod the agent
//! needs very little, and their full types would be a good part of its size.

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

use crate::clients::{REQUEST_DEADLINE, RequestError, with_deadline};

/// Sends a request and reads its answer.
async fn send<T: DeserializeOwned>(client: &Client, request: Request<Vec<u8>>) -> Result<T, RequestError> {
    with_deadline(REQUEST_DEADLINE, client.request(request)).await
}

/// Tries a write that changes nothing of a Node, as a dry run: whether it would be done.
///
/// # Errors
/// When it would not be done, or there is no answer.
pub async fn try_patch(client: &Client, name: &str) -> Result<(), RequestError> {
    let path = format!("/api/v1/nodes/{name}?dryRun=All");
    let request = request("PATCH", &path, b"{}".to_vec(), "application/merge-patch+json")?;
    send::<IgnoredAny>(client, request).await.map(drop)
}

/// Makes a request for this path. Names that come from the API server always make a valid path; building fails for any
/// other.
fn request(method: &str, path: &str, body: Vec<u8>, content_type: &str) -> Result<Request<Vec<u8>>, RequestError> {
    Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", content_type)
        .body(body)
        .map_err(|error| kube::Error::HttpError(error).into())
}
