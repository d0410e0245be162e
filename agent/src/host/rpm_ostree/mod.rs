//! The rpm-ostree backend: its daemon over D-Bus, and ostree's own lock.
//!
//! The daemon can unlock a deployment only together with a reboot. If the host's ostree can unlock, the agent unlocks
//! with ostree and reboots with logind, which checks inhibitors. Otherwise the agent "unlocks" by writing a note that
//! it must request its next reboot from the daemon.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use berth_api::node::{Deployment, DesiredImage, Progress};
use berth_api::{BootId, Digest};

mod daemon;
mod deployments;
mod finalize;
mod lock;
pub(super) mod parsers;
mod pulls;
mod tally;
mod transaction;

use self::daemon::{Daemon, explain};
use self::finalize::{LockTool, Note, NoteFile};
use self::lock::{LOCK_FILE, Lock, STATE};
use self::pulls::Pulls;
use self::transaction::Transaction;
use super::bus::{BusError, Changes};
use super::driver::{BootedSigned, HostStatus, Pull, PullInputs};
use super::error::HostError;
use super::failure::{self, Failure, Reason};
use super::login;
use super::tools::Tools;

const IS_LOCKED: &str = "File exists";
/// Timeout of a transaction that pulls nothing.
const SHORT_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct RpmOstree {
    tools: Tools,
    daemon: Daemon,
    pulls: Pulls,
    note: NoteFile,
    lock_tool: Mutex<Option<LockTool>>,
    /// True if the booted image was pulled under an enforced signature policy, as of the agent's last query.
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

    pub(super) async fn exists(&self) -> Result<bool, HostError> {
        self.daemon.exists().await
    }

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

    /// Returns rpm-ostree's policy for automatic updates, for display; `None` if the daemon does not answer.
    pub(super) async fn policy(&self) -> Option<String> {
        match self.daemon.policy().await {
            Ok(policy) => Some(policy),
            Err(error) => {
                tracing::warn!(%error, "cannot read rpm-ostreed's automatic update policy");
                None
            }
        }
    }

    /// Fails while rpm-ostree runs a transaction, because the transaction locks the host's deployments.
    async fn refuse_beside_a_transaction(&self) -> Result<(), HostError> {
        match self.daemon.active().await? {
            Some(active) => Err(HostError::Busy(format!(
                "rpm-ostree runs another transaction: {}",
                active.method
            ))),
            None => Ok(()),
        }
    }

    /// Returns the abilities of the host's `ostree admin lock-finalization`. A successful answer is cached for the life
    /// of the agent.
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

    pub(super) async fn lock(&self) -> Result<(), HostError> {
        // Remove the note first: with the note, a later reboot by the agent would still unlock and apply the
        // deployment.
        self.note.remove()?;
        self.refuse_beside_a_transaction().await?;
        let command: &[&str] = match self.lock_tool().await? {
            LockTool::Unlocks | LockTool::Locks => &["/usr/bin/ostree", "admin", "lock-finalization"],
            // ostree checks this file at finalization. The hard link cannot be created if nothing is staged.
            LockTool::None => &["/usr/bin/ln", STATE, LOCK_FILE],
        };
        match self.tools.run("lock", command).await {
            Err(HostError::Tool(failure)) if failure.message.contains(IS_LOCKED) => Ok(()),
            done => done.map(drop),
        }
    }

    pub(super) async fn unlock(&self) -> Result<(), HostError> {
        self.refuse_beside_a_transaction().await?;
        if self.lock_tool().await? == LockTool::Unlocks {
            // An older rpm-ostree locks only with the file, which `--unlock` would not remove. So ostree locks first,
            // which replaces the file with ostree's own lock.
            let lock = ["/usr/bin/ostree", "admin", "lock-finalization"];
            self.tools.run("lock", &lock).await?;
            let unlock = ["/usr/bin/ostree", "admin", "lock-finalization", "--unlock"];
            return self.tools.run("unlock", &unlock).await.map(drop);
        }
        let status = self.status().await?;
        let staged = status
            .staged
            .ok_or_else(|| HostError::tool_failed("No staged deployment to unlock"))?;
        let digest = staged.digest.ok_or_else(|| {
            HostError::tool_failed("the staged deployment has no digest, so rpm-ostree cannot finalize it")
        })?;
        self.note.write(&Note {
            boot_id: self.tools.boot()?,
            digest,
        })
    }

    /// Joins and starts a transaction that the agent created. A transaction that was not started blocks all others
    /// while its creator is connected. So after a failure, the agent disconnects, and the daemon cancels the
    /// transaction. The error's flag is true if the reply to `Start` was lost. The transaction may then run.
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
            self.daemon.disconnect().await;
        }
        started
    }

    pub(super) async fn unstage(&self, meant: &Deployment) -> Result<(), HostError> {
        let status = self.status().await?;
        if status.staged_as_meant(meant)?.is_none() {
            return Ok(());
        }
        self.note.remove()?;
        if status.rollback_queued {
            return self.remove_before_a_rollback().await;
        }
        self.complete(self.daemon.remove_staged().await, "remove the staged deployment")
            .await
    }

    pub(super) async fn rollback(&self, to: &Digest) -> Result<(), HostError> {
        if !self.status().await?.needs_rollback_to(to)? {
            return Ok(());
        }
        self.complete(self.daemon.rollback().await, "queue the rollback").await
    }

    /// Starts a short transaction at the address that the daemon returned, and waits for its end. `what` names the
    /// transaction in an error.
    async fn complete(&self, created: Result<String, HostError>, what: &str) -> Result<(), HostError> {
        let address = match created {
            Ok(address) => address,
            Err(error) => {
                // The daemon may have created the transaction, although its reply was lost. Disconnecting cancels the
                // transaction.
                self.daemon.disconnect().await;
                return Err(error);
            }
        };
        let mut transaction = self.start(&address).await.map_err(|(error, _)| error)?;
        match transaction.end(SHORT_TIMEOUT).await {
            Some(Ok(())) => Ok(()),
            Some(Err(words)) => {
                let reason = failure::recognise(&words).unwrap_or(Reason::HostToolFailed);
                Err(HostError::Tool(Failure::new(reason, &words)))
            }
            None => {
                let why = format!("rpm-ostree did not {what} within {} s", SHORT_TIMEOUT.as_secs());
                Err(HostError::Timeout(why))
            }
        }
    }

    /// Removes the staged deployment while a rollback is queued for the next boot. Uses ostree, where the staged
    /// deployment has index 0, because the daemon's `Cleanup` would remove the rollback deployment too.
    async fn remove_before_a_rollback(&self) -> Result<(), HostError> {
        self.refuse_beside_a_transaction().await?;
        let command = ["/usr/bin/ostree", "admin", "undeploy", "0"];
        self.tools.run("unstage", &command).await.map(drop)
    }

    async fn finalize(&self, note: &Note) -> Result<(), HostError> {
        let refused =
            |why: String| HostError::RebootRefused(format!("rpm-ostree did not finalize the staged deployment: {why}"));
        let address = match self.daemon.finalize(&note.digest.to_string()).await {
            Ok(address) => address,
            Err(error) => {
                // The daemon may have created the transaction, although its reply was lost. Disconnecting cancels it
                // before it changes anything.
                self.daemon.disconnect().await;
                return Err(match error {
                    // The caller retries when the other transaction has ended or the bus works again.
                    HostError::Bus(_) | HostError::Busy(_) => error,
                    error => refused(error.to_string()),
                });
            }
        };
        let mut transaction = match self.start(&address).await {
            Ok(transaction) => transaction,
            // The transaction may have started, so the caller waits for a reboot, as after a request to logind.
            Err((_, true)) => return Ok(()),
            Err((error, false)) => return Err(refused(error.to_string())),
        };
        match transaction.end(SHORT_TIMEOUT).await {
            Some(Err(words)) => Err(refused(failure::message(&words))),
            // The shutdown also stops the daemon.
            Some(Ok(())) | None => Ok(()),
        }
    }

    pub(super) async fn find_pull(&self, boot: &BootId) -> Result<Option<Pull>, HostError> {
        self.pulls.find(&self.daemon, boot).await
    }

    pub(super) fn enforces_policy(&self, image: &DesiredImage) -> bool {
        self.signed.holds_for(image)
    }

    pub(super) async fn start_pull(
        &self,
        boot: &BootId,
        image: &DesiredImage,
        inputs: PullInputs,
    ) -> Result<(), HostError> {
        let signed = self.enforces_policy(image);
        self.note.remove()?;
        self.pulls.start(&self.daemon, boot, image, signed, inputs).await
    }

    pub(super) async fn cancel_pull(&self, boot: &BootId, digest: &Digest) -> Result<(), HostError> {
        self.pulls.cancel(&self.daemon, boot, digest).await
    }

    pub(super) fn forget_pull(&self) -> Result<(), HostError> {
        self.pulls.forget()
    }

    pub(super) fn pull_progress(&self) -> Option<Progress> {
        self.pulls.progress()
    }

    pub(super) async fn reboot(&self) -> Result<(), HostError> {
        match self.note.read(&self.tools.boot()?) {
            Some(note) => self.finalize(&note).await,
            None => login::reboot(&self.tools.bus).await,
        }
    }
}
