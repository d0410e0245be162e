//! The bootc backend. Its commands run as units of the host.

use std::sync::Mutex;

use berth_api::foreign::bounded;
use berth_api::node::{Deployment, DesiredImage, Progress};
use berth_api::{BootId, Digest};
use berth_core::agent::storage::{StagingLock, Storage};
use tokio::time::Instant;

mod early_lock;
pub(super) mod parsers;
mod progress;
mod pull;
mod status;

pub use status::{BootcStatus, BootcVersion};

use self::pull::{PullOptions, Pulls};
use super::bus::Changes;
use super::driver::{BootedSigned, HostStatus, Pull, PullInputs};
use super::error::HostError;
use super::failure::{Failure, Reason};
use super::login;
use super::tools::Tools;

/// File that ostree makes when it mounts a deployment for a soft reboot.
const NEXT_ROOT: &str = "/run/ostree/nextroot-booted";

#[derive(Debug, Clone)]
struct KeptVersion {
    version: BootcVersion,
    at: Instant,
    /// Number of consecutive queries with this answer.
    times: u32,
}

#[derive(Debug)]
pub(super) struct Bootc {
    tools: Tools,
    pulls: Pulls,
    version: Mutex<Option<KeptVersion>>,
    /// True if the booted image was pulled under an enforced signature policy, as of the agent's last query.
    signed: BootedSigned,
}

impl Bootc {
    pub(super) fn new(tools: Tools, changes: Changes) -> Self {
        Self {
            pulls: Pulls::new(tools.root.clone(), changes),
            tools,
            version: Mutex::new(None),
            signed: BootedSigned::default(),
        }
    }

    /// Returns bootc's version. A supported version with a readable help is cached for the life of the agent. Any other
    /// answer is cached while it [is fresh](BootcVersion::is_fresh).
    pub(super) async fn version(&self) -> Result<BootcVersion, HostError> {
        let kept = self.version.lock().unwrap_or_else(|e| e.into_inner()).clone();
        if let Some(kept) = &kept
            && kept.version.is_fresh(kept.at.elapsed(), kept.times)
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
        let text = self.tools.run("version", &["/usr/bin/bootc", "--version"]).await?;
        Ok(match status::parse_version(&text) {
            Some((version, numbers)) if numbers >= status::FLOOR => {
                let download_only = match self.tools.run("help", &["/usr/bin/bootc", "switch", "--help"]).await {
                    Ok(help) => Some(status::lists_download_only(&help)),
                    Err(error @ (HostError::Tool(_) | HostError::Timeout(_))) => {
                        tracing::warn!(%error, "cannot find out whether bootc supports --download-only; trying again later");
                        None
                    }
                    Err(error) => return Err(error),
                };
                BootcVersion::Version {
                    version,
                    numbers,
                    download_only,
                }
            }
            Some((version, _)) => BootcVersion::TooOld(version),
            None => BootcVersion::Failed(format!(
                "unexpected output of bootc --version: {:?}",
                bounded(&text, 80)
            )),
        })
    }

    pub(super) async fn status(&self) -> Result<BootcStatus, HostError> {
        let command = ["/usr/bin/bootc", "status", "--format=json", "--format-version=1"];
        let text = self.tools.run("status", &command).await?;
        let status =
            status::parse(&text).map_err(|e| HostError::Tool(Failure::new(Reason::BootcFailed, &e.to_string())))?;
        if let BootcStatus::Host(host) = &status {
            self.signed.see(host);
        }
        Ok(status)
    }

    async fn host_status(&self) -> Result<HostStatus, HostError> {
        match self.status().await? {
            BootcStatus::Host(host) => Ok(*host),
            _ => {
                let why = "bootc no longer reports this host as booted from an image, so the agent changed nothing";
                Err(HostError::Tool(Failure::new(Reason::NotBootcHost, why)))
            }
        }
    }

    pub(super) async fn rollback(&self, to: &Digest) -> Result<(), HostError> {
        if self.host_status().await?.needs_rollback_to(to)? {
            self.tools.run("rollback", &["/usr/bin/bootc", "rollback"]).await?;
        }
        Ok(())
    }

