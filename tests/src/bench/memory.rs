//! Memory of a process, by the kernel's account, and that of a controller above all.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::settings::idle_time;
use crate::cluster::Cluster;

/// The cluster's first controller.
pub(super) const CONTROLLER: usize = 0;
/// Time for which a peak must stay to be the last one.
const PEAK_STAYS: Duration = Duration::from_secs(10);

/// The memory of a process, in MiB.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Memory {
    /// All that is resident.
    pub resident: f64,
    /// Part of it that is backed by no file: heap and stacks.
    pub anonymous: f64,
    /// Part of it that is the program's own text and data.
    pub file: f64,
    /// The most that was ever resident.
    pub peak: f64,
}

impl Memory {
    /// Reads the memory of a running process.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let field = |name| field(&text, name).with_context(|| format!("{path} has no {name}"));
        Ok(Self {
            resident: field("VmRSS")?,
            anonymous: field("RssAnon")?,
            file: field("RssFile")?,
            peak: field("VmHWM")?,
        })
    }

    /// Lets a process' peak begin at what it has now.
    pub fn forget_peak(pid: u32) -> Result<()> {
        let path = format!("/proc/{pid}/clear_refs");
        std::fs::write(&path, "5").with_context(|| format!("cannot write {path}"))
    }

    /// The same as JSON.
    pub fn json(self) -> Value {
        let round = |mib: f64| (mib * 100.0).round() / 100.0;
        json!({
            "resident": round(self.resident), "anonymous": round(self.anonymous), "file": round(self.file),
            "peak": round(self.peak),
        })
    }
}

/// Reads the memory of the cluster's controller.
pub(super) fn of_controller(cluster: &Cluster) -> Result<Memory> {
    Memory::of(pid(cluster)?)
}

fn pid(cluster: &Cluster) -> Result<u32> {
    cluster.controllers.pid(CONTROLLER).context("no controller runs")
}

/// The most memory, in MiB, that the controller takes while the API server starts anew, which makes it list all objects again and
/// hold the old ones meanwhile.
pub(super) async fn relist(cluster: &Cluster, limit: Duration) -> Result<f64> {
    Memory::forget_peak(pid(cluster)?)?;
    cluster.control_plane.stop_apiserver().await?;
    cluster.control_plane.start_apiserver().await?;
    tokio::time::sleep(idle_time()).await;
    // Of many Nodes the lists take longer than that: the peak is reached when it stays.
    let (start, mut peak) = (Instant::now(), of_controller(cluster)?.peak);
    while start.elapsed() < limit {
        tokio::time::sleep(PEAK_STAYS).await;
        let now = of_controller(cluster)?.peak;
        if now <= peak {
            return Ok(now);
        }
        peak = now;
    }
    bail!(
        "the controller's memory goes on to grow: {peak:.0} MiB after {:?}",
        start.elapsed()
    )
}

/// The value of a line such as `VmRSS:      1234 kB`, in MiB.
fn field(status: &str, name: &str) -> Option<f64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_adds_up() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.resident > 0.5 && memory.peak >= memory.resident);
        assert!(memory.anonymous + memory.file <= memory.resident + 0.1);
    }
}
