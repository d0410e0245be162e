//! The controllers of a cluster: the real program, as many as a scenario wants, killed and started at its word.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::site::tail;
use crate::controlplane::{Bound, ControlPlane};
use crate::process::Process;
use crate::registry::Registry;

/// The controllers by number.
#[derive(Debug)]
pub struct Controllers {
    binary: PathBuf,
    kubeconfig: PathBuf,
    registry: String,
    directory: PathBuf,
    running: Mutex<BTreeMap<usize, Process>>,
}

impl Controllers {
    pub(super) async fn new(binary: PathBuf, control_plane: &ControlPlane, registry: &Registry) -> Result<Self> {
        let config =
            control_plane.service_account_kubeconfig("berth-system", "berth-controller", Bound::Nothing).await?;
        Ok(Self {
            binary,
            kubeconfig: config.path,
            registry: registry.host(),
            directory: control_plane.directory().to_owned(),
            running: Mutex::default(),
        })
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<usize, Process>> {
        self.running.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn log(&self, number: usize) -> PathBuf {
        self.directory.join(format!("berth-controller-{number}.log"))
    }

    /// Starts the controller with this number, unless it runs. Leader leases are short, so that a scenario with a
    /// killed leader does not wait long.
    pub fn start(&self, number: usize) -> Result<()> {
        let mut running = self.running();
        if running.get_mut(&number).is_some_and(|p| p.exit_status().is_none()) {
            return Ok(());
        }
        let mut command = Command::new(&self.binary);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg(format!("--identity=controller-{number}"))
            .arg(format!("--registry-plain-http={}", self.registry))
            .args([
                "--leader-lease-duration=3s",
                "--leader-renew-deadline=2s",
                "--leader-retry-period=1s",
                "--log-format=human",
                "--log-level=info,berth_controller=debug",
            ]);
        let process =
            Process::start("berth-controller", &command, &self.log(number)).context("cannot start the controller")?;
        running.insert(number, process);
        Ok(())
    }

    /// SIGKILL.
    pub fn kill(&self, number: usize) {
        if let Some(mut process) = self.running().remove(&number) {
            process.kill();
        }
    }

    /// SIGTERM, and SIGKILL when that does not help.
    pub fn stop(&self, number: usize) {
        if let Some(mut process) = self.running().remove(&number) {
            process.stop(Duration::from_secs(3));
        }
    }

    /// Freezes or thaws the process: a leader that wakes up late must find itself deposed.
    pub fn freeze(&self, number: usize, frozen: bool) {
        if let Some(process) = self.running().get_mut(&number) {
            process.signal(if frozen { Signal::SIGSTOP } else { Signal::SIGCONT });
        }
    }

    /// Whether it runs.
    pub fn runs(&self, number: usize) -> bool {
        self.running().get_mut(&number).is_some_and(|p| p.exit_status().is_none())
    }

    /// Process ID, for measurements.
    pub fn pid(&self, number: usize) -> Option<u32> {
        self.running().get(&number).map(Process::id)
    }

    /// The last lines of each log.
    pub fn tail(&self, lines: usize) -> String {
        let logs = (0..4).map(|n| (n, self.log(n))).filter(|(_, path)| path.exists());
        logs.map(|(n, path)| format!("controller {n}:\n{}\n", tail(&path, lines))).collect()
    }
}
