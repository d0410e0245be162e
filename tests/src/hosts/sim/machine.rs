//! The parts of a simulated host, and what a boot, shutdown or power cut does to them.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::BootId;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::AbortHandle;
use zbus::Connection;

use super::agent::Agents;
use super::bootc::Deployments;
use super::bus::Bus;
use super::guard::{self, Guard, Programs};
use super::kubelet::{Boot, Kubelet};
use super::login::Login;
use super::process::Os;
use super::rpm_ostree::RpmOstree;
use super::settings::{SharedSettings, Unhealthy};
use super::systemd;
use super::timedate;
use super::units::Units;
use crate::hosts::{HostChange, HostLog};
use crate::locked::locked;

/// Timers and services of other updaters, with the substate of each.
const RIVALS: &[(&str, &str)] = &[
    ("bootc-fetch-apply-updates.timer", "waiting"),
    ("rpm-ostreed-automatic.timer", "waiting"),
    ("zincati.service", "running"),
];
/// Number of boots that the boot loader grants a deployment before it starts the next one.
const BOOT_TRIES: u32 = 3;
/// Time until a boot that hangs is reset.
const HANG_TIME: Duration = Duration::from_millis(200);
const TERM_GRACE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Down {
    /// A shutdown, with this additional time. It finalizes the staged deployment.
    Orderly(Duration),
    /// A shutdown that keeps the kernel, with this additional time.
    Soft(Duration),
    PowerCut,
}

/// Resources that exist only while the host is up.
#[derive(Debug)]
pub(super) struct Up {
    boot: Boot,
    /// Connections of systemd and logind. A restart of the bus replaces them.
    systemd: Connection,
    login: Connection,
    clients: AbortHandle,
    /// Task that starts rpm-ostreed when the bus activates it.
    activations: AbortHandle,
    /// The rollback guard, if it is armed.
    guard: Option<Guard>,
}

/// A host. A lock serializes all changes of its power.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) root: PathBuf,
    pub(super) settings: SharedSettings,
    pub(super) os: std::sync::Arc<Os>,
    pub(super) bus: Bus,
    pub(super) units: Units,
    pub(super) login: Login,
    pub(super) rpm_ostree: RpmOstree,
    pub(super) kubelet: Option<Kubelet>,
    pub(super) agents: Agents,
    pub(super) log: HostLog,
    pub(super) power: AsyncMutex<Option<Up>>,
    /// Copy of the boot ID for readers; `None` while the host is down.
    pub(super) boot_id: Mutex<Option<String>>,
}

impl Machine {
    pub(super) fn boot_id(&self) -> Option<String> {
        self.boot_id_slot().clone()
    }

