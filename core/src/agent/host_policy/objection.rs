use crate::agent::reason::Reason;

/// The host policy's objection to an image or to credentials: a reason and a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objection {
    /// CamelCase reason.
    pub reason: Reason,
    /// Message: the object, its problem, the fix.
    pub message: String,
}

impl Objection {
    /// Creates an objection.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}