    /// Removes the deployment `meant` if it is staged. The agent checks this first, because `ostree admin undeploy`
    /// accepts only an index: if nothing is staged, index 0 is another deployment. On composefs, `bootc
    /// delete-deployment` accepts a name.
    pub(super) async fn unstage(&self, meant: &Deployment) -> Result<(), HostError> {
        let host = self.host_status().await?;
        let Some(staged) = host.staged_as_meant(meant)? else {
            return Ok(());
        };
        let command = match (host.storage, &host.staged_verity) {
            (Storage::Ostree, _) => vec!["/usr/bin/ostree", "admin", "undeploy", "0"],
            (Storage::Composefs, Some(name)) => vec!["/usr/bin/bootc", "delete-deployment", name],
            (Storage::Composefs, None) => {
                let why = format!(
                    "bootc status shows no deployment name for the staged image {}, so the agent cannot remove that image",
                    staged.image
                );
                return Err(HostError::tool_failed(&why));
            }
        };
        self.tools.run("unstage", &command).await.map(drop)
    }

    /// Finds this boot's pull by its record. Without a record, looks for the unit that pulls the desired digest.
    pub(super) async fn find_pull(&self, boot: &BootId, desired: Option<&Digest>) -> Result<Option<Pull>, HostError> {
        self.pulls.find(&self.tools.bus, boot, desired).await
    }

    pub(super) fn enforces_policy(&self, image: &DesiredImage) -> bool {
        self.signed.holds_for(image)
    }

    pub(super) async fn start_pull(
        &self,
        boot: &BootId,
        image: &DesiredImage,
        lock: StagingLock,
        inputs: PullInputs,
    ) -> Result<(), HostError> {
        let options = PullOptions {
            signed: self.enforces_policy(image),
            lock,
        };
        self.pulls.start(&self.tools.bus, boot, image, options, inputs).await
    }

    pub(super) async fn cancel_pull(&self, digest: &Digest) -> Result<(), HostError> {
        self.pulls.cancel(&self.tools.bus, digest).await
    }

    pub(super) async fn forget_pull(&self, digest: &Digest) -> Result<(), HostError> {
        self.pulls.forget(&self.tools.bus, digest).await
    }

    pub(super) fn pull_progress(&self) -> Option<Progress> {
        self.pulls.progress()
    }

    pub(super) async fn lock(&self) -> Result<(), HostError> {
        self.reset_soft_reboot().await?;
        let command = ["/usr/bin/ostree", "admin", "lock-finalization"];
        self.tools.run("lock", &command).await.map(drop)
    }

    pub(super) async fn unlock(&self) -> Result<(), HostError> {
        let command = ["/usr/bin/bootc", "upgrade", "--from-downloaded"];
        self.tools.run("unlock", &command).await.map(drop)
    }

    pub(super) async fn reboot(&self) -> Result<(), HostError> {
        login::reboot(&self.tools.bus).await
    }

    /// Mounts the staged deployment for a soft reboot, and requests the soft reboot. If the deployment cannot be
    /// mounted, requests a reboot of the machine.
    pub(super) async fn soft_reboot(&self) -> Result<(), HostError> {
        let command = ["/usr/bin/ostree", "admin", "prepare-soft-reboot", "0"];
        match self.tools.run("prepare-soft-reboot", &command).await {
            Ok(_) => {}
            Err(error @ (HostError::Tool(_) | HostError::Timeout(_))) => {
                tracing::warn!(%error, "cannot prepare a soft reboot; doing a full reboot instead");
                self.reset_soft_reboot().await?;
                return self.reboot().await;
            }
            Err(error) => return Err(error),
        }
        let asked = login::soft_reboot(&self.tools.bus).await;
        if asked.is_err() {
            self.reset_soft_reboot().await?;
        }
        asked
    }

    /// Unmounts a deployment that was mounted for a soft reboot. `systemctl reboot` would boot a mounted deployment
    /// even if it is locked.
    async fn reset_soft_reboot(&self) -> Result<(), HostError> {
        if !self.tools.root.path(NEXT_ROOT).exists() {
            return Ok(());
        }
        let command = ["/usr/bin/ostree", "admin", "prepare-soft-reboot", "--reset"];
        self.tools.run("reset-soft-reboot", &command).await.map(drop)
    }
}
