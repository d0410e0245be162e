//! rpm-ostree on a simulated host: the daemon of [`crate::rpmostreed`] with the deployments that bootc also uses.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use nix::sys::stat::Mode;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::sleep;

use super::bootc::{self, Deployments, STATEROOT};
use super::login::Login;
use super::process::Os;
use super::record::PullRecord;
use super::settings::{Settings, SharedSettings};
use super::units::Units;
use crate::rpmostreed::{
    self, Backend, Config, Deployment, ProgressEvent, ProgressSender, Reference, SharedFaults, StageRequest,
    SysrootLock, Undeploy,
};

/// Timeout for the daemon to take its bus name.
const NAME_TIMEOUT: Duration = Duration::from_secs(5);

/// The service of a host. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct RpmOstree(Arc<Service>);

#[derive(Debug)]
struct Service {
    config: Config,
    settings: SharedSettings,
    units: Units,
    services: PathBuf,
    /// Pipe that receives a line when the bus activates the daemon.
    wanted: PathBuf,
    life: AsyncMutex<Option<JoinHandle<()>>>,
}

impl RpmOstree {
    /// Creates the service of the host with this bus and these files; `dir` is the bus's directory.
    pub(super) fn new(bus: String, dir: &std::path::Path, os: Arc<Os>, login: Login, units: Units) -> Result<Self> {
        let settings = os.settings.clone();
        let wanted = dir.join("rpm-ostreed");
        nix::unistd::mkfifo(&wanted, Mode::S_IRWXU).context("cannot make the pipe that activates rpm-ostreed")?;
        let config = Config {
            bus,
            run: os.on_host("/run"),
            osname: STATEROOT.to_owned(),
            backend: Arc::new(Software { os, login }),
            faults: SharedFaults::default(),
        };
        Ok(Self(Arc::new(Service {
            config,
            settings,
            units,
            services: super::bus::services(dir),
            wanted,
            life: AsyncMutex::default(),
        })))
    }

    pub(super) fn faults(&self) -> &SharedFaults {
        &self.0.config.faults
    }

    /// Installs or removes rpm-ostree on the host, according to its settings.
    pub(super) fn apply(&self) {
        let activation = self.0.services.join(format!("{}.service", rpmostreed::NAME));
        if !self.0.settings.with(|s| s.rpm_ostree) {
            self.0.units.fix(rpmostreed::UNIT, None);
            // An error means that there is none.
            let _ = std::fs::remove_file(activation);
            return;
        }
        if self.0.units.loaded(rpmostreed::UNIT).is_err() {
            self.0.units.fix(rpmostreed::UNIT, Some(("inactive", "dead")));
        }
        if !activation.exists() {
            let (name, pipe) = (rpmostreed::NAME, self.0.wanted.display());
            let text = format!("[D-BUS Service]\nName={name}\nExec=/bin/sh -c \"echo > {pipe}\"\n");
            if let Err(error) = std::fs::write(&activation, text) {
                tracing::error!(%error, "cannot write the activation file of rpm-ostreed");
            }
        }
    }

    /// Starts the daemon whenever the bus activates it.
    pub(super) fn listen(&self) -> Result<AbortHandle> {
        let mut pipe = pipe::OpenOptions::new()
            .read_write(true)
            .open_receiver(&self.0.wanted)
            .context("cannot read the pipe that activates rpm-ostreed")?;
        let service = self.clone();
        let listening = async move {
            let mut words = [0; 16];
            while pipe.read(&mut words).await.is_ok() {
                service.start().await;
            }
        };
        Ok(tokio::spawn(listening).abort_handle())
    }

