//! Properties and faults of a simulated host. All can be changed while the host runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::bootc::View;
use super::credentials::CredentialProgram;
use crate::bootc::cli::Release;
use crate::locked::locked;

/// Effect of a reboot request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RebootFault {
    /// The host reboots.
    #[default]
    Works,
    /// The request is accepted, but the host never reboots.
    Lost,
    /// The request is accepted, and the shutdown takes this additional time.
    Delayed(Duration),
    /// The request fails with this D-Bus error.
    Refused {
        /// Error name, such as `org.freedesktop.DBus.Error.AccessDenied`.
        name: String,
        /// Error text.
        message: String,
    },
}

/// Fault of a host that runs a bad image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unhealthy {
    /// `storage.service` has failed.
    FailedUnit,
    /// A unit wants `boot-complete.target`, which is not reached.
    BootIncomplete,
    /// The programs in `/usr/lib/berth/health.d` fail.
    FailedCheck,
}

/// An inhibitor lock in logind's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inhibitor {
    /// Inhibited actions, colon-separated, such as `shutdown:sleep`.
    pub what: String,
    /// Name of the inhibitor.
    pub who: String,
    /// Reason that the inhibitor gives.
    pub why: String,
    /// `block` or `delay`.
    pub mode: String,
    /// User ID of the holder.
    pub uid: u32,
    /// Process ID of the holder.
    pub pid: u32,
}

impl Inhibitor {
    /// A lock that blocks shutdowns.
    pub fn block(who: &str, why: &str) -> Self {
        Self {
            what: "shutdown".to_owned(),
            who: who.to_owned(),
            why: why.to_owned(),
            mode: "block".to_owned(),
            uid: 0,
            pid: 4711,
        }
    }

    /// True if it blocks a reboot request: `delay` locks only delay it.
    pub fn blocks_shutdown(&self) -> bool {
        self.mode == "block" && self.what.split(':').any(|w| w == "shutdown")
    }
}

/// The programs that can update a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Updaters {
    /// bootc alone.
    #[default]
    Bootc,
    /// rpm-ostree alone.
    RpmOstree,
    /// Both.
    Both,
    /// Both, with a package layered on the image.
    Layered,
}

impl Updaters {
    /// The updaters selected by `BERTH_TEST_BACKEND`, so that scenarios written for bootc also run with rpm-ostree.
    pub fn asked_for() -> anyhow::Result<Self> {
        match std::env::var("BERTH_TEST_BACKEND").as_deref() {
            Ok("rpm-ostree") => Ok(Self::RpmOstree),
            Err(_) | Ok("" | "bootc") => Ok(Self::Bootc),
            Ok(other) => anyhow::bail!("BERTH_TEST_BACKEND is {other}; it may be bootc or rpm-ostree"),
        }
    }

    /// Names of the packages layered on the first image.
    pub fn packages(self) -> Vec<String> {
        let layered = (self == Self::Layered).then(|| "htop".to_owned());
        layered.into_iter().collect()
    }

    /// Sets the updaters of a host.
    pub fn install(self, settings: &mut Settings) {
        settings.rpm_ostree |= self != Self::Bootc;
        settings.bootc_missing |= self == Self::RpmOstree;
    }
}

/// Settings of the stand-in for the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletSettings {
    /// Time from the boot to the first status with the new boot ID, which is not ready.
    pub start_delay: Duration,
    /// Time from that status to Ready.
    pub ready_delay: Duration,
    /// Time from a pod's scheduling until it is Ready.
    pub pod_start: Duration,
    /// Time that a deleted pod takes to end. A pod with the annotation `berth.test/never-ends` never does.
    pub pod_stop: Duration,
    /// If true, the kubelet reports NotReady when an orderly shutdown begins (graceful node shutdown).
    pub report_shutdown: bool,
    /// Renewal interval of the Lease in `kube-node-lease`; `None` never renews it.
    pub renew_lease: Option<Duration>,
    /// Pods whose first container has one of these words as its first argument do not become ready. A test runs their
    /// program itself.
    pub not_run: BTreeSet<String>,
}

