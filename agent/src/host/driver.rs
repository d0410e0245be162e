//! The edge that a backend offers: everything that bootc and rpm-ostree do in different ways on a host. Nothing above it knows
//! which of them does it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_api::image_ref::{ImageRef, ImageRefError};
use berth_api::node::{Deployment, DesiredImage, Progress};
use berth_api::pool::SignatureRule;
use berth_api::{BootId, Digest};
use berth_core::agent::storage::{StagingLock, Storage};
use futures::future::BoxFuture;

use super::HostError;
use super::failure::{Failure, Reason};

/// Answer of a backend, in bounded time.
pub(super) type Answer<'a, T> = BoxFuture<'a, Result<T, HostError>>;

/// A backend of a host. No two changes are asked of it at a time, and none while a pull runs.
pub(super) trait Driver: std::fmt::Debug + Send + Sync {
    /// The pull of this boot that is remembered, with its state; where none is, bootc looks for one of the desired digest. An
    /// ended pull is found until it is forgotten.
    fn find_pull<'a>(&'a self, boot: &'a BootId, desired: Option<&'a Digest>) -> Answer<'a, Option<Pull>>;

    /// True if this image is pulled under an enforced signature policy.
    fn enforces_policy(&self, image: &DesiredImage) -> bool;

    /// Starts to pull and stage an image, locked in this way, where no other pull is; returns at once.
    fn start_pull<'a>(
        &'a self,
        boot: &'a BootId,
        image: &'a DesiredImage,
        lock: StagingLock,
        given: Given,
    ) -> Answer<'a, ()>;

    /// Stops the pull of a digest, waits for its end, and forgets it. It may have staged its image all the same.
    fn cancel_pull<'a>(&'a self, boot: &'a BootId, digest: &'a Digest) -> Answer<'a, ()>;

    /// Forgets a pull that ended.
    fn forget_pull<'a>(&'a self, digest: &'a Digest) -> Answer<'a, ()>;

    /// Progress of the running pull, when the backend tells of it.
    fn pull_progress(&self) -> Option<Progress>;

    /// Locks what is staged: a shutdown then discards it.
    fn lock(&self) -> Answer<'_, ()>;

    /// Unlocks what is staged: the reboot that follows applies it.
    fn unlock(&self) -> Answer<'_, ()>;

    /// Removes this staged deployment, and no other.
    fn unstage<'a>(&'a self, meant: &'a Deployment) -> Answer<'a, ()>;

    /// Asks for a reboot, which applies what is staged and unlocked.
    fn reboot(&self) -> Answer<'_, ()>;
}

/// State of the host as a pull begins, which is remembered with it.
#[derive(Debug)]
pub(super) struct Given {
    /// The credentials that the host has, in words.
    pub(super) credentials: String,
    /// Digest of the text of the signature policy; `None` if the pull does not enforce one.
    pub(super) policy: Option<Digest>,
}

/// A pull on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pull {
    /// Digest that is pulled.
    pub digest: Digest,
    /// Digest of the text of the signature policy that it runs under; `None` if none is enforced.
    pub policy: Option<Digest>,
    /// State of the pull.
    pub state: PullState,
}

/// State of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullState {
    /// The pull runs.
    Running,
    /// The pull ended well, as far as is known. Only a look at the deployments can tell whether the image is staged.
    Succeeded,
    /// The pull failed. Something may be staged all the same.
    Failed {
        /// The host tool's own words, in one line; [`super::failure::classify`] finds the reason in them.
        message: String,
    },
}

/// The deployments of a host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostStatus {
    /// The deployment that runs.
    pub booted: Deployment,
    /// The deployment that a shutdown applies, unless it is locked. One without an image (a kernel argument that
    /// somebody staged, say) has no digest, but is there all the same.
    pub staged: Option<Deployment>,
    /// Reason why nothing is known about the lock of the staged deployment. Then it counts neither as locked nor as unlocked.
    pub unreadable_lock: Option<String>,
    /// The staged image was staged under an enforced signature policy.
    pub staged_signed: bool,
    /// The first deployment that is neither.
    pub rollback: Option<Deployment>,
    /// The next boot takes the rollback deployment.
    pub rollback_queued: bool,
    /// The booted image was pulled under a signature policy that was enforced. A pull that does not ask for the same would
    /// weaken the host.
    pub signature_enforced: bool,
    /// The way in which the host keeps its deployments.
    pub storage: Storage,
    /// Directory of the staged deployment's files, as a path on the host. `None` without ostree.
    pub staged_files: Option<PathBuf>,
    /// Name by which a composefs host knows the staged deployment.
    pub staged_verity: Option<String>,
    /// Packages that rpm-ostree layers on the image that runs.
    pub layered_packages: Vec<String>,
    /// The staged deployment layers other ones than the one that runs.
    pub staged_layers: bool,
}

impl HostStatus {
    /// The staged deployment, if it is the one meant; `None` where nothing is staged.
    ///
    /// # Errors
    /// When something else is staged: it is not to be touched.
    pub(super) fn staged_as_meant(&self, meant: &Deployment) -> Result<Option<&Deployment>, HostError> {
        match &self.staged {
            Some(staged) if (&staged.digest, &staged.image) != (&meant.digest, &meant.image) => {
                let why = format!(
                    "{} is staged in place of {}: it is not removed",
                    staged.image, meant.image
                );
                Err(HostError::Tool(Failure::new(Reason::HostToolFailed, &why)))
            }
            staged => Ok(staged.as_ref()),
        }
    }
}

/// Signature policy of the booted image: whether it was pulled under an enforced one, when last seen.
#[derive(Debug, Default)]
pub(super) struct BootedSigned(AtomicBool);

impl BootedSigned {
    /// Takes note of what the deployments say.
    pub(super) fn see(&self, status: &HostStatus) {
        self.0.store(status.signature_enforced, Ordering::Relaxed);
    }

    /// Says whether an image is pulled under an enforced policy too: because it is asked for, or not to weaken the host.
    pub(super) fn holds_for(&self, image: &DesiredImage) -> bool {
        self.0.load(Ordering::Relaxed) || image.signature == SignatureRule::Required
    }
}

/// The reference that a backend gets: what was published, if it is a whole reference of the published digest.
pub(super) fn target(image: &DesiredImage) -> Result<ImageRef, HostError> {
    let refused = |why: String| HostError::Tool(Failure::new(Reason::InvalidReference, &why));
    let reference: ImageRef = image
        .reference
        .parse()
        .map_err(|error: ImageRefError| refused(format!("spec.image.ref: {error}")))?;
    if reference.digest() != Some(&image.digest) {
        return Err(refused(format!(
            "spec.image.ref {reference} is not of spec.image.digest {}; publish both anew",
            image.digest
        )));
    }
    Ok(reference)
}
