//! The host that the agent runs on: its system bus, its bootc, and a few files.
//!
//! Everything here is I/O at the edge and decides nothing. It only makes sure that each question has an answer in
//! bounded time, in the host's own words.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use berth_api::node::{Deployment, DesiredImage, Progress};
use berth_api::pool::SignatureRule;
use berth_api::{BootId, Digest};
use berth_core::agent::backend::Backend;
use berth_core::agent::facts::Past;
use berth_core::agent::rivals;
use berth_core::agent::rules::credentials::Claim;
use berth_core::agent::rules::registries::Registries;
use berth_core::agent::rules::signatures::Policy;
use tokio::sync::watch;
use tokio::time::Instant;

mod auth;
mod boot_image;
pub mod bootc;
mod bus;
pub mod clock;
mod early_lock;
pub mod failure;
mod files;
pub mod lock;
mod login;
pub mod memory;
mod progress;
mod pull;
pub mod root;
mod rules;
mod tools;
mod units;

pub use auth::{AuthOutcome, AuthSource};
pub use bootc::{BootcStatus, BootcVersion, HostStatus};
pub use bus::BusError;
pub use failure::{Failure, Reason};
pub use lock::HostLock;
pub use login::Inhibitor;
pub use pull::{Pull, PullState};
pub use root::HostRoot;

use auth::HostAuth;
use bus::{Bus, Changes};
use memory::MemoryFile;
use pull::{PullOptions, Pulls};

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

/// The last answer about bootc's version.
#[derive(Debug, Clone)]
struct KeptVersion {
    version: BootcVersion,
    at: Instant,
    /// Number of times in a row that it was given.
    times: u32,
}

