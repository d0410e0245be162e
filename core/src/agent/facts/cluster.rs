//! State of the cluster, as far as the agent has read it.

use std::time::Duration;

use berth_api::node::DrainBlocker;

use crate::agent::node::NodeFacts;

/// Answer of the API server to a write that its admission policies must refuse (I6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// There was no answer yet.
    Unknown,
    /// There was nothing yet that the write could hit: an agent asks before there are berths.
    NothingToTry,
    /// The write is refused.
    Refuses,
    /// The write would be done; what it is, and what to do about it, in words.
    Allows(String),
}

/// The last answer, and when the write is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardFacts {
    /// The last answer.
    pub answer: Guard,
    /// Time until the next try; zero: it is due.
    pub next_try: Duration,
    /// The last error, when tries go on to have no clear answer.
    pub silence: Option<String>,
}

impl GuardFacts {
    /// Says whether people should know that no berth is taken: what is only not answered yet is the noise of a start.
    pub fn is_to_be_told(&self) -> bool {
        matches!(self.answer, Guard::Allows(_)) || (self.answer == Guard::Unknown && self.silence.is_some())
    }

    /// Reason for which no berth is taken, for people; `None` where the API server refuses what it must, as far as that can
    /// be tried.
    pub fn unguarded(&self) -> Option<String> {
        match &self.answer {
            // An offer is a berth, on which it is tried before that is taken.
            Guard::Refuses | Guard::NothingToTry => None,
            Guard::Allows(what) => Some(format!(
                "the API server does not keep the agents of the nodes apart: {what}"
            )),
            Guard::Unknown => {
                let unknown = "the API server has not answered yet whether it refuses writes to what other nodes own";
                let why = self.silence.as_ref().map(|error| format!(": {error}"));
                Some(format!("{unknown}{}", why.unwrap_or_default()))
            }
        }
    }
}

/// The Node object, as far as it was read.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "an agent has a single one, which nearly always is a Node"
)]
pub enum ClusterNode {
    /// The Node was not read since something may have changed it.
    Unread,
    /// The API server says that there is none.
    Gone,
    /// The Node as it was read.
    Is(NodeFacts),
}

impl ClusterNode {
    /// The Node's facts, when it was read and exists.
    pub fn get(&self) -> Option<&NodeFacts> {
        match self {
            Self::Is(facts) => Some(facts),
            _ => None,
        }
    }
}

/// Progress of this turn's drain.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DrainFacts {
    /// True when no pod is left to move, as seen in the last pass.
    pub done: bool,
    /// Time for which the turn has been draining, agent restarts included.
    pub elapsed: Duration,
    /// Pods that block it.
    pub blockers: Vec<DrainBlocker>,
    /// Pods that should have gone, could not, and did not block it.
    pub left_behind: Vec<DrainBlocker>,
    /// Time until the next pass is due.
    pub next_pass: Option<Duration>,
}
