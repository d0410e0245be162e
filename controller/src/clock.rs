//! Synchronisation of this machine's clock. Only a synchronised clock can judge a window.
//!
//! The kernel is asked as systemd asks it for `NTPSynchronized`: for the largest error that the clock may have, and not
//! for the flag, which some time daemons never clear. While nobody disciplines the clock, that error grows by itself
//! and stops at 16 s. Reading it needs no privilege.

use std::time::Duration;

use berth_core::Moment;
use rtime_clock::adjtime::{Timex, adjtimex};

/// The error of a clock that nobody keeps, in microseconds: where the kernel stops counting.
const UNKEPT: i64 = 16_000_000;
/// Time for which an answer counts.
const FRESH: Duration = Duration::from_secs(10);

/// State of this machine's clock.
#[derive(Debug, Default)]
pub struct Clock {
    trusted: bool,
    known: Option<(Moment, bool)>,
}

impl Clock {
    /// The clock; `trusted`: something that the kernel does not know of keeps it.
    pub fn new(trusted: bool) -> Self {
        Self { trusted, known: None }
    }

    /// Says whether the clock is synchronised, as of at most ten seconds ago.
    pub fn is_synchronized(&mut self, now: Moment) -> bool {
        if self.trusted {
            return true;
        }
        let fresh = self.known.filter(|(at, _)| now.since(*at) < FRESH);
        if let Some((_, known)) = fresh {
            return known;
        }
        let mut answer = Timex::new();
        let error = adjtimex(&mut answer).map(|_| answer.0.maxerror);
        let synchronized = error.as_ref().is_ok_and(|error| is_kept(*error));
        if self.known.is_none_or(|(_, known)| known != synchronized) {
            tell(synchronized, &error);
        }
        self.known = Some((now, synchronized));
        synchronized
    }
}

/// Says whether a clock with this maximum error, in microseconds, is kept by anybody.
fn is_kept(max_error: i64) -> bool {
    (0..UNKEPT).contains(&max_error)
}

fn tell(synchronized: bool, error: &std::io::Result<i64>) {
    match error {
        Ok(_) if synchronized => tracing::info!("the clock of this machine is synchronised"),
        Ok(_) => tracing::warn!(
            "the clock of this machine is not synchronised; windows stay closed until it is, or --trust-clock is given"
        ),
        Err(error) => tracing::warn!(
            %error,
            "the kernel does not say whether the clock is synchronised; windows stay closed without --trust-clock"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    #[test]
    fn the_error_tells_a_clock_that_is_kept() {
        assert!(is_kept(0) && is_kept(250_000) && is_kept(15_999_999));
        assert!(!is_kept(16_000_000) && !is_kept(16_000_500) && !is_kept(-1));
    }

    #[test]
    fn an_answer_holds_for_a_while_and_trust_for_ever() {
        let start = time::now();
        let mut clock = Clock {
            trusted: false,
            known: Some((start, true)),
        };
        assert!(clock.is_synchronized(start + Duration::from_secs(9)));
        assert_eq!(clock.known, Some((start, true)), "not asked again");
        clock.is_synchronized(start + Duration::from_secs(10));
        assert_eq!(clock.known.map(|(at, _)| at), Some(start + Duration::from_secs(10)));
        clock = Clock {
            trusted: true,
            known: Some((start, false)),
        };
        assert!(clock.is_synchronized(start));
    }

    #[test]
    fn the_kernel_answers() {
        let mut answer = Timex::new();
        match adjtimex(&mut answer) {
            Ok(_) => assert!(answer.0.maxerror >= 0),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}"),
        }
    }
}
