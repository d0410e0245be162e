//! A simulated host, as tests handle it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use super::agent::{AgentCommand, AgentConfig, Agents};
use super::bootc::{self, Deployment, Deployments};
use super::bus::Bus;
use super::catalog::{Catalog, CatalogImage};
use super::guard;
use super::kubelet::{Kubelet, KubeletConfig};
use super::login::{Login, Request};
use super::machine::{Down, Machine};
use super::process::Os;
use super::rpm_ostree::RpmOstree;
use super::settings::{Settings, SharedSettings};
use super::units::Units;
use crate::hosts::HostLog;
use crate::rpmostreed::{self, Faults};
use crate::scratch::Scratch;

/// Configuration of a simulated host.
#[derive(Debug, Clone)]
pub struct SimHostConfig {
    /// Name of the host and of its Node.
    pub name: String,
    /// Reference of the installed image, such as `registry.test/os@sha256:…`.
    pub image: String,
    /// Manifest digest of the installed image.
    pub digest: String,
    /// OCI architecture of the host.
    pub architecture: String,
    /// Names of the packages that rpm-ostree has layered on the image.
    pub packages: Vec<String>,
    /// The images that the host can pull.
    pub catalog: Catalog,
    /// Log of the host's events.
    pub log: HostLog,
    /// Initial properties and faults.
    pub settings: Settings,
    /// The agent; `None` if the test itself plays the agent.
    pub agent: Option<AgentConfig>,
    /// The kubelet stand-in; `None` for a host without Kubernetes.
    pub kubelet: Option<KubeletConfig>,
}

impl SimHostConfig {
    /// A host with neither agent nor kubelet, installed with `repository@digest`.
    pub fn new(name: &str, repository: &str, digest: &str, catalog: &Catalog, log: &HostLog) -> Self {
        Self {
            name: name.to_owned(),
            image: format!("{repository}@{digest}"),
            digest: digest.to_owned(),
            architecture: "amd64".to_owned(),
            packages: vec![],
            catalog: catalog.clone(),
            log: log.clone(),
            settings: Settings::default(),
            agent: None,
            kubelet: None,
        }
    }
}

/// True state of a host, independent of its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostState {
    /// Boot ID; `None` while the host is down.
    pub boot_id: Option<String>,
    /// Digest of the booted image. While the host is down, digest of the last booted image.
    pub booted: String,
    /// Version of the booted image.
    pub version: String,
    /// Digest of the staged image.
    pub staged: Option<String>,
    /// True if the staged image is locked: a shutdown discards it.
    pub locked: bool,
    /// Digest of the rollback image.
    pub rollback: Option<String>,
    /// Names of the packages layered on the booted image.
    pub packages: Vec<String>,
}

/// A simulated host. Cheap to clone; dropping the last clone kills its processes.
#[derive(Debug, Clone)]
pub struct SimHost(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    machine: Arc<Machine>,
    reboots: tokio::task::AbortHandle,
    dir: Scratch,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.reboots.abort();
        self.machine.abandon();
    }
}

impl SimHost {
    /// Creates a host and boots it.
    pub async fn start(config: SimHostConfig) -> Result<Self> {
        let host = Self::off(config)?;
        host.power_on().await?;
        Ok(host)
    }

    /// Creates a host that is powered off.
    pub fn off(config: SimHostConfig) -> Result<Self> {
        // A short name, because the path of the bus's socket must be short.
        let dir = Scratch::new("berth-sim-")?;
        let root = dir.path().join("root");
        for directory in ["var/lib", "etc/berth"] {
            std::fs::create_dir_all(root.join(directory)).context("cannot make the root of a simulated host")?;
        }
        let settings = SharedSettings::new(config.settings);
        let (sender, requests) = mpsc::unbounded_channel();
        let bus = Bus::new(dir.path())?;
        let command = config.agent.map(|agent| AgentCommand {
            node: config.name.clone(),
            bus: bus.address(),
            root: root.clone(),
            config: agent,
        });
        let mut booted = deployment(&config.catalog, &config.image, &config.digest, &config.architecture);
        booted.packages = config.packages;
        let os = Arc::new(Os::new(
            &config.name,
            root.clone(),
            booted,
            config.catalog,
            settings.clone(),
            config.log.clone(),
        ));
        let login = Login::new(settings.clone(), sender);
        let units = Units::new(os.clone(), root.clone());
        let rpm_ostree = RpmOstree::new(bus.address(), dir.path(), os.clone(), login.clone(), units.clone())?;
        let kubelet = config.kubelet.map(|kubelet| {
            let (settings, log) = (settings.clone(), config.log.clone());
            Kubelet::new(&config.name, &config.architecture, kubelet, settings, log)
        });
        let machine = Arc::new(Machine {
            os,
            units,
            rpm_ostree,
            kubelet,
            agents: Agents::new(command, settings.clone(), dir.path().to_owned()),
            login,
            name: config.name,
            log: config.log,
            root,
            settings,
            bus,
            power: AsyncMutex::default(),
            boot_id: Mutex::default(),
        });
        let reboots = tokio::spawn(serve_requests(machine.clone(), requests)).abort_handle();
        Ok(Self(Arc::new(Owner { machine, reboots, dir })))
    }

