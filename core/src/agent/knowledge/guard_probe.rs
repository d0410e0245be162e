use std::time::Duration;

use crate::agent::facts::{Guard, GuardFacts};
use crate::{Moment, Now};

/// Average interval before the next guard probe, if the API server rejected the last one. An admin may delete the
/// admission policies or their bindings at any time, so the agent keeps probing.
const PROBE_INTERVAL: Duration = Duration::from_secs(3600);
/// First retry interval after a guard probe whose write was accepted or got no answer. Each further retry waits twice
/// as long, up to the maximum.
const PROBE_RETRY_FIRST: Duration = Duration::from_secs(2);
const PROBE_RETRY_MAX: Duration = Duration::from_secs(600);
/// The status reports a missing answer only after this number of unanswered probes in a row.
const REPORT_AFTER: u32 = 3;

/// Whether the API server rejects writes to other nodes' objects (I6), and when the agent tries such a write again.
#[derive(Debug, Clone, PartialEq)]
pub struct GuardProbe {
    /// Result of the last probe that got a clear answer.
    pub answer: Guard,
    /// Time of the next probe.
    pub again: Moment,
    /// Number of probes in a row whose write was accepted or got no answer.
    pub failures: u32,
    /// Number of probes in a row without a clear answer, and the error of the last one. `None` after a clear answer.
    pub silence: Option<(u32, String)>,
}

impl GuardProbe {
    pub(super) fn unknown(now: Moment) -> Self {
        Self {
            answer: Guard::Unknown,
            again: now,
            failures: 0,
            silence: None,
        }
    }

    /// Records the result of a probe. If this node holds or is offered a berth, `NothingToTry` counts as a rejection.
    /// In that case, the API server has rejected the write to the berth, and only the other object was missing.
    pub(super) fn answered(&mut self, answer: Result<Guard, String>, has_berth: bool, now: &Now) {
        let answer = match answer {
            Ok(Guard::NothingToTry) if has_berth => Ok(Guard::Refuses),
            answer => answer,
        };
        let wait = if matches!(answer, Ok(Guard::Refuses | Guard::NothingToTry)) {
            self.failures = 0;
            PROBE_INTERVAL
        } else {
            self.failures = self.failures.saturating_add(1);
            PROBE_RETRY_FIRST
                .saturating_mul(1 << (self.failures - 1).min(16))
                .min(PROBE_RETRY_MAX)
        };
        match answer {
            Ok(answer) => (self.answer, self.silence) = (answer, None),
            Err(error) => {
                let before = self.silence.as_ref().map_or(0, |(times, _)| *times);
                self.silence = Some((before.saturating_add(1), error));
            }
        }
        // Spread the probes, so that agents that started together do not probe together.
        let wait = wait.mul_f64(0.75 + 0.5 * now.chance.clamp(0.0, 1.0));
        self.again = now.clock + wait;
    }

    pub(super) fn facts(&self, now: Moment) -> GuardFacts {
        GuardFacts {
            answer: self.answer.clone(),
            next_try: self.again.since(now),
            silence: self
                .silence
                .as_ref()
                .filter(|(times, _)| *times >= REPORT_AFTER)
                .map(|(_, error)| error.clone()),
        }
    }
}
