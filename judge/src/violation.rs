//! A violation: the rule, a sentence, and the audit log lines that show it.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use crate::audit::Record;
use crate::history::RecordedState;

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    /// Number of the broken invariant, `I1` to `I12`. For rules without a number: `Fence`, `Order` or `Policy`.
    pub rule: &'static str,
    /// Sentence that describes the violation.
    pub text: String,
    /// Node involved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Time of the violation, by the API server's clock.
    pub at: Timestamp,
    /// Audit IDs of the lines that show the violation.
    #[serde(rename = "auditIDs")]
    pub audit_ids: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}

impl Violation {
    /// Returns a violation found in the events of a host. No audit log line shows this violation.
    pub(crate) fn of_host(rule: &'static str, host: &str, at: Timestamp, text: String) -> Self {
        Self {
            rule,
            text,
            node: Some(host.to_owned()),
            at,
            audit_ids: vec![],
        }
    }

    pub(crate) fn of_record(rule: &'static str, node: &str, record: &Record, text: String) -> Self {
        Self {
            rule,
            text,
            node: (!node.is_empty()).then(|| node.to_owned()),
            at: record.at,
            audit_ids: vec![record.audit_id.clone()],
        }
    }

    pub(crate) fn of_write(rule: &'static str, state: &RecordedState, text: String) -> Self {
        Self {
            rule,
            text,
            node: state.berth.node().map(|(node, _)| node.to_string()),
            at: state.at,
            audit_ids: vec![state.audit_id.clone()],
        }
    }

    /// Adds the audit ID of another line that shows the violation.
    pub(crate) fn and(mut self, audit_id: &str) -> Self {
        if !audit_id.is_empty() && !self.audit_ids.iter().any(|id| id == audit_id) {
            self.audit_ids.push(audit_id.to_owned());
        }
        self
    }
}