impl Default for KubeletSettings {
    fn default() -> Self {
        Self {
            start_delay: Duration::ZERO,
            ready_delay: Duration::from_millis(200),
            pod_start: Duration::from_millis(50),
            pod_stop: Duration::from_millis(100),
            report_shutdown: false,
            renew_lease: Some(Duration::from_secs(10)),
            not_run: BTreeSet::new(),
        }
    }
}

/// Properties and faults of a host. Counters (`u32`) decrease each time the fault occurs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Duration of a pull if the layers are not on the disk yet.
    pub pull_time: Duration,
    /// How long a pull runs after it has staged its image: for bound images and a cleanup.
    pub after_staging: Duration,
    /// Duration of `bootc status` and other local commands.
    pub command_time: Duration,
    /// Time from an accepted reboot request until the host is down.
    pub shutdown_time: Duration,
    /// Time from down to up.
    pub reboot_time: Duration,
    /// Number of pulls that fail half-way.
    pub pull_failures: u32,
    /// Root cause in the error of such a pull.
    pub pull_failure_text: String,
    /// Number of pulls that stage the image (unlocked!) and then fail, as when a bound image cannot be pulled.
    pub staged_then_fails: u32,
    /// True if the disk has no room for another image.
    pub disk_full: bool,
    /// True if the registry does not answer.
    pub registry_down: bool,
    /// The registry accepts only hosts whose auth file has this text.
    pub login: Option<String>,
    /// Number of failures of `ostree admin lock-finalization`.
    pub lock_failures: u32,
    /// Number of shutdowns that fail to finalize the staged image: the old one boots again.
    pub finalization_failures: u32,
    /// True if `/usr/bin/bootc` does not exist.
    pub bootc_missing: bool,
    /// Version that bootc reports. Before 1.12: no locking; from 1.16.10 on: `switch --download-only`.
    pub bootc_version: String,
    /// Additional length of each line of progress in bytes, as with many layers. The pipe holds 1 MiB.
    pub progress_padding: usize,
    /// True if bootc has no hidden flag `--progress-fd`.
    pub no_progress_fd: bool,
    /// True if `bootc switch --help` fails.
    pub no_help: bool,
    /// True if the host was not installed with bootc.
    pub not_bootc: bool,
    /// True if the deployments are in composefs; the host then has no ostree.
    pub composefs: bool,
    /// True if a composefs host boots UKIs, which systemd-boot finds through boot loader entries.
    pub uki: bool,
    /// bootc reports staged images as capable of a soft reboot.
    pub soft_reboot_capable: bool,
    /// True if the host has rpm-ostree.
    pub rpm_ostree: bool,
    /// True if ostree is older than 2023.8 and has no `lock-finalization`.
    pub old_ostree: bool,
    /// Images whose kubelet never becomes Ready.
    pub never_ready: BTreeSet<String>,
    /// Images whose kubelet does not start.
    pub kubelet_dead: BTreeSet<String>,
    /// Images whose boots hang: the boot loader counts three tries, then boots the next deployment.
    pub hanging: BTreeSet<String>,
    /// Images whose host is unhealthy, although its kubelet becomes Ready.
    pub unhealthy: BTreeMap<String, Unhealthy>,
    /// Active units of other updaters, such as `zincati.service`.
    pub rivals: BTreeSet<String>,
    /// Effect of the next reboot requests.
    pub reboot: RebootFault,
    /// Number of reboot requests that are accepted and then lost.
    pub reboots_lost: u32,
    /// Whether the clock is reported as synchronized; `None`: the query fails.
    pub clock_synchronized: Option<bool>,
    /// True if logind never answers calls.
    pub logind_silent: bool,
    /// Inhibitors in logind's list.
    pub inhibitors: Vec<Inhibitor>,
    /// Delay until a dead agent is restarted; `None` never restarts it.
    pub agent_restart: Option<Duration>,
    /// The program that issues tokens of the kubelet.
    pub credentials: CredentialProgram,
    /// Settings of the kubelet stand-in.
    pub kubelet: KubeletSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pull_time: Duration::from_millis(200),
            after_staging: Duration::ZERO,
            command_time: Duration::from_millis(2),
            shutdown_time: Duration::from_millis(50),
            reboot_time: Duration::from_secs(1),
            pull_failures: 0,
            pull_failure_text: "Pulling: Importing: unexpected end of file".to_owned(),
            staged_then_fails: 0,
            disk_full: false,
            registry_down: false,
            login: None,
            lock_failures: 0,
            finalization_failures: 0,
            bootc_missing: false,
            bootc_version: "1.16.9".to_owned(),
            progress_padding: 0,
            no_progress_fd: false,
            no_help: false,
            not_bootc: false,
            composefs: false,
            uki: false,
            soft_reboot_capable: false,
            rpm_ostree: false,
            old_ostree: false,
            never_ready: BTreeSet::new(),
            kubelet_dead: BTreeSet::new(),
            hanging: BTreeSet::new(),
            unhealthy: BTreeMap::new(),
            rivals: BTreeSet::new(),
            reboot: RebootFault::Works,
            reboots_lost: 0,
            clock_synchronized: Some(true),
            logind_silent: false,
            inhibitors: Vec::new(),
            agent_restart: Some(Duration::from_millis(100)),
            credentials: CredentialProgram::default(),
            kubelet: KubeletSettings::default(),
        }
    }
}

