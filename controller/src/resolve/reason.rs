//! Errors of resolving an image.

use std::time::Duration;

use berth_api::condition::one_line;
pub use berth_core::controller::image::ResolveReason;
use berth_core::registries::document::DocumentError;

/// Error of resolving a reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", reason.as_str())]
pub struct ResolveError {
    /// Reason for the condition and the metrics.
    pub reason: ResolveReason,
    /// Message, one line, with the registry's own message if it sent one.
    pub message: String,
    /// Delay that the registry asks for in `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl ResolveError {
    /// Makes the message one line without credentials.
    pub(super) fn new(reason: ResolveReason, message: impl AsRef<str>) -> Self {
        Self {
            reason,
            message: one_line(message.as_ref()),
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
