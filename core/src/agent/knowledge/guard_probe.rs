//! Whether the API server refuses what it must (I6): the last answer, and when it is asked again.

use std::time::Duration;

use crate::agent::facts::{Guard, GuardFacts};
use crate::{Moment, Now};

/// Time after which a write that was refused is tried again, about: policies may be deleted, or lose their bindings.
const AGAIN: Duration = Duration::from_secs(3600);
/// Time after which one that was not refused, or not answered, is tried again first. It doubles each time.
const FIRST: Duration = Duration::from_secs(2);
/// Longest time of those.
const LONGEST: Duration = Duration::from_secs(600);
/// Tries in a row without a clear answer that people are told of.
const TELL_AFTER: u32 = 3;

/// The last answer to a write that must be refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Guarded {
    /// The last answer. A question without an answer changes nothing of it.
    pub answer: Guard,
    /// Moment of the next try.
    pub again: Moment,
    /// Tries in a row that were not refused.
    pub in_vain: u32,
    /// Tries in a row without a clear answer, and the last error.
    pub silence: Option<(u32, String)>,
}

impl Guarded {
    /// Nothing was asked yet.
    pub(super) fn unknown(now: Moment) -> Self {
        Self {
            answer: Guard::Unknown,
            again: now,
            in_vain: 0,
            silence: None,
        }
    }

    /// Takes in an answer, or the error in place of one. Asked while this node has a berth, or the offer of one, there was
    /// something to try: what was not there then, such as another node, cannot be written either.
    pub(super) fn answered(&mut self, answer: Result<Guard, String>, has_berth: bool, now: &Now) {
        let answer = match answer {
            Ok(Guard::NothingToTry) if has_berth => Ok(Guard::Refuses),
            answer => answer,
        };
        let wait = if matches!(answer, Ok(Guard::Refuses | Guard::NothingToTry)) {
            self.in_vain = 0;
            AGAIN
        } else {
            self.in_vain = self.in_vain.saturating_add(1);
            FIRST.saturating_mul(1 << (self.in_vain - 1).min(16)).min(LONGEST)
        };
        match answer {
            Ok(answer) => (self.answer, self.silence) = (answer, None),
            Err(error) => {
                let before = self.silence.as_ref().map_or(0, |(times, _)| *times);
                self.silence = Some((before.saturating_add(1), error));
            }
        }
        // All agents may begin together; they must not ask together for ever.
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
                .filter(|(times, _)| *times >= TELL_AFTER)
                .map(|(_, error)| error.clone()),
        }
    }
}
