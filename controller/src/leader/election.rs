//! Leader election: decides when the Lease may be taken. Does no I/O. All times are by this process's monotonic clock.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;

/// Next action of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Create the Lease: it does not exist.
    Create,
    /// Take the Lease: it has no holder, or its holder has not renewed it for too long.
    Take,
    /// Wait: the Lease is held.
    Wait,
}

/// A candidate's observations of the Lease.
#[derive(Debug)]
pub struct Election {
    duration: Duration,
    last: Option<Observation>,
}

/// The Lease as last read, if it had a holder.
#[derive(Debug)]
struct Observation {
    version: Option<String>,
    holder: String,
    /// Time when this process first read this version.
    since: Instant,
}

impl Election {
    /// Creates a candidate without observations. A holder that does not renew the Lease for `duration` is replaced.
    pub fn new(duration: Duration) -> Self {
        Self { duration, last: None }
    }

    /// Holder at the last observation.
    pub fn holder(&self) -> Option<&str> {
        self.last.as_ref().map(|s| s.holder.as_str())
    }

    /// Records the Lease that was just read and returns the next action. The holder counts as dead if this process has
    /// seen no change of the Lease for the whole lease duration. Times in the Lease are ignored, because another
    /// machine wrote them.
    pub fn observe(&mut self, lease: Option<&Lease>, now: Instant) -> Move {
        let Some(lease) = lease else {
            self.last = None;
            return Move::Create;
        };
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|s| s.holder_identity.as_deref()).unwrap_or_default();
        if holder.is_empty() {
            self.last = None;
            return Move::Take;
        }
        let version = lease.metadata.resource_version.clone();
        let since = match &self.last {
            Some(last) if last.version == version => last.since,
            _ => now,
        };
        self.last = Some(Observation {
            version,
            holder: holder.to_owned(),
            since,
        });
        // If the holder was started with a longer duration, the longer one applies.
        let theirs = spec.and_then(|s| s.lease_duration_seconds).unwrap_or(0);
        let theirs = Duration::from_secs(u64::try_from(theirs).unwrap_or(0));
        if now.saturating_duration_since(since) >= self.duration.max(theirs) {
            Move::Take
        } else {
            Move::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

    use super::*;

    fn lease(version: &str, holder: &str, seconds: i32) -> Lease {
        Lease {
            metadata: ObjectMeta {
                resource_version: Some(version.into()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.into()),
                lease_duration_seconds: Some(seconds),
                // A clock that is years behind must not matter.
                renew_time: Some(MicroTime::from(jiff::Timestamp::UNIX_EPOCH)),
                ..LeaseSpec::default()
            }),
        }
    }

    #[test]
    fn a_free_lease_is_taken_at_once() {
        let mut election = Election::new(Duration::from_secs(15));
        let now = Instant::now();
        assert_eq!(election.observe(None, now), Move::Create);
        assert_eq!(election.observe(Some(&lease("1", "", 15)), now), Move::Take);
    }

    #[test]
    fn silence_is_counted_from_the_last_change_seen_here() {
        let mut election = Election::new(Duration::from_secs(15));
        let start = Instant::now();
        for (version, seconds, expected) in [
            ("1", 0, Move::Wait),
            ("1", 14, Move::Wait),
            ("2", 14, Move::Wait),
            ("2", 28, Move::Wait),
            ("2", 29, Move::Take),
        ] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(election.observe(Some(&lease(version, "a", 15)), now), expected);
        }
    }

    #[test]
    fn a_holder_with_a_longer_duration_is_granted_it() {
        let mut election = Election::new(Duration::from_secs(2));
        let t = Instant::now();
        election.observe(Some(&lease("1", "a", 15)), t);
        let [early, due] = [14, 15].map(|seconds| t + Duration::from_secs(seconds));
        assert_eq!(election.observe(Some(&lease("1", "a", 15)), early), Move::Wait);
        assert_eq!(election.observe(Some(&lease("1", "a", 15)), due), Move::Take);
    }
}
