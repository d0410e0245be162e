//! `skopeo inspect` on a simulated host: queries real registries over plain HTTP and prints skopeo's messages.

use anyhow::{Context, Result};
use berth_api::Digest;
use bytes::Bytes;
use serde_json::Value;

use crate::images::RegistryClient;

/// Output of `skopeo inspect` with these arguments: a manifest (`--raw`) or a configuration (`--config --raw`). `logs_in`: the
/// registry accepts the given credentials.
///
/// # Errors
/// Skopeo's message, as a line of its log.
pub(super) async fn inspect(arguments: &[&str], is_down: bool, logs_in: bool) -> Result<Bytes, String> {
    let Some(image) = arguments.last().and_then(|last| last.strip_prefix("docker://")) else {
        return Err(fatal("Exactly one image is expected"));
    };
    let failed = |why: &str| fatal(&format!("Error parsing image name \\\"docker://{image}\\\": {why}"));
    let Some((registry, repository, reference)) = parts(image) else {
        return Err(failed("invalid reference format"));
    };
    let away = |why: &str| {
        failed(&format!(
            "pinging container registry {registry}: Get \\\"http://{registry}/v2/\\\": {why}"
        ))
    };
    if is_down {
        return Err(away("dial tcp 192.0.2.1:443: connect: connection refused"));
    }
    if !logs_in {
        return Err(failed(&format!(
            "reading manifest {reference} in {registry}/{repository}: unauthorized: authentication required"
        )));
    }
    let client = RegistryClient::new(&format!("http://{registry}"));
    let unknown = || {
        failed(&format!(
            "reading manifest {reference} in {registry}/{repository}: manifest unknown"
        ))
    };
    let manifest = client.manifest(repository, reference).await;
    let manifest = manifest
        .map_err(|_| away("connect: connection refused"))?
        .ok_or_else(unknown)?
        .bytes;
    if !arguments.contains(&"--config") {
        return Ok(manifest);
    }
    let digest = config_of(&manifest).map_err(|error| failed(&error.to_string()))?;
    let config = client.blob(repository, &digest).await;
    config
        .map_err(|_| away("connect: connection refused"))?
        .ok_or_else(|| failed("blob unknown to registry"))
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
