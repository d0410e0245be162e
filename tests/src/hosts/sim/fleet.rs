//! Many simulated hosts at once.

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};

use super::host::{SimHost, SimHostConfig};

/// Number of hosts that are created at the same time. It is limited because each host starts processes.
const AT_ONCE: usize = 16;

/// The hosts of a test.
#[derive(Debug, Clone, Default)]
pub struct SimFleet {
    /// Hosts, sorted by number.
    pub hosts: Vec<SimHost>,
}

impl SimFleet {
    /// Creates and boots `n` hosts; `config` returns the configuration of each by number, from 0.
    pub async fn start(n: usize, config: impl Fn(usize) -> SimHostConfig) -> Result<Self> {
        let starting = stream::iter((0..n).map(|i| SimHost::start(config(i)))).buffered(AT_ONCE);
        Ok(Self {
            hosts: starting.try_collect().await?,
        })
    }

    /// The host with this name.
    pub fn host(&self, name: &str) -> Option<&SimHost> {
        self.hosts.iter().find(|h| h.name() == name)
    }

    /// Number of hosts that are up and have booted this digest.
    pub fn running(&self, digest: &str) -> usize {
        let facts = self.hosts.iter().map(SimHost::facts);
        facts.filter(|f| f.boot_id.is_some() && f.booted == digest).count()
    }
}
