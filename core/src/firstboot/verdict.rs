//! The result of a first-boot check.

use std::path::Path;

use berth_api::condition::one_line;
use berth_api::firstboot::FirstbootOutcome as Outcome;

use super::config;
use super::record::Record;

/// Result of a first-boot check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Outcome.
    pub outcome: Outcome,
    /// True if the kubelet must not start, so that the machine does not join its cluster.
    pub holds: bool,
    /// True if the machine was updated to the target before its kubelet started.
    pub pivoted: bool,
    /// Result of the check as a message, without a full stop.
    pub found: String,
    /// Advice for an admin. Empty if nothing needs to be done.
    pub remedy: String,
}

impl Verdict {
    pub(super) fn new(outcome: Outcome, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            outcome,
            holds: false,
            pivoted: false,
            found: found.into(),
            remedy: remedy.into(),
        }
    }

    /// Returns the verdict if the configuration is invalid. The machine joins anyway: a mistake in this file must not
    /// keep machines out of their cluster.
    pub fn invalid_config(error: &str) -> Self {
        let remedy = "fix the file for new machines; this machine joins with its installed image";
        let found = format!("check skipped: {} is invalid: {error}", config::PATH);
        Self::new(Outcome::InvalidConfig, found, remedy)
    }

    /// Returns the verdict on a machine that was already a node when it was first checked.
    pub fn not_first_boot() -> Self {
        let found = "check skipped: an agent or a kubelet has already run on this machine";
        Self::new(Outcome::NotFirstBoot, found, "")
    }

    /// Returns the verdict if the check failed because of an error of the host.
    pub fn host_failed(error: &str) -> Self {
        let remedy = "see the journal: journalctl -u berth-firstboot.service";
        let found = format!("check skipped: host error: {error}");
        Self::new(Outcome::HostFailed, found, remedy)
    }

    /// Returns `self`, unless an earlier run of the check refused this machine. In that case returns a refusal, because
    /// a failed check must not let the machine join.
    #[must_use]
    pub fn unless_refused(self, before: Option<&Record>) -> Self {
        let is_refused = before.is_some_and(|record| !record.finished && record.status.outcome == Outcome::Refused);
        if !is_refused {
            return self;
        }
        Self {
            outcome: Outcome::Refused,
            holds: true,
            pivoted: false,
            found: format!("this machine was refused at an earlier boot; {}", self.found),
            remedy:
                "fix that error and reboot, or install the machine from a newer boot image; to let it join anyway, \
                     create the override file and reboot"
                    .to_owned(),
        }
    }

    /// Returns `self` if it lets the kubelet start. Otherwise returns a verdict that lets the kubelet start, and
    /// reports that an admin has overridden the check with `file`.
    #[must_use]
    pub fn overridden_by(self, file: &Path) -> Self {
        if !self.holds {
            return self;
        }
        let found = format!("{}; overridden by {}", self.found, file.display());
        Self::new(Outcome::Overridden, found, "")
    }

    /// True if the check is over for this machine. If its kubelet is held back, later runs check the machine again and
    /// may let it join.
    pub fn is_over(&self) -> bool {
        !self.holds
    }

    /// Returns the result and the remedy in one line.
    pub fn message(&self) -> String {
        if self.remedy.is_empty() {
            one_line(&self.found)
        } else {
            one_line(&format!("{}; {}", self.found, self.remedy))
        }
    }
}
