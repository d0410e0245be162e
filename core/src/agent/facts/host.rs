use std::time::Duration;

use berth_api::backend::NodeBackend;
use berth_api::digest::Digest;
use berth_api::names::BootId;
use berth_api::node::{Deployment, Progress};

use super::health::HostHealth;
use crate::agent::host_policy::Rules;
use crate::agent::reason::Reason;
use crate::agent::storage::{StagingLock, Storage};

/// State of the host.
#[derive(Debug, Clone)]
pub struct HostFacts {
    /// ID of the current boot.
    pub boot_id: BootId,
    /// The host's deployments.
    pub os: Os,
    /// True if `os` was read after the last event that may have changed it.
    pub fresh: bool,
    /// True if the last read found no armed image, and the agent has since done nothing that could arm one.
    pub disarmed: bool,
    /// Set after the lock of the staged image failed repeatedly. The agent then removes the image or, if it must stay,
    /// retries the lock.
    pub lock_failure: Option<LockFailure>,
    /// The running pull.
    pub pull: Option<PullFacts>,
    /// Shutdown inhibitors, with their reasons.
    pub inhibitors: Vec<String>,
    /// True while the host shuts down.
    pub shutting_down: bool,
    /// True if a shutdown is scheduled for later.
    pub shutdown_scheduled: bool,
    /// Set while the host's services do not answer. The other fields then have their last known values.
    pub unreachable: Option<Unreachable>,
    /// Error of the last write of the agent's memory file, until a write succeeds.
    pub memory_error: Option<String>,
    /// The host's own policy for images and credentials.
    pub rules: Rules,
    /// Other updaters that are active on the host.
    pub rivals: Vec<String>,
    /// True if finalization of the staged deployment failed at the last shutdown.
    pub finalization_failed: bool,
    /// State of the reboot that this process requested.
    pub reboot: Reboot,
    /// Whether the host's clock is synchronised; `None` (not asked or no answer) counts as not synchronised.
    pub clock_synchronized: Option<bool>,
    /// Health of the running boot; `None` outside a turn, and until it is read.
    pub health: Option<HostHealth>,
}

/// Repeated failure to lock the staged image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockFailure {
    /// Last error message.
    pub why: String,
    /// Time until the next attempt, for an image that must not be removed; zero if the attempt is due.
    pub pause: Duration,
}

/// The host's bus, systemd or logind does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable {
    /// Error message.
    pub why: String,
    /// Time since the first request without an answer.
    pub ago: Duration,
}

/// Shortest silence of the host's services that is reported. A shutdown or a service restart causes shorter ones.
const SILENCE_TOLD_AFTER: Duration = Duration::from_secs(30);

impl Unreachable {
    /// True if the services have not answered for long enough to report it.
    pub fn is_reportable(&self) -> bool {
        self.ago >= SILENCE_TOLD_AFTER
    }
}

/// The host's deployments as last read.
#[derive(Debug, Clone, PartialEq)]
pub enum Os {
    /// Not read since the deployments may have changed, or not readable because a pull holds the lock.
    Unknown,
    /// Berth cannot update the host.
    Unusable {
        /// Condition reason.
        reason: Reason,
        /// Error message of the host tool.
        message: String,
    },
    /// A backend can update the host.
    Bootc(Box<Deployments>),
}

/// The deployments of a host, and the backend that changes them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Deployments {
    /// Backend of the host.
    pub backend: NodeBackend,
    /// How the host stores its deployments.
    pub storage: Storage,
    /// True if the backend stages images locked.
    pub stages_locked: bool,
    /// The booted deployment.
    pub booted: Deployment,
    /// The staged deployment.
    pub staged: Option<Deployment>,
    /// True if the staged deployment has other layered packages than the booted one, and the backend keeps them in
    /// the next image it stages. A person or program on the host requested those packages.
    pub staged_layers: bool,
    /// True if the backend reports an enforced signature policy. Not enough: see [`super::Past::is_verified`].
    pub staged_signed: bool,
    /// The deployment that a rollback would boot.
    pub rollback: Option<Deployment>,
    /// True if the next boot takes the rollback deployment: it was queued, or finalized and not booted.
    pub rollback_queued: bool,
    /// Link in `/etc` that makes a unit require `berth-firstboot.service`, if the staged image lacks that service.
    pub link_without_unit: Option<String>,
    /// Why Berth starts no update on this host; `None` if it does. A turn that has begun is still finished.
    pub refusal: Option<String>,
}

impl Deployments {
    /// Returns how an image is locked while it is staged here; `None` if nothing would lock it.
    pub fn staging_lock(&self) -> Option<StagingLock> {
        StagingLock::of(self.storage, self.stages_locked)
    }

    /// Message if the kubelet would never start after a boot of the staged image. `None` if no such fault is known.
    pub fn unit_missing(&self) -> Option<String> {
        let link = self.link_without_unit.as_ref()?;
        Some(format!(
            "the staged image has no berth-firstboot.service, but {link} requires it: that unit, such as the kubelet, would never \
             start. Run `rm {link}` on the host, or publish an image with that service"
        ))
    }
}

impl Os {
    /// Returns the deployments, if known.
    pub fn deployments(&self) -> Option<&Deployments> {
        match self {
            Self::Bootc(deployments) => Some(deployments),
            _ => None,
        }
    }

    /// Returns the digest of the booted deployment.
    pub fn booted(&self) -> Option<&Digest> {
        self.deployments()?.booted.digest.as_ref()
    }

    /// Message if Berth stages no image on this host; `None` if it does, or if the deployments are unknown.
    pub fn refusal(&self) -> Option<&str> {
        self.deployments()?.refusal.as_deref()
    }

    /// See [`Deployments::unit_missing`].
    pub fn unit_missing(&self) -> Option<String> {
        self.deployments()?.unit_missing()
    }

    /// True if the next boot is known to take another deployment than the booted one.
    pub fn is_rollback_queued(&self) -> bool {
        self.deployments().is_some_and(|d| d.rollback_queued)
    }

    /// Returns the digest of the deployment that the next boot takes instead of the booted one.
    pub fn queued_digest(&self) -> Option<&Digest> {
        let queued = self.deployments().filter(|d| d.rollback_queued)?;
        queued.rollback.as_ref()?.digest.as_ref()
    }

    /// True if the rollback deployment has this digest; `None` if the deployments are unknown.
    pub fn has_deployed(&self, digest: &Digest) -> Option<bool> {
        let rollback = self.deployments()?.rollback.as_ref();
        Some(rollback.is_some_and(|rollback| rollback.digest.as_ref() == Some(digest)))
    }

    /// Returns the staged deployment, if known.
    pub fn staged(&self) -> Option<&Deployment> {
        self.deployments()?.staged.as_ref()
    }
}

/// A running pull.
#[derive(Debug, Clone, PartialEq)]
pub struct PullFacts {
    /// Digest being pulled.
    pub digest: Digest,
    /// Progress of the pull.
    pub progress: Option<Progress>,
}

/// State of the reboot that this process requested. After an agent restart, a second request is harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reboot {
    /// No reboot was requested.
    NotAsked,
    /// A reboot was requested this long ago.
    Asked(Duration),
    /// The reboot did not happen: logind refused it, no shutdown began, the host stayed busy, or the unlock failed.
    Blocked {
        /// Why the reboot did not happen.
        why: String,
        /// Time since the agent recorded this state.
        ago: Duration,
    },
}
