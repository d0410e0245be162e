//! Synchronisation of the host's clock. Only a synchronised clock may be compared with the end of a window.

use std::time::{Duration, Instant};

use super::Host;
use super::bus::{Bus, BusError, TIMEDATE};

/// Time for which an answer counts while a berth speaks of a window. When nothing else uses it, the service that
/// answers is started for each question.
const BELIEVED_IN_WINDOW: Duration = Duration::from_secs(10);
/// Time for which any other answer than yes counts without a window: somebody may be waiting for a yes.
const NO_BELIEVED: Duration = Duration::from_secs(20);
/// Time for which a yes counts without a window.
const YES_BELIEVED: Duration = Duration::from_secs(60);

/// Longest time that an answer may take. The agent's work does not wait for a service that hangs.
const DEADLINE: Duration = Duration::from_secs(5);

pub(super) async fn is_synchronized(bus: &Bus) -> Result<bool, BusError> {
    const PROPERTY: &str = "NTPSynchronized";
    let late = || BusError::Lost {
        method: PROPERTY.to_owned(),
        why: "no answer in time".to_owned(),
    };
    tokio::time::timeout(DEADLINE, bus.property(TIMEDATE, PROPERTY))
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// State of the host's clock, as far as it is known.
#[derive(Debug)]
pub struct Clock {
    trusted: bool,
    asked: Option<(Instant, Option<bool>)>,
    /// Time of the last yes.
    yes: Option<Instant>,
}

impl Clock {
    /// Starts with nothing known, or, if `trusted`, with a clock that is right by the admin's word.
    pub fn new(trusted: bool) -> Self {
        Self {
            trusted,
            asked: None,
            yes: None,
        }
    }

    /// The last answer, however old.
    pub fn known(&self) -> Option<bool> {
        if self.trusted {
            Some(true)
        } else {
            self.asked.and_then(|(_, answer)| answer)
        }
    }

    /// Says whether the clock is synchronised. Asks when the last answer is too old to count. `None`: the host does not
    /// say.
    pub async fn is_synchronized(&mut self, host: &Host, under_window: bool) -> Option<bool> {
        if self.trusted {
            return Some(true);
        }
        if let Some((at, answer)) = self.asked {
            let age = match answer {
                _ if under_window => BELIEVED_IN_WINDOW,
                Some(true) => YES_BELIEVED,
                _ => NO_BELIEVED,
            };
            if at.elapsed() < age {
                return answer;
            }
        }
        let answer = host.clock_synchronized().await;
        if let Err(error) = &answer {
            tracing::debug!(%error, "the host does not say whether its clock is synchronised");
        }
        self.note(answer.ok(), Instant::now());
        self.known()
    }

    /// Notes an answer. A single question without an answer does not take a yes back: it would end a turn under a
    /// window, with all that was drained for it, because a service was slow to start.
    fn note(&mut self, answer: Option<bool>, now: Instant) {
        let recently = |yes: Instant| now.saturating_duration_since(yes) < YES_BELIEVED;
        match answer {
            Some(true) => self.yes = Some(now),
            Some(false) => self.yes = None,
            None => {}
        }
        self.asked = Some((now, answer.or_else(|| self.yes.is_some_and(recently).then_some(true))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_without_an_answer_takes_nothing_back_for_a_while() {
        let start = Instant::now();
        let mut clock = Clock::new(false);
        let mut note = |answer, seconds| {
            clock.note(answer, start + Duration::from_secs(seconds));
            clock.known()
        };
        assert_eq!(note(None, 0), None);
        assert_eq!(note(Some(true), 1), Some(true));
        assert_eq!(note(None, 11), Some(true));
        assert_eq!(note(None, 60), Some(true));
        assert_eq!(note(None, 61), None, "for as long as a yes counts, and no longer");
        assert_eq!(note(Some(true), 70), Some(true));
        assert_eq!(note(Some(false), 71), Some(false), "a no counts at once");
        assert_eq!(note(None, 72), None);
    }
}
