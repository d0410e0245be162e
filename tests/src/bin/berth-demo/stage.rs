//! The demo's cluster, with simulated or real hosts.

use std::time::Duration;

use anyhow::Result;
use berth_tests::cluster::{Cluster, ClusterOptions, Published, RealCluster, Site};
use berth_tests::hosts::HostChange;
use berth_tests::hosts::sim::Settings;
use futures::future::try_join_all;

use crate::Hosts;

/// Duration of a pull on a simulated host. Long enough to watch.
const PULL: Duration = Duration::from_secs(4);
const REBOOT: Duration = Duration::from_secs(2);
/// Shell command that slows down the bootc stand-in on real hosts (1 MB/s), because its images have only a few
/// megabytes.
const RATE: &str = "echo rate=1000000 > /etc/standin-bootc.conf";

#[derive(Debug)]
pub(crate) enum Stage {
    Sim(Cluster),
    Real(RealCluster),
}

impl Stage {
    /// Starts everything. The hosts run 1.0.0, and there is no pool yet.
    pub(crate) async fn start(kind: Hosts, hosts: usize) -> Result<Self> {
        match kind {
            Hosts::Sim => {
                let settings = Settings {
                    pull_time: PULL,
                    reboot_time: REBOOT,
                    ..Settings::default()
                };
                let options = ClusterOptions {
                    hosts,
                    settings,
                    ..ClusterOptions::default()
                };
                Ok(Self::Sim(Cluster::start(options).await?))
            }
            Hosts::Real => {
                let cluster = RealCluster::start(hosts).await?;
                try_join_all(cluster.hosts.iter().map(|host| host.exec(&["sh", "-c", RATE]))).await?;
                Ok(Self::Real(cluster))
            }
        }
    }

    /// The control plane and the registry. Clusters of both kinds have them.
    pub(crate) fn site(&self) -> &Site {
        match self {
            Self::Sim(cluster) => cluster,
            Self::Real(cluster) => cluster,
        }
    }

    /// Timeout of a rollout: longer for real hosts, which must stop pods and services.
    pub(crate) fn limit(&self) -> Duration {
        match self {
            Self::Sim(_) => Duration::from_secs(90),
            Self::Real(_) => Duration::from_secs(300),
        }
    }

    pub(crate) async fn publish(&self, version: &str) -> Result<Published> {
        match self {
            Self::Sim(cluster) => cluster.publish(version).await,
            Self::Real(cluster) => cluster.publish(version).await,
        }
    }

    /// Waits until every host runs an image and reports it, and no berth is held.
    pub(crate) async fn until_all_run(&self, image: &Published, limit: Duration) -> Result<()> {
        match self {
            Self::Sim(cluster) => cluster.until_all_run(image, limit).await,
            Self::Real(cluster) => cluster.until_all_run(image, limit).await,
        }
    }

    /// Prints what each host booted, from the harness's own record.
    pub(crate) fn say_hosts(&self) {
        for event in self.site().log.events() {
            if let HostChange::Up { version, .. } = event.change {
                println!("{:>10}{} booted {version}", "", event.host);
            }
        }
    }
}
