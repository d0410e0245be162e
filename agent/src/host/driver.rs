//! Interface to a backend: the operations that bootc and rpm-ostree perform in different ways. Code that uses this
//! interface does not know which backend it has.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_api::node::{Deployment, DesiredImage, Progress};
use berth_api::pool::SignatureRule;
use berth_api::{BootId, Digest, ImageRef};
use berth_core::agent::storage::{StagingLock, Storage};
use futures::future::BoxFuture;

use super::error::HostError;
use super::failure::{Failure, Reason};

/// Answer of a backend. Every operation ends within a bounded time.
pub(super) type Answer<'a, T> = BoxFuture<'a, Result<T, HostError>>;

/// A backend of a host. Callers request one change at a time, and request none while a pull runs.
pub(super) trait Driver: std::fmt::Debug + Send + Sync {
    /// Finds the recorded pull of this boot. Without a record, bootc's driver looks for a pull unit of the desired
    /// digest. An ended pull is found until [`Driver::forget_pull`].
    fn find_pull<'a>(&'a self, boot: &'a BootId, desired: Option<&'a Digest>) -> Answer<'a, Option<Pull>>;

    /// True if a pull of this image would enforce the host's signature policy.
    fn enforces_policy(&self, image: &DesiredImage) -> bool;

    /// Starts to pull and stage an image, locked as `lock` describes, and returns at once. No other pull may run.
    fn start_pull<'a>(
        &'a self,
        boot: &'a BootId,
        image: &'a DesiredImage,
        lock: StagingLock,
        inputs: PullInputs,
    ) -> Answer<'a, ()>;

    /// Stops the pull of a digest, waits for its end, and forgets it. The pull may have staged its image before it
    /// stopped.
    fn cancel_pull<'a>(&'a self, boot: &'a BootId, digest: &'a Digest) -> Answer<'a, ()>;

    /// Forgets an ended pull.
    fn forget_pull<'a>(&'a self, digest: &'a Digest) -> Answer<'a, ()>;

    /// Returns the progress of the running pull, if the backend reports it.
    fn pull_progress(&self) -> Option<Progress>;

    /// Locks the staged deployment, so that a shutdown discards it.
    fn lock(&self) -> Answer<'_, ()>;

    /// Unlocks the staged deployment, so that the next reboot applies it.
    fn unlock(&self) -> Answer<'_, ()>;

    /// Removes the staged deployment if it is `meant`. Never removes another one.
    fn unstage<'a>(&'a self, meant: &'a Deployment) -> Answer<'a, ()>;

    /// Requests a reboot, which applies an unlocked staged deployment.
    fn reboot(&self) -> Answer<'_, ()>;
}

/// The host's settings at the start of a pull. The pull's record keeps them.
#[derive(Debug)]
pub(super) struct PullInputs {
    /// Description of the host's credentials.
    pub(super) credentials: String,
    /// Digest of the signature policy's text; `None` if the pull does not enforce one.
    pub(super) policy: Option<Digest>,
}

/// A pull on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pull {
    /// Digest of the image.
    pub digest: Digest,
    /// Digest of the text of the enforced signature policy; `None` if none is enforced.
    pub policy: Option<Digest>,
    /// Running, or how it ended.
    pub state: PullState,
}

/// State of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullState {
    /// The pull runs.
    Running,
    /// The pull ended without a reported failure. Only the deployments show whether the image is staged.
    Succeeded,
    /// The pull failed. It may have staged its image anyway.
    Failed {
        /// Message of the host tool, in one line. [`super::failure::classify`] finds its reason.
        message: String,
    },
}

/// The deployments of a host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostStatus {
    /// The running deployment.
    pub booted: Deployment,
    /// The deployment that a shutdown applies unless it is locked. A staged change without an image, such as a kernel
    /// argument, has no digest.
    pub staged: Option<Deployment>,
    /// Why the lock of the staged deployment cannot be read. The deployment then counts as neither locked nor unlocked.
    pub unreadable_lock: Option<String>,
    /// True if the staged image was pulled under an enforced signature policy.
    pub staged_signed: bool,
    /// The rollback deployment: the first one that is neither booted nor staged.
    pub rollback: Option<Deployment>,
    /// True if the rollback deployment boots next.
    pub rollback_queued: bool,
    /// True if the booted image was pulled under an enforced signature policy. The host's next pulls must enforce one
    /// too.
    pub signature_enforced: bool,
    /// How the host stores its deployments.
    pub storage: Storage,
    /// Directory of the staged deployment's files, as a path on the host; `None` without ostree.
    pub staged_files: Option<PathBuf>,
    /// Name of the staged deployment on a composefs host.
    pub staged_verity: Option<String>,
    /// Packages that rpm-ostree layers on the booted image.
    pub layered_packages: Vec<String>,
    /// True if the staged deployment layers other packages than the booted one.
    pub staged_layers: bool,
}

impl HostStatus {
    /// Returns the staged deployment if it is the one in `meant`; `None` if nothing is staged.
    ///
    /// # Errors
    /// When something else is staged, which must not be touched.
    pub(super) fn staged_as_meant(&self, meant: &Deployment) -> Result<Option<&Deployment>, HostError> {
        match &self.staged {
            Some(staged) if (&staged.digest, &staged.image) != (&meant.digest, &meant.image) => {
                let why = format!(
                    "{} is staged instead of {}, so nothing is removed",
                    staged.image, meant.image
                );
                Err(HostError::tool_failed(&why))
            }
            staged => Ok(staged.as_ref()),
        }
    }
}

/// True if the booted image, when last seen, was pulled under an enforced signature policy.
#[derive(Debug, Default)]
pub(super) struct BootedSigned(AtomicBool);

impl BootedSigned {
    /// Records the value from the deployments.
    pub(super) fn see(&self, status: &HostStatus) {
        self.0.store(status.signature_enforced, Ordering::Relaxed);
    }

    /// True if the pull of this image must enforce a signature policy: because the image requires it, or because the
    /// booted image was pulled with enforcement.
    pub(super) fn holds_for(&self, image: &DesiredImage) -> bool {
        self.0.load(Ordering::Relaxed) || image.signature == SignatureRule::Required
    }
}

/// Returns the image's reference for a backend. Fails unless the reference in the BootcNode's spec is complete and
/// contains the spec's digest.
pub(super) fn target(image: &DesiredImage) -> Result<&ImageRef, HostError> {
    let reference = image.reference.get();
    let reference = reference.map_err(|error| invalid_reference(&format!("spec.image.ref: {error}")))?;
    if reference.digest() != Some(&image.digest) {
        return Err(invalid_reference(&format!(
            "spec.image.ref {reference} does not have spec.image.digest {}; publish both again",
            image.digest
        )));
    }
    Ok(reference)
}

fn invalid_reference(why: &str) -> HostError {
    HostError::Tool(Failure::new(Reason::InvalidReference, why))
}
