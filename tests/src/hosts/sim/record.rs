//! Logging of a pull by any program.

use crate::hosts::{HostChange, HostLog};

/// Logs the end of a pull when dropped, also after a kill.
pub(super) struct PullRecord {
    log: HostLog,
    host: String,
    digest: String,
    pub(super) ok: bool,
}

impl PullRecord {
    /// Logs the start of a pull, and its end when dropped.
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
