//! Pulls by bootc: one at a time, each a unit of the host.
//!
//! A pull is a unit named after its digest. The digest stands in a [`Record`], written before the unit is started, so that
//! the next agent finds the pull (invariant I7). The result of a pull stays known until it is forgotten on purpose, so that
//! a crash between the end and the report loses nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_api::backend::Backend;
use berth_api::node::{DesiredImage, Progress};
use berth_api::{BootId, Digest};
use berth_core::agent::storage::StagingLock;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::early_lock::EarlyLock;
use super::progress::ProgressReader;
use crate::host::bus::{Bus, BusError, Changes, PULL_UNIT_PREFIX};
use crate::host::driver::{Given, Pull, PullState, target};
use crate::host::failure;
use crate::host::record::{Record, RecordFile};
use crate::host::root::{HostRoot, RUN_DIR};
use crate::host::units::{self, Defeat, EXIT_EXEC, Spec, State};
use crate::host::{HostError, files};

/// A pull that takes longer than this is stopped.
const DEADLINE: Duration = Duration::from_secs(2 * 3600);
/// A pull that is stopped has this long to end.
const STOP_DEADLINE: Duration = Duration::from_secs(100);
/// The unit that reads the progress when no agent does.
const DRAIN_UNIT: &str = "berth-progress.service";
/// The lock of whoever reads it.
const DRAIN_LOCK: &str = "/run/berth/progress.lock";
/// It ends at once when it is stopped.
const DRAIN_STOP_DEADLINE: Duration = Duration::from_secs(5);
/// Words of a bootc that does not know the flag for progress, which is a hidden one.
const NO_PROGRESS: &str = "unexpected argument '--progress-fd'";
/// Digests that Berth has pulled under this boot, one in each line.
const PULLED: &str = "/run/berth/pulled";
/// Takes the request back that bootc has written in this pull, and restores the one that it was written over.
const TAKE_REQUEST_BACK: &str = "if grep -qs '^bootc: ' /run/reboot-required; then rm -f /run/reboot-required; \
    mv /run/berth/reboot-required /run/reboot-required 2>/dev/null; fi";
/// Bytes at the end of the error output that are looked at.
const STDERR_TAIL: u64 = 16 << 10;

/// Options of a pull.
#[derive(Debug, Clone, Copy)]
pub(super) struct PullOptions {
    /// Under an enforced signature policy.
    pub(super) signed: bool,
    /// Lock on what is staged.
    pub(super) lock: StagingLock,
}

/// The pulls of one host.
#[derive(Debug)]
pub(super) struct Pulls {
    root: HostRoot,
    record: RecordFile,
    changes: Changes,
    reading: std::sync::Mutex<Option<Reading>>,
    /// The host's bootc has refused the flag for progress: pulls go without it from now on.
    without_progress: AtomicBool,
}

/// Beginning of a pull, as this agent knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begins {
    /// This agent starts it.
    Now,
    /// An agent before this one has started it: what its progress has said so far is lost.
    Adopted,
}

/// A pull whose progress is read.
#[derive(Debug)]
struct Reading {
    progress: ProgressReader,
    /// Locks what the pull stages, once it has.
    early_lock: Option<EarlyLock>,
}

fn unit_name(digest: &Digest) -> String {
    format!("{PULL_UNIT_PREFIX}{}.service", digest.short())
}

fn fifo_name(digest: &Digest) -> String {
    format!("{RUN_DIR}/pull-{}.fifo", digest.short())
}

impl Pulls {
    pub(super) fn new(root: HostRoot, changes: Changes) -> Self {
        Self {
            record: RecordFile::new(&root),
            root,
            changes,
            reading: std::sync::Mutex::new(None),
            without_progress: AtomicBool::new(false),
        }
    }

    /// Finds the pull of this boot, if there was one that is not forgotten, and its state. Without a record, looks for
    /// the unit of the desired digest.
    pub(super) async fn find(
        &self,
        bus: &Arc<Bus>,
        boot_id: &BootId,
        desired: Option<&Digest>,
    ) -> Result<Option<Pull>, HostError> {
        let record = self.record.read(boot_id);
        let Some(digest) = record.as_ref().map(|r| &r.digest).or(desired) else {
            return Ok(None);
        };
        let unit = unit_name(digest);
        let state = match units::state(bus, &unit).await? {
            State::Running => {
                // One that was started without progress has no FIFO.
                if self.root.path(fifo_name(digest)).exists() {
                    let needs_lock = record.as_ref().is_some_and(|r| !r.download_only);
                    let early_lock = needs_lock.then_some(Begins::Adopted);
                    self.read_progress(bus, digest, early_lock).await;
                }
                PullState::Running
            }
            State::Failed => {
                let words = files::tail(&self.root.path(RUN_DIR).join("pull.err"), STDERR_TAIL);
                if words.contains(NO_PROGRESS) {
                    self.without_progress.store(true, Ordering::Relaxed);
                }
                let message = explain(&units::defeat(bus, &unit).await?, &words);
                let credentials = record.as_ref().map_or("", |r| &r.credentials);
                PullState::Failed {
                    message: failure::with_credentials(message, credentials),
                }
            }
            // Started, and systemd has nothing to say against it.
            State::Gone | State::Ended if record.as_ref().is_some_and(|r| r.started) => PullState::Succeeded,
            State::Gone | State::Ended => return Ok(None),
        };
        if state != PullState::Running {
            self.stop_reading().await;
        }
        Ok(Some(Pull {
            digest: digest.clone(),
            policy: record.as_ref().and_then(|r| r.policy.clone()),
            state,
        }))
    }

