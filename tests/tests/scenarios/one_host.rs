//! Fixture of the agent's host side: a simulated host, and three images that exist.

use anyhow::Result;
use berth_agent::host::{Host, HostRoot};
use berth_api::Digest;
use berth_api::node::DesiredImage;
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
    /// Starts the host with these changes to its configuration.
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

    /// Number of pulls that were started.
    pub fn pulls(&self) -> usize {
        let events = self.log.events();
        events
            .iter()
            .filter(|e| matches!(e.change, HostChange::PullStarted { .. }))
            .count()
    }
}

/// The image of this digest, as a pool asks for it.
pub fn image(digest: &Digest) -> DesiredImage {
    DesiredImage {
        reference: format!("{REPOSITORY}@{digest}"),
        digest: digest.clone(),
        index_digest: digest.clone(),
        version: None,
        signature: berth_api::pool::SignatureRule::AsBooted,
    }
}
