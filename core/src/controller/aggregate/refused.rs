//! A pool's status that the API server refuses because of what the members report.
//!
//! The history, the boot image and the durations come from the members' reports. If the API server refuses a status as
//! invalid, the controller writes the status again with these three as they are stored. A member's report may pass the
//! checks of a BootcNode but not the checks of a pool; the pool's target and failures are recorded all the same.

use berth_api::boot_image::BootImageStatus;
use berth_api::condition::{self, CommonReason, Verdict, Word, pool as types};
use berth_api::pool::{BootcNodePoolStatus, DeployedImage, PhaseDurations};
use jiff::Timestamp;

use super::summary::POOL_TROUBLES;

/// Parts of a pool's status that come from the members' reports, and the API server's refusal of them.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedReports {
    history: Vec<DeployedImage>,
    boot_image: Option<BootImageStatus>,
    durations: PhaseDurations,
    /// Error message of the API server.
    error: String,
}

impl RefusedReports {
    /// Records that the API server refused this status with this message.
    pub fn new(status: &BootcNodePoolStatus, error: String) -> Self {
        Self {
            history: status.deploy_history.clone(),
            boot_image: status.boot_image.clone(),
            durations: status.phase_durations,
            error,
        }
    }

    /// True if the status has the parts that were refused.
    pub fn are_in(&self, status: &BootcNodePoolStatus) -> bool {
        self.history == status.deploy_history
            && self.boot_image == status.boot_image
            && self.durations == status.phase_durations
    }

    /// Replaces the refused parts by the same parts of the stored status `old`, and names the refusal in `Degraded`.
    #[must_use]
    pub fn left_out(
        &self,
        mut status: BootcNodePoolStatus,
        old: &BootcNodePoolStatus,
        now: Timestamp,
    ) -> BootcNodePoolStatus {
        status.deploy_history.clone_from(&old.deploy_history);
        status.boot_image.clone_from(&old.boot_image);
        status.phase_durations = old.phase_durations;
        let words = format!(
            "the API server refuses what the members' reports would change in deployHistory, bootImage or \
             phaseDurations, so these do not change; find the wrong report in the BootcNodes of the pool and exclude \
             its node: {}",
            self.error
        );
        let degraded = condition::find_true(&status.conditions, types::DEGRADED);
        let verdict = match degraded {
            Some(own) if POOL_TROUBLES.contains(&own.reason.as_str()) => {
                Verdict::yes(Word::stored(&own.reason), format!("{}; {words}", own.message))
            }
            Some(of_nodes) => Verdict::yes(CommonReason::StatusRefused, format!("{words}; {}", of_nodes.message)),
            None => Verdict::yes(CommonReason::StatusRefused, words),
        };
        // Start from the stored condition: if it is True already, its transition time must not change.
        let stored = condition::find(&old.conditions, types::DEGRADED);
        let mut conditions = status.conditions.iter_mut();
        let computed = conditions.find(|condition| condition.type_ == types::DEGRADED);
        if let (Some(stored), Some(computed)) = (stored, computed) {
            computed.clone_from(stored);
        }
        let generation = status.observed_generation;
        condition::set(&mut status.conditions, types::DEGRADED, verdict, generation, now);
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn status(degraded: Verdict, now: i64, reboot_seconds: u32) -> BootcNodePoolStatus {
        let mut status = BootcNodePoolStatus::default();
        status.phase_durations.reboot_seconds = Some(reboot_seconds);
        condition::set(&mut status.conditions, types::DEGRADED, degraded, Some(1), at(now));
        status
    }

    #[test]
    fn a_refused_status_is_written_without_the_reports() {
        let stored = status(Verdict::no(CommonReason::AsExpected, ""), 1, 60);
        for (degraded, reason, begin) in [
            (
                Verdict::no(CommonReason::AsExpected, ""),
                "StatusRefused",
                "the API server refuses",
            ),
            (
                Verdict::yes(CommonReason::NodesDegraded, "n1"),
                "StatusRefused",
                "the API server refuses",
            ),
            (
                Verdict::yes(CommonReason::InvalidSelector, "a, b"),
                "InvalidSelector",
                "a, b; the API server refuses",
            ),
        ] {
            let new = status(degraded.clone(), 2, 70);
            let refused = RefusedReports::new(&new, "no such year".to_owned());
            assert!(refused.are_in(&new) && !refused.are_in(&stored));
            let written = refused.left_out(new, &stored, at(2));
            assert_eq!(written.phase_durations, stored.phase_durations);
            let condition = condition::find(&written.conditions, types::DEGRADED).unwrap();
            assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", reason));
            assert!(condition.message.starts_with(begin), "{}", condition.message);
            assert!(condition.message.contains("no such year"), "{}", condition.message);
            assert_eq!(condition.last_transition_time.0, at(2));
            // The next pass computes the same status again, and writes nothing.
            let mut again = status(degraded, 2, 70);
            again.conditions.clone_from(&written.conditions);
            let of_pool = Verdict::no(CommonReason::AsExpected, "");
            if reason == "StatusRefused" {
                condition::set(&mut again.conditions, types::DEGRADED, of_pool, Some(1), at(3));
                let again = refused.left_out(again, &written, at(3));
                let times = [&again, &written].map(|s| s.conditions[0].last_transition_time.0);
                assert_eq!(times[0], times[1]);
            }
        }
    }
}
