//! Fixture of the agent's host side: a simulated host, and three images that exist.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_agent::host::{Host, HostRoot, PullState};
use berth_api::Digest;
use berth_api::node::DesiredImage;
use berth_core::agent::storage::Storage;
use berth_tests::hosts::sim::{Catalog, SimHost, SimHostConfig};
use berth_tests::hosts::{HostChange, HostLog};

pub const REPOSITORY: &str = "registry.test/os";

/// A host that runs the first image.
pub struct World {
    pub sim: SimHost,
    pub log: HostLog,
    pub v1: Digest,
    pub v2: Digest,
    pub v3: Digest,
}

impl World {
    pub async fn start(change: impl FnOnce(&mut SimHostConfig)) -> Result<Self> {
        let (catalog, log) = (Catalog::default(), HostLog::default());
        let [v1, v2, v3] = ["1.0.0", "2.0.0", "3.0.0"].map(|version| catalog.publish(version));
        let mut config = SimHostConfig::new("n1", REPOSITORY, &v1, &catalog, &log);
        change(&mut config);
        let sim = SimHost::start(config).await?;
        Ok(Self {
            sim,
            log,
            v1: v1.parse()?,
            v2: v2.parse()?,
            v3: v3.parse()?,
        })
    }

    /// Connects as an agent that was just started.
    pub async fn agent(&self) -> Result<Host> {
        Host::connect(Some(&self.sim.bus_address()), HostRoot::new(self.sim.root())).await
    }

    pub fn pulls(&self) -> usize {
        let events = self.log.events();
        events
            .iter()
            .filter(|e| matches!(e.change, HostChange::PullStarted { .. }))
            .count()
    }
}

/// The image of this digest, as the desired image of a pool.
pub fn image(digest: &Digest) -> DesiredImage {
    DesiredImage {
        reference: format!("{REPOSITORY}@{digest}").into(),
        digest: digest.clone(),
        index_digest: digest.clone(),
        version: None,
        signature: berth_api::pool::SignatureRule::AsBooted,
    }
}

/// Waits for signals of the host until the pull has ended.
pub async fn ended(host: &Host) -> Result<PullState> {
    let mut changes = host.changes();
    for _ in 0..600 {
        match host.find_pull(None).await?.map(|pull| pull.state) {
            Some(PullState::Running) => {}
            Some(ended) => return Ok(ended),
            None => bail!("the pull is gone"),
        }
        let _ = tokio::time::timeout(Duration::from_millis(200), changes.changed()).await;
    }
    bail!("the pull does not end")
}

pub async fn failure_of_pull(host: &Host) -> Result<String> {
    match ended(host).await? {
        PullState::Failed { message } => Ok(message),
        other => bail!("did not fail: {other:?}"),
    }
}

pub async fn is_pulling(host: &Host) -> Result<bool> {
    let state = host.find_pull(None).await?.map(|pull| pull.state);
    Ok(state == Some(PullState::Running))
}

pub async fn lock(host: &Host) -> Result<()> {
    let lock = Storage::Ostree.ostree_lock().context("ostree locks")?;
    Ok(host.lock(lock).await?)
}
