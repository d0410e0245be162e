//! Properties and faults of a simulated host. All of them may be changed while the host runs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Effect of a request to reboot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RebootFault {
    /// The host reboots.
    #[default]
    Works,
    /// The request is accepted and nothing happens, ever.
    Lost,
    /// The request is accepted, and the shutdown takes so much longer.
    Delayed(Duration),
    /// The request fails with this D-Bus error.
    Refused {
        /// Error name, such as `org.freedesktop.DBus.Error.AccessDenied`.
        name: String,
        /// Error text.
        message: String,
    },
}

/// One lock that logind lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inhibitor {
    /// Inhibited actions, colon-separated, such as `shutdown:sleep`.
    pub what: String,
    /// Name of the inhibitor.
    pub who: String,
    /// Reason that it gives.
    pub why: String,
    /// `block` or `delay`.
    pub mode: String,
    /// The holder's user.
    pub uid: u32,
    /// The holder's process.
    pub pid: u32,
}

impl Inhibitor {
    /// A lock that blocks a shutdown.
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

    /// Says whether it stops a reboot request: `delay` locks only wait.
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
    /// Both of them.
    Both,
    /// Both, and a package is layered on the image.
    Layered,
}

impl Updaters {
    /// Those that `BERTH_TEST_BACKEND` asks for, so that scenarios written for bootc run with rpm-ostree.
    ///
    /// # Errors
    /// Asks for something else.
    pub fn asked_for() -> anyhow::Result<Self> {
        match std::env::var("BERTH_TEST_BACKEND").as_deref() {
            Ok("rpm-ostree") => Ok(Self::RpmOstree),
            Err(_) | Ok("" | "bootc") => Ok(Self::Bootc),
            Ok(other) => anyhow::bail!("BERTH_TEST_BACKEND is {other}; it may be bootc or rpm-ostree"),
        }
    }

    /// Names of the packages that are layered on the first image.
    pub fn packages(self) -> Vec<String> {
        let layered = (self == Self::Layered).then(|| "htop".to_owned());
        layered.into_iter().collect()
    }

    /// Puts them on a host.
    pub fn install(self, settings: &mut Settings) {
        settings.rpm_ostree |= self != Self::Bootc;
        settings.bootc_missing |= self == Self::RpmOstree;
    }
}

/// Settings of the stand-in for the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletSettings {
    /// Time from the boot to the first status under the new boot ID, which says not ready.
    pub start_delay: Duration,
    /// Time from there to Ready.
    pub ready_delay: Duration,
    /// Time that a pod needs from scheduled to Ready.
    pub pod_start: Duration,
    /// Time that a deleted pod takes to end. A pod with the annotation `berth.test/never-ends` never does.
    pub pod_stop: Duration,
    /// The kubelet says NotReady when an orderly shutdown begins (graceful node shutdown).
    pub report_shutdown: bool,
    /// Time between two renewals of the Lease in `kube-node-lease`; `None` leaves it alone.
    pub renew_lease: Option<Duration>,
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
        }
    }
}

/// Properties and faults of one host. Counters (`u32`) go down by one each time the fault strikes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Length of a pull when the layers are not on the disk yet.
    pub pull_time: Duration,
    /// Time for which a pull goes on after it has staged its image: for bound images, and a cleanup.
    pub after_staging: Duration,
    /// Length of `bootc status` and the other local commands.
    pub command_time: Duration,
    /// Time from an accepted reboot request to Down.
    pub shutdown_time: Duration,
    /// Time from Down to Up.
    pub reboot_time: Duration,
    /// Number of pulls that will fail half-way.
    pub pull_failures: u32,
    /// Root cause in the text of such a failure.
    pub pull_failure_text: String,
    /// The next pulls stage the image (unlocked!) and then fail, as when a bound image cannot be pulled.
    pub staged_then_fails: u32,
    /// True leaves no room on the disk for another image.
    pub disk_full: bool,
    /// The registry does not answer.
    pub registry_down: bool,
    /// The registry lets in nobody but a host whose auth file has this text.
    pub login: Option<String>,
    /// `ostree admin lock-finalization` fails so many times.
    pub lock_failures: u32,
    /// The next shutdowns fail to finalize what is staged: the old image boots again.
    pub finalization_failures: u32,
    /// `/usr/bin/bootc` does not exist.
    pub bootc_missing: bool,
    /// The version that bootc says. Older than 1.12: no locking; newer than 1.16.9: `switch --download-only`.
    pub bootc_version: String,
    /// Bytes that each line of progress is longer by, as with many layers. The pipe takes 1 MiB.
    pub progress_padding: usize,
    /// bootc does not know the hidden flag `--progress-fd`.
    pub no_progress_fd: bool,
    /// `bootc switch --help` fails.
    pub no_help: bool,
    /// The host was not installed as a bootc host.
    pub not_bootc: bool,
    /// The host keeps its deployments in composefs, and has no ostree.
    pub composefs: bool,
    /// The host has rpm-ostree.
    pub rpm_ostree: bool,
    /// An ostree older than 2023.8, which has no `lock-finalization`.
    pub old_ostree: bool,
    /// Images under which the kubelet never becomes Ready.
    pub never_ready: BTreeSet<String>,
    /// Images under which the kubelet does not even start.
    pub kubelet_dead: BTreeSet<String>,
    /// Other updaters that are active, by unit name such as `zincati.service`.
    pub rivals: BTreeSet<String>,
    /// Effect of the next requests to reboot.
    pub reboot: RebootFault,
    /// Number of requests to reboot that will be accepted and then lost.
    pub reboots_lost: u32,
    /// Answer about the clock: synchronised or not; `None`: the host does not say.
    pub clock_synchronized: Option<bool>,
    /// logind takes questions and never answers them.
    pub logind_silent: bool,
    /// Inhibitors that logind lists.
    pub inhibitors: Vec<Inhibitor>,
    /// Time after which a dead agent is started again; `None` leaves it dead.
    pub agent_restart: Option<Duration>,
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
            rpm_ostree: false,
            old_ostree: false,
            never_ready: BTreeSet::new(),
            kubelet_dead: BTreeSet::new(),
            rivals: BTreeSet::new(),
            reboot: RebootFault::Works,
            reboots_lost: 0,
            clock_synchronized: Some(true),
            logind_silent: false,
            inhibitors: Vec::new(),
            agent_restart: Some(Duration::from_millis(100)),
            kubelet: KubeletSettings::default(),
        }
    }
}

impl Settings {
    /// The version as numbers, for comparisons; a part that is no number counts as 0.
    pub fn bootc_numbers(&self) -> (u32, u32, u32) {
        let mut parts = self.bootc_version.split('.').map(|p| p.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        (next(), next(), next())
    }
}

/// One host's settings, shared by its parts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SharedSettings(Arc<Mutex<Settings>>);

impl SharedSettings {
    /// Shares these settings.
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(Mutex::new(settings)))
    }

    /// Reads or changes them.
    pub fn with<T>(&self, f: impl FnOnce(&mut Settings) -> T) -> T {
        // Poisoned only when a test's closure panicked; plain data stays usable.
        f(&mut self.0.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// A copy of them as they are now.
    pub fn get(&self) -> Settings {
        self.with(|s| s.clone())
    }

    /// Says whether a counted fault strikes now, and counts it down.
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

    #[test]
    fn versions_compare_as_numbers() {
        let settings = Settings::default();
        assert_eq!(settings.bootc_numbers(), (1, 16, 9));
        assert!(settings.bootc_numbers() > (1, 12, 0));
    }
}