impl Settings {
    pub(super) fn bootc(&self) -> Release {
        Release {
            has_progress_fd: !self.no_progress_fd,
            ..Release::new(&self.bootc_version)
        }
    }

    /// Properties that change the output of `bootc status`.
    pub(super) fn view(&self) -> View {
        View {
            not_bootc: self.not_bootc,
            composefs: self.composefs,
            uki: self.uki,
            inverts_rollback: self.composefs && self.uki && self.bootc().inverts_rollback(),
            old: !self.bootc().has_locks(),
            soft_reboot_capable: self.soft_reboot_capable,
        }
    }
}

/// Settings of a host, shared by its parts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SharedSettings(Arc<Mutex<Settings>>);

impl SharedSettings {
    /// Shares these settings.
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(Mutex::new(settings)))
    }

    /// Reads or changes the settings.
    pub fn with<T>(&self, f: impl FnOnce(&mut Settings) -> T) -> T {
        // Poisoned only if a test's closure panicked; plain data stays usable.
        f(&mut locked(&self.0))
    }

    /// Returns a copy of the current settings.
    pub fn get(&self) -> Settings {
        self.with(|s| s.clone())
    }

    /// True if a counted fault occurs now; decreases its counter.
    pub fn strikes(&self, counter: impl FnOnce(&mut Settings) -> &mut u32) -> bool {
        self.with(|s| {
            let counter = counter(s);
            let strikes = *counter > 0;
            *counter = counter.saturating_sub(1);
            strikes
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_faults_end() {
        let settings = SharedSettings::default();
        settings.with(|s| s.pull_failures = 2);
        let strikes: Vec<_> = (0..3).map(|_| settings.strikes(|s| &mut s.pull_failures)).collect();
        assert_eq!(strikes, [true, true, false]);
    }

    #[test]
    fn only_block_locks_on_shutdown_block() {
        let mut inhibitor = Inhibitor::block("backup", "running");
        assert!(inhibitor.blocks_shutdown());
        inhibitor.what = "sleep".to_owned();
        assert!(!inhibitor.blocks_shutdown());
        inhibitor.what = "sleep:shutdown".to_owned();
        assert!(inhibitor.blocks_shutdown());
        inhibitor.mode = "delay".to_owned();
        assert!(!inhibitor.blocks_shutdown());
    }
}
