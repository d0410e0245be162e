//! The agent's interface to the host.

use std::sync::{Arc, Mutex, OnceLock};

use berth_api::backend::Backend;
use berth_api::node::{BootSafeguard, Deployment, DesiredImage, Progress};
use berth_api::{BootId, Digest};
use berth_core::agent::facts::{BootComplete, Checks, HostHealth, Past, RollbackGuard, SoftReboots};
use berth_core::agent::host_policy::credentials::Claim;
use berth_core::agent::host_policy::registries::Registries;
use berth_core::agent::host_policy::signatures::Policy;
use berth_core::agent::report::GuardUnit;
use berth_core::agent::rivals;
use berth_core::agent::storage::{OstreeLock, StagingLock};
use tokio::sync::watch;

use super::auth::{AuthOutcome, AuthSource, HostAuth};
use super::bootc::{Bootc, BootcStatus, BootcVersion};
use super::bus::{Bus, Changes};
use super::checks::CheckRuns;
use super::driver::{Pull, PullInputs, PullState};
use super::error::HostError;
use super::exec_credential::CredentialPrograms;
use super::lock::HostLock;
use super::login::{self, Inhibitor};
use super::memory_file::MemoryFile;
use super::record::RecordFile;
use super::rollback_guard::{self, Disarmed, GuardFiles};
use super::root::HostRoot;
use super::rpm_ostree::RpmOstree;
use super::tools::Tools;
use super::{repository, rules, soft_reboots, timedate, units};

/// The host that the agent runs on.
#[derive(Debug)]
pub struct Host {
    pub(super) root: HostRoot,
    bus: Arc<Bus>,
    pub(super) tools: Tools,
    pub(super) bootc: Bootc,
    pub(super) rpm_ostree: RpmOstree,
    /// Backend that the last survey chose.
    chosen: Mutex<Backend>,
    record: RecordFile,
    memory: MemoryFile,
    guard: GuardFiles,
    soft_reboots: OnceLock<SoftReboots>,
    checks: CheckRuns,
    auth: HostAuth,
    allowed_registries: Vec<String>,
    changes: Changes,
    claim: Mutex<Option<HostLock>>,
}

impl Host {
    /// Prepares the access to the host and tries to connect to its system bus. If the bus is unreachable, this call
    /// still succeeds, and each later call tries to connect again.
    ///
    /// # Errors
    /// When the runtime directory cannot be created under the root.
    pub async fn connect(bus: Option<&str>, root: HostRoot) -> anyhow::Result<Self> {
        root.make_run_dir()?;
        let address = bus.map_or_else(
            || format!("unix:path={}", root.path("/run/dbus/system_bus_socket").display()),
            str::to_owned,
        );
        let changes = Changes::new();
        let bus = Arc::new(Bus::new(address, changes.clone()));
        let tools = Tools {
            bus: Arc::clone(&bus),
            root: root.clone(),
        };
        let host = Self {
            bootc: Bootc::new(tools.clone(), changes.clone()),
            rpm_ostree: RpmOstree::new(tools.clone(), changes.clone()),
            chosen: Mutex::default(),
            bus,
            record: RecordFile::new(&root),
            memory: MemoryFile::new(&root),
            guard: GuardFiles::new(&root),
            soft_reboots: OnceLock::new(),
            checks: CheckRuns::new(tools.clone(), changes.clone()),
            auth: HostAuth::new(root.clone(), AuthSource::default()),
            allowed_registries: vec![],
            root,
            changes,
            tools,
            claim: Mutex::new(None),
        };
        if let Err(error) = host.bus.ensure().await {
            tracing::warn!(%error, "cannot connect to the host's system bus yet; each later call tries again");
        } else if let Err(error) = host.soft_reboots().await {
            tracing::warn!(%error, "cannot read the number of soft reboots yet; each later pass tries again");
        }
        Ok(host)
    }

