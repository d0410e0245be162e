//! `skopeo inspect` on a simulated host: queries real registries over plain HTTP and prints skopeo's messages.

use anyhow::{Context, Result};
use berth_api::Digest;
use bytes::Bytes;
use serde_json::Value;

use crate::images::RegistryClient;

/// Output of `skopeo inspect` with these arguments: a manifest (`--raw`) or a configuration (`--config --raw`).
/// `logs_in` is true if the registry accepts the given credentials.
pub(super) async fn inspect(arguments: &[&str], is_down: bool, logs_in: bool) -> Result<Bytes, String> {
    let Some(image) = arguments.last().and_then(|last| last.strip_prefix("docker://")) else {
        return Err(fatal("Exactly one image is expected"));
    };
    let inspected = inspect_image(image, arguments.contains(&"--config"), is_down, logs_in).await;
    inspected.map_err(|why| fatal(&format!("Error parsing image name \\\"docker://{image}\\\": {why}")))
}

async fn inspect_image(image: &str, wants_config: bool, is_down: bool, logs_in: bool) -> Result<Bytes, String> {
    let (registry, repository, reference) = parts(image).ok_or("invalid reference format")?;
    let silent = format!("pinging container registry {registry}: Get \\\"http://{registry}/v2/\\\"");
    if is_down {
        return Err(format!("{silent}: dial tcp 192.0.2.1:443: connect: connection refused"));
    }
    let reading = format!("reading manifest {reference} in {registry}/{repository}");
    if !logs_in {
        return Err(format!("{reading}: unauthorized: authentication required"));
    }
    let refused = format!("{silent}: connect: connection refused");
    let client = RegistryClient::new(&format!("http://{registry}"));
    let manifest = client
        .manifest(repository, reference)
        .await
        .map_err(|_| refused.clone())?;
    let manifest = manifest.ok_or_else(|| format!("{reading}: manifest unknown"))?.bytes;
    if !wants_config {
        return Ok(manifest);
    }
    let digest = config_of(&manifest).map_err(|error| error.to_string())?;
    let config = client.blob(repository, &digest).await.map_err(|_| refused)?;
    config.ok_or_else(|| "blob unknown to registry".to_owned())
}

/// Credentials file in the arguments, unless they forbid credentials.
pub(super) fn auth_file<'a>(arguments: &[&'a str]) -> Option<&'a str> {
    if arguments.contains(&"--no-creds") {
        return None;
    }
    let named = arguments.windows(2).find(|pair| pair[0] == "--authfile")?;
    Some(named[1])
}

/// Returns registry, repository, and tag or digest.
fn parts(image: &str) -> Option<(&str, &str, &str)> {
    let (registry, rest) = image.split_once('/')?;
    let (repository, reference) = rest.split_once('@').or_else(|| rest.rsplit_once(':'))?;
    Some((registry, repository, reference))
}

fn config_of(manifest: &[u8]) -> Result<Digest> {
    let manifest: Value = serde_json::from_slice(manifest)?;
    let digest = manifest["config"]["digest"].as_str().context("no configuration")?;
    Ok(digest.parse()?)
}

fn fatal(why: &str) -> String {
    format!("time=\"2026-11-01T00:00:00Z\" level=fatal msg=\"{why}\"")
}
