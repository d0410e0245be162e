//! Runs bootc's pulls, one at a time, each as a systemd unit of the host.
//!
//! The unit's name contains the digest. The agent writes a [`Record`] with the digest before it starts the unit, so
//! that the next agent finds the pull (invariant I7). The result of a pull stays until the agent explicitly forgets it,
//! so a crash between the pull's end and the agent's report loses nothing.

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
use crate::host::driver::{Pull, PullInputs, PullState, target};
use crate::host::error::HostError;
use crate::host::failure;
use crate::host::files;
use crate::host::record::{Record, RecordFile};
use crate::host::root::{HostRoot, RUN_DIR};
use crate::host::units::{self, EXIT_EXEC, Spec, State, UnitFailure};

const TIMEOUT: Duration = Duration::from_secs(2 * 3600);
const STOP_TIMEOUT: Duration = Duration::from_secs(100);
/// Unit that reads bootc's progress while no agent does.
const PROGRESS_UNIT: &str = "berth-progress.service";
/// The process that locks this file reads bootc's progress: an agent or [`PROGRESS_UNIT`].
const PROGRESS_LOCK: &str = "/run/berth/progress.lock";
/// Timeout for stopping the progress unit, which normally stops at once.
const PROGRESS_STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Error of a bootc that lacks the hidden flag `--progress-fd`.
const NO_PROGRESS: &str = "unexpected argument '--progress-fd'";
/// File with the digests that Berth has pulled during this boot, one per line.
const PULLED: &str = "/run/berth/pulled";
/// Removes the reboot request that bootc wrote during this pull, and restores the saved request of another program.
const TAKE_REQUEST_BACK: &str = "if grep -qs '^bootc: ' /run/reboot-required; then rm -f /run/reboot-required; \
    mv /run/berth/reboot-required /run/reboot-required 2>/dev/null; fi";
const STDERR_TAIL: u64 = 16 << 10;

#[derive(Debug, Clone, Copy)]
pub(super) struct PullOptions {
    pub(super) signed: bool,
    pub(super) lock: StagingLock,
}

#[derive(Debug)]
pub(super) struct Pulls {
    root: HostRoot,
    record: RecordFile,
    changes: Changes,
    reading: std::sync::Mutex<Option<Reading>>,
    /// True if the host's bootc rejected `--progress-fd`. The agent then starts pulls without that flag.
    without_progress: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PullOrigin {
    Own,
    /// An earlier agent started the pull and received the progress so far.
    Adopted,
}

#[derive(Debug)]
struct Reading {
    progress: ProgressReader,
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

    /// Finds this boot's pull; `None` if this boot has no pull, or if its pull was forgotten. Without a record, looks
    /// for the pull unit of the desired digest.
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
                // A pull without progress has no FIFO.
                if self.root.path(fifo_name(digest)).exists() {
                    let needs_lock = record.as_ref().is_some_and(|r| !r.download_only);
                    let early_lock = needs_lock.then_some(PullOrigin::Adopted);
                    self.read_progress(bus, digest, early_lock).await;
                }
                PullState::Running
            }
            State::Failed => {
                let words = files::tail(&self.root.path(RUN_DIR).join("pull.err"), STDERR_TAIL);
                if words.contains(NO_PROGRESS) {
                    self.without_progress.store(true, Ordering::Relaxed);
                }
                let message = explain(&units::unit_failure(bus, &unit).await?, &words);
                let credentials = record.as_ref().map_or("", |r| &r.credentials);
                PullState::Failed {
                    message: failure::with_credentials(message, credentials),
                }
            }
            // The pull was started, and systemd reports no failure.
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

    /// Forgets an ended pull, and frees the name of its unit. Resets a failed unit, so that systemd no longer reports
    /// the host as degraded.
    pub(super) async fn forget(&self, bus: &Bus, digest: &Digest) -> Result<(), HostError> {
        let unit = unit_name(digest);
        if units::state(bus, &unit).await? == State::Failed {
            units::reset(bus, &unit).await?;
        }
        self.stop_reading().await;
        // If the progress unit began to read after bootc's end, it would wait for a writer forever.
        units::stop(bus, PROGRESS_UNIT).await?;
        self.record.remove()
    }

