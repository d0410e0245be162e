//! The record of a pull, by whichever program it is made.

use crate::hosts::{HostChange, HostLog};

/// Records the end of a pull however it ends, a kill included.
pub(super) struct PullRecord {
    log: HostLog,
    host: String,
    digest: String,
    /// The pull went well.
    pub(super) ok: bool,
}

impl PullRecord {
    /// Records the begin of a pull, and its end when this is dropped.
    pub(super) fn begin(log: &HostLog, host: &str, digest: &str) -> Self {
        let digest = digest.to_owned();
        let started = HostChange::PullStarted { digest: digest.clone() };
        log.record(host, started);
        Self {
            log: log.clone(),
            host: host.to_owned(),
            digest,
            ok: false,
        }
    }
}

impl Drop for PullRecord {
    fn drop(&mut self) {
        let (digest, ok) = (std::mem::take(&mut self.digest), self.ok);
        self.log.record(&self.host, HostChange::PullEnded { digest, ok });
    }
}
