//! rpm-ostree as the backend of a host: its daemon over D-Bus, and ostree's own lock.
//!
//! The daemon can only unlock and reboot in one go. Where the host's ostree can unlock alone, that is done, and logind reboots,
//! so that whoever inhibits is heard. Where it cannot, the unlock is a note on the host that the next reboot is the daemon's.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use berth_api::node::{Deployment, DesiredImage, Progress};
use berth_api::{BootId, Digest};
use berth_core::agent::storage::StagingLock;

mod daemon;
mod deployments;
mod finalize;
mod lock;
mod pulls;
mod tally;
mod transaction;

use self::daemon::{Daemon, explain};
use self::finalize::{LockTool, Note, NoteFile};
use self::lock::{LOCK_FILE, Lock, STATE};
use self::pulls::Pulls;
use self::transaction::Transaction;
use super::bus::{BusError, Changes};
use super::driver::{Answer, BootedSigned, Driver, Given, HostStatus, Pull};
use super::failure::{self, Failure, Reason};
use super::tools::Tools;
use super::{HostError, login};

/// Words of `ln` where the file is there already.
const IS_LOCKED: &str = "File exists";
/// Time within which a transaction that pulls nothing ends.
const SHORT: Duration = Duration::from_secs(60);

/// The rpm-ostree of one host.
#[derive(Debug)]
pub(super) struct RpmOstree {
    tools: Tools,
    daemon: Daemon,
    pulls: Pulls,
    note: NoteFile,
    lock_tool: Mutex<Option<LockTool>>,
    /// The booted image was pulled under an enforced signature policy, when last seen.
    signed: BootedSigned,
}

impl RpmOstree {
    pub(super) fn new(tools: Tools, changes: Changes) -> Self {
        Self {
            daemon: Daemon::new(Arc::clone(&tools.bus)),
            pulls: Pulls::new(tools.root.clone(), changes),
            note: NoteFile::new(&tools.root),
            tools,
            lock_tool: Mutex::new(None),
            signed: BootedSigned::default(),
        }
    }

    /// Says whether the host has it.
    pub(super) async fn exists(&self) -> Result<bool, HostError> {
        self.daemon.exists().await
    }

    /// The deployments, as they are now.
    pub(super) async fn status(&self) -> Result<HostStatus, HostError> {
        let boot = self.tools.boot()?;
        let entries = self.daemon.deployments().await?;
        let parsed = deployments::parse(&entries, Lock::read(&self.tools.root));
        let mut status = parsed.map_err(|why| HostError::Tool(Failure::new(Reason::NotBootcHost, &why)))?;
        self.signed.see(&status);
        if let Some(staged) = &mut status.staged
            && self
                .note
                .read(&boot)
                .is_some_and(|note| Some(&note.digest) == staged.digest.as_ref())
        {
            staged.locked = false;
        }
        Ok(status)
    }

    /// The policy for automatic updates. It is a detail for people: without an answer nothing is said of it.
    pub(super) async fn policy(&self) -> Option<String> {
        match self.daemon.policy().await {
            Ok(policy) => Some(policy),
            Err(error) => {
                tracing::warn!(%error, "rpm-ostreed does not say what its own timer would do");
                None
            }
        }
    }

    /// Refuses beside a transaction, which holds the lock on the host's deployments.
    async fn refuse_beside_a_transaction(&self) -> Result<(), HostError> {
        match self.daemon.active().await? {
            Some(active) => Err(HostError::Busy(format!("rpm-ostree is at work: {}", active.method))),
            None => Ok(()),
        }
    }

    /// Ability of the host's ostree. A good answer is kept for the life of the agent.
    async fn lock_tool(&self) -> Result<LockTool, HostError> {
        if let Some(known) = *self.lock_tool.lock().unwrap_or_else(|e| e.into_inner()) {
            return Ok(known);
        }
        let command = ["/usr/bin/ostree", "admin", "lock-finalization", "--help"];
        let tool = match self.tools.run("help", &command).await {
            Ok(help) => LockTool::of(&help),
            Err(HostError::Tool(failure)) if failure.reason != Reason::HostToolMissing => return Ok(LockTool::None),
            Err(error) => return Err(error),
        };
        *self.lock_tool.lock().unwrap_or_else(|e| e.into_inner()) = Some(tool);
        Ok(tool)
    }

    async fn set_lock(&self) -> Result<(), HostError> {
        // First: from here on no reboot of ours applies anything.
        self.note.remove()?;
        self.refuse_beside_a_transaction().await?;
        let command: &[&str] = match self.lock_tool().await? {
            LockTool::Unlocks | LockTool::Locks => &["/usr/bin/ostree", "admin", "lock-finalization"],
            // Whoever finalizes heeds the file. A link to the state cannot be made where nothing is staged.
            LockTool::None => &["/usr/bin/ln", STATE, LOCK_FILE],
        };
        match self.tools.run("lock", command).await {
            Err(HostError::Tool(failure)) if failure.message.contains(IS_LOCKED) => Ok(()),
            done => done.map(drop),
        }
    }

    async fn take_lock(&self) -> Result<(), HostError> {
        self.refuse_beside_a_transaction().await?;
        if self.lock_tool().await? == LockTool::Unlocks {
            // An older rpm-ostree locks with the file alone, which ostree does not take for a lock and would leave in place. ostree
            // replaces such a lock by its own first.
            let lock = ["/usr/bin/ostree", "admin", "lock-finalization"];
            self.tools.run("lock", &lock).await?;
            let unlock = ["/usr/bin/ostree", "admin", "lock-finalization", "--unlock"];
            return self.tools.run("unlock", &unlock).await.map(drop);
        }
        let failed = |why: &str| HostError::Tool(Failure::new(Reason::HostToolFailed, why));
        let status = self.status().await?;
        let staged = status.staged.ok_or_else(|| failed("No staged deployment"))?;
        let digest = staged
            .digest
            .ok_or_else(|| failed("what is staged has no digest by which rpm-ostree could finalize it"))?;
        self.note.write(&Note {
            boot_id: self.tools.boot()?,
            digest,
        })
    }

