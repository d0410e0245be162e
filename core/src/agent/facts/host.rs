use std::time::Duration;

use berth_api::backend::NodeBackend;
use berth_api::digest::Digest;
use berth_api::names::BootId;
use berth_api::node::{Deployment, Progress};
use jiff::Timestamp;

use super::health::HostHealth;
use super::rollback_guard::RollbackGuard;
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
    /// True if `os` was read after the last event that may have changed the host's deployments.
    pub fresh: bool,
    /// True if the last read found no armed image, and nothing that this agent process did after the read could have
    /// armed one.
    pub disarmed: bool,
    /// Set if several attempts to lock the staged image have failed. The agent then removes the image. If the image
    /// must stay, the agent retries the lock.
    pub lock_failure: Option<LockFailure>,
    /// The running pull.
    pub pull: Option<PullFacts>,
    /// Inhibitors that keep logind from shutting the host down, each with its reason.
    pub inhibitors: Vec<String>,
    /// True while the host shuts down.
    pub shutting_down: bool,
    /// True if a shutdown is scheduled for later.
    pub shutdown_scheduled: bool,
    /// Set while the host's D-Bus, systemd or logind does not answer. The other fields then have their last known
    /// values.
    pub unreachable: Option<Unreachable>,
    /// Error of the last write of the agent's memory file, until a write succeeds.
    pub memory_error: Option<String>,
    /// The host's own rules for images, signatures and credentials.
    pub rules: Rules,
    /// Other updaters that are active on the host.
    pub rivals: Vec<String>,
    /// True if finalization of the staged deployment failed at the last shutdown.
    pub finalization_failed: bool,
    /// State of the reboot that this process requested.
    pub reboot: Reboot,
    /// Whether the host's clock is synchronized; `None` (not asked or no answer) counts as not synchronized.
    pub clock_synchronized: Option<bool>,
    /// Health of the running boot; `None` outside a turn, and until it is read.
    pub health: Option<HostHealth>,
    /// State of the host's rollback guard.
    pub rollback_guard: RollbackGuard,
    /// The host's support of soft reboots.
    pub soft_reboots: SoftReboots,
}

/// The host's support of soft reboots, which restart only the userspace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SoftReboots {
    /// True if the host's systemd supports soft reboots.
    pub supported: bool,
    /// Time when a soft reboot started the running userspace, by the host's wall clock. `None` if the userspace has run
    /// since the kernel booted.
    pub userspace_began: Option<Timestamp>,
}

/// Several attempts to lock the staged image have failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockFailure {
    /// Last error message.
    pub why: String,
    /// Time until the next attempt to lock an image that must not be removed; zero if the attempt is due.
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

/// How long the host's services must be silent before the status reports the silence. A shutdown or a service restart
/// causes a shorter silence.
const SILENCE_TOLD_AFTER: Duration = Duration::from_secs(30);

impl Unreachable {
    /// True if the services have been silent for long enough to report the silence.
    pub fn is_reportable(&self) -> bool {
        self.ago >= SILENCE_TOLD_AFTER
    }
}

/// The host's deployments as last read.
#[derive(Debug, Clone, PartialEq)]
pub enum Os {
    /// Unknown, because the deployments may have changed after the last read, or because a pull holds ostree's lock.
    Unknown,
    /// Berth cannot update the host; see [`crate::agent::backend`].
    Unusable {
        /// Reason of the condition `NodeDegraded`.
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
    /// True if the backend locks an image while it stages the image. The image is then never armed.
    pub stages_locked: bool,
    /// The booted deployment.
    pub booted: Deployment,
    /// ostree commit of the booted deployment; `None` on a composefs host.
    pub booted_commit: Option<String>,
    /// The staged deployment.
    pub staged: Option<Deployment>,
    /// ostree commit of the staged deployment; `None` on a composefs host.
    pub staged_commit: Option<String>,
    /// True if the backend is rpm-ostree and someone on the host changed the layered packages of the staged deployment.
    /// rpm-ostree keeps that change in the next image that it stages.
    pub staged_layers: bool,
    /// True if the backend reports that the host enforces a signature policy. This alone does not prove that the staged
    /// image is signed: see [`super::Past::is_verified`].
    pub staged_signed: bool,
    /// The deployment that a rollback would boot.
    pub rollback: Option<Deployment>,
    /// True if the next boot takes the rollback deployment. Either an admin or the agent queued the rollback, or an
    /// image was finalized but not booted.
    pub rollback_queued: bool,
    /// Path of a link in `/etc` that makes a unit of the host require `berth-firstboot.service`, if the staged image
    /// lacks that service.
    pub link_without_unit: Option<String>,
    /// Why Berth must not begin an update on this host; `None` if it may. A turn that has already begun is finished
    /// anyway.
    pub refusal: Option<String>,
}

impl Deployments {
    /// Returns how this host locks an image that is being staged; `None` if nothing would lock the image.
    pub fn staging_lock(&self) -> Option<StagingLock> {
        StagingLock::of(self.storage, self.stages_locked)
    }

    /// Returns a message if a boot of the staged image would leave a unit such as the kubelet unable to start. `None`
    /// if no such fault is known.
    pub fn unit_missing(&self) -> Option<String> {
        let link = self.link_without_unit.as_ref()?;
        Some(format!(
            "the staged image has no berth-firstboot.service, but the link {link} makes another unit require that service, so the \
             other unit would not start after a reboot. Run `rm {link}` on the host, or publish an image that has \
             berth-firstboot.service"
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

    /// Returns why Berth must not begin an update on this host; `None` if it may, or if the deployments are unknown.
    pub fn refusal(&self) -> Option<&str> {
        self.deployments()?.refusal.as_deref()
    }

    /// See [`Deployments::unit_missing`].
    pub fn unit_missing(&self) -> Option<String> {
        self.deployments()?.unit_missing()
    }

    /// True if the next boot takes the rollback deployment. False if the deployments are unknown.
    pub fn is_rollback_queued(&self) -> bool {
        self.deployments().is_some_and(|d| d.rollback_queued)
    }

    /// Returns the digest of the rollback deployment if the next boot takes that deployment. `None` otherwise, or if
    /// the digest is unknown.
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