    /// Sets the source of the host's credentials.
    #[must_use]
    pub fn with_auth(mut self, source: AuthSource) -> Self {
        self.auth = HostAuth::new(self.root.clone(), source);
        self
    }

    /// Sets the prefixes of the images that the agent's flags permit to be staged. An empty list permits all images.
    #[must_use]
    pub fn with_allowed_registries(mut self, prefixes: Vec<String>) -> Self {
        self.allowed_registries = prefixes;
        self
    }

    /// Returns the registries that the host may pull from.
    pub fn registries(&self) -> Registries {
        rules::registries(&self.root, &self.allowed_registries)
    }

    /// Returns the host's signature policy, and the digest of its text.
    pub fn policy(&self) -> (Policy, Option<Digest>) {
        rules::policy(&self.root)
    }

    /// Writes or removes the host's auth file, as `claim` requires.
    pub fn keep_auth(&self, claim: Claim) -> AuthOutcome {
        self.auth.keep(claim)
    }

    /// Returns the runner of programs that issue credentials.
    pub fn credential_programs(&self) -> CredentialPrograms {
        CredentialPrograms {
            tools: self.tools.clone(),
        }
    }

    /// Returns the root of the host's files.
    pub fn root(&self) -> &HostRoot {
        &self.root
    }

    /// Waits for the host-wide lock (see [`HostLock`]). The lock is held until this `Host` is dropped.
    ///
    /// # Errors
    /// When the lock file cannot be created.
    pub async fn claim(&self) -> anyhow::Result<()> {
        let lock = HostLock::acquire(&self.root).await?;
        *self.claim.lock().unwrap_or_else(|e| e.into_inner()) = Some(lock);
        Ok(())
    }

    /// Returns the ID of the running boot: the kernel's boot ID and the number of soft reboots since.
    ///
    /// # Errors
    /// When the boot ID cannot be read, or is empty.
    pub fn boot_id(&self) -> anyhow::Result<BootId> {
        self.root.boot_id()
    }

    /// Returns a counter that changes when a pull progresses or ends, a health check ends, a shutdown begins, or the
    /// connection to the bus is lost.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the version of the host's bootc. A supported version is cached for the life of the agent, other answers
    /// for 30 s (a bootc that is still missing after several queries: one hour).
    ///
    /// # Errors
    /// [`HostError::Busy`] while a host tool runs that an earlier agent started.
    pub async fn bootc_version(&self) -> Result<BootcVersion, HostError> {
        self.bootc.version().await
    }

    /// Queries bootc for the booted, staged and rollback deployments, even if rpm-ostree is the backend.
    ///
    /// # Errors
    /// [`HostError::Busy`] while a pull runs, because bootc would wait for the end of the pull. Other errors if the
    /// command failed.
    pub async fn status(&self) -> Result<BootcStatus, HostError> {
        self.refuse_while_pulling().await?;
        self.bootc.status().await
    }

    pub(super) fn choose(&self, backend: Backend) {
        *self.chosen.lock().unwrap_or_else(|e| e.into_inner()) = backend;
    }

