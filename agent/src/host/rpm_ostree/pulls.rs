//! Runs rpm-ostree's pulls, one at a time, each as a transaction of its daemon.
//!
//! A transaction continues without the agent. The agent writes a [`Record`] before the transaction, and the
//! transaction's title contains the digest, so the next agent can join it (invariant I7). The agent records the
//! transaction's end before it uses the result. If no agent received the end, the staged deployment shows whether the
//! pull succeeded.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::backend::Backend;
use berth_api::node::{DesiredImage, Progress};
use berth_api::{BootId, Digest};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::daemon::{Active, Daemon, explain};
use super::deployments;
use super::lock::Lock;
use super::tally::Tally;
use super::transaction::{Signal, Transaction};
use crate::host::bus::Changes;
use crate::host::driver::{Pull, PullInputs, PullState, target};
use crate::host::error::HostError;
use crate::host::failure;
use crate::host::record::{Ended, Record, RecordFile};
use crate::host::root::HostRoot;

const TIMEOUT: Duration = Duration::from_secs(2 * 3600);
const STOP_TIMEOUT: Duration = Duration::from_secs(100);
/// Timeout for joining a running transaction. Short, because the agent cannot report while it waits for the daemon.
const JOIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Title of a transaction before its work begins. When the work begins, the daemon sets the requested title.
const NOT_YET_TITLED: &str = "new-deployment";
/// Message of the daemon if the image is already staged or booted under the same reference.
const SAME_REFERENCE: &str = "Old and new refs are equal";

#[derive(Debug)]
pub(super) struct Pulls {
    root: HostRoot,
    record: RecordFile,
    changes: Changes,
    following: Mutex<Option<Following>>,
}

