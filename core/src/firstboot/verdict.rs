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
    /// True if the kubelet is held back.
    pub holds: bool,
    /// True if the machine has pivoted to the target.
    pub pivoted: bool,
    /// Finding of the check, without a full stop.
    pub found: String,
    /// Remedy. Empty if nothing needs to be done.
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

    /// Verdict if the configuration is invalid. The machine joins anyway: a mistake in a file must not keep machines
    /// out.
    pub fn invalid_config(error: &str) -> Self {
        let remedy = "fix the file for new machines; this machine joins with its installed image";
        let found = format!("check skipped: {} is invalid: {error}", config::PATH);
        Self::new(Outcome::InvalidConfig, found, remedy)
    }

    /// Verdict on a machine that was already a node at its first check.
    pub fn not_first_boot() -> Self {
        let found = "check skipped: an agent or a kubelet has already run on this machine";
        Self::new(Outcome::NotFirstBoot, found, "")
    }

    /// Verdict if a host error made the check fail.
    pub fn host_failed(error: &str) -> Self {
        let remedy = "see the journal: journalctl -u berth-firstboot.service";
        let found = format!("check skipped: host error: {error}");
        Self::new(Outcome::HostFailed, found, remedy)
    }

    /// Returns `self`, or a refusal if an earlier run refused this machine: a failed check must not release it.
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
            remedy: "fix this and reboot, or install the machine from a newer boot image; to let it join anyway, create the \
                     override file and reboot"
                .to_owned(),
        }
    }

    /// Returns `self` if the verdict lets the kubelet start. Otherwise returns the verdict that an admin overrode it
    /// with this file.
    #[must_use]
    pub fn overridden_by(self, file: &Path) -> Self {
        if !self.holds {
            return self;
        }
        let found = format!("{}; overridden by {}", self.found, file.display());
        Self::new(Outcome::Overridden, found, "")
    }

    /// True if no later run checks the machine again. A later run may release a machine that is held back.
    pub fn is_over(&self) -> bool {
        !self.holds
    }

    /// Finding and remedy in one line.
    pub fn message(&self) -> String {
        if self.remedy.is_empty() {
            one_line(&self.found)
        } else {
            one_line(&format!("{}; {}", self.found, self.remedy))
        }
    }
}
