//! A real host, as tests use it.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::machine::{Boot, Machine};
use super::run_dir::Site;
use super::shell::blocking;
use super::{network, shell};
use crate::process::with_parent;

/// The complete environment of commands on a host. Other variables, such as `container`, could mislead bootc.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variable with the path of a real bootc, used instead of the stand-in.
const REAL_BOOTC: &str = "BERTH_TEST_BOOTC";

/// A host. Cheap to clone; dropping the last clone cuts its power and removes it.
#[derive(Debug, Clone)]
pub struct RealHost {
    // Drop order: first the host, then its network.
    machine: Arc<Machine>,
    address: Ipv4Addr,
    _site: Arc<Site>,
}

impl RealHost {
    pub(super) fn new(machine: Machine, address: Ipv4Addr, site: Arc<Site>) -> Self {
        Self {
            machine: Arc::new(machine),
            address,
            _site: site,
        }
    }

    /// Name of the host.
    pub fn name(&self) -> &str {
        &self.machine.hardware().host
    }

    /// Address on the hosts' network.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Powers the host on, and waits until its system bus answers. From then on, the host boots again whenever it goes
    /// down.
    pub async fn start(&self) -> Result<Boot> {
        self.machine.power(true);
        self.wait_boot(None, Duration::from_secs(60)).await
    }

    /// Cuts the power until the next [`Self::start`].
    pub async fn stop(&self) -> Result<()> {
        self.machine.power(false);
        let gone = self.wait("end of the boot", Duration::from_secs(30), || {
            self.machine.boot().is_none()
        });
        gone.await
    }

    /// Cuts the power and restores it at once, without a shutdown on the host.
    pub fn power_cut(&self) {
        self.machine.power_cut();
    }

    /// Reboots the host as an admin would, without asking Berth. Returns when the shutdown is accepted.
    pub async fn reboot_now(&self) -> Result<()> {
        // The connection may be lost before the answer.
        self.output(&["systemctl", "reboot"]).await.map(drop)
    }

    /// Makes all boots of an image hang. The boot loader tries three times, then starts the next deployment.
    pub fn hang(&self, digest: &str) {
        self.machine.hang(digest);
    }

    /// Records that the host has soft-rebooted `count` times and now runs this image.
    pub fn note_soft_boot(&self, count: u32, digest: &str, version: &str) {
        self.machine.note_soft_boot(count, digest, version);
    }

    /// The current boot, if the host is up.
    pub fn boot(&self) -> Option<Boot> {
        self.machine.boot()
    }

    /// Waits until a boot other than `not` runs and its system bus answers.
    pub async fn wait_boot(&self, not: Option<&str>, limit: Duration) -> Result<Boot> {
        let begin = Instant::now();
        loop {
            let boot = self.boot().filter(|b| Some(b.boot_id.as_str()) != not);
            if let Some(boot) = boot
                && self.is_up().await
            {
                return Ok(boot);
            }
            if begin.elapsed() > limit {
                bail!(
                    "{} did not boot within {limit:?}; its console:\n{}",
                    self.name(),
                    self.machine.console()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn is_up(&self) -> bool {
        let ask = [
            "busctl",
            "call",
            "org.freedesktop.login1",
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
            "CanReboot",
        ];
        self.output(&ask).await.is_ok_and(|out| out.status.success())
    }

    /// Runs a command on the host; returns its standard output, or an error if it fails.
    pub async fn exec(&self, command: &[&str]) -> Result<String> {
        let out = self.output(command).await?;
        shell::check(&command.join(" "), &out)?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Runs a command on the host; returns its output and exit status.
    pub async fn output(&self, command: &[&str]) -> Result<Output> {
        let boot = self.boot().with_context(|| format!("{} is down", self.name()))?;
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &boot.init.to_string()]);
        enter.args([
            "--mount", "--root", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--", "env", "-i", PATH,
        ]);
        enter.args(command);
        let mut enter = with_parent(&enter);
        enter.stdin(Stdio::null());
        let words = command.join(" ");
        blocking(move || enter.output().with_context(|| format!("running {words} on a host"))).await
    }

    /// Returns the journal of a unit over all boots.
    pub async fn journal(&self, unit: &str) -> Result<String> {
        self.exec(&["journalctl", "--no-pager", "--output=short-precise", "--unit", unit])
            .await
    }

    /// Writes a file on the running host.
    pub async fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = self.path(path)?;
        let text = text.to_owned();
        blocking(move || std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))).await
    }

    /// Reads a file of the running host.
    pub async fn read(&self, path: &str) -> Result<String> {
        let path = self.path(path)?;
        blocking(move || std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))).await
    }

    /// Path on this computer of a file on the running host. Absolute links in the path would resolve on this computer
    /// instead.
    pub fn path(&self, path: &str) -> Result<PathBuf> {
        let boot = self.boot().with_context(|| format!("{} is down", self.name()))?;
        Ok(PathBuf::from(format!("/proc/{}/root", boot.init)).join(path.trim_start_matches('/')))
    }

    /// D-Bus address of the running host's system bus, for programs on this computer. It changes with each boot.
    pub fn bus_address(&self) -> Result<String> {
        Ok(format!(
            "unix:path={}",
            self.path("run/dbus/system_bus_socket")?.display()
        ))
    }

    /// Limits pulls on this host to a number of bytes per second; `None` removes the limit. A stand-in reads the limit
    /// from a file that survives reboots. For a real updater, the host's network is limited until the host reboots.
    pub async fn limit_pulls(&self, rate: Option<u64>) -> Result<()> {
        if std::env::var_os(REAL_BOOTC).is_some() {
            return self.limit_network(rate).await;
        }
        let text = rate.map(|rate| format!("rate={rate}\n")).unwrap_or_default();
        self.write("/etc/standin-bootc.conf", &text).await
    }

    /// Limits the running host's incoming traffic to a number of bytes per second until it reboots; `None` removes the limit.
    pub async fn limit_network(&self, rate: Option<u64>) -> Result<()> {
        let veth = self.machine.hardware().veth();
        blocking(move || network::limit(&veth, rate)).await
    }

    async fn wait(&self, what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
        let begin = Instant::now();
        while !done() {
            if begin.elapsed() > limit {
                bail!("{}: no {what} within {limit:?}", self.name());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}