/// A transaction whose signals this agent receives.
#[derive(Debug)]
struct Following {
    digest: Digest,
    tally: Arc<Mutex<Tally>>,
    task: JoinHandle<()>,
    /// Channel to cancel the transaction; `None` after its use.
    stop: Option<oneshot::Sender<()>>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn title(digest: &Digest) -> String {
    format!("berth: pull and stage {digest}")
}

/// Returns the image's reference for the daemon. If `signed`, the daemon enforces the host's signature policy.
fn refspec(image: &DesiredImage, signed: bool) -> Result<String, HostError> {
    let reference = target(image)?.at(&image.digest);
    Ok(if signed {
        format!("ostree-image-signed:docker://{reference}")
    } else {
        format!("ostree-unverified-registry:{reference}")
    })
}

fn state(ended: &Ended) -> PullState {
    match &ended.failure {
        None => PullState::Succeeded,
        Some(message) => PullState::Failed {
            message: message.clone(),
        },
    }
}

impl Pulls {
    pub(super) fn new(root: HostRoot, changes: Changes) -> Self {
        Self {
            record: RecordFile::new(&root),
            root,
            changes,
            following: Mutex::new(None),
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Following>> {
        self.following.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn is_followed(&self, digest: &Digest) -> bool {
        let slot = self.slot();
        slot.as_ref()
            .is_some_and(|f| f.digest == *digest && !f.task.is_finished())
    }

    pub(super) fn progress(&self) -> Option<Progress> {
        let tally = self.slot().as_ref().map(|f| f.tally.clone())?;
        let tally = tally.lock().unwrap_or_else(|e| e.into_inner());
        tally.progress()
    }

    /// Finds this boot's pull; `None` if this boot has no pull, or if its pull was forgotten.
    pub(super) async fn find(&self, daemon: &Daemon, boot: &BootId) -> Result<Option<Pull>, HostError> {
        let Some(Record { digest, .. }) = self.own_record(boot) else {
            return Ok(None);
        };
        // Check this before the second read of the record: if the pull ends in between, that read finds the end.
        let is_followed = self.is_followed(&digest);
        let Some(record) = self.own_record(boot) else {
            return Ok(None);
        };
        let policy = record.policy.clone();
        let state = match &record.ended {
            Some(ended) => Some(state(ended)),
            None if is_followed => Some(PullState::Running),
            None => self.adopt(daemon, record).await?,
        };
        Ok(state.map(|state| Pull { digest, policy, state }))
    }

    /// Returns this boot's record, unless it belongs to another backend.
    fn own_record(&self, boot: &BootId) -> Option<Record> {
        let record = self.record.read(boot)?;
        (record.backend == Backend::RpmOstree).then_some(record)
    }

    /// Returns the state of a pull that this agent does not follow; `None` if the pull was never started. Joins the
    /// pull's transaction if it runs. Otherwise the deployments show whether the pull succeeded.
    async fn adopt(&self, daemon: &Daemon, mut record: Record) -> Result<Option<PullState>, HostError> {
        if self.join_again(daemon, &record).await? {
            return Ok(Some(PullState::Running));
        }
        let ended = match self.is_here(daemon, &record.digest).await {
            Ok(true) => Ended { failure: None },
            Ok(false) if !record.started && record.said.is_none() => {
                self.record.remove()?;
                return Ok(None);
            }
            Ok(false) => {
                let failure = record.said.take().unwrap_or_else(|| {
                    "the pull ended while no agent was connected to rpm-ostreed, and its image is not staged".to_owned()
                });
                Ended { failure: Some(failure) }
            }
            Err(error @ (HostError::Bus(_) | HostError::Timeout(_))) => return Err(error),
            Err(error) => Ended {
                failure: Some(format!("cannot find out from rpm-ostree how the pull ended: {error}")),
            },
        };
        let state = state(&ended);
        record.ended = Some(ended);
        self.record.write(&record)?;
        Ok(Some(state))
    }

    /// Joins the pull's transaction; returns false if that transaction does not run. Fails if the running transaction
    /// cannot be identified yet, so that the pull does not count as ended.
    async fn join_again(&self, daemon: &Daemon, record: &Record) -> Result<bool, HostError> {
        let active = match daemon.active().await {
            Ok(Some(active)) => active,
            Ok(None) => return Ok(false),
            Err(error @ (HostError::Bus(_) | HostError::Timeout(_))) => return Err(error),
            Err(error) => {
                // A daemon that cannot be started runs no transaction. If one runs nevertheless, the next pull waits
                // for it.
                tracing::warn!(%error, "cannot find out from rpm-ostreed whether a transaction runs; assuming that none does");
                return Ok(false);
            }
        };
        let joined = tokio::time::timeout(JOIN_TIMEOUT, self.join_active(&active, record)).await;
        let joined = joined.map_err(|_| {
            let seconds = JOIN_TIMEOUT.as_secs();
            HostError::Timeout(format!(
                "could not connect to rpm-ostreed's running transaction within {seconds} s"
            ))
        })?;
        let Some(transaction) = joined? else {
            return Ok(false);
        };
        tracing::info!(digest = %record.digest, "reconnected to the running rpm-ostree transaction of this pull");
        let mut record = record.clone();
        record.started = true;
        self.record.write(&record)?;
        self.follow(transaction, record);
        Ok(true)
    }

    /// Connects to the running transaction. If the transaction belongs to the record's pull, starts it; otherwise
    /// returns `None`. Fails if the transaction cannot be identified yet.
    async fn join_active(&self, active: &Active, record: &Record) -> Result<Option<Transaction>, HostError> {
        let transaction = Transaction::join(&active.address, &self.root).await?;
        let found = transaction.title().await.map_err(explain)?;
        if found == NOT_YET_TITLED && record.started {
            return Err(HostError::Busy(
                "rpm-ostree has just begun a transaction that cannot be identified yet".to_owned(),
            ));
        }
        if found != title(&record.digest) {
            tracing::info!(
                method = active.method,
                "rpm-ostree runs another transaction, not this node's pull"
            );
            return Ok(None);
        }
        transaction.start().await.map_err(explain)?;
        Ok(Some(transaction))
    }

    async fn is_here(&self, daemon: &Daemon, digest: &Digest) -> Result<bool, HostError> {
        // The lock does not matter here.
        let status = deployments::parse(&daemon.deployments().await?, Lock::Unlocked);
        Ok(status.is_ok_and(|status| {
            let staged = status
                .staged
                .is_some_and(|staged| staged.digest.as_ref() == Some(digest));
            staged || status.booted.digest.as_ref() == Some(digest)
        }))
    }

    /// Starts to pull and stage an image. No other pull may run.
    pub(super) async fn start(
        &self,
        daemon: &Daemon,
        boot: &BootId,
        image: &DesiredImage,
        signed: bool,
        inputs: PullInputs,
    ) -> Result<(), HostError> {
        let refspec = refspec(image, signed)?;
        self.root.make_run_dir().map_err(|e| HostError::Io(e.to_string()))?;
        let mut record = Record::new(boot, image, Backend::RpmOstree, inputs);
        // The daemon locks the image from the start.
        record.download_only = true;
        record.began = Some(Timestamp::now());
        self.record.write(&record)?;
        let begun = self.begin(daemon, &refspec, &record.digest).await;
        match begun {
            Ok(transaction) => {
                record.started = true;
                self.record.write(&record)?;
                self.follow(transaction, record);
                Ok(())
            }
            Err(HostError::Tool(failure)) if failure.message.contains(SAME_REFERENCE) => {
                // The staged or booted image shows whether the pull succeeded.
                record.said = Some(failure.message);
                self.record.write(&record)
            }
            Err(error) => {
                // A transaction that was created but not started would block all others. Disconnecting makes the daemon
                // cancel it.
                daemon.disconnect().await;
                self.record.remove()?;
                Err(error)
            }
        }
    }

    async fn begin(&self, daemon: &Daemon, refspec: &str, digest: &Digest) -> Result<Transaction, HostError> {
        let address = daemon.rebase(refspec, &title(digest)).await?;
        let transaction = Transaction::join(&address, &self.root).await?;
        transaction.start().await.map_err(explain)?;
        Ok(transaction)
    }

    fn follow(&self, transaction: Transaction, record: Record) {
        let tally = Arc::new(Mutex::new(Tally::default()));
        let (stop, stopped) = oneshot::channel();
        let digest = record.digest.clone();
        let listener = Listener {
            record,
            file: self.record.clone(),
            tally: tally.clone(),
            changes: self.changes.clone(),
        };
        let task = tokio::spawn(listener.listen(transaction, stopped));
        *self.slot() = Some(Following {
            digest,
            tally,
            task,
            stop: Some(stop),
        });
    }

    /// Cancels the pull of this digest, waits for its end, and forgets it.
    pub(super) async fn cancel(&self, daemon: &Daemon, boot: &BootId, digest: &Digest) -> Result<(), HostError> {
        self.find(daemon, boot).await?;
        let following = self.slot().take();
        if let Some(mut following) = following.filter(|following| following.digest == *digest) {
            if let Some(stop) = following.stop.take() {
                let _ = stop.send(());
            }
            let give_up = Instant::now() + STOP_TIMEOUT;
            if tokio::time::timeout_at(give_up, &mut following.task).await.is_err() {
                *self.slot() = Some(following);
                return Err(HostError::Timeout(
                    "rpm-ostree did not end the canceled pull in time".to_owned(),
                ));
            }
        }
        // If no end was reported, the transaction may still run. Then `find` joins it, and the next call cancels it
        // again.
        match self.find(daemon, boot).await? {
            Some(pull) if pull.digest == *digest && pull.state == PullState::Running => {
                Err(HostError::Timeout("rpm-ostree still runs the canceled pull".to_owned()))
            }
            _ => self.forget(),
        }
    }

    pub(super) fn forget(&self) -> Result<(), HostError> {
        drop(self.slot().take());
        self.record.remove()
    }
}

/// Returns the time left until a pull times out: at most [`TIMEOUT`], even if the clock was set back.
fn left(began: Option<Timestamp>, now: Timestamp) -> Duration {
    let so_far = began.map_or(Duration::ZERO, |began| {
        Duration::try_from(now.duration_since(began)).unwrap_or_default()
    });
    TIMEOUT.saturating_sub(so_far)
}

struct Listener {
    record: Record,
    file: RecordFile,
    tally: Arc<Mutex<Tally>>,
    changes: Changes,
}

impl Listener {
    async fn listen(mut self, mut transaction: Transaction, mut stopped: oneshot::Receiver<()>) {
        let late = tokio::time::sleep(left(self.record.began, Timestamp::now()));
        tokio::pin!(late);
        loop {
            tokio::select! {
                signal = transaction.next() => match signal {
                    Some(Signal::Finished { success, words }) => return self.ended(success, words),
                    Some(signal) => self.count(&signal),
                    None => return self.fail("rpm-ostreed exited during the pull".to_owned()),
                },
                asked = &mut stopped => {
                    // On an error, [`Following`] was dropped, which also aborts this task.
                    if asked.is_ok() {
                        return self.cancel(transaction, "the pull was ended by signal: canceled").await;
                    }
                    std::future::pending::<()>().await;
                }
                () = &mut late => {
                    let why = format!("the pull did not end within {} h", TIMEOUT.as_secs() / 3600);
                    return self.cancel(transaction, &why).await;
                }
            }
        }
    }

    fn count(&self, signal: &Signal) {
        let changed = self.tally.lock().unwrap_or_else(|e| e.into_inner()).add(signal);
        if changed {
            self.changes.bump();
        }
    }

    /// Cancels the transaction and waits for its end. The pull may still succeed. If the daemon does not report an end,
    /// the transaction may still run, and the record gets no result. The next `find` then joins the transaction again,
    /// or reads the result from the deployments.
    async fn cancel(mut self, mut transaction: Transaction, why: &str) {
        if let Err(error) = transaction.cancel().await {
            tracing::warn!(%error, "cannot cancel the transaction of rpm-ostree");
        }
        match transaction.end(STOP_TIMEOUT).await {
            Some(Ok(())) => self.ended(true, String::new()),
            Some(Err(words)) => self.fail(format!("{why}: {words}")),
            None => {
                tracing::warn!(why, "rpm-ostreed did not report the end of a canceled pull");
                self.changes.bump();
            }
        }
    }

    fn ended(&mut self, success: bool, words: String) {
        if success {
            self.write(Ended { failure: None });
        } else if words.contains(SAME_REFERENCE) {
            // The staged or booted image shows whether the pull succeeded.
            self.record.said = Some(failure::message(&words));
            self.store();
        } else {
            self.fail(words);
        }
    }

    fn fail(&mut self, words: String) {
        let credentials = &self.record.credentials;
        let message = failure::with_credentials(failure::message(&words), credentials);
        self.write(Ended { failure: Some(message) });
    }

    fn write(&mut self, ended: Ended) {
        self.record.ended = Some(ended);
        self.store();
    }

    /// Writes the record, and wakes the agent. If the write fails, a later `find` reads the pull's result from the
    /// deployments.
    fn store(&self) {
        if let Err(error) = self.file.write(&self.record) {
            tracing::warn!(%error, "cannot record the pull's result; the agent will infer the result from the staged deployment");
        }
        self.changes.bump();
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    #[test]
    fn the_daemon_gets_the_digest_and_the_rule_for_signatures() {
        let digest: Digest = format!("sha256:{}", "01".repeat(32)).parse().unwrap();
        let image = DesiredImage {
            reference: format!("registry.example/os@{digest}").into(),
            index_digest: digest.clone(),
            digest: digest.clone(),
            version: None,
            signature: berth_api::pool::SignatureRule::AsBooted,
        };
        let plain = refspec(&image, false).unwrap();
        assert_eq!(
            plain,
            format!("ostree-unverified-registry:registry.example/os@{digest}")
        );
        let signed = refspec(&image, true).unwrap();
        assert_eq!(
            signed,
            format!("ostree-image-signed:docker://registry.example/os@{digest}")
        );
        let other = DesiredImage {
            reference: "registry.example/os:1".into(),
            ..image
        };
        assert!(refspec(&other, false).is_err());
    }

    #[test]
    fn the_clock_does_not_lengthen_a_pull() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        fn at(seconds: i64) -> Option<Timestamp> {
            Some(Timestamp::from_second(1_000_000 + seconds).unwrap())
        }
        assert_eq!(left(None, now), TIMEOUT);
        assert_eq!(left(at(-60), now), TIMEOUT - Duration::from_secs(60));
        assert_eq!(left(at(-100_000), now), Duration::ZERO);
        assert_eq!(left(at(100_000), now), TIMEOUT);
    }

    const INTERFACE: &str = "org.projectatomic.rpmostree1.Transaction";

    /// Serves a transaction that runs until it is canceled. Returns the called methods.
    async fn endless(listener: tokio::net::UnixListener) -> Vec<String> {
        let (stream, _) = listener.accept().await.unwrap();
        let builder = zbus::connection::Builder::unix_stream(stream.into_std().unwrap()).server(zbus::Guid::generate());
        let conn = builder.p2p().build().await.unwrap();
        let mut messages = zbus::MessageStream::from(&conn);
        let mut called = vec![];
        while called.last().is_none_or(|method| method != "Cancel") {
            let message = messages.next().await.unwrap().unwrap();
            let header = message.header();
            called.push(header.member().unwrap().to_string());
            conn.reply(&header, &true).await.unwrap();
        }
        let end = (false, "Operation was cancelled");
        conn.emit_signal(None::<&str>, "/", INTERFACE, "Finished", &end)
            .await
            .unwrap();
        // The client disconnects after it has received the end.
        while messages.next().await.is_some_and(|message| message.is_ok()) {}
        called
    }

    #[tokio::test]
    async fn an_overdue_pull_is_canceled() {
        let dir = std::env::temp_dir().join(format!("berth-late-pull-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("run/berth")).unwrap();
        let root = HostRoot::new(&dir);
        let listener = tokio::net::UnixListener::bind(dir.join("run/x.sock")).unwrap();
        let served = tokio::spawn(endless(listener));
        let transaction = Transaction::join("unix:path=/run/x.sock", &root).await.unwrap();
        transaction.start().await.unwrap();

        let boot = BootId::from("b1");
        let digest: Digest = format!("sha256:{}", "01".repeat(32)).parse().unwrap();
        let image = DesiredImage {
            reference: format!("registry.example/os@{digest}").into(),
            index_digest: digest.clone(),
            digest,
            version: None,
            signature: berth_api::pool::SignatureRule::AsBooted,
        };
        let inputs = PullInputs {
            credentials: String::new(),
            policy: None,
        };
        let mut record = Record::new(&boot, &image, Backend::RpmOstree, inputs);
        record.began = Some(Timestamp::now() - TIMEOUT);
        let pulls = Pulls::new(root, Changes::new());
        pulls.follow(transaction, record);
        let mut following = pulls.slot().take().unwrap();
        let limit = Duration::from_secs(20);
        let ended = tokio::time::timeout(limit, &mut following.task).await;
        ended.expect("it is canceled at once").unwrap();
        let ended = pulls.record.read(&boot).unwrap().ended.unwrap();
        let why = ended.failure.unwrap();
        assert!(why.contains("did not end within 2 h: Operation was cancelled"), "{why}");
        assert_eq!(failure::classify(&why).reason, failure::Reason::PullTimedOut);
        assert_eq!(served.await.unwrap(), ["Start", "Cancel"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
