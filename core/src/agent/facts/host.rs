//! State of the host.

use std::time::Duration;

use berth_api::backend::NodeBackend;
use berth_api::digest::Digest;
use berth_api::names::BootId;
use berth_api::node::{Deployment, Progress};

use crate::agent::host_policy::Rules;
use crate::agent::reason::Reason;
use crate::agent::storage::{StagingLock, Storage};

/// State of the host.
#[derive(Debug, Clone)]
pub struct HostFacts {
    /// The running boot.
    pub boot_id: BootId,
    /// The host's deployments.
    pub os: Os,
    /// True if `os` was read after the last thing that may have changed it.
    pub fresh: bool,
    /// True if this process saw that nothing was armed, and has done nothing since that could arm anything.
    pub disarmed: bool,
    /// Trouble with the lock of what is staged, once that has failed time and again: then what is armed is removed.
    pub lock_fails: Option<LockFails>,
    /// The pull unit, when one is loaded or its end was not yet dealt with.
    pub pull: Option<PullFacts>,
    /// Inhibitors that block a shutdown, with their reasons.
    pub inhibitors: Vec<String>,
    /// True while the host is going down.
    pub shutting_down: bool,
    /// True if somebody has scheduled a shutdown for later.
    pub shutdown_scheduled: bool,
    /// Silence of the host's services, while it lasts: what else is said of the host is from before.
    pub unreachable: Option<Unreachable>,
    /// Reason for which the agent's memory could not be written to the host, while that is so.
    pub forgetful: Option<String>,
    /// Rules of the host about what it pulls, and by which credentials.
    pub rules: Rules,
    /// Other updaters that are active on the host.
    pub rivals: Vec<String>,
    /// True if finalization of the staged deployment failed at the last shutdown.
    pub finalization_failed: bool,
    /// State of a reboot that this process asked for.
    pub reboot: Reboot,
    /// Synchronisation of the host's clock; `None` when it was not asked for, or there was no answer. A clock counts as
    /// synchronised only when the host says so.
    pub clock_synchronized: Option<bool>,
}

/// A lock that fails again and again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockFails {
    /// The last error's words.
    pub why: String,
    /// Pause until it is tried again, where what is armed is not to be removed; zero: it is due.
    pub pause: Duration,
}

/// Silence of the host's bus, systemd or logind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable {
    /// The error's words.
    pub why: String,
    /// Time since the first question without an answer.
    pub ago: Duration,
}

/// Silence that is worth telling. A host that goes down is silent as well, and so is a service that is restarted.
const SILENCE_TOLD_AFTER: Duration = Duration::from_secs(30);

impl Unreachable {
    /// Says whether the silence has lasted so long that people should know.
    pub fn is_to_be_told(&self) -> bool {
        self.ago >= SILENCE_TOLD_AFTER
    }
}

/// The host's deployments, as far as they are known.
#[derive(Debug, Clone, PartialEq)]
pub enum Os {
    /// The deployments were not read yet, or a pull holds the lock.
    Unknown,
    /// The host cannot be updated by Berth.
    Unusable {
        /// Condition reason.
        reason: Reason,
        /// The host tool's own words.
        message: String,
    },
    /// A host that a backend can update.
    Bootc(Box<Deployments>),
}

/// The deployments of a host, and the backend that changes them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Deployments {
    /// Backend of the host.
    pub backend: NodeBackend,
    /// The way in which the host keeps them.
    pub storage: Storage,
    /// The backend locks what it stages, from the first instant.
    pub stages_locked: bool,
    /// The booted deployment.
    pub booted: Deployment,
    /// The staged deployment.
    pub staged: Option<Deployment>,
    /// The staged deployment layers other packages than the one that runs, and the backend keeps them in what it stages over it:
    /// somebody has asked for that on the host.
    pub staged_layers: bool,
    /// True if the backend says that the staged image was staged under an enforced signature policy. It says so too of an image
    /// that was in the host's repository already, and so was not checked: see [`Past::is_verified`].
    pub staged_signed: bool,
    /// The deployment that a rollback would boot.
    pub rollback: Option<Deployment>,
    /// The next boot takes that one: somebody has queued a rollback, or it was finalized and not booted.
    pub rollback_queued: bool,
    /// A link in the host's `/etc` that makes a unit, such as the kubelet, require `berth-firstboot.service`. Set only if the staged
    /// image lacks that service.
    pub link_without_unit: Option<String>,
    /// Reason for which nothing is staged here, and nothing new is begun, for people. What was begun is finished.
    pub refusal: Option<String>,
}

impl Deployments {
    /// Way in which an image is locked that is staged here; `None` where nothing would lock it.
    pub fn staging_lock(&self) -> Option<StagingLock> {
        StagingLock::of(self.storage, self.stages_locked)
    }

    /// Message if the kubelet would never start after a boot of the staged image. `None` if no such fault is known.
    pub fn unit_missing(&self) -> Option<String> {
        let link = self.link_without_unit.as_ref()?;
        Some(format!(
            "the staged image has no berth-firstboot.service, and {link} requires it: the unit of that link, such as the kubelet, \
             would never start. Run `rm {link}` on the host, or publish an image that has the unit"
        ))
    }
}

impl Os {
    /// The deployments, when they are known.
    pub fn deployments(&self) -> Option<&Deployments> {
        match self {
            Self::Bootc(deployments) => Some(deployments),
            _ => None,
        }
    }

    /// Digest of what runs.
    pub fn booted(&self) -> Option<&Digest> {
        self.deployments()?.booted.digest.as_ref()
    }

    /// Reason for which nothing is staged on the host, for people; `None` where it is, or the host is not known.
    pub fn refusal(&self) -> Option<&str> {
        self.deployments()?.refusal.as_deref()
    }

    /// See [`Deployments::unit_missing`].
    pub fn unit_missing(&self) -> Option<String> {
        self.deployments()?.unit_missing()
    }

    /// Says whether it is known that the next boot takes another deployment than the one that runs.
    pub fn is_rollback_queued(&self) -> bool {
        self.deployments().is_some_and(|d| d.rollback_queued)
    }

    /// Digest of the deployment that the next boot takes in place of the one that runs, where it has one.
    pub fn queued_digest(&self) -> Option<&Digest> {
        let queued = self.deployments().filter(|d| d.rollback_queued)?;
        queued.rollback.as_ref()?.digest.as_ref()
    }

    /// The staged deployment.
    pub fn staged(&self) -> Option<&Deployment> {
        self.deployments()?.staged.as_ref()
    }
}

/// A pull unit on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct PullFacts {
    /// Digest that is pulled.
    pub digest: Digest,
    /// Progress of the pull.
    pub progress: Option<Progress>,
}

/// State of a reboot that this process asked for. Lost with the process, on purpose: asking again under the same commit
/// is harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reboot {
    /// No reboot was asked for.
    NotAsked,
    /// A reboot was asked for, this long ago.
    Asked(Duration),
    /// logind refused, or the image could not be unlocked.
    Blocked {
        /// Reason, in the host's own words.
        why: String,
        /// Time since then.
        ago: Duration,
    },
}
