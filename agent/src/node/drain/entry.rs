//! State that the drain keeps of one pod.

use std::time::Duration;

use berth_api::node::DrainBlocker;
use berth_core::Moment;
use berth_shell::retry;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::given::Given;
use crate::node::pods::{Class, Pod};

/// Longest time between two attempts for one pod.
pub(super) const RETRY_WITHIN: Duration = Duration::from_secs(10);
/// How long after its grace period a pod still counts as terminating normally. The kubelet needs a moment for volumes
/// and network.
pub(super) const OVERDUE: Duration = Duration::from_secs(30);
/// Grace period of a pod that names none, as in Kubernetes.
const DEFAULT_GRACE: u64 = 30;
/// Longest reason of a blocker that the schema allows.
const MAX_REASON: usize = 512;

/// State of a pod that has or had to leave.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Since when the pod blocks, by this node's clock, for display.
    pub(super) since: Timestamp,
    pub(super) tries: u32,
    pub(super) next_try: Moment,
    pub(super) reason: String,
    /// True if the pod will not end without help. Such pods are reported first.
    pub(super) stuck: bool,
    /// True if the pod was deleted because the drain timed out.
    pub(super) by_force: bool,
    /// True if the log has reported the pod as left behind.
    pub(super) told: bool,
    /// True if the pod appeared after the drain began.
    pub(super) late: bool,
    /// When a list first showed the pod as terminating.
    ending_since: Option<Moment>,
}

impl Entry {
    pub(super) fn new(given: &Given<'_>, late: bool) -> Self {
        Self {
            since: given.now,
            tries: 0,
            next_try: given.clock,
            reason: "waiting to be evicted".to_owned(),
            stuck: false,
            by_force: false,
            told: false,
            late,
            ending_since: None,
        }
    }

    pub(super) fn set(&mut self, reason: &str, stuck: bool) {
        self.reason = reason.chars().take(MAX_REASON).collect();
        self.stuck = stuck;
    }

    /// Records that the pod is terminating.
    pub(super) fn ends(&mut self) {
        let reason = if self.by_force {
            "Terminating: deleted by force, because the drain took too long"
        } else {
            "Terminating"
        };
        self.set(reason, false);
    }

    /// Records that a list shows the pod as terminating.
    pub(super) fn seen_ending(&mut self, now: Moment) {
        self.ending_since.get_or_insert(now);
        self.ends();
    }

    /// Returns why the drain continues without this pod; `None` if it waits for the pod.
    pub(super) fn left_behind(
        &self,
        pod: &Pod,
        class: Class,
        given: &Given<'_>,
        kubelet_is_away: bool,
    ) -> Option<&'static str> {
        match class {
            // Moving it would only bring the next one, without end.
            Class::Finished | Class::Moves | Class::Blocked(_) if self.late && pod.tolerates_cordon() => {
                Some("Arrived: it came after the drain had begun, since it tolerates the cordon")
            }
            // The pod was asked, but not moved. Nothing of it runs, so a reboot loses nothing.
            Class::Finished if self.tries > 0 => Some("Finished: it cannot be moved, and nothing of it runs"),
            Class::Terminating if !self.is_overdue(pod, given.clock) => None,
            Class::Terminating if kubelet_is_away => {
                Some("Terminating: its grace period is over, and its kubelet is not ready to end it")
            }
            Class::Terminating if pod.is_finished() => {
                Some("Terminating: its grace period is over, and nothing of it runs")
            }
            Class::Terminating if given.settings.forced => {
                Some("Terminating: its grace period is over, and the drain took too long")
            }
            _ => None,
        }
    }

    /// True if this agent has seen the pod terminating for its grace period plus [`OVERDUE`]. Measured by a monotonic
    /// clock of this machine alone.
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

/// Returns the delay after this many failed attempts for one pod.
pub(super) fn retry_after(tries: u32) -> Duration {
    retry::delay(tries, Duration::from_millis(600), RETRY_WITHIN / 2)
}

/// Returns the time left until `then`; `None` if it has come.
pub(super) fn wait(now: Moment, then: Moment) -> Option<Duration> {
    Some(then.since(now)).filter(|wait| !wait.is_zero())
}