    /// Forgets a pull that ended, so that its name is free and the host does not look degraded for it.
    pub(super) async fn forget(&self, bus: &Bus, digest: &Digest) -> Result<(), HostError> {
        let unit = unit_name(digest);
        if units::state(bus, &unit).await? == State::Failed {
            units::reset(bus, &unit).await?;
        }
        self.stop_reading().await;
        // One that began to read after the end, in place of a dead agent, would wait for a writer.
        units::stop(bus, DRAIN_UNIT).await?;
        self.record.remove()
    }

    /// Starts to pull and stage an image, where no other pull is.
    pub(super) async fn start(
        &self,
        bus: &Arc<Bus>,
        boot_id: &BootId,
        image: &DesiredImage,
        options: PullOptions,
        given: Given,
    ) -> Result<(), HostError> {
        let target = target(image)?.to_string();
        self.stop_reading().await;
        self.root.make_run_dir().map_err(|e| HostError::Io(e.to_string()))?;
        self.sweep_fifos();
        let mut record = Record::new(boot_id, image, Backend::Bootc, given);
        record.download_only = options.lock.is_bootcs();
        self.record.write(&record)?;
        let progress = !self.without_progress.load(Ordering::Relaxed)
            && self
                .read_progress(bus, &image.digest, (!options.lock.is_bootcs()).then_some(Begins::Now))
                .await;
        let started = match units::start(bus, &spec(&image.digest, &target, options, progress)).await {
            // systemd before 253 knows no `OpenFile`.
            Err(error) if progress && is_unknown_property(&error) => {
                self.stop_reading().await;
                units::start(bus, &spec(&image.digest, &target, options, false)).await
            }
            started => started,
        };
        match started {
            Err(error) if error.is(".UnitExists") => {}
            started => started?,
        }
        record.started = true;
        self.record.write(&record)
    }

    /// Stops the pull of this digest and waits for its end.
    pub(super) async fn cancel(&self, bus: &Bus, digest: &Digest) -> Result<(), HostError> {
        let unit = unit_name(digest);
        let mut jobs = bus.jobs();
        let give_up = Instant::now() + STOP_DEADLINE;
        while units::state(bus, &unit).await? == State::Running {
            units::stop(bus, &unit).await?;
            if units::end(bus, &unit, &mut jobs, give_up).await? == State::Running {
                return Err(HostError::Timeout("the pull does not stop".to_owned()));
            }
        }
        self.forget(bus, digest).await
    }

