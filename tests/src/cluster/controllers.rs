//! The controllers of a cluster: processes of the real program that a scenario starts and kills.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use tokio::task::AbortHandle;

use crate::controlplane::{Bound, ControlPlane};
use crate::locked::locked;
use crate::process::{Process, tail};
use crate::registry::Registry;

/// Delay before a controller that exited is started again, as by a Deployment.
const RESTART_DELAY: Duration = Duration::from_millis(500);

/// Settings of controllers that differ from the default.
#[derive(Debug, Clone, Default)]
pub struct ControllerSettings {
    /// Kubeconfigs of controllers that use another route to the API server, by number.
    pub kubeconfigs: BTreeMap<usize, PathBuf>,
    /// Additional environment, such as the name of a seeded bug.
    pub env: Vec<(String, String)>,
    /// Additional arguments.
    pub args: Vec<String>,
}

/// The controllers by number.
#[derive(Debug)]
pub struct Controllers {
    inner: Arc<Inner>,
    supervisor: AbortHandle,
}

#[derive(Debug)]
struct Inner {
    binary: PathBuf,
    kubeconfig: PathBuf,
    settings: ControllerSettings,
    registry: String,
    directory: PathBuf,
    running: Mutex<BTreeMap<usize, Process>>,
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.supervisor.abort();
        self.running().clear();
    }
}

impl Inner {
    fn running(&self) -> MutexGuard<'_, BTreeMap<usize, Process>> {
        locked(&self.running)
    }

    fn log(&self, number: usize) -> PathBuf {
        self.directory.join(format!("berth-controller-{number}.log"))
    }

    /// Flags that shorten the leader's Lease, so that a scenario need not wait long after it kills the leader. Empty if
    /// the settings already have such flags.
    fn lease(&self) -> &[&str] {
        if self.settings.args.iter().any(|arg| arg.starts_with("--leader-")) {
            return &[];
        }
        &[
            "--leader-lease-duration=3s",
            "--leader-renew-deadline=2s",
            "--leader-retry-period=1s",
        ]
    }

    fn spawn(&self, number: usize) -> Result<Process> {
        let mut command = Command::new(&self.binary);
        command
            .arg("--kubeconfig")
            .arg(self.settings.kubeconfigs.get(&number).unwrap_or(&self.kubeconfig))
            .envs(self.settings.env.iter().map(|(k, v)| (k, v)))
            .args(&self.settings.args)
            .arg(format!("--identity=controller-{number}"))
            .arg(format!("--registry-plain-http={}", self.registry))
            .args(self.lease())
            .args([
                "--log-format=human",
                "--log-level=info,berth_controller=debug,kube_client=off",
            ]);
        Process::start("berth-controller", &command, &self.log(number)).context("cannot start the controller")
    }

    /// Restarts controllers that exited: a controller exits when it loses the leadership.
    async fn supervise(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RESTART_DELAY).await;
            let mut running = self.running();
            for (number, process) in running.iter_mut() {
                if process.is_running() {
                    continue;
                }
                match self.spawn(*number) {
                    Ok(again) => *process = again,
                    Err(error) => tracing::error!(error = format!("{error:#}"), number, "cannot start the controller"),
                }
            }
        }
    }
}

impl Controllers {
    pub(super) async fn new(
        binary: PathBuf,
        settings: ControllerSettings,
        control_plane: &ControlPlane,
        registry: &Registry,
    ) -> Result<Self> {
        let config = control_plane
            .service_account_kubeconfig("berth-system", "berth-controller", Bound::Nothing)
            .await?;
        Ok(Self::of(Inner {
            binary,
            kubeconfig: config.path,
            settings,
            registry: registry.host(),
            directory: control_plane.directory().to_owned(),
            running: Mutex::default(),
        }))
    }

    /// No controllers: they run on the cluster's hosts, as pods.
    pub(super) fn on_hosts(control_plane: &ControlPlane) -> Self {
        Self::of(Inner {
            binary: PathBuf::new(),
            kubeconfig: PathBuf::new(),
            settings: ControllerSettings::default(),
            registry: String::new(),
            directory: control_plane.directory().to_owned(),
            running: Mutex::default(),
        })
    }

    fn of(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        let supervisor = tokio::spawn(inner.clone().supervise()).abort_handle();
        Self { inner, supervisor }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<usize, Process>> {
        self.inner.running()
    }

    /// Starts the controller with this number, if it does not run yet. A controller that exits is restarted.
    pub fn start(&self, number: usize) -> Result<()> {
        let mut running = self.running();
        if running.get_mut(&number).is_some_and(Process::is_running) {
            return Ok(());
        }
        let process = self.inner.spawn(number)?;
        running.insert(number, process);
        Ok(())
    }

    /// Sends SIGKILL.
    pub fn kill(&self, number: usize) {
        if let Some(mut process) = self.running().remove(&number) {
            process.kill();
        }
    }

    /// Stops the controller: sends SIGTERM, then SIGKILL if the process does not exit.
    pub fn stop(&self, number: usize) {
        if let Some(mut process) = self.running().remove(&number) {
            process.stop(Duration::from_secs(3));
        }
    }

    /// Freezes (SIGSTOP) or resumes the process. A leader that was frozen for too long must notice that it has lost the
    /// leadership.
    pub fn freeze(&self, number: usize, frozen: bool) {
        if let Some(process) = self.running().get_mut(&number) {
            process.signal(if frozen { Signal::SIGSTOP } else { Signal::SIGCONT });
        }
    }

    /// True if the controller runs.
    pub fn runs(&self, number: usize) -> bool {
        self.running().get_mut(&number).is_some_and(Process::is_running)
    }

    /// Process ID, for measurements.
    pub fn pid(&self, number: usize) -> Option<u32> {
        self.running().get(&number).map(Process::id)
    }

    /// The last lines of each log.
    pub fn tail(&self, lines: usize) -> String {
        let logs = (0..4).map(|n| (n, self.inner.log(n))).filter(|(_, path)| path.exists());
        logs.map(|(n, path)| format!("controller {n}:\n{}\n", tail(&path, lines)))
            .collect()
    }
}
