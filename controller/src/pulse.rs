//! Signs of life of a controller: the reconciler's passes make progress, and the API server answers. The tasks that
//! renew the Lease and answer health probes run on other threads, so they need these signs to detect hanging passes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use berth_shell::locked;
use berth_shell::pages::Health;

/// The passes count as hanging after this time without progress. Every decision and request takes far less.
const BEAT_TIMEOUT: Duration = Duration::from_secs(120);

/// A controller is not ready if its requests for the leader's Lease got no answer from the API server for this long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Signs of life of this controller. Cheap to clone. A controller that never led counts as alive.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<Mutex<Signs>>);

#[derive(Debug, Clone, Copy, Default)]
struct Signs {
    /// Time of the passes' last progress.
    beat: Option<Instant>,
    /// Time of the API server's last answer about the leader's Lease.
    answer: Option<Instant>,
}

impl Pulse {
    /// Records that the passes make progress.
    pub fn beat(&self) {
        locked(&self.0).beat = Some(Instant::now());
    }

    /// Records an answer of the API server.
    pub fn answered(&self) {
        locked(&self.0).answer = Some(Instant::now());
    }

    /// True if the reconciler's passes hang.
    pub fn is_lost(&self) -> bool {
        self.is_lost_at(Instant::now())
    }

    fn is_lost_at(&self, now: Instant) -> bool {
        locked(&self.0)
            .beat
            .is_some_and(|last| now.saturating_duration_since(last) >= BEAT_TIMEOUT)
    }

    fn is_answered_at(&self, now: Instant) -> bool {
        locked(&self.0)
            .answer
            .is_some_and(|last| now.saturating_duration_since(last) < ANSWER_TIMEOUT)
    }
}

impl Health for Pulse {
    fn alive(&self) -> Result<(), String> {
        if self.is_lost() {
            Err("the controller's reconcile loop hangs; see the last lines of the log".to_owned())
        } else {
            Ok(())
        }
    }

    /// Ok if this controller leads or could take over: its passes do not hang, and the API server answers it.
    fn ready(&self) -> Result<(), String> {
        self.alive()?;
        if self.is_answered_at(Instant::now()) {
            Ok(())
        } else {
            Err("the API server has not answered for a minute; see the log".to_owned())
        }
    }
}

#[cfg(test)]
impl Pulse {
    pub(crate) fn hanging() -> Self {
        let pulse = Self::default();
        locked(&pulse.0).beat = Instant::now().checked_sub(BEAT_TIMEOUT);
        pulse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[test]
    fn passes_that_make_no_progress_hang() {
        let pulse = Pulse::default();
        assert!(!pulse.is_lost_at(later(1000)), "it does not lead");
        pulse.beat();
        assert!(!pulse.is_lost_at(later(60)) && pulse.is_lost_at(later(121)));
        assert!(Pulse::hanging().alive().is_err());
    }

    #[test]
    fn a_controller_is_ready_while_the_api_server_answers_it() {
        let pulse = Pulse::default();
        assert!(pulse.alive().is_ok() && pulse.ready().is_err(), "no answer yet");
        pulse.answered();
        assert!(pulse.ready().is_ok());
        assert!(pulse.is_answered_at(later(50)) && !pulse.is_answered_at(later(61)));
        locked(&pulse.0).beat = Instant::now().checked_sub(BEAT_TIMEOUT);
        assert!(pulse.ready().is_err(), "its passes hang");
    }
}
