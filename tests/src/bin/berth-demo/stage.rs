//! The cluster that the demo plays on: simulated or real hosts, the rest is the same.

use std::time::Duration;

use anyhow::Result;
use berth_tests::cluster::{Cluster, ClusterOptions, Published, RealCluster, Site};
use berth_tests::hosts::HostChange;
use berth_tests::hosts::sim::Settings;
use futures::future::try_join_all;

use crate::Hosts;

/// Length of a pull of a simulated host: long enough to watch.
const PULL: Duration = Duration::from_secs(4);
/// Length of a boot of a simulated host.
const REBOOT: Duration = Duration::from_secs(2);
/// Speed of pulls on real hosts with the stand-in for bootc, whose images come to a few megabytes.
const RATE: &str = "echo rate=1000000 > /etc/standin-bootc.conf";

/// Either kind of cluster.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Simulated hosts.
    Sim(Cluster),
    /// Real hosts.
    Real(RealCluster),
}

impl Stage {
    /// Brings everything up. The hosts run 1.0.0, and there is no pool.
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

    /// Part that both kinds have in common.
    pub(crate) fn site(&self) -> &Site {
        match self {
            Self::Sim(cluster) => cluster,
            Self::Real(cluster) => cluster,
        }
    }

    /// Longest time that a rollout may take. Real hosts stop their pods and services in their own time.
    pub(crate) fn limit(&self) -> Duration {
        match self {
            Self::Sim(_) => Duration::from_secs(90),
            Self::Real(_) => Duration::from_secs(300),
        }
    }

    /// Publishes an OS image.
    pub(crate) async fn publish(&self, version: &str) -> Result<Published> {
        match self {
            Self::Sim(cluster) => cluster.publish(version).await,
            Self::Real(cluster) => cluster.publish(version).await,
        }
    }

    /// Waits until every host runs an image, says so, and no berth is held.
    pub(crate) async fn until_all_run(&self, image: &Published, limit: Duration) -> Result<()> {
        match self {
            Self::Sim(cluster) => cluster.until_all_run(image, limit).await,
            Self::Real(cluster) => cluster.until_all_run(image, limit).await,
        }
    }

    /// Says what runs where, in the words of the harness's own record.
    pub(crate) fn say_hosts(&self) {
        for event in self.site().log.events() {
            if let HostChange::Up { version, .. } = event.change {
                println!("{:>10}{} booted {version}", "", event.host);
            }
        }
    }
}
