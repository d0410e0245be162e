//! The host that the agent runs on: its system bus, its backend, and a few files.
//!
//! Everything here is I/O at the edge and decides nothing. It only makes sure that each question has an answer in
//! bounded time, in the host's own words.

use std::sync::{Arc, Mutex};

use berth_api::backend::Backend;
use berth_api::node::{Deployment, DesiredImage, Progress};
use berth_api::{BootId, Digest};
use berth_core::agent::facts::Past;
use berth_core::agent::host_policy::credentials::Claim;
use berth_core::agent::host_policy::registries::Registries;
use berth_core::agent::host_policy::signatures::Policy;
use berth_core::agent::rivals;
use berth_core::agent::storage::{OstreeLock, StagingLock};
use tokio::sync::watch;

mod auth;
mod boot_image;
mod bootc;
mod bus;
pub mod clock;
pub mod cpu;
mod driver;
pub mod failure;
pub(crate) mod files;
pub mod lock;
mod login;
mod look_up;
pub mod memory;
mod record;
mod repository;
pub mod root;
mod rpm_ostree;
mod rules;
mod stranded;
mod survey;
mod tools;
mod units;

pub use auth::{AuthOutcome, AuthSource};
pub use bootc::{BootcStatus, BootcVersion};
pub use bus::BusError;
pub use driver::{HostStatus, Pull, PullState};
pub use failure::{Failure, Reason};
pub use lock::HostLock;
pub use login::Inhibitor;
pub use root::HostRoot;
pub use survey::{Survey, Terms};

use auth::HostAuth;
use bootc::Bootc;
use bus::{Bus, Changes};
use driver::{Driver, Given};
use memory::MemoryFile;
use record::RecordFile;
use rpm_ostree::RpmOstree;
use tools::Tools;

/// Error of a request to the host.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HostError {
    /// Another command or a pull is running: this command would wait for it, or read a state that it is about to
    /// change.
    #[error("the host is busy: {0}")]
    Busy(String),
    /// A host tool failed; its own words.
    #[error("{}", .0.message)]
    Tool(Failure),
    /// A host tool did not end in time.
    #[error("{0}")]
    Timeout(String),
    /// The bus, systemd or logind did not do it.
    #[error("{0}")]
    Bus(#[from] BusError),
    /// logind refused to reboot.
    #[error("{0}")]
    RebootRefused(String),
    /// A file of ours cannot be read or written.
    #[error("{0}")]
    Io(String),
}

impl HostError {
    /// A CamelCase reason for a condition.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Busy(_) => Reason::HostBusy,
            Self::Tool(failure) => failure.reason,
            Self::Timeout(_) => Reason::HostToolTimedOut,
            Self::Bus(_) => Reason::HostUnreachable,
            Self::RebootRefused(_) => Reason::RebootRefused,
            Self::Io(_) => Reason::HostToolFailed,
        }
    }
}

/// The host that the agent runs on.
#[derive(Debug)]
pub struct Host {
    root: HostRoot,
    bus: Arc<Bus>,
    tools: Tools,
    bootc: Bootc,
    rpm_ostree: RpmOstree,
    /// Backend as chosen by the last look.
    chosen: Mutex<Backend>,
    record: RecordFile,
    memory: MemoryFile,
    auth: HostAuth,
    allowed_registries: Vec<String>,
    changes: Changes,
    claim: Mutex<Option<HostLock>>,
}

