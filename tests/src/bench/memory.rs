//! Memory of a process as the kernel reports it, and of the controller in particular.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::figure::round;
use super::settings::idle_time;
use crate::cluster::Cluster;

/// Number of the cluster's first controller.
pub(super) const CONTROLLER: usize = 0;
/// A peak is final if it does not rise for this long.
const PEAK_STABLE: Duration = Duration::from_secs(10);

/// The memory of a process, in MiB.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Memory {
    /// All resident memory.
    pub resident: f64,
    /// Resident memory without a file behind it: heap and stacks.
    pub anonymous: f64,
    /// Resident memory of the program's text and data.
    pub file: f64,
    /// Highest resident memory so far.
    pub peak: f64,
}

impl Memory {
    /// Reads the memory of a process.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let [resident, anonymous, file, peak] = ["VmRSS", "RssAnon", "RssFile", "VmHWM"].map(|name| field(&text, name));
        Ok(Self {
            resident: resident?,
            anonymous: anonymous?,
            file: file?,
            peak: peak?,
        })
    }

    /// Resets the peak of a process to its current memory.
    pub fn forget_peak(pid: u32) -> Result<()> {
        let path = format!("/proc/{pid}/clear_refs");
        std::fs::write(&path, "5").with_context(|| format!("cannot write {path}"))
    }

    /// The fields as JSON.
    pub fn json(self) -> Value {
        json!({
            "resident": round(self.resident), "anonymous": round(self.anonymous), "file": round(self.file),
            "peak": round(self.peak),
        })
    }
}

pub(super) fn of_controller(cluster: &Cluster) -> Result<Memory> {
    Memory::of(pid(cluster)?)
}

fn pid(cluster: &Cluster) -> Result<u32> {
    cluster.controllers.pid(CONTROLLER).context("no controller runs")
}

/// Restarts the API server, and returns the controller's peak memory in MiB. After the restart, the controller lists
/// all objects again while it still holds the old objects.
pub(super) async fn relist(cluster: &Cluster, limit: Duration) -> Result<f64> {
    Memory::forget_peak(pid(cluster)?)?;
    cluster.control_plane.stop_apiserver().await?;
    cluster.control_plane.start_apiserver().await?;
    tokio::time::sleep(idle_time()).await;
    // Large lists take longer: the peak is final if it stays the same.
    let (start, mut peak) = (Instant::now(), of_controller(cluster)?.peak);
    while start.elapsed() < limit {
        tokio::time::sleep(PEAK_STABLE).await;
        let now = of_controller(cluster)?.peak;
        if now <= peak {
            return Ok(now);
        }
        peak = now;
    }
    bail!(
        "the controller's memory still grows: {peak:.0} MiB after {:?}",
        start.elapsed()
    )
}

/// Value of a line such as `VmRSS:      1234 kB`, in MiB.
fn field(status: &str, name: &str) -> Result<f64> {
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.split_whitespace().next());
    let kib: f64 = kib.with_context(|| format!("the status has no {name}"))?.parse()?;
    Ok(kib / 1024.0)
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