    fn boot_id_slot(&self) -> MutexGuard<'_, Option<String>> {
        locked(&self.boot_id)
    }

    pub(super) async fn power_on(&self) -> Result<()> {
        let mut power = self.power.lock().await;
        if power.is_none() {
            *power = Some(self.boot(None).await?);
        }
        Ok(())
    }

    pub(super) async fn power_off(&self, how: Down) {
        let mut power = self.power.lock().await;
        if let Some(up) = power.take() {
            self.go_down(up, how).await;
        }
    }

    /// Takes the host down and boots it again. With `boot`: only if that is still the current boot, because one request
    /// must not reboot the host twice.
    pub(super) async fn reboot(&self, how: Down, boot: Option<&str>) -> Result<()> {
        let mut power = self.power.lock().await;
        let Some(up) = power.take_if(|up| boot.is_none_or(|id| up.boot.boot_id == id)) else {
            return Ok(());
        };
        let kernel = matches!(how, Down::Soft(_)).then(|| up.boot.boot_id.clone());
        self.go_down(up, how).await;
        let pause = self.settings.with(|s| s.reboot_time);
        // A soft reboot skips firmware and kernel, which take most of a reboot's time.
        let pause = if kernel.is_some() { pause / 4 } else { pause };
        tokio::time::sleep(pause).await;
        *power = Some(self.boot(kernel).await?);
        Ok(())
    }

    /// Restarts the message bus. systemd and logind reconnect; their clients must do so themselves.
    pub(super) async fn restart_bus(&self) -> Result<()> {
        let mut power = self.power.lock().await;
        let Some(up) = power.as_mut() else {
            return Ok(());
        };
        up.clients.abort();
        // rpm-ostreed ends when it loses its bus connection.
        self.rpm_ostree.stop().await;
        self.bus.start().await?;
        self.units.forget_clients();
        (up.systemd, up.login, up.clients) = self.serve().await?;
        Ok(())
    }

    pub(super) async fn restart_kubelet(&self) {
        if let (Some(up), Some(kubelet)) = (self.power.lock().await.as_ref(), &self.kubelet) {
            kubelet.start(up.boot.clone());
        }
    }

    /// Applies the settings to rpm-ostree and to the units of other updaters.
    pub(super) fn apply_settings(&self) {
        self.rpm_ostree.apply();
        let rivals = self.settings.with(|s| s.rivals.clone());
        for (name, sub) in RIVALS {
            self.units.fix(name, rivals.contains(*name).then_some(("active", *sub)));
        }
    }

    /// Loads the unit of the rollback guard, if the host has it.
    pub(super) fn load_guard(&self) {
        if let Some(name) = guard::enabled(&self.root) {
            self.units.fix(name, Some(("inactive", "dead")));
        }
    }

    /// Boots the host. `before`: ID of the boot before, if this is a soft reboot.
    async fn boot(&self, before: Option<String>) -> Result<Up> {
        if before.is_some() {
            self.os.deployments(Deployments::soft_boot);
        } else {
            let hanging = self.settings.with(|s| s.hanging.clone());
            let hangs = self.os.deployments(|d| d.boot(&hanging));
            tokio::time::sleep(HANG_TIME * BOOT_TRIES * u32::try_from(hangs).unwrap_or(1)).await;
        }
        let (digest, version, failed) = self.os.deployments(|d| {
            let booted = d.booted().map(|b| (b.digest.clone(), b.version.clone()));
            let (digest, version) = booted.unwrap_or_default();
            (digest, version, d.finalization_failed())
        });
        let boot_id = match before {
            Some(before) => next_soft(&before),
            None => self.new_boot_id()?,
        };
        self.units.begin_userspace(soft_reboots(&boot_id));
        self.log.record(
            &self.name,
            HostChange::Up {
                boot_id: boot_id.clone(),
                digest: digest.clone(),
                version: version.clone(),
            },
        );
        // A composefs host has no such unit, nor another one that reports a failed finalization.
        let has_unit = !self.settings.with(|s| s.composefs);
        let state = if failed {
            ("failed", "failed")
        } else {
            ("inactive", "dead")
        };
        self.units
            .fix("ostree-boot-complete.service", has_unit.then_some(state));
        let fault = self.settings.with(|s| s.unhealthy.get(&digest).copied());
        let is_failed = fault == Some(Unhealthy::FailedUnit);
        self.units
            .fix("storage.service", is_failed.then_some(("failed", "failed")));
        let is_incomplete = fault == Some(Unhealthy::BootIncomplete);
        self.units
            .fix("boot-complete.target", is_incomplete.then_some(("inactive", "dead")));
        let counts_boots = self.settings.with(|s| !s.hanging.is_empty());
        self.units
            .fix(systemd::BOOT_COUNTER, counts_boots.then_some(("active", "exited")));
        self.load_guard();
        self.apply_settings();
        self.login.set_preparing(false);
        self.bus.start().await?;
        let (systemd, login, clients) = self.serve().await?;
        let activations = self.rpm_ostree.listen()?;
        let dead = self.settings.with(|s| s.kubelet_dead.contains(&digest));
        let boot = Boot {
            boot_id: boot_id.clone(),
            digest,
            version,
        };
        *self.boot_id_slot() = Some(boot_id);
        let directory = self.root.parent().unwrap_or(&self.root);
        let programs = Programs {
            os: self.os.clone(),
            login: self.login.clone(),
            units: self.units.clone(),
        };
        let guard = Guard::start(&self.root, directory, programs)?;
        if let Some(kubelet) = self.kubelet.as_ref().filter(|_| !dead) {
            kubelet.start(boot.clone());
            // Without a kubelet the agent would not be started either.
            self.agents.start();
        } else if self.kubelet.is_none() {
            self.agents.start();
        }
        Ok(Up {
            boot,
            systemd,
            login,
            clients,
            activations,
            guard,
        })
    }

    async fn serve(&self) -> Result<(Connection, Connection, AbortHandle)> {
        let (systemd, login) = (self.bus.connect().await?, self.bus.connect().await?);
        self.login.serve(&login).await.context("cannot serve logind")?;
        timedate::serve(&login, &self.settings)
            .await
            .context("cannot serve timedated")?;
        let clients = systemd::serve(&systemd, &self.units, &self.rpm_ostree)
            .await
            .context("cannot serve systemd")?;
        Ok((systemd, login, clients))
    }

    fn new_boot_id(&self) -> Result<String> {
        let run = self.root.join("run");
        if run.exists() {
            std::fs::remove_dir_all(&run).context("cannot empty /run of a simulated host")?;
        }
        std::fs::create_dir_all(&run).context("cannot make /run of a simulated host")?;
        // Each read of this file returns another random UUID, in the format of a boot ID.
        let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("cannot make a boot ID")?;
        let file = self.root.join("proc/sys/kernel/random/boot_id");
        std::fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))
            .context("cannot make the directory of the boot ID")?;
        std::fs::write(&file, &id).context("cannot write the boot ID")?;
        Ok(id.trim().to_owned())
    }

    async fn go_down(&self, up: Up, how: Down) {
        if let Down::Orderly(longer) | Down::Soft(longer) = how {
            self.begin_shutdown(&up, longer).await;
        }
        self.agents.stop(0, (how != Down::PowerCut).then_some(TERM_GRACE)).await;
        if let Some(kubelet) = &self.kubelet {
            kubelet.stop();
        }
        up.clients.abort();
        up.activations.abort();
        drop(up.guard);
        self.rpm_ostree.stop().await;
        self.units.clear();
        // Waits until killed commands have released the sysroot, so that they change nothing between the shutdown and
        // the boot.
        self.os
            .quiesced(|d| match how {
                Down::Orderly(_) | Down::Soft(_) => {
                    let fails = d.is_armed() && self.settings.strikes(|s| &mut s.finalization_failures);
                    d.shut_down(!fails);
                }
                Down::PowerCut => d.cut_power(),
            })
            .await;
        *self.boot_id_slot() = None;
        // Errors mean that the connection is already closed.
        let _ = up.systemd.close().await;
        let _ = up.login.close().await;
        self.bus.stop().await;
        self.log.record(&self.name, HostChange::Down);
    }

    async fn begin_shutdown(&self, up: &Up, longer: Duration) {
        self.login.set_preparing(true);
        self.units.shutting_down();
        if let Err(error) = self.login.announce(&up.login).await {
            tracing::debug!(host = self.name, %error, "cannot signal the shutdown");
        }
        let (report, time) = self.settings.with(|s| (s.kubelet.report_shutdown, s.shutdown_time));
        if let Some(kubelet) = self.kubelet.as_ref().filter(|_| report) {
            let said = tokio::time::timeout(
                Duration::from_secs(2),
                kubelet.report(&up.boot, false, "NodeShuttingDown"),
            );
            let _ = said.await;
        }
        tokio::time::sleep(time + longer).await;
    }

    /// Ends everything without waiting, for use in Drop.
    pub(super) fn abandon(&self) {
        self.agents.abandon();
        if let Some(kubelet) = &self.kubelet {
            kubelet.stop();
        }
        self.rpm_ostree.abandon();
        self.units.clear();
        self.bus.kill();
    }
}

/// ID of the boot that follows this one by a soft reboot.
fn next_soft(before: &str) -> String {
    let count = soft_reboots(before) + 1;
    BootId::after_soft_reboots(BootId::new(before).kernel(), count).to_string()
}

/// Number of soft reboots in the ID of a boot.
fn soft_reboots(id: &str) -> u32 {
    let count = id.rsplit_once(".soft").and_then(|(_, count)| count.parse().ok());
    count.unwrap_or(0)
}
