//! Types that both backends, bootc and rpm-ostree, use.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_api::node::{Deployment, DesiredImage};
use berth_api::pool::SignatureRule;
use berth_api::{Digest, ImageRef};
use berth_core::agent::storage::Storage;

use super::error::HostError;
use super::failure::{Failure, Reason};

/// Host settings at the start of a pull, for the pull's record.
#[derive(Debug)]
pub(super) struct PullInputs {
    /// Text about the auth file in use, for the message of a pull that the registry rejects.
    pub(super) credentials: String,
    /// Digest of the signature policy's text; `None` if the pull enforces no policy.
    pub(super) policy: Option<Digest>,
}

/// A pull on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pull {
    /// Digest of the image.
    pub digest: Digest,
    /// Digest of the enforced signature policy's text; `None` if the pull enforces no policy.
    pub policy: Option<Digest>,
    /// Whether the pull runs, or how it ended.
    pub state: PullState,
}

/// State of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullState {
    /// The pull runs.
    Running,
    /// The pull ended without a reported failure. Only the host's deployments show whether the image is staged.
    Succeeded,
    /// The pull failed, but may have staged its image.
    Failed {
        /// Message of the host tool, in one line, for [`super::failure::classify`].
        message: String,
    },
}

/// The deployments of a host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostStatus {
    /// The running deployment.
    pub booted: Deployment,
    /// The deployment that a shutdown applies, unless it is locked. A staged change without an image, such as a changed
    /// kernel argument, has no digest.
    pub staged: Option<Deployment>,
    /// Error if the lock of the staged deployment cannot be read. The deployment then counts as neither locked nor
    /// unlocked.
    pub unreadable_lock: Option<String>,
    /// True if the staged image was pulled under an enforced signature policy.
    pub staged_signed: bool,
    /// ostree commit of the booted deployment; `None` without ostree.
    pub booted_commit: Option<String>,
    /// ostree commit of the staged deployment; `None` without ostree.
    pub staged_commit: Option<String>,
    /// The rollback deployment: the first deployment that is neither booted nor staged.
    pub rollback: Option<Deployment>,
    /// True if the rollback deployment boots next.
    pub rollback_queued: bool,
    /// True if the booted image was pulled under an enforced signature policy. Later pulls must then enforce a policy
    /// too.
    pub signature_enforced: bool,
    /// How the host stores its deployments.
    pub storage: Storage,
    /// Directory of the staged deployment's files, as a path on the host; `None` without ostree.
    pub staged_files: Option<PathBuf>,
    /// fs-verity digest that names the staged deployment on a composefs host. `None` on an ostree host, or if bootc reports
    /// no digest.
    pub staged_verity: Option<String>,
    /// True if a composefs host boots unified kernel images (UKIs) through boot loader entries, as with systemd-boot.
    pub uki_entries: bool,
    /// Packages that rpm-ostree layers on the booted image.
    pub layered_packages: Vec<String>,
    /// True if the staged and the booted deployment have different layered packages.
    pub staged_layers: bool,
}

impl HostStatus {
    /// True if the rollback to this digest is not queued yet. Fails if there is no rollback deployment with this
    /// digest.
    pub(super) fn needs_rollback_to(&self, to: &Digest) -> Result<bool, HostError> {
        let digest = self.rollback.as_ref().and_then(|rollback| rollback.digest.as_ref());
        if digest != Some(to) {
            let found = digest.map_or_else(|| "none".to_owned(), ToString::to_string);
            let why =
                format!("the host's rollback deployment is {found} instead of {to}, so the agent queued no rollback");
            return Err(HostError::tool_failed(&why));
        }
        Ok(!self.rollback_queued)
    }

    /// Returns the staged deployment if it has the image and digest of `meant`; `None` if nothing is staged. Fails if
    /// another deployment is staged, because the caller must not change that deployment.
    pub(super) fn staged_as_meant(&self, meant: &Deployment) -> Result<Option<&Deployment>, HostError> {
        match &self.staged {
            Some(staged) if (&staged.digest, &staged.image) != (&meant.digest, &meant.image) => {
                let why = format!(
                    "{} is staged instead of {}, so the agent did not remove the staged image",
                    staged.image, meant.image
                );
                Err(HostError::tool_failed(&why))
            }
            staged => Ok(staged.as_ref()),
        }
    }
}

/// True if the booted image was pulled under an enforced signature policy, as of the last status that the agent read.
#[derive(Debug, Default)]
pub(super) struct BootedSigned(AtomicBool);

impl BootedSigned {
    pub(super) fn see(&self, status: &HostStatus) {
        self.0.store(status.signature_enforced, Ordering::Relaxed);
    }

    /// True if a pull of this image must enforce a signature policy: because the image requires it, or because the
    /// booted image was pulled under a policy.
    pub(super) fn holds_for(&self, image: &DesiredImage) -> bool {
        self.0.load(Ordering::Relaxed) || image.signature == SignatureRule::Required
    }
}

/// Returns the image's reference. Fails unless `spec.image.ref` of the BootcNode is valid and has the digest in
/// `spec.image.digest`.
pub(super) fn target(image: &DesiredImage) -> Result<&ImageRef, HostError> {
    let reference = image.reference.get();
    let reference = reference.map_err(|error| invalid_reference(&format!("spec.image.ref: {error}")))?;
    if reference.digest() != Some(&image.digest) {
        return Err(invalid_reference(&format!(
            "spec.image.ref {reference} of the BootcNode does not contain spec.image.digest {}; only Berth's \
             controller may write these fields: find the client that changed them",
            image.digest
        )));
    }
    Ok(reference)
}

fn invalid_reference(why: &str) -> HostError {
    HostError::Tool(Failure::new(Reason::InvalidReference, why))
}
