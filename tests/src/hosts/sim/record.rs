//! The record of a pull, by whichever program it is made.

use super::process::Os;
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
    pub(super) fn begin(os: &Os, digest: &str) -> Self {
        let digest = digest.to_owned();
        let started = HostChange::PullStarted { digest: digest.clone() };
        os.log.record(&os.host, started);
        Self {
            log: os.log.clone(),
            host: os.host.clone(),
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
