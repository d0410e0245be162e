//! Objection of the host to an image or to credentials.

use crate::agent::reason::Reason;

/// Objection of the host to what it was asked or given: a reason, and words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objection {
    /// CamelCase reason.
    pub reason: Reason,
    /// The thing, what is wrong with it, what to do.
    pub message: String,
}

impl Objection {
    /// An objection in these words.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}
