//! Findings: problems of a node, a pool or the fleet, each with a severity, an impact, a summary and a remedy.
//! Conditions, insights, events, metrics and the command line all show the same finding. Pure.

use std::fmt;

use berth_api::condition::{Verdict, Word, one_line};
use berth_api::{NodeName, PoolName};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use self::kind::{Impact, Kind, Level};

#[cfg(feature = "controller")]
pub mod fleet;
pub mod kind;
pub mod node;
#[cfg(feature = "controller")]
pub mod pool;
mod table;
#[cfg(feature = "controller")]
pub mod unavailable;
#[cfg(feature = "controller")]
pub mod unread;

/// Object that a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The BootcFleet.
    Fleet,
    /// A pool.
    Pool(PoolName),
    /// A node and its pool.
    Node(NodeName, PoolName),
}

impl Subject {
    /// Returns what an admin should do if this object has a problem with this reason.
    pub fn remedy(&self, reason: &str) -> String {
        match table::remedy(reason) {
            Some(remedy) => self.filled(&remedy),
            None => "see the description".to_owned(),
        }
    }

    /// Returns the kubectl commands in the remedy of a reason. Leaves out commands that need the name of another object.
    pub fn commands(&self, reason: &str) -> Vec<String> {
        let filled = table::commands(reason).into_iter().map(|command| self.filled(command));
        filled
            .filter(|command| !command.contains("POOL") && !command.contains("NODE"))
            .collect()
    }

    /// Replaces the placeholders POOL and NODE with the names of this object.
    fn filled(&self, text: &str) -> String {
        match self {
            Self::Fleet => text.to_owned(),
            Self::Pool(pool) => text.replace("POOL", pool.as_str()),
            Self::Node(node, pool) => text.replace("POOL", pool.as_str()).replace("NODE", node.as_str()),
        }
    }

    /// Returns the name of the object.
    pub fn name(&self) -> &str {
        match self {
            Self::Fleet => "cluster",
            Self::Pool(pool) => pool.as_str(),
            Self::Node(node, _) => node.as_str(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = match self {
            Self::Fleet => "bootcfleets",
            Self::Pool(_) => "bootcnodepools",
            Self::Node(..) => "nodes",
        };
        write!(f, "{resource}/{}", self.name())
    }
}

/// A problem of a node, a pool or the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Kind, with the level, the impact and the summary.
    pub kind: Kind,
    /// Object that has the problem.
    pub subject: Subject,
    /// Reason, which selects the remedy.
    pub reason: Word,
    /// Details, one line.
    pub message: String,
    /// Start of the problem, if known.
    pub since: Option<Timestamp>,
}

impl Finding {
    /// Returns a finding without a known start.
    pub fn new(kind: Kind, subject: Subject, reason: impl Into<Word>, message: impl Into<String>) -> Self {
        Self {
            kind,
            subject,
            reason: reason.into(),
            message: message.into(),
            since: None,
        }
    }

    /// Returns the finding that this condition reports. Cuts its message, because agents may write messages of any
    /// length.
    pub fn of_condition(kind: Kind, subject: Subject, c: &Condition) -> Self {
        Self {
            since: Some(c.last_transition_time.0),
            ..Self::new(kind, subject, Word::stored(&c.reason), one_line(&c.message))
        }
    }

    /// Returns the finding as a condition with status True.
    pub fn verdict(self) -> Verdict {
        Verdict::yes(self.reason, self.message)
    }

    /// Returns the severity.
    pub const fn level(&self) -> Level {
        self.kind.grade().0
    }

    /// Returns the effect on the update and the cluster.
    pub const fn impact(&self) -> Impact {
        self.kind.grade().1
    }

    /// Returns reason and message in one line.
    pub fn line(&self) -> String {
        if self.message.is_empty() {
            self.reason.to_string()
        } else {
            format!("{}: {}", self.reason, self.message)
        }
    }

    /// Returns the summary. A summary about a node begins with a verb and does not name the node.
    pub fn words(&self) -> String {
        self.subject
            .filled(&self.kind.grade().2.replace("REASON", &self.reason))
    }

    /// Returns what an admin should do.
    pub fn remedy(&self) -> String {
        self.subject.remedy(&self.reason)
    }

    /// Returns the kubectl commands in the remedy.
    pub fn commands(&self) -> Vec<String> {
        self.subject.commands(&self.reason)
    }
}
