//! Fixture of these tests.

use std::time::Duration;

use anyhow::Result;
use berth_tests::hosts::HostLog;
use berth_tests::hosts::sim::{Catalog, SimHost, SimHostConfig};
use berth_tests::wait::eventually;

use super::client::{Client, LOCK};

pub const REPOSITORY: &str = "registry.test/os";
pub const SECOND: Duration = Duration::from_secs(1);

/// A simulated host that runs an old image, and a newer image in the catalog.
pub struct World {
    pub host: SimHost,
    pub log: HostLog,
    pub old: String,
    pub new: String,
}

impl World {
    pub async fn start() -> Result<Self> {
        let (catalog, log) = (Catalog::default(), HostLog::default());
        let (old, new) = (catalog.publish("1.0.0"), catalog.publish("2.0.0"));
        let mut config = SimHostConfig::new("node-1", REPOSITORY, &old, &catalog, &log);
        config.settings.reboot_time = Duration::from_millis(100);
        let host = SimHost::start(config).await?;
        std::fs::create_dir_all(host.root().join("run/berth"))?;
        Ok(Self { host, log, old, new })
    }

    pub async fn client(&self) -> Result<Client> {
        Client::connect(&self.host).await
    }

    pub fn target(&self) -> String {
        format!("{REPOSITORY}@{}", self.new)
    }

    pub fn pull_unit(&self) -> String {
        format!("berth-pull-{}.service", &self.new[7..23])
    }

    pub async fn pull(&self, client: &Client) -> Result<String> {
        let ended = client
            .run(&self.pull_unit(), &["/usr/bin/bootc", "switch", &self.target()], LOCK)
            .await?;
        Ok(ended.job)
    }

    pub async fn rebooted(&self, since: &str) -> Result<()> {
        eventually("the host reboots", SECOND * 30, async || {
            Ok(self.host.facts().boot_id.is_some_and(|id| id != since))
        })
        .await?;
        std::fs::create_dir_all(self.host.root().join("run/berth"))?;
        Ok(())
    }
}