/// The host that the agent runs on.
#[derive(Debug)]
pub struct Host {
    root: HostRoot,
    bus: Arc<Bus>,
    pulls: Pulls,
    memory: MemoryFile,
    auth: HostAuth,
    allowed_registries: Vec<String>,
    changes: Changes,
    version: Mutex<Option<KeptVersion>>,
    /// The booted image was pulled under an enforced signature policy, when last seen.
    signed: AtomicBool,
    /// The host keeps its deployments in composefs, when last seen.
    composefs: AtomicBool,
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
        let host = Self {
            bus: Arc::new(Bus::new(address, changes.clone())),
            pulls: Pulls::new(root.clone(), changes.clone()),
            memory: MemoryFile::new(&root),
            auth: HostAuth::new(root.clone(), AuthSource::default()),
            allowed_registries: vec![],
            root,
            changes,
            version: Mutex::new(None),
            signed: AtomicBool::new(false),
            composefs: AtomicBool::new(false),
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

    /// The host's signature policy.
    pub fn policy(&self) -> Policy {
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
        let path = self.root.path("/proc/sys/kernel/random/boot_id");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let id = text.trim();
        anyhow::ensure!(!id.is_empty(), "{} is empty", path.display());
        Ok(BootId::new(id))
    }

    fn boot(&self) -> Result<BootId, HostError> {
        self.boot_id().map_err(|e| HostError::Io(format!("{e:#}")))
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
        let kept = self.version.lock().unwrap_or_else(|e| e.into_inner()).clone();
        if let Some(kept) = &kept
            && kept.version.is_believed(kept.at.elapsed(), kept.times)
        {
            return Ok(kept.version.clone());
        }
        let version = match self.ask_version().await {
            Ok(version) => version,
            Err(HostError::Tool(failure)) if failure.reason == Reason::BootcMissing => BootcVersion::Missing,
            Err(error @ HostError::Busy(_)) => return Err(error),
            Err(error) => BootcVersion::Failed(error.to_string()),
        };
        let before = kept.filter(|kept| kept.version == version);
        let kept = KeptVersion {
            version: version.clone(),
            at: Instant::now(),
            times: before.map_or(0, |kept| kept.times).saturating_add(1),
        };
        *self.version.lock().unwrap_or_else(|e| e.into_inner()) = Some(kept);
        Ok(version)
    }

    async fn ask_version(&self) -> Result<BootcVersion, HostError> {
        let text = self.tool("version", &["/usr/bin/bootc", "--version"]).await?;
        Ok(match bootc::parse_version(&text) {
            Some((version, numbers)) if numbers >= bootc::FLOOR => {
                let download_only = match self.tool("help", &["/usr/bin/bootc", "switch", "--help"]).await {
                    Ok(help) => bootc::lists_download_only(&help),
                    Err(error @ (HostError::Tool(_) | HostError::Timeout(_))) => {
                        tracing::warn!(%error, "bootc does not say whether it locks what it stages: taken for one that does not");
                        false
                    }
                    Err(error) => return Err(error),
                };
                BootcVersion::Version { version, download_only }
            }
            Some((version, _)) => BootcVersion::TooOld(version),
            None => BootcVersion::Failed(format!(
                "bootc --version says {:?}",
                text.chars().take(80).collect::<String>()
            )),
        })
    }

    /// Says whether the host's bootc locks what it stages from the first instant, as far as it was asked.
    fn stages_locked(&self) -> bool {
        let kept = self.version.lock().unwrap_or_else(|e| e.into_inner());
        let version = kept.as_ref().map(|kept| &kept.version);
        matches!(
            version,
            Some(BootcVersion::Version {
                download_only: true,
                ..
            })
        )
    }

    /// Asks bootc which deployments are booted, staged and left to roll back to.
    ///
    /// # Errors
    /// [`HostError::Busy`] while a pull runs, for bootc would wait for it; or whatever went wrong.
    pub async fn status(&self) -> Result<BootcStatus, HostError> {
        let command = ["/usr/bin/bootc", "status", "--format=json", "--format-version=1"];
        self.refuse_while_pulling().await?;
        let text = self.tool("status", &command).await?;
        let status =
            bootc::parse(&text).map_err(|e| HostError::Tool(Failure::new(Reason::BootcFailed, &e.to_string())))?;
        if let BootcStatus::Host(host) = &status {
            self.signed.store(host.signature_enforced, Ordering::Relaxed);
            let is_composefs = host.backend == Backend::Composefs;
            self.composefs.store(is_composefs, Ordering::Relaxed);
        }
        Ok(status)
    }

    /// Finds the pull of this boot, if there was one: the one that was started last, else one of the desired digest. An
    /// ended pull is found until [`Host::forget_pull`].
    ///
    /// # Errors
    /// When systemd cannot be asked.
    pub async fn find_pull(&self, desired: Option<&Digest>) -> Result<Option<Pull>, HostError> {
        self.pulls.find(&self.bus, &self.boot()?, desired).await
    }

    /// Forgets a pull that ended. The caller has stored its result.
    ///
    /// # Errors
    /// When systemd cannot be asked.
    pub async fn forget_pull(&self, digest: &Digest) -> Result<(), HostError> {
        self.pulls.forget(&self.bus, digest).await
    }

    /// Starts to pull, stage and lock an image; returns at once. The same pull that runs already is adopted.
    ///
    /// # Errors
    /// [`HostError::Busy`] while another pull runs; or systemd refused.
    pub async fn start_pull(&self, image: &DesiredImage) -> Result<(), HostError> {
        let options = PullOptions {
            signed: self.signed.load(Ordering::Relaxed) || image.signature == SignatureRule::Required,
            download_only: self.stages_locked(),
            composefs: self.composefs.load(Ordering::Relaxed),
        };
        self.pulls
            .start(&self.bus, &self.boot()?, image, options, self.auth.in_use())
            .await
    }

    /// Stops the pull of a digest, waits for its end, and forgets it. It may have staged its image all the same.
    ///
    /// # Errors
    /// When it does not stop.
    pub async fn cancel_pull(&self, digest: &Digest) -> Result<(), HostError> {
        self.pulls.cancel(&self.bus, digest).await
    }

    /// Progress of the running pull, when the host tool reports it.
    pub fn pull_progress(&self) -> Option<Progress> {
        self.pulls.progress()
    }

    /// Locks the staged deployment: a shutdown then discards it.
    ///
    /// # Errors
    /// When nothing is staged, or the tool failed.
    pub async fn lock(&self) -> Result<(), HostError> {
        if self.composefs.load(Ordering::Relaxed) {
            let why = "a composefs host cannot lock what is staged already";
            return Err(HostError::Tool(Failure::new(Reason::LockFailed, why)));
        }
        self.change("lock", &["/usr/bin/ostree", "admin", "lock-finalization"])
            .await
    }

    /// Unlocks the staged deployment: a shutdown then applies it.
    ///
    /// # Errors
    /// When nothing is staged, or the tool failed.
    pub async fn unlock(&self) -> Result<(), HostError> {
        self.change("unlock", &["/usr/bin/bootc", "upgrade", "--from-downloaded"])
            .await
    }

    /// Removes this staged deployment. Looks first whether it is still the one that is staged: ostree only takes a number,
    /// and without a staged deployment number 0 would be another one. bootc takes a name, on composefs only.
    ///
    /// # Errors
    /// When something else is staged, or the tool failed.
    pub async fn unstage(&self, meant: &Deployment) -> Result<(), HostError> {
        let BootcStatus::Host(host) = self.status().await? else {
            let why = "the host is no bootc host any more: nothing is removed";
            return Err(HostError::Tool(Failure::new(Reason::NotBootcHost, why)));
        };
        let Some(staged) = host.staged else { return Ok(()) };
        if (&staged.digest, &staged.image) != (&meant.digest, &meant.image) {
            let why = format!(
                "{} is staged in place of {}: it is not removed",
                staged.image, meant.image
            );
            return Err(HostError::Tool(Failure::new(Reason::HostToolFailed, &why)));
        }
        match (host.backend, &host.staged_verity) {
            (Backend::Ostree, _) => {
                self.change("unstage", &["/usr/bin/ostree", "admin", "undeploy", "0"])
                    .await
            }
            (Backend::Composefs, Some(name)) => {
                self.change("unstage", &["/usr/bin/bootc", "delete-deployment", name])
                    .await
            }
            (Backend::Composefs, None) => {
                let why = format!(
                    "bootc status gives {} no name by which it could be removed",
                    staged.image
                );
                Err(HostError::Tool(Failure::new(Reason::HostToolFailed, &why)))
            }
        }
    }

    async fn change(&self, what: &str, command: &[&str]) -> Result<(), HostError> {
        self.refuse_while_pulling().await?;
        self.tool(what, command).await.map(drop)
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

    /// Asks logind for a reboot. A lost reply counts as accepted: the caller waits, and asks
    /// [`Host::shutting_down`].
    ///
    /// # Errors
    /// [`HostError::RebootRefused`] when logind says no.
    pub async fn reboot(&self) -> Result<(), HostError> {
        login::reboot(&self.bus).await
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