    fn machine(&self) -> &Machine {
        &self.0.machine
    }

    /// Name of the host and its Node.
    pub fn name(&self) -> &str {
        &self.machine().name
    }

    /// Address of the host's bus; the same after reboots.
    pub fn bus_address(&self) -> String {
        self.machine().bus.address()
    }

    /// Names of the units loaded in its service manager.
    pub fn units(&self) -> Vec<String> {
        self.machine().units.names()
    }

    /// Root directory of the host, for `--host-root`.
    pub fn root(&self) -> &Path {
        &self.machine().root
    }

    /// Reads or changes the settings. A change applies at once, but not to operations that have started.
    pub fn settings<T>(&self, f: impl FnOnce(&mut Settings) -> T) -> T {
        let value = self.machine().settings.with(f);
        self.machine().apply_settings();
        value
    }

    /// Returns the true state.
    pub fn facts(&self) -> HostState {
        let boot_id = self.machine().boot_id();
        self.machine().os.deployments(|d| {
            let booted = d.booted();
            let booted = booted.map(|b| (b.digest.clone(), b.version.clone(), b.packages.clone()));
            let (booted, version, packages) = booted.unwrap_or_default();
            HostState {
                packages,
                boot_id,
                booted,
                version,
                staged: d.staged().map(|s| s.deployment.digest.clone()),
                locked: d.staged().is_some_and(bootc::Staged::is_locked),
                rollback: d.rollback().map(|r| r.digest.clone()),
            }
        })
    }

    /// Directory where ostree would check out the staged deployment. On a simulated host a test must create it.
    pub fn staged_files(&self) -> Option<PathBuf> {
        let name = self.machine().os.deployments(|d| {
            let staged = &d.staged()?.deployment;
            Some(format!("{}.{}", staged.checksum(), staged.serial))
        });
        let deployments = format!("sysroot/ostree/deploy/{}/deploy", bootc::STATEROOT);
        Some(self.root().join(deployments).join(name?))
    }

    /// Durations of all ended periods with an armed staged image, which a shutdown would have applied.
    pub fn armed_times(&self) -> Vec<Duration> {
        self.machine().os.armed_times()
    }

    /// Every command that units have run on the host, one line each.
    pub fn commands(&self) -> Vec<String> {
        self.machine().os.commands()
    }

    /// Boots the host if it is down.
    pub async fn power_on(&self) -> Result<()> {
        self.machine().power_on().await
    }

    /// Powers the host off with an orderly shutdown, which applies an unlocked staged image. The host stays off.
    pub async fn power_off(&self) {
        self.machine().power_off(Down::Orderly(Duration::ZERO)).await;
    }

    /// Reboots the host with an orderly shutdown, without a request from the cluster. Returns when it is up again.
    pub async fn reboot_now(&self) -> Result<()> {
        self.machine().reboot(Down::Orderly(Duration::ZERO), None).await
    }

    /// Cuts the power and restores it: the staged image is lost. Returns when the host is up again.
    pub async fn power_cut(&self) -> Result<()> {
        self.machine().reboot(Down::PowerCut, None).await
    }

    /// Cuts the power until [`power_on`](Self::power_on).
    pub async fn power_loss(&self) {
        self.machine().power_off(Down::PowerCut).await;
    }

    /// Restarts the message bus: all its clients lose their connections.
    pub async fn restart_bus(&self) -> Result<()> {
        self.machine().restart_bus().await
    }

    /// Reads or changes the faults of rpm-ostree. A change applies at once.
    pub fn rpm_ostree<T>(&self, f: impl FnOnce(&mut Faults) -> T) -> T {
        self.machine().rpm_ostree.faults().with(f)
    }

    /// Connects to rpm-ostree as its command line does.
    pub async fn rpm_ostree_client(&self) -> Result<rpmostreed::client::Client> {
        rpmostreed::client::Client::connect(&self.bus_address(), &self.root().join("run")).await
    }

    /// True if rpm-ostree's daemon runs.
    pub fn rpm_ostree_runs(&self) -> bool {
        self.machine().units.get(rpmostreed::UNIT).active == "active"
    }

    /// Kills rpm-ostree's daemon if it runs.
    pub async fn kill_rpm_ostree(&self) {
        self.machine().rpm_ostree.stop().await;
    }