    /// Returns the backend that the last survey chose.
    fn chosen(&self) -> Backend {
        *self.chosen.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the backend of the recorded pull, even if a later survey has chosen another backend. Without a record,
    /// returns bootc, because a pull of bootc can be found by the name of its unit.
    fn puller(&self, boot: &BootId) -> Backend {
        self.record.read(boot).map_or(Backend::Bootc, |record| record.backend)
    }

    /// Finds the pull of this boot: the recorded pull, or else a pull unit of the desired digest. Also finds an ended
    /// pull, until [`Host::forget_pull`].
    ///
    /// # Errors
    /// When systemd does not answer.
    pub async fn find_pull(&self, desired: Option<&Digest>) -> Result<Option<Pull>, HostError> {
        let boot = self.tools.boot()?;
        match self.puller(&boot) {
            Backend::Bootc => self.bootc.find_pull(&boot, desired).await,
            Backend::RpmOstree => self.rpm_ostree.find_pull(&boot).await,
        }
    }

    /// Forgets an ended pull, so that [`Host::find_pull`] no longer returns it. The caller must have stored its result.
    ///
    /// # Errors
    /// When systemd does not answer.
    pub async fn forget_pull(&self, digest: &Digest) -> Result<(), HostError> {
        match self.puller(&self.tools.boot()?) {
            Backend::Bootc => self.bootc.forget_pull(digest).await,
            Backend::RpmOstree => self.rpm_ostree.forget_pull(),
        }
    }

    /// Starts to pull and stage an image, and returns at once. `lock` determines how the image gets locked. If the
    /// digest is already being pulled, that pull continues.
    ///
    /// # Errors
    /// [`HostError::Busy`] while another pull runs. Other errors if the backend failed.
    pub async fn start_pull(&self, image: &DesiredImage, lock: StagingLock) -> Result<(), HostError> {
        let boot = self.tools.boot()?;
        if let Some(pull) = self.find_pull(Some(&image.digest)).await? {
            match (pull.state, pull.digest == image.digest) {
                (PullState::Running, true) => return Ok(()),
                (PullState::Running, false) => return Err(HostError::Busy("another image is being pulled".to_owned())),
                _ => self.forget_pull(&pull.digest).await?,
            }
        }
        let backend = self.chosen();
        let enforces_policy = match backend {
            Backend::Bootc => self.bootc.enforces_policy(image),
            Backend::RpmOstree => self.rpm_ostree.enforces_policy(image),
        };
        let mut inputs = PullInputs {
            credentials: self.auth.in_use(),
            policy: None,
        };
        if enforces_policy {
            // A composefs host has no ostree repository. Its bootc checks the signature policy at each pull.
            if lock.ostree().is_some() {
                repository::forget_image(&self.tools, &image.digest).await?;
            }
            inputs.policy = self.policy().1;
        }
        match backend {
            Backend::Bootc => self.bootc.start_pull(&boot, image, lock, inputs).await,
            Backend::RpmOstree => self.rpm_ostree.start_pull(&boot, image, inputs).await,
        }
    }

    /// Stops the pull of a digest, waits for its end, and forgets it. The pull may have staged its image before it
    /// stopped.
    ///
    /// # Errors
    /// When the pull does not stop.
    pub async fn cancel_pull(&self, digest: &Digest) -> Result<(), HostError> {
        let boot = self.tools.boot()?;
        match self.puller(&boot) {
            Backend::Bootc => self.bootc.cancel_pull(digest).await,
            Backend::RpmOstree => self.rpm_ostree.cancel_pull(&boot, digest).await,
        }
    }

    /// Returns the progress of the running pull, if the host tool reports it.
    pub fn pull_progress(&self) -> Option<Progress> {
        let puller = self.boot_id().map_or(Backend::Bootc, |boot| self.puller(&boot));
        match puller {
            Backend::Bootc => self.bootc.pull_progress(),
            Backend::RpmOstree => self.rpm_ostree.pull_progress(),
        }
    }

    /// Locks the staged deployment, so that a shutdown discards it.
    ///
    /// # Errors
    /// When nothing is staged, or the tool failed.
    pub async fn lock(&self, _: OstreeLock) -> Result<(), HostError> {
        self.refuse_while_pulling().await?;
        match self.chosen() {
            Backend::Bootc => self.bootc.lock().await,
            Backend::RpmOstree => self.rpm_ostree.lock().await,
        }
    }

    /// Unlocks the staged deployment, so that [`Host::reboot`] applies it. Any other shutdown then applies it too,
    /// except on a host where only rpm-ostreed can unlock it.
    ///
    /// # Errors
    /// When nothing is staged, or the tool failed.
    pub async fn unlock(&self) -> Result<(), HostError> {
        self.refuse_while_pulling().await?;
        match self.chosen() {
            Backend::Bootc => self.bootc.unlock().await,
            Backend::RpmOstree => self.rpm_ostree.unlock().await,
        }
    }

    /// Removes the staged deployment, after checking that it has the image and digest of `meant`.
    ///
    /// # Errors
    /// When another deployment is staged, or the tool failed.
    pub async fn unstage(&self, meant: &Deployment) -> Result<(), HostError> {
        self.refuse_while_pulling().await?;
        match self.chosen() {
            Backend::Bootc => self.bootc.unstage(meant).await,
            Backend::RpmOstree => self.rpm_ostree.unstage(meant).await,
        }
    }

    /// Queues the rollback deployment for the next boot, after checking that it has the digest `to`. Does nothing if it
    /// is queued already.
    ///
    /// # Errors
    /// When there is no rollback deployment with this digest, or the tool failed.
    pub async fn rollback(&self, to: &Digest) -> Result<(), HostError> {
        self.refuse_while_pulling().await?;
        match self.chosen() {
            Backend::Bootc => self.bootc.rollback(to).await,
            Backend::RpmOstree => self.rpm_ostree.rollback(to).await,
        }
    }

    pub(super) async fn refuse_while_pulling(&self) -> Result<(), HostError> {
        match self.find_pull(None).await? {
            Some(Pull {
                state: PullState::Running,
                ..
            }) => Err(HostError::Busy("a pull runs".to_owned())),
            _ => Ok(()),
        }
    }

    /// Lists the inhibitors that now block a shutdown.
    ///
    /// # Errors
    /// When logind does not answer.
    pub async fn inhibitors(&self) -> Result<Vec<Inhibitor>, HostError> {
        Ok(login::inhibitors(&self.bus).await?)
    }

    /// True if a shutdown is in progress.
    ///
    /// # Errors
    /// When logind does not answer.
    pub async fn shutting_down(&self) -> Result<bool, HostError> {
        Ok(login::shutting_down(&self.bus).await?)
    }

    /// True if a shutdown is scheduled for a later time.
    ///
    /// # Errors
    /// When logind does not answer.
    pub async fn shutdown_scheduled(&self) -> Result<bool, HostError> {
        Ok(login::shutdown_scheduled(&self.bus).await?)
    }

    /// True if the host's clock is synchronized.
    ///
    /// # Errors
    /// When the host has no timedated, or timedated does not answer.
    pub async fn clock_synchronized(&self) -> Result<bool, HostError> {
        Ok(timedate::is_synchronized(&self.bus).await?)
    }

    /// Returns whether the host supports soft reboots, and when the last soft reboot started the running userspace. The
    /// answer is cached, because a soft reboot also ends this process.
    ///
    /// # Errors
    /// When systemd does not answer.
    pub async fn soft_reboots(&self) -> Result<SoftReboots, HostError> {
        if let Some(known) = self.soft_reboots.get() {
            return Ok(*known);
        }
        let found = soft_reboots::read(&self.bus, &self.root).await?;
        Ok(*self.soft_reboots.get_or_init(|| found))
    }

    /// Requests a reboot from logind, or from the backend if only the backend can unlock the deployment. If the reply
    /// is lost, the request counts as accepted: the caller waits and checks [`Host::shutting_down`].
    ///
    /// # Errors
    /// [`HostError::RebootRefused`] if the host refuses.
    pub async fn reboot(&self) -> Result<(), HostError> {
        match self.chosen() {
            Backend::Bootc => self.bootc.reboot().await,
            Backend::RpmOstree => self.rpm_ostree.reboot().await,
        }
    }

    /// Requests a soft reboot into the staged deployment. If the host cannot prepare the soft reboot, requests a reboot
    /// as [`Host::reboot`] does.
    ///
    /// # Errors
    /// [`HostError::RebootRefused`] if the host refuses.
    pub async fn soft_reboot(&self) -> Result<(), HostError> {
        match self.chosen() {
            Backend::Bootc => self.bootc.soft_reboot().await,
            Backend::RpmOstree => self.rpm_ostree.reboot().await,
        }
    }

    /// Lists the units of other updaters that are active on the host.
    ///
    /// # Errors
    /// When systemd does not answer.
    pub async fn rivals(&self) -> Result<Vec<String>, HostError> {
        Ok(units::in_states(&self.bus, rivals::UNITS, &["active", "activating", "reloading"]).await?)
    }

    /// True if ostree reports that it could not finalize the staged deployment at the last shutdown.
    ///
    /// # Errors
    /// When systemd does not answer.
    pub async fn finalization_failed(&self) -> Result<bool, HostError> {
        let failed = units::in_states(&self.bus, &["ostree-boot-complete.service"], &["failed"]).await?;
        Ok(!failed.is_empty())
    }

    /// Returns the health of the running boot, without the results of the host's checks.
    ///
    /// # Errors
    /// When systemd does not answer.
    pub async fn boot_health(&self) -> Result<HostHealth, HostError> {
        Ok(HostHealth {
            starting: units::is_starting(&self.bus).await?,
            boot_complete: units::boot_complete(&self.bus).await?,
            failed_units: units::failed(&self.bus).await?,
            checks: Checks::Running,
        })
    }

    /// Returns the mechanisms that guard the host's boots without the agent, such as greenboot.
    ///
    /// # Errors
    /// When systemd does not answer.
    pub async fn boot_safeguards(&self) -> Result<Vec<BootSafeguard>, HostError> {
        Ok(units::boot_safeguards(&self.bus).await?)
    }

    /// Starts the health checks that have not succeeded in this boot, and returns the state of all checks at once. The
    /// end of a check wakes the agent. See [`CheckRuns::poll`].
    pub fn run_checks(&self, boot_id: &BootId, node_ready: bool, boot_complete: BootComplete) -> Checks {
        self.checks.poll(boot_id, node_ready, boot_complete)
    }

    /// Makes sure that the host has the rollback guard's script and unit.
    ///
    /// # Errors
    /// When a file cannot be written, or systemd does not enable the unit.
    pub async fn install_guard(&self) -> Result<GuardUnit, HostError> {
        self.refuse_while_pulling().await?;
        rollback_guard::install(&self.tools, &self.guard).await
    }

    /// Arms the host's rollback guard with this order, durably.
    ///
    /// # Errors
    /// When the order cannot be written.
    pub fn arm_guard(&self, order: &str) -> anyhow::Result<()> {
        self.guard.arm(order)
    }

    /// Disarms the host's rollback guard.
    ///
    /// # Errors
    /// When the guard's files cannot be read or renamed.
    pub fn disarm_guard(&self, boot_id: &BootId) -> anyhow::Result<Disarmed> {
        self.guard.disarm(boot_id)
    }

    /// Returns the state of the host's rollback guard.
    ///
    /// # Errors
    /// When the guard's files cannot be read.
    pub fn guard_state(&self) -> Result<RollbackGuard, HostError> {
        let state = self.guard.state();
        state.map_err(|error| HostError::Io(format!("cannot read the state of the rollback guard: {error}")))
    }

    /// Removes the guard's record of its rollback. Call this only after the agent's memory has stored the rollback.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn forget_fired_guard(&self) -> std::io::Result<()> {
        self.guard.forget_fired()
    }

    /// Informs the rollback guard that an agent runs in this boot. Does nothing if the guard is not armed.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn show_agent_to_guard(&self, boot_id: &BootId) -> anyhow::Result<()> {
        self.guard.show_agent(boot_id)
    }

    /// Reads the agent's memory on the host.
    pub fn memory(&self) -> Past {
        self.memory.load()
    }

    /// Writes the agent's memory, durably.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save_memory(&self, past: &Past) -> anyhow::Result<()> {
        self.memory.save(past)
    }
}