    /// Starts the daemon unless it runs; returns whether it runs now.
    pub(super) async fn start(&self) -> bool {
        let mut life = self.0.life.lock().await;
        if life.as_ref().is_some_and(|l| !l.is_finished()) {
            return true;
        }
        if self.0.config.faults.with(|f| f.fails_to_start) {
            self.0.units.fix(rpmostreed::UNIT, Some(("failed", "failed")));
            return false;
        }
        let slow = self.0.config.faults.with(|f| f.slow_start);
        if !slow.is_zero() {
            self.0.units.fix(rpmostreed::UNIT, Some(("activating", "start")));
            sleep(slow).await;
        }
        let (ready, named) = oneshot::channel();
        let (units, config) = (self.0.units.clone(), self.0.config.clone());
        units.fix(rpmostreed::UNIT, Some(("active", "running")));
        *life = Some(tokio::spawn(async move {
            let end = rpmostreed::run(config, ready).await;
            tracing::debug!(?end, "rpm-ostreed has ended");
            let states = match end {
                Ok(rpmostreed::End::Idle) => ("inactive", "dead"),
                _ => ("failed", "failed"),
            };
            units.fix(rpmostreed::UNIT, Some(states));
        }));
        tokio::time::timeout(NAME_TIMEOUT, named).await.is_ok_and(|n| n.is_ok())
    }

    /// Kills the daemon with all its work.
    pub(super) async fn stop(&self) {
        if let Some(life) = self.0.life.lock().await.take() {
            life.abort();
            // An error means that it was killed.
            let _ = life.await;
            self.0.units.fix(rpmostreed::UNIT, Some(("failed", "failed")));
        }
    }

    pub(super) fn abandon(&self) {
        if let Ok(mut life) = self.0.life.try_lock()
            && let Some(life) = life.take()
        {
            life.abort();
        }
    }
}

#[derive(Debug)]
struct Software {
    os: Arc<Os>,
    login: Login,
}

impl Software {
    /// Fetches and stages an image. The caller must hold the lock on the sysroot.
    async fn put(&self, wanted: StageRequest, progress: ProgressSender) -> Result<(), String> {
        let settings = self.os.settings.get();
        let image = &wanted.reference.image;
        let Some(digest) = wanted.reference.digest.as_deref() else {
            return Err(format!(
                "Importing: the registries of simulated hosts have no tags: {image}"
            ));
        };
        // Layering other packages on the booted image does not pull an image.
        let fetches = self.os.deployments(|d| d.booted().is_none_or(|b| b.digest != digest));
        let mut record = fetches.then(|| PullRecord::begin(&self.os.log, &self.os.host, digest));
        let cached = self.os.deployments(|d| d.is_cached(digest));
        let found = self.os.find(image, digest, &settings);
        let found = found.map_err(|words| format!("Importing: {words}"))?;
        let words = format!("Pulling manifest: {}", wanted.reference.refspec);
        say(&progress, ProgressEvent::Message(words));
        if wanted.newer_only && self.is_older(&found.timestamp) {
            return Err(format!(
                "Upgrade target revision '{digest}' is chronologically older than current revision; use --allow-downgrade to permit"
            ));
        }
        if !cached {
            self.fetch(&settings, &progress).await?;
        }
        sleep(settings.command_time).await;
        say(&progress, ProgressEvent::Message("Staging deployment".to_owned()));
        let deployment = bootc::Deployment {
            image: image.clone(),
            digest: digest.to_owned(),
            version: found.version,
            timestamp: found.timestamp,
            architecture: found.architecture,
            signed: wanted.reference.signed,
            packages: wanted.packages,
            serial: 0,
        };
        self.os.deployments(|d| d.stage(deployment, wanted.lock));
        sleep(settings.after_staging).await;
        if self.os.settings.strikes(|s| &mut s.staged_then_fails) {
            return Err("Cleaning up: unexpected end of file".to_owned());
        }
        if let Some(record) = &mut record {
            record.ok = true;
        }
        Ok(())
    }