    /// Adds packages to the booted deployment, as if rpm-ostree had layered them long ago.
    pub fn layer(&self, packages: &[&str]) {
        self.machine().os.deployments(|d| d.layer(packages));
    }

    /// Stages an image, unlocked, without the agent. The image must be in the catalog.
    pub fn stage_behind_the_agent(&self, image: &str, digest: &str) {
        let machine = self.machine();
        machine.os.stage_image(image, digest);
    }

    /// Unlocks the staged image without the agent.
    pub fn unlock_behind_the_agent(&self) -> Result<()> {
        let done = self.machine().os.deployments(|d| d.unlock());
        done.map(drop).map_err(anyhow::Error::msg)
    }

    /// Runs `bootc rollback` without the agent. Queues the rollback deployment for the next boot; a second call reverts
    /// this.
    pub fn roll_back_behind_the_agent(&self) -> Result<()> {
        let done = self.machine().os.deployments(Deployments::toggle_rollback);
        done.map_err(anyhow::Error::msg)
    }

    /// Sends SIGKILL to every agent on the host. They restart after `settings.agent_restart`.
    pub fn kill_agent(&self) {
        self.machine().agents.kill();
    }

    /// Stops the agents (SIGTERM) until [`start_agent`](Self::start_agent).
    pub async fn stop_agent(&self) {
        self.machine().agents.want(0);
        self.machine().agents.stop(0, Some(Duration::from_millis(50))).await;
    }

    /// Starts the agent after [`stop_agent`](Self::stop_agent), or if its automatic restart is off.
    pub fn start_agent(&self) {
        self.run_agents(1);
    }

    /// Starts a second agent, like a surging DaemonSet update. It survives reboots.
    pub fn second_agent(&self) {
        self.run_agents(2);
    }

    /// Stops the second agent.
    pub async fn end_second_agent(&self) {
        self.machine().agents.want(1);
        self.machine().agents.stop(1, Some(Duration::from_millis(50))).await;
    }

    fn run_agents(&self, count: usize) {
        self.machine().agents.want(count);
        if self.machine().boot_id().is_some() {
            self.machine().agents.start();
        }
    }

    /// PIDs of the running agents.
    pub fn agent_pids(&self) -> Vec<u32> {
        self.machine().agents.pids()
    }

    /// Path of the file with the first agent's standard error. An agent that restarts appends to this file.
    pub fn agent_log(&self) -> PathBuf {
        self.machine().agents.log(0)
    }

    /// Directory with all files of this host; removed with the host.
    pub fn dir(&self) -> &Path {
        self.0.dir.path()
    }

    /// Registers the Node again after a test deleted it. The Node keeps its name and boot, and gets another UID.
    pub async fn register(&self) -> Result<()> {
        let kubelet = self
            .machine()
            .kubelet
            .as_ref()
            .context("this host has no kubelet stand-in")?;
        kubelet.register().await?;
        self.machine().restart_kubelet().await;
        Ok(())
    }

    /// Puts the rollback guard's unit into the host's image.
    pub fn ship_rollback_guard(&self) -> Result<()> {
        guard::ship(self.root())?;
        self.machine().load_guard();
        Ok(())
    }

    /// Stops only the kubelet stand-in: the Node becomes stale, and its pods no longer start or end.
    pub fn stop_kubelet(&self) {
        if let Some(kubelet) = &self.machine().kubelet {
            kubelet.stop();
        }
    }

    /// Starts the kubelet stand-in again, for the current boot.
    pub async fn start_kubelet(&self) {
        self.machine().restart_kubelet().await;
    }
}

fn deployment(catalog: &Catalog, image: &str, digest: &str, architecture: &str) -> Deployment {
    let known = catalog.get(digest).unwrap_or_else(|| CatalogImage::new("0"));
    Deployment {
        image: image.to_owned(),
        digest: digest.to_owned(),
        version: known.version,
        timestamp: known.timestamp,
        architecture: architecture.to_owned(),
        signed: false,
        packages: vec![],
        serial: 0,
    }
}

/// Executes the reboots that logind accepted, unless the host has rebooted since the request.
async fn serve_requests(machine: Arc<Machine>, mut requests: mpsc::UnboundedReceiver<Request>) {
    while let Some(request) = requests.recv().await {
        let Some(boot) = machine.boot_id() else {
            continue;
        };
        let how = if request.is_soft {
            Down::Soft(request.delay)
        } else {
            Down::Orderly(request.delay)
        };
        if let Err(error) = machine.reboot(how, Some(&boot)).await {
            tracing::error!(
                host = machine.name,
                error = format!("{error:#}"),
                "the reboot of the host failed"
            );
        }
    }
}
