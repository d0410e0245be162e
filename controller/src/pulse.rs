//! The sign that the passes go on. Renewals and probes run on another thread, and would not notice that they hang.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Longest time between two beats: far more than any decision or request takes.
const LONGEST: Duration = Duration::from_secs(120);

/// The pulse of a leader. Cheap to clone. One that never began to lead has none, and lives.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<Mutex<Option<Instant>>>);

impl Pulse {
    /// Notes that the passes go on.
    pub fn beat(&self) {
        *self.lock() = Some(Instant::now());
    }

    /// Says whether the passes hang.
    pub fn is_lost(&self) -> bool {
        self.is_lost_at(Instant::now())
    }

    fn is_lost_at(&self, now: Instant) -> bool {
        self.lock()
            .is_some_and(|last| now.saturating_duration_since(last) >= LONGEST)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
impl Pulse {
    /// The pulse of passes that hang.
    pub(crate) fn lost() -> Self {
        Self(Arc::new(Mutex::new(Instant::now().checked_sub(LONGEST))))
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
        assert!(Pulse::lost().is_lost());
    }
}
