//! State of one pod in a drain.

use std::time::Duration;

use berth_api::foreign::bounded;
use berth_api::node::DrainBlocker;
use berth_core::Moment;
use berth_shell::retry;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::given::Given;
use crate::node::pods::{Class, Pod};

/// Longest time between two requests for one pod.
pub(super) const RETRY_WITHIN: Duration = Duration::from_secs(10);
/// Time after a terminating pod's grace period before the pod counts as overdue. The kubelet needs this time to release
/// volumes and network.
pub(super) const OVERDUE: Duration = Duration::from_secs(30);
/// Kubernetes' default grace period, in seconds.
const DEFAULT_GRACE: u64 = 30;
/// Maximum length of a blocker's reason in the BootcNode's schema, in characters.
const MAX_REASON: usize = 512;

/// State of a pod that must leave the node or has left it.
#[derive(Debug, Clone, Default)]
pub(super) struct Entry {
    /// When the pod began to block, by this node's clock. For display.
    pub(super) since: Timestamp,
    pub(super) tries: u32,
    pub(super) next_try: Moment,
    pub(super) reason: String,
    /// True if the pod cannot be moved for now, for example because of a budget. Such pods are reported first.
    pub(super) stuck: bool,
    pub(super) by_force: bool,
    /// True if the agent has logged that the drain continues without the pod.
    pub(super) told: bool,
    pub(super) late: bool,
    ending_since: Option<Moment>,
}

impl Entry {
    pub(super) fn new(given: &Given<'_>, late: bool) -> Self {
        Self {
            since: given.now,
            next_try: given.clock,
            reason: "waiting to be evicted".to_owned(),
            late,
            ..Self::default()
        }
    }

    pub(super) fn set(&mut self, reason: &str, stuck: bool) {
        self.reason = bounded(reason, MAX_REASON);
        self.stuck = stuck;
    }

    pub(super) fn ends(&mut self) {
        let reason = if self.by_force {
            "Terminating: deleted by force, because the drain timed out"
        } else {
            "Terminating"
        };
        self.set(reason, false);
    }

    pub(super) fn seen_ending(&mut self, now: Moment) {
        self.ending_since.get_or_insert(now);
        self.ends();
    }

    /// Returns why the drain continues without this pod; `None` if the drain must wait for the pod.
    pub(super) fn left_behind(
        &self,
        pod: &Pod,
        class: Class,
        given: &Given<'_>,
        kubelet_is_away: bool,
    ) -> Option<&'static str> {
        match class {
            // If this pod were moved, its controller would create another one here, without end.
            Class::Finished | Class::Moves | Class::Blocked(_) if self.late && pod.tolerates_cordon() => {
                Some("Arrived: the pod was started here after the drain began, because it tolerates the cordon")
            }
            // The agent has asked the pod to leave, without success. A reboot loses nothing, because the pod's
            // containers have ended.
            Class::Finished if self.tries > 0 => {
                Some("Finished: the pod cannot be moved, but its containers have ended")
            }
            Class::Terminating if !self.is_overdue(pod, given.clock) => None,
            Class::Terminating if kubelet_is_away => Some(
                "Terminating: its grace period is over, but the node's kubelet is not Ready and cannot end the pod",
            ),
            Class::Terminating if pod.is_finished() => {
                Some("Terminating: its grace period is over, and its containers have ended")
            }
            Class::Terminating if given.settings.forced => {
                Some("Terminating: its grace period is over, and the drain timed out")
            }
            _ => None,
        }
    }

    /// True if this agent has seen the pod terminating for at least the pod's grace period plus [`OVERDUE`]. The time
    /// is measured with this machine's monotonic clock.
    fn is_overdue(&self, pod: &Pod, now: Moment) -> bool {
        let Some(since) = self.ending_since else { return false };
        let grace = pod.metadata.deletion_grace_period_seconds;
        let grace = grace.map_or(DEFAULT_GRACE, |seconds| u64::try_from(seconds).unwrap_or(0));
        now.since(since) >= OVERDUE.saturating_add(Duration::from_secs(grace))
    }

    pub(super) fn blocker(&self, pod: &Pod) -> DrainBlocker {
        self.blocker_because(pod, &self.reason)
    }

    pub(super) fn blocker_because(&self, pod: &Pod, reason: &str) -> DrainBlocker {
        DrainBlocker {
            pod: pod.full_name(),
            reason: reason.to_owned(),
            since: Time::from(self.since),
        }
    }
}

/// Returns the delay before the next request for a pod, after this many failed requests.
pub(super) fn retry_after(tries: u32) -> Duration {
    retry::delay(tries, Duration::from_millis(600), RETRY_WITHIN / 2)
}

/// Returns the time left until `then`; `None` if `then` has passed.
pub(super) fn wait(now: Moment, then: Moment) -> Option<Duration> {
    Some(then.since(now)).filter(|wait| !wait.is_zero())
}
