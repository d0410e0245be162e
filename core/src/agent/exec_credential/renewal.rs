//! When the program that issues a credential must run again.
//!
//! Only the credential's lifetime is read from its expiry, and then counted on the agent's monotonic clock. So a step of
//! the wall clock changes nothing.

use std::time::Duration;

use crate::moment::Moment;

/// The latest renewal, as a part of the credential's lifetime. The rest of the lifetime is for retries.
const LATEST: f64 = 0.8;
/// Longest random advance of a renewal, as a part of the lifetime. So the nodes do not all ask at the same time.
const SPREAD: f64 = 0.2;
/// A credential no longer counts as valid this long before its expiry, because a request takes time to arrive.
const MARGIN: Duration = Duration::from_secs(5);
/// Pause after the first failed run. It doubles with each failure.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Longest pause after a failed run, before up to the same time is added at random.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The step before a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Use the current credential.
    Use,
    /// Run the program. If `is_valid`, the current credential can be used if that fails.
    Renew {
        /// True if the current credential is still valid.
        is_valid: bool,
    },
    /// There is no valid credential, and the program failed so recently that it must not run again yet.
    Pause,
}

/// State of the current credential.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Renewal {
    current: Option<Validity>,
    /// Failed runs in a row; a credential that the API server rejected at once counts as one.
    failures: u32,
    /// End of the pause after the last failure.
    retry_at: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Validity {
    /// True after the API server accepted the credential.
    is_proven: bool,
    /// Moments of the renewal and of the end; `None` if the credential has no expiry.
    ends: Option<(Moment, Moment)>,
}

impl Renewal {
    /// Returns the step before a request.
    pub fn next(&self, now: Moment) -> Next {
        let is_valid = match self.current {
            None => false,
            Some(Validity { ends: None, .. }) => return Next::Use,
            Some(Validity {
                ends: Some((renewal, _)),
                ..
            }) if now < renewal => return Next::Use,
            Some(Validity {
                ends: Some((_, end)), ..
            }) => now < end,
        };
        if now >= self.retry_at {
            return Next::Renew { is_valid };
        }
        if is_valid { Next::Use } else { Next::Pause }
    }

    /// Records a new credential. `chance`: random, from 0 to 1.
    pub fn renewed(&mut self, lifetime: Option<Duration>, now: Moment, chance: f64) {
        let ends = lifetime.map(|lifetime| {
            let part = LATEST - SPREAD * chance.clamp(0.0, 1.0);
            let margin = MARGIN.min(lifetime / 4);
            (now + lifetime.mul_f64(part), now + lifetime.saturating_sub(margin))
        });
        self.current = Some(Validity { is_proven: false, ends });
    }

    /// Records that the program failed. `chance`: random, from 0 to 1.
    pub fn failed(&mut self, now: Moment, chance: f64) {
        self.failures = self.failures.saturating_add(1);
        let doublings = self.failures.saturating_sub(1).min(16);
        let pause = RETRY_FIRST.saturating_mul(1 << doublings).min(RETRY_MAX);
        self.retry_at = now + pause.mul_f64(1.0 + chance.clamp(0.0, 1.0));
    }

    /// Records that the API server accepted the credential. Only the first time counts: later
    /// failures belong to the next renewal.
    pub fn accepted(&mut self) {
        if let Some(current) = &mut self.current
            && !current.is_proven
        {
            current.is_proven = true;
            self.failures = 0;
            self.retry_at = Moment::default();
        }
    }

