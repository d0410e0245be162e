//! Why an image is not resolved.

use std::time::Duration;

pub use berth_core::controller::image::ResolveReason;
use berth_core::registries::document::DocumentError;

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