    /// Joins a transaction that we began, and starts it. One that nobody starts keeps everybody out for as long as its caller is
    /// on the bus: where that fails, we leave, and the daemon cancels it.
    async fn start(&self, address: &str) -> Result<Transaction, (HostError, bool)> {
        let started = match Transaction::join(address, &self.tools.root).await {
            Err(error) => Err((error, false)),
            Ok(transaction) => match transaction.start().await {
                Ok(()) => Ok(transaction),
                Err(error) => {
                    let is_lost = matches!(error, BusError::Lost { .. });
                    Err((explain(error), is_lost))
                }
            },
        };
        if started.is_err() {
            self.daemon.hang_up().await;
        }
        started
    }

    async fn remove(&self, meant: &Deployment) -> Result<(), HostError> {
        let status = self.status().await?;
        if status.staged_as_meant(meant)?.is_none() {
            return Ok(());
        }
        self.note.remove()?;
        if status.rollback_queued {
            return self.remove_before_a_rollback().await;
        }
        let address = match self.daemon.remove_staged().await {
            Ok(address) => address,
            Err(error) => {
                // Its answer may be what was lost.
                self.daemon.hang_up().await;
                return Err(error);
            }
        };
        let mut transaction = self.start(&address).await.map_err(|(error, _)| error)?;
        match transaction.end(SHORT).await {
            Some(Ok(())) => Ok(()),
            Some(Err(words)) => {
                let reason = failure::recognise(&words).unwrap_or(Reason::HostToolFailed);
                Err(HostError::Tool(Failure::new(reason, &words)))
            }
            None => {
                let why = format!("rpm-ostree did not remove what is staged within {} s", SHORT.as_secs());
                Err(HostError::Timeout(why))
            }
        }
    }

    /// Removes what is staged while the deployment behind it is queued for the next boot. The daemon's `Cleanup` would remove both.
    /// What is staged is the first deployment.
    async fn remove_before_a_rollback(&self) -> Result<(), HostError> {
        self.refuse_beside_a_transaction().await?;
        let command = ["/usr/bin/ostree", "admin", "undeploy", "0"];
        self.tools.run("unstage", &command).await.map(drop)
    }

    /// Has the daemon unlock what is staged, and reboot.
    async fn finalize(&self, note: &Note) -> Result<(), HostError> {
        let refused = |why: String| HostError::RebootRefused(format!("rpm-ostree does not finalize: {why}"));
        let address = match self.daemon.finalize(&note.digest.to_string()).await {
            Ok(address) => address,
            Err(error) => {
                // Its answer may be what was lost. It was not started, so nothing of it was carried out.
                self.daemon.hang_up().await;
                return Err(match error {
                    // Somebody else's transaction is waited for.
                    HostError::Bus(_) | HostError::Busy(_) => error,
                    error => refused(error.to_string()),
                });
            }
        };
        let mut transaction = match self.start(&address).await {
            Ok(transaction) => transaction,
            // It may have been started: a reboot is waited for, as after a request to logind.
            Err((_, true)) => return Ok(()),
            Err((error, false)) => return Err(refused(error.to_string())),
        };
        match transaction.end(SHORT).await {
            Some(Err(words)) => Err(refused(failure::message(&words))),
            // The shutdown takes the daemon with it.
            Some(Ok(())) | None => Ok(()),
        }
    }
}

impl Driver for RpmOstree {
    fn find_pull<'a>(&'a self, boot: &'a BootId, _: Option<&'a Digest>) -> Answer<'a, Option<Pull>> {
        Box::pin(self.pulls.find(&self.daemon, boot))
    }

    fn enforces_policy(&self, image: &DesiredImage) -> bool {
        self.signed.holds_for(image)
    }

    fn start_pull<'a>(
        &'a self,
        boot: &'a BootId,
        image: &'a DesiredImage,
        _: StagingLock,
        given: Given,
    ) -> Answer<'a, ()> {
        let signed = self.enforces_policy(image);
        Box::pin(async move {
            self.note.remove()?;
            self.pulls.start(&self.daemon, boot, image, signed, given).await
        })
    }

    fn cancel_pull<'a>(&'a self, boot: &'a BootId, digest: &'a Digest) -> Answer<'a, ()> {
        Box::pin(self.pulls.cancel(&self.daemon, boot, digest))
    }

    fn forget_pull<'a>(&'a self, _: &'a Digest) -> Answer<'a, ()> {
        Box::pin(async move { self.pulls.forget() })
    }

    fn pull_progress(&self) -> Option<Progress> {
        self.pulls.progress()
    }

    fn lock(&self) -> Answer<'_, ()> {
        Box::pin(self.set_lock())
    }

    fn unlock(&self) -> Answer<'_, ()> {
        Box::pin(self.take_lock())
    }

    fn unstage<'a>(&'a self, meant: &'a Deployment) -> Answer<'a, ()> {
        Box::pin(self.remove(meant))
    }

    fn reboot(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            match self.note.read(&self.tools.boot()?) {
                Some(note) => self.finalize(&note).await,
                None => login::reboot(&self.tools.bus).await,
            }
        })
    }
}