    /// Starts to pull and stage an image. The caller makes sure that no other pull runs.
    pub(super) async fn start(
        &self,
        bus: &Arc<Bus>,
        boot_id: &BootId,
        image: &DesiredImage,
        options: PullOptions,
        inputs: PullInputs,
    ) -> Result<(), HostError> {
        let target = target(image)?.to_string();
        self.stop_reading().await;
        self.root.make_run_dir().map_err(|e| HostError::Io(e.to_string()))?;
        self.sweep_fifos();
        let mut record = Record::new(boot_id, image, Backend::Bootc, inputs);
        record.download_only = options.lock.is_bootcs();
        self.record.write(&record)?;
        let progress = !self.without_progress.load(Ordering::Relaxed)
            && self
                .read_progress(
                    bus,
                    &image.digest,
                    (!options.lock.is_bootcs()).then_some(PullOrigin::Own),
                )
                .await;
        let started = match units::start(bus, &spec(&image.digest, &target, options, progress)).await {
            // systemd before 253 lacks `OpenFile`.
            Err(error) if progress && is_unknown_property(&error) => {
                self.stop_reading().await;
                units::start(bus, &spec(&image.digest, &target, options, false)).await
            }
            started => started,
        };
        match started {
            Err(error) if error.is(".UnitExists") => {}
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        record.started = true;
        self.record.write(&record)
    }

    pub(super) async fn cancel(&self, bus: &Bus, digest: &Digest) -> Result<(), HostError> {
        let unit = unit_name(digest);
        let mut jobs = bus.jobs();
        let give_up = Instant::now() + STOP_TIMEOUT;
        while units::state(bus, &unit).await? == State::Running {
            units::stop(bus, &unit).await?;
            if units::end(bus, &unit, None, &mut jobs, give_up).await? == State::Running {
                return Err(HostError::Timeout(
                    "bootc did not end the canceled pull in time".to_owned(),
                ));
            }
        }
        self.forget(bus, digest).await
    }

    pub(super) fn progress(&self) -> Option<Progress> {
        self.slot().as_ref().and_then(|reading| reading.progress.latest())
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Reading>> {
        self.reading.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Starts to read this pull's progress, unless this agent reads it already. Returns false if the progress cannot be
    /// read; a running pull continues. With `early_lock`, the agent also locks the image as soon as bootc reports the
    /// image as staged.
    async fn read_progress(&self, bus: &Arc<Bus>, digest: &Digest, early_lock: Option<PullOrigin>) -> bool {
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
            tracing::warn!(path = %path.display(), error = format!("{error:#}"), "cannot read the pull's progress; the pull continues");
        }
        reading.is_ok()
    }

    /// Stops the progress unit, and reads the progress in its place. Then starts the unit again: the unit waits, and
    /// takes over when this agent has ended.
    async fn begin_to_read(
        &self,
        bus: &Arc<Bus>,
        digest: &Digest,
        path: &Path,
        early_lock: Option<PullOrigin>,
    ) -> anyhow::Result<()> {
        let mut jobs = bus.jobs();
        units::stop(bus, PROGRESS_UNIT).await?;
        let give_up = Instant::now() + PROGRESS_STOP_TIMEOUT;
        if units::state(bus, PROGRESS_UNIT).await? == State::Running {
            units::end(bus, PROGRESS_UNIT, None, &mut jobs, give_up).await?;
        }
        let (sender, staged) = oneshot::channel();
        let progress = ProgressReader::start(path, &self.root.path(PROGRESS_LOCK), self.changes.clone(), sender)?;
        units::start(bus, &progress_spec(digest)).await?;
        let early_lock = early_lock.map(|origin| {
            let is_adopted = origin == PullOrigin::Adopted;
            EarlyLock::begin(bus.clone(), self.root.clone(), staged, is_adopted)
        });
        *self.slot() = Some(Reading { progress, early_lock });
        Ok(())
    }

    /// Stops reading the progress, and ends the [`EarlyLock`]. Removes the FIFO first, so that the progress unit does
    /// not begin to read the FIFO.
    async fn stop_reading(&self) {
        let Some(reading) = self.slot().take() else { return };
        let _ = std::fs::remove_file(reading.progress.path());
        drop(reading.progress);
        if let Some(early_lock) = reading.early_lock {
            early_lock.end().await;
        }
    }

    /// Removes the FIFOs of earlier pulls, which have all ended.
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

/// Returns a script that saves another program's reboot request before this pull overwrites it. If the request contains
/// a digest that Berth has pulled during this boot, a killed pull of Berth wrote the request. The script then keeps the
/// request that was saved earlier.
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
    Spec {
        name: unit_name(digest),
        description: "Berth: pull and stage an OS image",
        // bootc writes `/run/reboot-required` whenever it stages an image, even a locked one. Reboot daemons such as
        // kured would then reboot.
        before: vec![owned(&["/usr/bin/sh", "-c", &keep_request(digest)])],
        command: owned(&command),
        on_success: vec![owned(&["/usr/bin/sh", "-c", TAKE_REQUEST_BACK])],
        last: options.lock.ostree().map(|_| owned(&lock)),
        deadline: TIMEOUT,
        stderr: Some(format!("{RUN_DIR}/pull.err")),
        fd3: progress.then(|| fifo_name(digest)),
        background: true,
        ..Spec::default()
    }
}

/// Returns the unit that reads and discards bootc's progress while no agent holds [`PROGRESS_LOCK`]. The unit ends when
/// bootc ends.
fn progress_spec(digest: &Digest) -> Spec {
    let fifo = fifo_name(digest);
    let command = ["/usr/bin/flock", PROGRESS_LOCK, "/usr/bin/cat", &fifo];
    Spec {
        name: PROGRESS_UNIT.to_owned(),
        description: "Berth: discard the progress of a pull while no agent reads it",
        command: owned(&command),
        deadline: TIMEOUT + STOP_TIMEOUT,
        background: true,
        expendable: true,
        ..Spec::default()
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Describes a failed pull in one line, with the tool's or systemd's message. [`failure::classify`] finds the reason of
/// the failure in this line.
pub(super) fn explain(unit_failure: &UnitFailure, words: &str) -> String {
    let words = failure::message(words);
    let text = match (unit_failure.result.as_str(), unit_failure.status) {
        ("timeout", _) => format!("the pull did not end within {} h: {words}", TIMEOUT.as_secs() / 3600),
        ("exit-code", EXIT_EXEC) => "/usr/bin/bootc cannot be executed".to_owned(),
        // Status 0 means that bootc succeeded, so the lock after it has failed.
        ("exit-code", 0) => format!("ostree admin lock-finalization failed: {words}"),
        ("exit-code", status) if words.is_empty() => format!("bootc switch ended with exit status {status}"),
        ("signal" | "core-dump", signal) => {
            format!("the pull was ended by signal {signal}: {words}")
        }
        (result, _) if words.is_empty() => format!("the pull failed: {result}"),
        _ => words,
    };
    text.trim_end_matches([':', ' ']).to_owned()
}

#[cfg(test)]
mod tests;
