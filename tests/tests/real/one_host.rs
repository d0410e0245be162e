//! A real host without Kubernetes, and a registry with its images.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_agent::host::{Host, PullState};
use berth_api::node::DesiredImage;
use berth_core::agent::storage::Storage;
use berth_tests::hosts::HostLog;
use berth_tests::hosts::real::{HostOptions, OsImage, OsImages, OsVersion, RealHost, RealHosts, unavailable};
use berth_tests::registry::Registry;

/// True if this machine cannot run real hosts; prints why.
pub fn is_skipped() -> bool {
    let reason = unavailable();
    if let Some(reason) = &reason {
        println!("{reason}");
    }
    reason.is_some()
}

pub fn of_three_layers(name: &str) -> OsVersion {
    OsVersion {
        payload: vec![1 << 20; 3],
        ..OsVersion::new(name)
    }
}

/// A host that runs the first of some versions, and a registry that has all of them.
pub struct OneHost {
    pub host: RealHost,
    pub registry: Registry,
    pub log: HostLog,
    pub versions: Vec<OsImage>,
    pub hosts: RealHosts,
}

impl OneHost {
    /// Starts the host, with these files: path, mode and content.
    pub async fn start(versions: Vec<OsVersion>, files: Vec<(String, u32, Vec<u8>)>) -> Result<Self> {
        let (images, versions) = tokio::task::spawn_blocking(move || -> Result<_> {
            let images = OsImages::ensure(None)?;
            let built: Result<Vec<_>> = versions.iter().map(|version| images.version(version)).collect();
            Ok((images, built?))
        })
        .await??;
        let log = HostLog::default();
        let hosts = RealHosts::new(images, log.clone()).await?;
        let registry = Registry::start(hosts.gateway().into()).await?;
        for version in &versions {
            version.push(&registry.host(), "os", &version.version)?;
        }
        let first = versions.first().context("no version")?;
        let mut options = HostOptions::new("host1", first, &registry.host());
        options.files.extend(files);
        let host = hosts.add(options).await?;
        host.start().await?;
        Ok(Self {
            host,
            registry,
            log,
            versions,
            hosts,
        })
    }

    /// A version, numbered from 1, as the desired image of a pool.
    pub fn desired(&self, version: usize) -> Result<DesiredImage> {
        let image = &self.versions[version - 1];
        let digest: berth_api::Digest = image.digest.parse()?;
        Ok(DesiredImage {
            reference: image.reference(&self.registry.host(), "os").into(),
            index_digest: digest.clone(),
            digest,
            version: None,
            signature: berth_api::pool::SignatureRule::AsBooted,
        })
    }

    pub fn boot_id(&self) -> Result<String> {
        Ok(self.host.boot().context("the host is down")?.boot_id)
    }
}

/// This image by a digest that does not exist.
pub fn unknown(image: &DesiredImage) -> Result<DesiredImage> {
    let digest: berth_api::Digest = format!("sha256:{}", "e".repeat(64)).parse()?;
    let reference = image
        .reference
        .as_str()
        .replace(&image.digest.to_string(), &digest.to_string());
    Ok(DesiredImage {
        reference: reference.into(),
        digest,
        ..image.clone()
    })
}

/// Waits until the pull has ended; returns its result and the number of bytes reported before.
pub async fn ended(host: &Host) -> Result<(PullState, u64)> {
    let mut changes = host.changes();
    let mut bytes = 0;
    for _ in 0..600 {
        bytes = host.pull_progress().map_or(bytes, |p| p.bytes.max(bytes));
        match host.find_pull(None).await?.map(|pull| pull.state) {
            Some(PullState::Running) => {}
            Some(ended) => return Ok((ended, bytes)),
            None => bail!("the pull is gone"),
        }
        let _ = tokio::time::timeout(Duration::from_millis(200), changes.changed()).await;
    }
    bail!("the pull does not end")
}

pub async fn failure_of_pull(host: &Host) -> Result<String> {
    match ended(host).await?.0 {
        PullState::Failed { message } => Ok(message),
        other => bail!("did not fail: {other:?}"),
    }
}

pub async fn lock(host: &Host) -> Result<()> {
    let lock = Storage::Ostree.ostree_lock().context("ostree locks")?;
    Ok(host.lock(lock).await?)
}
