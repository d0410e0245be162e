//! The reconciler's state, and the methods that all phases use.

use std::time::Duration;

use berth_core::Moment;

use super::leader_memory::Memory;
use super::outside::Outside;
use crate::api::{CallError, Kube};
use crate::leader::Lost;
use crate::resolve::Resolver;
use crate::store::Store;
use crate::time;

/// Settings of the reconciler.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// A node is offered no berth if its agent has been silent for this long.
    pub agent_silence: Duration,
    /// How long a node that leaves its pool may take to undo Berth's changes.
    pub release_deadline: Duration,
}

/// The controller while it leads.
#[derive(Debug)]
pub struct Reconciler {
    pub(super) kube: Kube,
    pub(super) store: Store,
    pub(super) resolver: Resolver,
    pub(super) settings: Settings,
    pub(super) outside: Outside,
    pub(super) memory: Memory,
    /// Time when this process became the leader.
    pub(super) began: Moment,
    /// Time when the next pass is due; `None`: 10 s after the last one (`PASS_INTERVAL`).
    pub(super) due: Option<Moment>,
}

impl Reconciler {
    /// Creates the reconciler of a new leader.
    pub fn new(kube: Kube, store: Store, resolver: Resolver, settings: Settings, outside: Outside) -> Self {
        Self {
            kube,
            store,
            resolver,
            settings,
            outside,
            memory: Memory::default(),
            began: time::now(),
            due: None,
        }
    }

    /// Requests another pass at this time or earlier.
    pub(super) fn again(&mut self, at: Moment) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Handles the result of a request. After a failure, schedules a retry and returns `None`. Returns `Err` only if
    /// leadership is lost.
    pub(super) fn outcome<T>(&mut self, key: &str, result: Result<T, CallError>) -> Result<Option<T>, Lost> {
        let now = time::now();
        match result {
            Ok(value) => {
                self.memory.backoffs.note(key, true, now);
                Ok(Some(value))
            }
            Err(CallError::Lost(lost)) => Err(lost),
            Err(CallError::Conflict(error)) => {
                tracing::debug!(object = key, %error, "the object has changed; trying again");
                self.memory.backoffs.conflict(key, now);
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(object = key, %error, "request failed; trying again later");
                self.outside.metrics.error();
                self.memory.backoffs.note(key, false, now);
                Ok(None)
            }
        }
    }
}