    /// Records that the API server answered 401: the credential is not used again. If the server never accepted it, the
    /// program's next credential may be rejected too, so the program runs again only after a pause.
    pub fn rejected(&mut self, now: Moment, chance: f64) {
        let Some(current) = self.current.take() else {
            return;
        };
        if !current.is_proven {
            self.failed(now, chance);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::after(Duration::from_secs(seconds))
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_credential_is_renewed_before_it_expires() {
        let mut renewal = Renewal::default();
        assert_eq!(renewal.next(at(0)), Next::Renew { is_valid: false });
        renewal.renewed(Some(secs(100)), at(0), 0.0);
        assert_eq!(renewal.next(at(79)), Next::Use);
        assert_eq!(renewal.next(at(80)), Next::Renew { is_valid: true });
        assert_eq!(renewal.next(at(94)), Next::Renew { is_valid: true });
        assert_eq!(renewal.next(at(95)), Next::Renew { is_valid: false });
        renewal.renewed(Some(secs(100)), at(0), 1.0);
        assert_eq!(renewal.next(at(59)), Next::Use);
        assert_eq!(renewal.next(at(60)), Next::Renew { is_valid: true });
        renewal.renewed(None, at(0), 1.0);
        assert_eq!(renewal.next(at(u64::MAX)), Next::Use);
    }

    #[test]
    fn short_and_long_lifetimes_are_counted() {
        let mut renewal = Renewal::default();
        renewal.renewed(Some(secs(2)), at(0), 1.0);
        assert_eq!(renewal.next(at(1)), Next::Use);
        assert_eq!(renewal.next(at(2)), Next::Renew { is_valid: false });
        renewal.renewed(Some(secs(300_000_000_000)), at(5), 0.5);
        assert_eq!(renewal.next(at(1_000_000)), Next::Use);
        renewal.renewed(Some(Duration::from_nanos(1)), at(5), 0.5);
        assert!(matches!(renewal.next(at(6)), Next::Renew { .. }));
    }

    #[test]
    fn a_failed_run_is_retried_after_growing_pauses() {
        let mut renewal = Renewal::default();
        renewal.failed(at(0), 0.0);
        assert_eq!(renewal.next(at(0)), Next::Pause);
        assert_eq!(renewal.next(at(1)), Next::Renew { is_valid: false });
        renewal.failed(at(1), 1.0);
        assert_eq!(renewal.next(at(4)), Next::Pause);
        assert_eq!(renewal.next(at(5)), Next::Renew { is_valid: false });
        for _ in 0..100 {
            renewal.failed(at(10), 0.0);
        }
        assert_eq!(renewal.next(at(69)), Next::Pause);
        assert_eq!(renewal.next(at(70)), Next::Renew { is_valid: false });
    }

    #[test]
    fn a_valid_credential_is_used_while_the_program_fails() {
        let mut renewal = Renewal::default();
        renewal.renewed(Some(secs(100)), at(0), 0.0);
        renewal.accepted();
        renewal.failed(at(80), 0.0);
        renewal.accepted();
        assert_eq!(renewal.next(at(80)), Next::Use);
        assert_eq!(renewal.next(at(81)), Next::Renew { is_valid: true });
        renewal.failed(at(94), 1.0);
        assert_eq!(renewal.next(at(95)), Next::Pause);
    }

    #[test]
    fn a_rejected_credential_is_replaced_at_once_only_if_it_was_ever_accepted() {
        let mut renewal = Renewal::default();
        renewal.renewed(Some(secs(100)), at(0), 0.0);
        renewal.accepted();
        renewal.rejected(at(10), 0.0);
        assert_eq!(renewal.next(at(10)), Next::Renew { is_valid: false });
        renewal.renewed(Some(secs(100)), at(10), 0.0);
        renewal.rejected(at(10), 0.0);
        assert_eq!(renewal.next(at(10)), Next::Pause);
        assert_eq!(renewal.next(at(11)), Next::Renew { is_valid: false });
        // The next one is rejected too: the pause grows.
        renewal.renewed(Some(secs(100)), at(11), 0.0);
        renewal.rejected(at(11), 0.0);
        assert_eq!(renewal.next(at(12)), Next::Pause);
        // A late answer to an old request changes nothing.
        renewal.rejected(at(12), 0.0);
        assert_eq!(renewal.next(at(13)), Next::Renew { is_valid: false });
    }
}
