//! The signs that a controller works: its passes go on, and the API server answers it. Renewals and probes run on another
//! thread, and would not notice that the passes hang.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use berth_shell::pages::Health;

/// Longest time between two beats: far more than any decision or request takes.
const LONGEST: Duration = Duration::from_secs(120);

/// Longest time between two looks at the leader's Lease, or renewals of it, of a controller that is ready.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// The pulse of a leader. Cheap to clone. One that never began to lead has none, and lives.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<Mutex<Signs>>);

#[derive(Debug, Clone, Copy, Default)]
struct Signs {
    /// The last pass.
    beat: Option<Instant>,
    /// The last answer of the API server about the leader's Lease.
    answer: Option<Instant>,
}

impl Pulse {
    /// Notes that the passes go on.
    pub fn beat(&self) {
        self.lock().beat = Some(Instant::now());
    }

    /// Notes that the API server has answered.
    pub fn answered(&self) {
        self.lock().answer = Some(Instant::now());
    }

    /// Says whether the passes hang.
    pub fn is_lost(&self) -> bool {
        self.is_lost_at(Instant::now())
    }

    fn is_lost_at(&self, now: Instant) -> bool {
        self.lock()
            .beat
            .is_some_and(|last| now.saturating_duration_since(last) >= LONGEST)
    }

    fn is_answered_at(&self, now: Instant) -> bool {
        self.lock()
            .answer
            .is_some_and(|last| now.saturating_duration_since(last) < ANSWERED_WITHIN)
    }

    fn lock(&self) -> MutexGuard<'_, Signs> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Health for Pulse {
    fn alive(&self) -> Result<(), String> {
        match self.is_lost() {
            false => Ok(()),
            true => Err("the passes hang; the log's last lines say where".to_owned()),
        }
    }

    /// Says whether this controller leads, or could follow the one that does: its passes do not hang, and the API server
    /// answers it.
    fn ready(&self) -> Result<(), String> {
        self.alive()?;
        match self.is_answered_at(Instant::now()) {
            true => Ok(()),
            false => Err("the API server has not answered for a minute; the log says why".to_owned()),
        }
    }
}

#[cfg(test)]
impl Pulse {
    /// The pulse of passes that hang.
    pub(crate) fn hanging() -> Self {
        let pulse = Self::default();
        pulse.lock().beat = Instant::now().checked_sub(LONGEST);
        pulse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_that_make_no_progress_hang() {
        let pulse = Pulse::default();
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert!(!pulse.is_lost_at(later(1000)), "it does not lead");
        pulse.beat();
        assert!(!pulse.is_lost_at(later(60)) && pulse.is_lost_at(later(121)));
        assert!(Pulse::hanging().alive().is_err());
    }

    #[test]
    fn a_controller_is_ready_while_the_api_server_answers_it() {
        let pulse = Pulse::default();
        assert!(
            pulse.alive().is_ok() && pulse.ready().is_err(),
            "nobody has answered yet"
        );
        pulse.answered();
        assert!(pulse.ready().is_ok());
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert!(pulse.is_answered_at(later(50)) && !pulse.is_answered_at(later(61)));
        pulse.lock().beat = Instant::now().checked_sub(LONGEST);
        assert!(pulse.ready().is_err(), "its passes hang");
    }
}
