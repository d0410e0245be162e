//! Why an image is not resolved.

use std::time::Duration;

use berth_api::reasons;
use berth_core::registries::document::DocumentError;

reasons! {
    /// The sort of a failure to resolve.
    pub enum ResolveReason {
        /// The client of the registry cannot be set up.
        ClientSetup,
        /// The pool's pull secret does not exist.
        PullSecretNotFound,
        /// The pool's pull secret cannot be read now.
        PullSecretUnreadable,
        /// The pool's pull secret has no credentials that can be used.
        InvalidPullSecret,
        /// The reference is not one that can be resolved.
        InvalidReference,
        /// The registry's answer makes no sense.
        InvalidAnswer,
        /// The registry's answer is not what its digest says.
        DigestMismatch,
        /// The registry does not have the image.
        ImageNotFound,
        /// The registry does not have the digest that the reference names.
        DigestUnavailable,
        /// The image is not for Linux.
        NoSuchPlatform,
        /// The image is none that a host can boot.
        NotBootable,
        /// The registry wants credentials, or other ones.
        Unauthorized,
        /// The registry wants fewer requests.
        RateLimited,
        /// The registry is blocked by `registries.conf`.
        RegistryBlocked,
        /// The registry refuses.
        RegistryRefused,
        /// The registry cannot be reached, or fails.
        RegistryUnavailable,
    }
}

impl ResolveReason {
    /// Says whether the failure is one of the controller and its settings, so that no registry was asked.
    pub(super) const fn is_our_own(self) -> bool {
        matches!(
            self,
            Self::ClientSetup
                | Self::PullSecretNotFound
                | Self::PullSecretUnreadable
                | Self::InvalidPullSecret
                | Self::InvalidReference
                | Self::RegistryBlocked
        )
    }
}

/// Error of a reference that is not resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", reason.as_str())]
pub struct ResolveError {
    /// Error in words.
    pub reason: ResolveReason,
    /// One line, in the registry's own words where it had any.
    pub message: String,
    /// Time for which the registry wants to be left alone.
    pub retry_after: Option<Duration>,
}

impl ResolveError {
    pub(super) fn new(reason: ResolveReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            retry_after: None,
        }
    }
}

impl From<DocumentError> for ResolveError {
    fn from(error: DocumentError) -> Self {
        let reason = match error {
            DocumentError::Invalid(_) => ResolveReason::InvalidAnswer,
            DocumentError::NotForLinux(_) => ResolveReason::NoSuchPlatform,
            DocumentError::NotBootable(_) => ResolveReason::NotBootable,
        };
        Self::new(reason, error.to_string())
    }
}
