//! Synchronization of this machine's clock. Maintenance windows need a synchronized clock.
//!
//! Like systemd for `NTPSynchronized`, this reads the kernel's maximum clock error, because some time daemons never
//! clear the kernel's unsynchronized flag. Without time synchronization, this error grows up to 16 s. Reading it needs
//! no privilege.

use std::io;
use std::time::Duration;

use berth_core::Moment;

/// The kernel's upper limit of the clock error, in microseconds. Without synchronization, the error grows to this
/// limit.
const UNSYNCHRONIZED_ERROR: i64 = 16_000_000;
/// How long the kernel's answer is cached.
const CACHE_TIME: Duration = Duration::from_secs(10);

/// State of this machine's clock.
#[derive(Debug, Default)]
pub struct Clock {
    trusted: bool,
    known: Option<(Moment, bool)>,
}

impl Clock {
    /// Creates the clock. If `trusted`, it counts as synchronized, whatever the kernel reports.
    pub fn new(trusted: bool) -> Self {
        Self { trusted, known: None }
    }

    /// True if the clock is synchronized. The result may be up to ten seconds old.
    pub fn is_synchronized(&mut self, now: Moment) -> bool {
        if self.trusted {
            return true;
        }
        let fresh = self.known.filter(|(at, _)| now.since(*at) < CACHE_TIME);
        if let Some((_, known)) = fresh {
            return known;
        }
        let error = max_error();
        let synchronized = error.as_ref().is_ok_and(|error| is_kept(*error));
        if self.known.is_none_or(|(_, known)| known != synchronized) {
            log_state(synchronized, &error);
        }
        self.known = Some((now, synchronized));
        synchronized
    }
}

/// Returns the kernel's maximum error of the clock, in microseconds. Neither nix nor rustix wraps `adjtimex`.
#[expect(unsafe_code, reason = "libc has no safe form of adjtimex")]
pub fn max_error() -> io::Result<i64> {
    // SAFETY: `timex` is a C struct of integers, so all zeroes is a valid value.
    let mut answer: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid during the call. Without `modes` the kernel only writes to the struct.
    if unsafe { libc::adjtimex(&raw mut answer) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer.maxerror)
}

/// True if a clock with this maximum error, in microseconds, is synchronized.
pub fn is_kept(max_error: i64) -> bool {
    (0..UNSYNCHRONIZED_ERROR).contains(&max_error)
}

fn log_state(synchronized: bool, error: &io::Result<i64>) {
    match error {
        Ok(_) if synchronized => tracing::info!("the clock of this machine is synchronized"),
        Ok(_) => tracing::warn!(
            "the clock of this machine is not synchronized; windows stay closed until it is synchronized or \
             --trust-clock is set"
        ),
        Err(error) => tracing::warn!(
            %error,
            "cannot read from the kernel whether the clock is synchronized; windows stay closed unless --trust-clock is set"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    #[test]
    fn a_synchronized_clock_has_a_small_error() {
        assert!(is_kept(0) && is_kept(250_000) && is_kept(15_999_999));
        assert!(!is_kept(16_000_000) && !is_kept(16_000_500) && !is_kept(-1));
    }

    #[test]
    fn the_kernels_answer_is_cached() {
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
        match max_error() {
            Ok(error) => assert!(error >= 0),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"),
        }
    }
}
