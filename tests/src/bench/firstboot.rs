//! Measures the time and memory of `berth-agent firstboot` on a simulated host, from its start to its exit, with a
//! registry on loopback.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::figure::{Figure, median};
use super::memory::Memory;
use super::settings::{Run, runs};
use crate::hosts::HostLog;
use crate::hosts::sim::{Catalog, SimHost, SimHostConfig};
use crate::images::Image;
use crate::registry::Registry;

pub(super) const BENCHES: [&str; 2] = ["firstboot", "firstboot-memory"];

/// Number of checks in one run. The value of a run is the median time of its checks. The memory benchmark makes as many
/// checks.
const CHECKS: u64 = 10;
const MEMORY_READ_INTERVAL: Duration = Duration::from_micros(200);
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// A simulated host, and a registry with an image that passes the host's first-boot check.
struct Machine {
    host: SimHost,
    _registry: Registry,
}

impl Machine {
    async fn start() -> Result<Self> {
        let registry = Registry::start_local().await?;
        let mut spec = Image::tiny_os("10.1.0", b"10.1.0")?.spec;
        spec.labels
            .insert("berth.dev/min-boot-image".to_owned(), "9.2".to_owned());
        registry
            .client()
            .push_image("os", Some("stable"), &spec.build()?)
            .await?;
        let catalog = Catalog::default();
        let digest = catalog.publish("1.0.0");
        let config = SimHostConfig::new("node1", "registry.test/os", &digest, &catalog, &HostLog::default());
        let host = SimHost::start(config).await?;
        let root = host.root();
        fs::create_dir_all(root.join("sysroot"))?;
        fs::write(root.join("sysroot/.bootc-aleph.json"), r#"{"version": "9.4"}"#)?;
        let orders = format!("image = \"{}/os:stable\"\n", registry.host());
        fs::write(root.join("etc/berth/firstboot.toml"), orders)?;
        Ok(Self {
            host,
            _registry: registry,
        })
    }

    fn begin(&self, agent: &Path) -> Result<Child> {
        let root = self.host.root();
        let _ = fs::remove_dir_all(root.join("var/lib/berth"));
        let mut command = Command::new(agent);
        command.args(["firstboot", "--bus", &self.host.bus_address(), "--host-root"]);
        command
            .arg(root)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
            .spawn()
            .with_context(|| format!("cannot start {}", agent.display()))
    }

    /// Fails unless the check allowed the first boot.
    fn is_allowed(&self) -> Result<()> {
        let path = self.host.root().join("var/lib/berth/firstboot.json");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let record: serde_json::Value = serde_json::from_str(&text)?;
        ensure!(record["status"]["outcome"] == "Allowed", "{text}");
        Ok(())
    }

    /// Returns the time of a check, in milliseconds.
    fn time(&self, agent: &Path) -> Result<f64> {
        let begin = Instant::now();
        let status = self.begin(agent)?.wait()?;
        let took = begin.elapsed();
        ensure!(status.success(), "the check failed: {status}");
        self.is_allowed()?;
        Ok(took.as_secs_f64() * 1000.0)
    }

    /// Returns the peak resident memory of a check. The last sample is from shortly before the check ends.
    fn peak(&self, agent: &Path) -> Result<Memory> {
        let begin = Instant::now();
        let mut child = self.begin(agent)?;
        let mut most = Memory::default();
        while child.try_wait()?.is_none() {
            if begin.elapsed() > CHECK_TIMEOUT {
                child.kill()?;
                bail!("the check did not end within {CHECK_TIMEOUT:?}");
            }
            // /proc/PID/status of a process that has ended has no memory lines.
            if let Ok(now) = Memory::of(child.id())
                && now.peak > most.peak
            {
                most = now;
            }
            std::thread::sleep(MEMORY_READ_INTERVAL);
        }
        ensure!(most.peak > 0.0, "the check ended before its memory was read");
        self.is_allowed()?;
        Ok(most)
    }
}

pub(super) async fn measure(run: &Run) -> Result<()> {
    let (machine, run) = (Machine::start().await?, run.clone());
    // The host and the registry keep running on the other threads.
    tokio::task::spawn_blocking(move || figures(&machine, &run)).await?
}

fn figures(machine: &Machine, run: &Run) -> Result<()> {
    let agent = run.agent.as_path();
    machine.time(agent)?;
    if run.wants(BENCHES[0]) {
        run.progress.say("measuring the time of first-boot checks");
        let mut all = vec![];
        for _ in 0..runs() {
            let checks = (0..CHECKS).map(|_| machine.time(agent)).collect::<Result<Vec<_>>>()?;
            all.push(median(&checks));
        }
        Figure::new(BENCHES[0], "ms", &all)
            .aim(150.0)
            .detail("checks in a run", json!(CHECKS))
            .print();
    }
    if run.wants(BENCHES[1]) {
        run.progress.say("measuring the memory of first-boot checks");
        let all = (0..CHECKS).map(|_| machine.peak(agent)).collect::<Result<Vec<_>>>()?;
        let most = all.iter().copied().max_by(|a, b| a.peak.total_cmp(&b.peak));
        let peaks: Vec<_> = all.iter().map(|memory| memory.peak).collect();
        Figure::new(BENCHES[1], "MiB", &peaks)
            .aim(12.0)
            .detail("most", most.unwrap_or_default().json())
            .print();
    }
    Ok(())
}
