//! Facts that may be missing because the API server did not return them.

use super::check::{Check, Outcome, Topic};

/// A fact, or why it is not known.
pub type Seen<T> = Result<T, Unseen>;

/// Why a fact is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unseen {
    /// Objects that could not be read, or write that could not be tried.
    pub what: String,
    /// Answer of the API server, or error of the request.
    pub why: String,
    /// Permission that the user lacks; `None` if the API server did not refuse the request.
    pub permission: Option<String>,
}

impl Unseen {
    /// Returns the check that could not be made.
    pub(crate) fn check(&self, topic: Topic) -> Check {
        let check = Check::new(topic, Outcome::Unknown, &format!("not known: {}", self.what)).because(&self.why);
        match &self.permission {
            Some(permission) => check.remedy(&format!("allow your user to {permission}, or run this as another user")),
            None => check.remedy("repair the connection to the API server, and run this again"),
        }
    }
}
