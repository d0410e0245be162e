//! Cluster for the benchmarks of rollouts and of idle agents: ten simulated hosts and one pool.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use kube::api::PatchParams;
use serde_json::json;

use crate::audit::{AuditLog, Record};
use crate::cluster::{Cluster, ClusterOptions, Published, is_ready};
use crate::hosts::sim::SimHost;

pub const HOSTS: usize = 10;
pub const POOL: &str = "workers";
/// Interval of the queries to the API server, and therefore the error of each measured time.
const QUERY_INTERVAL: Duration = Duration::from_millis(20);
/// Timeout for the update of all hosts, one after the other, and for a plain reboot.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A cluster of ten hosts that run the pool's first image.
#[derive(Debug)]
pub struct Fleet {
    pub cluster: Cluster,
}

#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Time just before the pool was changed.
    pub begin: Timestamp,
    /// Time a second after all hosts ran the image, so that the rollout's last writes are included.
    pub end: Timestamp,
    pub seconds: f64,
}

impl Fleet {
    /// Starts the cluster. Staging takes 0.2 s, a reboot 1 s; there are no pods.
    pub async fn start() -> Result<Self> {
        let options = ClusterOptions {
            hosts: HOSTS,
            scheduler: false,
            ..ClusterOptions::default()
        };
        let this = Self {
            cluster: Cluster::start(options).await?,
        };
        let first = this.cluster.publish("1.0.0").await?;
        this.roll(&first).await?;
        Ok(this)
    }

    /// Updates the pool, one node at a time, and waits until the rollout has ended.
    pub async fn roll(&self, image: &Published) -> Result<Span> {
        let (begin, start) = (Timestamp::now(), Instant::now());
        let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%" });
        self.cluster.pool(POOL, &image.reference, rollout).await?;
        let pools = self.cluster.pools();
        loop {
            let status = pools.get(POOL).await?.status.unwrap_or_default();
            let here = status.target.is_some_and(|t| t.image.as_str() == image.reference);
            if here && usize::try_from(status.nodes.updated)? == HOSTS && status.berths.held == 0 {
                break;
            }
            if start.elapsed() > TIMEOUT {
                anyhow::bail!(
                    "the rollout did not end within {TIMEOUT:?}\n{}",
                    self.cluster.describe().await
                );
            }
            tokio::time::sleep(QUERY_INTERVAL).await;
        }
        let span = Span {
            begin,
            end: Timestamp::now(),
            seconds: start.elapsed().as_secs_f64(),
        };
        self.cluster.until_all_run(image, TIMEOUT).await?;
        // Writes that follow within a moment also belong to the rollout.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(Span {
            end: Timestamp::now(),
            ..span
        })
    }

    /// Reboots a host that has nothing staged; returns the seconds until its Node was Ready again.
    pub async fn plain_reboot(&self, host: &SimHost) -> Result<f64> {
        let start = Instant::now();
        self.cluster.unrelated_reboot(host).await?;
        let boot = host.facts().boot_id.context("the host is down after its reboot")?;
        let nodes = self.cluster.nodes();
        loop {
            if is_ready(nodes.get(host.name()).await?, &boot) {
                return Ok(start.elapsed().as_secs_f64());
            }
            if start.elapsed() > TIMEOUT {
                anyhow::bail!("{} is not Ready after a plain reboot", host.name());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn requests(&self, begin: Timestamp, end: Timestamp) -> Result<Vec<Record>> {
        let log = AuditLog::read(&self.cluster.control_plane.audit_log())?;
        let mut records = log.records().to_vec();
        records.retain(|r| begin <= r.received && r.received <= end);
        Ok(records)
    }
}

/// True if the agent sent the request, as its ServiceAccount or with the kubelet's credentials.
pub fn by_agent(record: &Record) -> bool {
    record.program() == "berth-agent"
}

pub fn by_controller(record: &Record) -> bool {
    record.user == "system:serviceaccount:berth-system:berth-controller"
}

pub(super) fn manager(name: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(name.to_owned()),
        ..PatchParams::default()
    }
}
