//! The state of a host according to ostree, systemd and rpm-ostree's daemon. Berth is not queried.

use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result};
use berth_api::backend::Backend;
use berth_tests::cluster::Published;
use berth_tests::hosts::real::RealHost;
use berth_tests::hosts::real::ostree::{META_DIGEST, unquote};
use berth_tests::rpmostreed::SOCKET;
use berth_tests::rpmostreed::client::Client;
use serde_json::Value;

/// The other file that locks a staged deployment. ostree checks it; bootc does not show it.
const LOCK: &str = "/run/ostree/staged-deployment-locked";

#[derive(Debug)]
pub(super) struct Staged {
    pub(super) digest: String,
    /// True if a shutdown discards it.
    pub(super) locked: bool,
}

pub(super) async fn staged(host: &RealHost) -> Result<Option<Staged>> {
    let text = host
        .exec(&["bootc", "status", "--format=json", "--format-version=1"])
        .await?;
    let status: Value = serde_json::from_str(&text).context("bootc status")?;
    let staged = &status["status"]["staged"];
    let Some(commit) = staged["ostree"]["checksum"].as_str() else {
        return Ok(None);
    };
    Ok(Some(Staged {
        digest: image_of(host, commit).await?,
        locked: staged["downloadOnly"] == true || host.path(LOCK)?.exists(),
    }))
}

/// The manifest digest of a commit. For a commit with layered packages bootc shows no image; its parent has the digest.
async fn image_of(host: &RealHost, commit: &str) -> Result<String> {
    let key = format!("--print-metadata-key={META_DIGEST}");
    let show = ["ostree", "show", "--repo=/sysroot/ostree/repo", &key];
    if let Ok(digest) = host.exec(&[&show[..], &[commit]].concat()).await {
        return unquote(&digest);
    }
    let parent = format!("{commit}^");
    unquote(&host.exec(&[&show[..], &[&parent]].concat()).await?)
}

/// An identifier of the running pull of an image on a host, unique for each pull; empty if none runs.
pub(super) async fn pull(backend: Backend, host: &RealHost, image: &Published) -> Result<String> {
    match backend {
        Backend::Bootc => unit(host, image).await,
        Backend::RpmOstree => transaction(host).await,
    }
}

async fn unit(host: &RealHost, image: &Published) -> Result<String> {
    let digest = image.digest.to_string();
    let hex = digest
        .trim_start_matches("sha256:")
        .get(..16)
        .unwrap_or_default()
        .to_owned();
    let unit = format!("berth-pull-{hex}.service");
    let show = [
        "systemctl",
        "show",
        "--property=ActiveState,InvocationID",
        unit.as_str(),
    ];
    let text = host.exec(&show).await?;
    if !text.lines().any(|line| line == "ActiveState=activating") {
        return Ok(String::new());
    }
    let id = text.lines().find_map(|line| line.strip_prefix("InvocationID="));
    Ok(id.unwrap_or_default().to_owned())
}

/// Inode number of the transaction's socket, which differs for each transaction; empty without a transaction.
async fn transaction(host: &RealHost) -> Result<String> {
    let run = host.path("/run")?;
    let daemon = Client::connect(&host.bus_address()?, &run).await?;
    let address = daemon.sysroot().await?.active_transaction_path().await;
    if address
        .context("rpm-ostree's daemon does not name its transaction")?
        .is_empty()
    {
        return Ok(String::new());
    }
    Ok(std::fs::metadata(run.join(SOCKET))?.ino().to_string())
}
