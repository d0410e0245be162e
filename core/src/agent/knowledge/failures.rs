use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use crate::agent::facts::{LockFailure, StepFailure};
use crate::agent::past;
use crate::agent::reason::Reason;
use crate::agent::step::Step;
use crate::{Moment, Now};

/// First pause before the agent retries a lock that failed repeatedly. Each further pause is twice as long, up to the
/// maximum.
const LOCK_RETRY_FIRST: Duration = Duration::from_secs(30);
const LOCK_RETRY_MAX: Duration = Duration::from_secs(600);

/// Failures of the agent's steps, of locking the staged image, and of writing the memory file. A success clears the
/// failure. A failed step is also cleared when the agent waits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Failures {
    /// Kind of the step that failed last, with its error and its number of failures in a row.
    pub step: Option<(Discriminant<Step>, StepFailure)>,
    pub lock: Option<LockRetry>,
    /// Error of the last write of the memory file, until a write succeeds.
    pub memory: Option<String>,
}

/// When to retry a lock that failed repeatedly, and its last error.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LockRetry {
    pub(super) why: String,
    pub(super) pauses: u32,
    pub(super) again: Moment,
}

impl Failures {
    /// Returns the failure of the step that failed last, even after a single failure. `None` after that step has
    /// succeeded, or after the agent has waited.
    pub fn trouble(&self) -> Option<&StepFailure> {
        self.step.as_ref().map(|(_, trouble)| trouble)
    }

    pub(super) fn is_of(&self, step: &Step) -> bool {
        self.step.as_ref().is_some_and(|(kind, _)| *kind == discriminant(step))
    }

    /// Returns how often this step has failed in a row, including the failure that just happened. Failures because
    /// the host is busy are counted separately.
    pub(super) fn count(&self, step: &Step, reason: Reason) -> u32 {
        let is_busy = reason == Reason::HostBusy;
        let before = self
            .trouble()
            .filter(|t| self.is_of(step) && (t.reason == Reason::HostBusy) == is_busy);
        before.map_or(0, |t| t.attempts).saturating_add(1)
    }

    /// Records that several attempts to lock the image have failed. The agent then removes the image, or retries the
    /// lock after a pause.
    pub(super) fn lock_failed(&mut self, why: &str, now: &Now) {
        let before = self.lock.as_ref().map_or(0, |trouble| trouble.pauses);
        let pauses = before.saturating_add(1);
        self.lock = Some(LockRetry {
            why: why.to_owned(),
            pauses,
            again: now.clock + past::backoff(LOCK_RETRY_FIRST, LOCK_RETRY_MAX, pauses),
        });
    }

    pub(super) fn lock_facts(&self, now: &Now) -> Option<LockFailure> {
        let trouble = self.lock.as_ref()?;
        Some(LockFailure {
            why: trouble.why.clone(),
            pause: trouble.again.since(now.clock),
        })
    }
}
