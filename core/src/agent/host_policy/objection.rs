use crate::agent::reason::Reason;

/// Why the host's policy rejects an image or credentials: a reason and a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objection {
    /// Reason for a condition.
    pub reason: Reason,
    /// Message for people: the object, its problem, and the fix.
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