    /// Progress of the running pull.
    pub(super) fn progress(&self) -> Option<Progress> {
        self.slot().as_ref().and_then(|reading| reading.progress.latest())
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Reading>> {
        self.reading.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes sure that the progress of this pull is read. Without progress a pull works as well. What it stages is locked early
    /// if that is needed: as soon as its progress says that it is there.
    async fn read_progress(&self, bus: &Arc<Bus>, digest: &Digest, early_lock: Option<Begins>) -> bool {
        let path = self.root.path(fifo_name(digest));
        if self
            .slot()
            .as_ref()
            .is_some_and(|reading| reading.progress.path() == path)
        {
            return true;
        }
        self.stop_reading().await;
        let reading = self.begin_to_read(bus, digest, &path, early_lock).await;
        if let Err(error) = &reading {
            tracing::warn!(path = %path.display(), error = format!("{error:#}"), "cannot read the progress of the pull");
        }
        reading.is_ok()
    }

    /// Takes over from the unit that reads in place of an agent that is gone, and leaves another one behind, for when this
    /// agent is gone.
    async fn begin_to_read(
        &self,
        bus: &Arc<Bus>,
        digest: &Digest,
        path: &Path,
        early_lock: Option<Begins>,
    ) -> anyhow::Result<()> {
        let mut jobs = bus.jobs();
        units::stop(bus, DRAIN_UNIT).await?;
        let give_up = Instant::now() + DRAIN_STOP_DEADLINE;
        if units::state(bus, DRAIN_UNIT).await? == State::Running {
            units::end(bus, DRAIN_UNIT, &mut jobs, give_up).await?;
        }
        let (sender, staged) = oneshot::channel();
        let progress = ProgressReader::start(path, &self.root.path(DRAIN_LOCK), self.changes.clone(), sender)?;
        units::start(bus, &drain_spec(digest)).await?;
        let begin = |begins| EarlyLock::begin(bus.clone(), self.root.clone(), staged, begins == Begins::Adopted);
        let early_lock = early_lock.map(begin);
        *self.slot() = Some(Reading { progress, early_lock });
        Ok(())
    }

    /// Reads no more progress, and tries no more to lock early. The file goes first, so that nobody begins to read it.
    async fn stop_reading(&self) {
        let Some(reading) = self.slot().take() else { return };
        let _ = std::fs::remove_file(reading.progress.path());
        drop(reading.progress);
        if let Some(early_lock) = reading.early_lock {
            early_lock.end().await;
        }
    }

    /// Removes what earlier pulls left behind. Nothing runs that could write there.
    fn sweep_fifos(&self) {
        let Ok(entries) = std::fs::read_dir(self.root.path(RUN_DIR)) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name
                .to_str()
                .is_some_and(|n| n.starts_with("pull-") && n.ends_with(".fifo"))
            {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn is_unknown_property(error: &BusError) -> bool {
    error.is(".PropertyReadOnly") || error.is(".UnknownProperty") || error.is(".NotSupported")
}

/// Script that saves another program's request to reboot, which this pull would overwrite. If the request names a digest that Berth has
/// pulled under this boot, bootc wrote it in a pull that was killed; the request that was saved then stays saved.
fn keep_request(digest: &Digest) -> String {
    format!(
        "if ! grep -qsF -f {PULLED} /run/reboot-required; then rm -f /run/berth/reboot-required; \
         cp -p /run/reboot-required /run/berth/reboot-required 2>/dev/null; fi; \
         echo {digest} >> {PULLED}"
    )
}

fn spec(digest: &Digest, target: &str, options: PullOptions, progress: bool) -> Spec {
    let mut command = vec!["/usr/bin/bootc", "switch"];
    if options.lock.is_bootcs() {
        command.push("--download-only");
    }
    if options.signed {
        command.push("--enforce-container-sigpolicy");
    }
    if progress {
        command.extend(["--progress-fd", "3"]);
    }
    command.extend(["--", target]);
    let lock = ["/usr/bin/ostree", "admin", "lock-finalization"];
    let owned = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    Spec {
        name: unit_name(digest),
        description: "Berth: pull and stage an OS image",
        // By this file bootc asks for a reboot when it stages, also what is locked, and reboot daemons such as kured obey.
        first: vec![owned(&["/usr/bin/sh", "-c", &keep_request(digest)])],
        command: owned(&command),
        after: vec![owned(&["/usr/bin/sh", "-c", TAKE_REQUEST_BACK])],
        then: options.lock.ostree().map(|_| owned(&lock)),
        deadline: DEADLINE,
        stdout: None,
        stderr: Some(format!("{RUN_DIR}/pull.err")),
        fd3: progress.then(|| fifo_name(digest)),
        background: true,
        expendable: false,
    }
}

/// The unit that reads what bootc says of its progress, and drops it, as soon as no agent has the lock. It ends when bootc
/// does.
fn drain_spec(digest: &Digest) -> Spec {
    let fifo = fifo_name(digest);
    let command = ["/usr/bin/flock", DRAIN_LOCK, "/usr/bin/cat", &fifo];
    Spec {
        name: DRAIN_UNIT.to_owned(),
        description: "Berth: read the progress of a pull when no agent does",
        first: vec![],
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        after: vec![],
        then: None,
        deadline: DEADLINE + STOP_DEADLINE,
        stdout: None,
        stderr: None,
        fd3: None,
        background: true,
        expendable: true,
    }
}

/// Describes a failed pull in one line: in the tool's own words, or in those of systemd. [`failure::classify`] knows
/// them all.
fn explain(defeat: &Defeat, words: &str) -> String {
    let words = failure::message(words);
    let said = |otherwise: String| {
        if words.is_empty() { otherwise } else { words.clone() }
    };
    let text = match (defeat.result.as_str(), defeat.status) {
        ("timeout", _) => format!("the pull did not end within {} h: {words}", DEADLINE.as_secs() / 3600),
        ("exit-code", EXIT_EXEC) => "/usr/bin/bootc cannot be executed".to_owned(),
        // bootc ended well, so it was the lock.
        ("exit-code", 0) => format!("ostree admin lock-finalization failed: {words}"),
        ("exit-code", status) => said(format!("bootc switch ended with status {status}")),
        ("signal" | "core-dump", signal) => {
            format!("the pull was ended by signal {signal}: {words}")
        }
        (result, _) => said(format!("the pull failed: {result}")),
    };
    text.trim_end_matches([':', ' ']).to_owned()
}

#[cfg(test)]
mod tests;