impl Host {
    /// Prepares to talk to the host, and tries its bus. A bus that does not answer is no error here: each call tries it
    /// again, and then returns the error.
    ///
    /// # Errors
    /// When the runtime directory cannot be made under the root.
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
            tools,
            record: RecordFile::new(&root),
            memory: MemoryFile::new(&root),
            auth: HostAuth::new(root.clone(), AuthSource::default()),
            allowed_registries: vec![],
            root,
            changes,
            claim: Mutex::new(None),
        };
        if let Err(error) = host.bus.ensure().await {
            tracing::warn!(%error, "the host does not answer yet");
        }
        Ok(host)
    }

    /// The same, with credentials to give to the host.
    #[must_use]
    pub fn with_auth(mut self, source: AuthSource) -> Self {
        self.auth = HostAuth::new(self.root.clone(), source);
        self
    }

    /// The same, with the prefixes of the images that may be staged; without one, as far as this goes, all may.
    #[must_use]
    pub fn with_allowed_registries(mut self, prefixes: Vec<String>) -> Self {
        self.allowed_registries = prefixes;
        self
    }

    /// Registries from which the host may be given an image.
    pub fn registries(&self) -> Registries {
        rules::registries(&self.root, &self.allowed_registries)
    }

    /// The host's signature policy, and the digest of its text.
    pub fn policy(&self) -> (Policy, Option<Digest>) {
        rules::policy(&self.root)
    }

    /// Keeps the host's auth file as it should be, by what Berth may do here.
    pub fn keep_auth(&self, claim: Claim) -> AuthOutcome {
        self.auth.keep(claim)
    }

    /// Root under which the host's files are.
    pub fn root(&self) -> &HostRoot {
        &self.root
    }

    /// Waits for the host-wide lock, see [`HostLock`], and keeps it for as long as this value lives.
    ///
    /// # Errors
    /// When the lock file cannot be made.
    pub async fn claim(&self) -> anyhow::Result<()> {
        let lock = HostLock::acquire(&self.root).await?;
        *self.claim.lock().unwrap_or_else(|e| e.into_inner()) = Some(lock);
        Ok(())
    }

    /// The kernel's boot ID.
    ///
    /// # Errors
    /// When it cannot be read, or is empty.
    pub fn boot_id(&self) -> anyhow::Result<BootId> {
        self.root.boot_id()
    }

    /// News from the host: the number changes when a pull ended or got further, when a shutdown begins, and when
    /// the connection to the bus is lost.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The version of the host's bootc. A good answer is kept for the life of the agent, a bad one for a while.
    ///
    /// # Errors
    /// [`HostError::Busy`] while a tool of an earlier agent runs: its end is waited for, not taken for an answer.
    pub async fn bootc_version(&self) -> Result<BootcVersion, HostError> {
        self.bootc.version().await
    }

    /// Asks bootc, whatever the backend is, which deployments are booted, staged and left to roll back to.
    ///
    /// # Errors
    /// [`HostError::Busy`] while a pull runs, for bootc would wait for it; or whatever went wrong.
    pub async fn status(&self) -> Result<BootcStatus, HostError> {
        self.refuse_while_pulling().await?;
        self.bootc.status().await
    }

    fn choose(&self, backend: Backend) {
        *self.chosen.lock().unwrap_or_else(|e| e.into_inner()) = backend;
    }

    /// The backend that changes the host.
    fn driver(&self) -> &dyn Driver {
        let chosen = *self.chosen.lock().unwrap_or_else(|e| e.into_inner());
        self.driver_of(chosen)
    }

    fn driver_of(&self, backend: Backend) -> &dyn Driver {
        match backend {
            Backend::Bootc => &self.bootc,
            Backend::RpmOstree => &self.rpm_ostree,
        }
    }

    /// The backend that pulls: the one of the pull that is remembered, whatever was chosen since. Without one, only bootc's unit
    /// could still be found.
    fn puller(&self, boot: &BootId) -> Backend {
        self.record.read(boot).map_or(Backend::Bootc, |record| record.backend)
    }

    /// Finds the pull of this boot, if there was one: the one that was started last, else one of the desired digest. An
    /// ended pull is found until [`Host::forget_pull`].
    ///
    /// # Errors
    /// When systemd cannot be asked.
    pub async fn find_pull(&self, desired: Option<&Digest>) -> Result<Option<Pull>, HostError> {
        let boot = self.tools.boot()?;
        self.driver_of(self.puller(&boot)).find_pull(&boot, desired).await
    }

    /// Forgets a pull that ended. The caller has stored its result.
    ///
    /// # Errors
    /// When systemd cannot be asked.
    pub async fn forget_pull(&self, digest: &Digest) -> Result<(), HostError> {
        let puller = self.puller(&self.tools.boot()?);
        self.driver_of(puller).forget_pull(digest).await
    }

    /// Starts to pull and stage an image, locked in this way; returns at once. The same pull that runs already is adopted.
    ///
    /// # Errors
    /// [`HostError::Busy`] while another pull runs; or the backend refused.
    pub async fn start_pull(&self, image: &DesiredImage, lock: StagingLock) -> Result<(), HostError> {
        let boot = self.tools.boot()?;
        if let Some(pull) = self.find_pull(Some(&image.digest)).await? {
            match (pull.state, pull.digest == image.digest) {
                (PullState::Running, true) => return Ok(()),
                (PullState::Running, false) => return Err(HostError::Busy("another pull runs".to_owned())),
                _ => self.forget_pull(&pull.digest).await?,
            }
        }
        let driver = self.driver();
        let mut given = Given {
            credentials: self.auth.in_use(),
            policy: None,
        };
        if driver.enforces_policy(image) {
            // A composefs host has no ostree, and its bootc asks the policy each time.
            if lock.ostree().is_some() {
                repository::forget_image(&self.tools, &image.digest).await?;
            }
            given.policy = self.policy().1;
        }
        driver.start_pull(&boot, image, lock, given).await
    }

    /// Stops the pull of a digest, waits for its end, and forgets it. It may have staged its image all the same.
    ///
    /// # Errors
    /// When it does not stop.
    pub async fn cancel_pull(&self, digest: &Digest) -> Result<(), HostError> {
        let boot = self.tools.boot()?;
        self.driver_of(self.puller(&boot)).cancel_pull(&boot, digest).await
    }

    /// Progress of the running pull, when the host tool reports it.
    pub fn pull_progress(&self) -> Option<Progress> {
        let puller = self.boot_id().map_or(Backend::Bootc, |boot| self.puller(&boot));
        self.driver_of(puller).pull_progress()
    }

    /// Locks the staged deployment: a shutdown then discards it.
    ///
    /// # Errors
    /// When nothing is staged, or the tool failed.
    pub async fn lock(&self, _: OstreeLock) -> Result<(), HostError> {
        self.refuse_while_pulling().await?;
        self.driver().lock().await
    }

    /// Unlocks the staged deployment: the reboot by [`Host::reboot`] then applies it, and as a rule any shutdown.
    ///
    /// # Errors
    /// When nothing is staged, or the tool failed.
    pub async fn unlock(&self) -> Result<(), HostError> {
        self.refuse_while_pulling().await?;
        self.driver().unlock().await
    }

    /// Removes this staged deployment. Looks first whether it is still the one that is staged.
    ///
    /// # Errors
    /// When something else is staged, or the tool failed.
    pub async fn unstage(&self, meant: &Deployment) -> Result<(), HostError> {
        self.refuse_while_pulling().await?;
        self.driver().unstage(meant).await
    }

    async fn refuse_while_pulling(&self) -> Result<(), HostError> {
        match self.find_pull(None).await? {
            Some(Pull {
                state: PullState::Running,
                ..
            }) => Err(HostError::Busy("a pull runs".to_owned())),
            _ => Ok(()),
        }
    }

    /// Lists the inhibitors that block a shutdown now.
    ///
    /// # Errors
    /// When logind cannot be asked.
    pub async fn inhibitors(&self) -> Result<Vec<Inhibitor>, HostError> {
        Ok(login::inhibitors(&self.bus).await?)
    }

    /// Says whether a shutdown is on its way.
    ///
    /// # Errors
    /// When logind cannot be asked.
    pub async fn shutting_down(&self) -> Result<bool, HostError> {
        Ok(login::shutting_down(&self.bus).await?)
    }

    /// Says whether somebody has scheduled a shutdown for later.
    ///
    /// # Errors
    /// When logind cannot be asked.
    pub async fn shutdown_scheduled(&self) -> Result<bool, HostError> {
        Ok(login::shutdown_scheduled(&self.bus).await?)
    }

    /// Says whether the host's clock is synchronised.
    ///
    /// # Errors
    /// When the host has no service that says so, or it does not answer.
    pub async fn clock_synchronized(&self) -> Result<bool, HostError> {
        Ok(clock::is_synchronized(&self.bus).await?)
    }

    /// Asks for a reboot: logind, or the backend where only that can unlock. A lost reply counts as accepted: the caller waits,
    /// and asks [`Host::shutting_down`].
    ///
    /// # Errors
    /// [`HostError::RebootRefused`] when the host says no.
    pub async fn reboot(&self) -> Result<(), HostError> {
        self.driver().reboot().await
    }

    /// Updaters that are active on the host and would act on their own.
    ///
    /// # Errors
    /// When systemd cannot be asked.
    pub async fn rivals(&self) -> Result<Vec<String>, HostError> {
        Ok(units::in_states(&self.bus, rivals::UNITS, &["active", "activating", "reloading"]).await?)
    }

    /// Says whether the previous boot failed to finalize the staged deployment.
    ///
    /// # Errors
    /// When systemd cannot be asked.
    pub async fn finalization_failed(&self) -> Result<bool, HostError> {
        let failed = units::in_states(&self.bus, &["ostree-boot-complete.service"], &["failed"]).await?;
        Ok(!failed.is_empty())
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
