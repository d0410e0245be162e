//! Results of all checks together.

use serde::Serialize;

use super::check::{Check, Outcome};

/// Result of all checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// The worst result.
    pub result: Outcome,
    /// The checks, sorted by group.
    pub checks: Vec<Check>,
}

impl Diagnosis {
    /// Sorts the checks, and finds the worst result.
    pub(crate) fn of(mut checks: Vec<Check>) -> Self {
        checks.sort_by_key(|check| check.topic);
        let worst = checks.iter().map(|check| check.result).max();
        Self {
            result: worst.unwrap_or(Outcome::Unknown),
            checks,
        }
    }

    /// Returns the commands of all remedies, each once.
    pub fn commands(&self) -> Vec<&str> {
        let mut found: Vec<&str> = vec![];
        for command in self.checks.iter().flat_map(|check| &check.commands) {
            if !found.contains(&command.as_str()) {
                found.push(command);
            }
        }
        found
    }

    /// Returns the exit status: 1 if an admin has to act, else 2 if a check could not be made, else 0.
    pub fn exit_status(&self) -> u8 {
        match self.result {
            Outcome::Ok | Outcome::Note | Outcome::Warning => 0,
            Outcome::Broken => 1,
            Outcome::Unknown => 2,
        }
    }
}
