use std::time::Duration;

use crate::agent::facts::{Guard, GuardFacts};
use crate::{Moment, Now};

/// Average interval between probes after a rejection: an admin may delete the policies or their bindings at any time.
const PROBE_INTERVAL: Duration = Duration::from_secs(3600);
/// First retry interval after a probe that was not rejected or not answered. Doubles with each retry.
const PROBE_RETRY_FIRST: Duration = Duration::from_secs(2);
const PROBE_RETRY_MAX: Duration = Duration::from_secs(600);
/// Number of unanswered probes in a row until the missing answer is reported.
const REPORT_AFTER: u32 = 3;

/// Whether the API server rejects writes to other nodes' objects (I6), and the time of the next probe.
#[derive(Debug, Clone, PartialEq)]
pub struct GuardProbe {
    /// Last clear answer. A probe without an answer does not change it.
    pub answer: Guard,
    /// Time of the next probe.
    pub again: Moment,
    /// Number of probes in a row that were not rejected or not answered.
    pub failures: u32,
    /// Number of probes in a row without a clear answer, and the last error.
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

    /// Records the result of a probe. If the node has a berth to try, `NothingToTry` counts as a rejection.
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
        // Spread the probes of agents that start together.
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
