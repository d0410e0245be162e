use std::time::Duration;

use berth_api::node::DrainBlocker;

use crate::agent::node::NodeFacts;

/// Result of the guard probe. The probe is a dry run of a write to another node's object. The API server must reject
/// that write (I6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// No probe has got a clear answer yet.
    Unknown,
    /// The agent found nothing to try the write on: the cluster has no berth, or no other node with a BootcNode.
    NothingToTry,
    /// The write was rejected.
    Refuses,
    /// The write would have succeeded. Holds a message that names the write and how to fix the policies.
    Allows(String),
}

/// Last result of the guard probe, and the time of the next probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardFacts {
    /// Result of the last probe that got a clear answer.
    pub answer: Guard,
    /// Time until the next probe; zero if it is due.
    pub next_try: Duration,
    /// Error of the last probe, if several probes in a row got no clear answer.
    pub silence: Option<String>,
}

impl GuardFacts {
    /// True if the status must warn that the guard may be missing: the write would have succeeded, or several probes
    /// have failed before any got a clear answer.
    pub fn is_reportable(&self) -> bool {
        matches!(self.answer, Guard::Allows(_)) || (self.answer == Guard::Unknown && self.silence.is_some())
    }

    /// Returns why this node may not take a berth: the API server accepts writes to other nodes' objects, or no probe
    /// has got a clear answer yet. `None` if the server rejects such writes, or if there was nothing to try.
    pub fn unguarded(&self) -> Option<String> {
        match &self.answer {
            // `NothingToTry` does not keep the node from an offer: before the agent takes an offered berth, it tries
            // the write on that berth.
            Guard::Refuses | Guard::NothingToTry => None,
            Guard::Allows(what) => Some(format!(
                "the API server lets an agent write other nodes' objects: {what}"
            )),
            Guard::Unknown => {
                let unknown = "not yet known whether the API server rejects writes to other nodes' objects";
                let why = self.silence.as_ref().map(|error| format!(": {error}"));
                Some(format!("{unknown}{}", why.unwrap_or_default()))
            }
        }
    }
}

/// The Node object as last read.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "an agent has a single one, which nearly always is a Node"
)]
pub enum ClusterNode {
    /// Not read since the last event that may have changed the Node.
    Unread,
    /// The Node does not exist.
    Gone,
    /// The Node exists.
    Is(NodeFacts),
}

impl ClusterNode {
    /// Returns the Node if it was read and exists.
    pub fn get(&self) -> Option<&NodeFacts> {
        match self {
            Self::Is(facts) => Some(facts),
            _ => None,
        }
    }
}

/// State of the current turn's drain. The agent drains in passes: each pass evicts pods and lists the remaining pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DrainFacts {
    /// True if the last drain pass found no pod left to evict.
    pub done: bool,
    /// Time since the drain began, including time before an agent restart.
    pub elapsed: Duration,
    /// Pods and volumes that block the drain.
    pub blockers: Vec<DrainBlocker>,
    /// Pods and volumes that stay on the node. The node reboots without waiting for them.
    pub left_behind: Vec<DrainBlocker>,
    /// Time until the next drain pass; `None` if no pass is planned.
    pub next_pass: Option<Duration>,
}