    async fn fetch(&self, settings: &Settings, progress: &ProgressSender) -> Result<(), String> {
        if settings.disk_full {
            return Err("Importing: Unencapsulating base: min-free-space-percent '3%' would be exceeded, at least 300.0 MB requested: No space left on device".to_owned());
        }
        let fails = self.os.settings.strikes(|s| &mut s.pull_failures);
        say(progress, ProgressEvent::TaskBegin("[0/1] Fetching layer".to_owned()));
        for quarter in 0..if fails { 2 } else { 4 } {
            say(
                progress,
                ProgressEvent::Percent("Fetching layer".to_owned(), quarter * 25),
            );
            sleep(settings.pull_time / 4).await;
        }
        if fails {
            return Err(settings.pull_failure_text.clone());
        }
        say(progress, ProgressEvent::Percent("Fetching layer".to_owned(), 100));
        say(progress, ProgressEvent::ProgressEnd);
        say(progress, ProgressEvent::TaskEnd("done".to_owned()));
        Ok(())
    }

    fn is_older(&self, timestamp: &str) -> bool {
        let booted = self.os.deployments(|d| d.booted().map(|b| seconds(&b.timestamp)));
        booted.is_some_and(|booted| seconds(timestamp) < booted)
    }
}

/// Sends an event. An error means that the receiver is gone.
fn say(progress: &ProgressSender, event: ProgressEvent) {
    let _ = progress.send(event);
}

impl Backend for Software {
    fn deployments(&self) -> BoxFuture<'_, Result<Vec<Deployment>, String>> {
        Box::pin(async { Ok(self.os.deployments(|d| listed(d))) })
    }

    fn try_lock(&self) -> Option<SysrootLock> {
        self.os.sysroot.clone().try_lock_owned().ok().map(SysrootLock::new)
    }

    fn stage(&self, wanted: StageRequest, progress: ProgressSender) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.put(wanted, progress))
    }

    fn undeploy(&self, which: Undeploy) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(async move {
            self.os.deployments(|d| match which {
                Undeploy::Pending => Ok(d.remove_pending()),
                Undeploy::Rollback if d.rollback_queued() || d.rollback().is_none() => Ok(false),
                Undeploy::Rollback => d.undeploy(1 + usize::from(d.staged().is_some())).map(|_| true),
            })
        })
    }

    fn roll_back(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { self.os.deployments(Deployments::toggle_rollback) })
    }

    fn unlock(&self) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(async { Ok(self.os.deployments(Deployments::take_locks)) })
    }

    fn is_inhibited(&self) -> BoxFuture<'_, bool> {
        let inhibitors = self.os.settings.with(|s| s.inhibitors.clone());
        Box::pin(async move { inhibitors.iter().any(|i| i.blocks_shutdown()) })
    }

    fn reboot(&self) -> BoxFuture<'_, Result<(), String>> {
        let asked = self.login.request(0).map_err(|error| error.to_string());
        Box::pin(async move { asked })
    }
}

/// All deployments in rpm-ostree's form, in boot order.
fn listed(deployments: &Deployments) -> Vec<Deployment> {
    let staged = deployments.staged().map(|s| Deployment {
        staged: true,
        lock_file: s.lock_file,
        ..shown(&s.deployment)
    });
    let finalized = deployments
        .finalized()
        .map(|(d, booted)| Deployment { booted, ..shown(d) });
    staged.into_iter().chain(finalized).collect()
}

fn shown(deployment: &bootc::Deployment) -> Deployment {
    Deployment {
        osname: STATEROOT.to_owned(),
        checksum: deployment.checksum(),
        serial: deployment.serial,
        booted: false,
        staged: false,
        pinned: false,
        lock_file: false,
        version: Some(deployment.version.clone()),
        timestamp: seconds(&deployment.timestamp),
        refspec: Reference::of_image(&deployment.image, deployment.signed),
        digest: deployment.digest.clone(),
        base: (!deployment.packages.is_empty()).then(|| deployment.base()),
        packages: deployment.packages.clone(),
    }
}

/// Seconds since 1970; 0 for an invalid time.
fn seconds(timestamp: &str) -> u64 {
    let parsed = timestamp.parse::<jiff::Timestamp>().map(|t| t.as_second());
    parsed.ok().and_then(|s| u64::try_from(s).ok()).unwrap_or_default()
}
