//! Facts that may be missing because the API server did not return them.

use std::collections::BTreeMap;

use berth_core::text::few;

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

/// Returns the checks that could not be made. Facts that need the same permission are one check.
pub(crate) fn unknown(topic: Topic, unseen: &[&Unseen]) -> Vec<Check> {
    let mut groups: BTreeMap<&Option<String>, Vec<&Unseen>> = BTreeMap::new();
    for one in unseen {
        groups.entry(&one.permission).or_default().push(one);
    }
    let mut checks = vec![];
    for group in groups.into_values() {
        let what = few(group.iter().map(|one| one.what.clone()));
        checks.extend(group.first().map(|first| {
            Unseen {
                what,
                ..(*first).clone()
            }
            .check(topic)
        }));
    }
    checks
}

impl Unseen {
    /// Returns the check that could not be made.
    pub(crate) fn check(&self, topic: Topic) -> Check {
        let check = Check::new(topic, Outcome::Unknown, &format!("not known: {}", self.what)).because(&self.why);
        match &self.permission {
            Some(permission) => check.remedy(&format!("allow your user to {permission}, or run this as another user")),
            None => check.remedy("run this again; if the cause stays, repair it"),
        }
    }
}
