//! State that the drain keeps of one pod.

use std::time::Duration;

use berth_api::node::DrainBlocker;
use berth_core::Moment;
use berth_shell::retry;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Given;
use crate::node::pods::{Class, Pod};

/// No two tries for one pod are further apart than this.
pub(super) const RETRY_WITHIN: Duration = Duration::from_secs(10);
/// Time after its grace period for which a pod still counts as about to end. A kubelet needs a moment for volumes and
/// network.
pub(super) const OVERDUE: Duration = Duration::from_secs(30);
/// Grace period of a pod that names none, as in Kubernetes.
const DEFAULT_GRACE: u64 = 30;
/// Longest reason of a blocker that the schema allows.
const MAX_REASON: usize = 512;

/// State of a pod that had to go at some time.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Time since which the pod is in the way, by this node's clock: for people.
    pub(super) since: Timestamp,
    pub(super) tries: u32,
    pub(super) next_try: Moment,
    pub(super) reason: String,
    /// More of a hindrance than a pod that is just about to end.
    pub(super) stuck: bool,
    /// The pod was deleted because the drain took too long.
    pub(super) by_force: bool,
    /// A log line has said that it is left behind.
    pub(super) told: bool,
    /// The pod was not there yet when the drain began.
    pub(super) late: bool,
    /// Moment at which a list showed it as terminating for the first time.
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

    /// Notes that the pod is terminating.
    pub(super) fn ends(&mut self) {
        self.set(
            match self.by_force {
                true => "Terminating: deleted by force, because the drain took too long",
                false => "Terminating",
            },
            false,
        );
    }

    /// A list shows it as terminating.
    pub(super) fn seen_ending(&mut self, now: Moment) {
        self.ending_since.get_or_insert(now);
        self.ends();
    }

    /// Why the drain continues without this pod; `None` if it waits for the pod.
    pub(super) fn left_behind(
        &self,
        pod: &Pod,
        class: Class,
        given: &Given<'_>,
        kubelet_is_away: bool,
    ) -> Option<&'static str> {
        match class {
            // To move it would only bring the next one: there is no end to that, and no end is waited for.
            Class::Finished | Class::Moves | Class::Blocked(_) if self.late && pod.tolerates_cordon() => {
                Some("Arrived: it came after the drain had begun, since it tolerates the cordon")
            }
            // Asked, and not moved. Nothing of it runs, so nothing is lost by a reboot.
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

    /// True if this agent has seen the pod terminating for its grace period and some time more. No clock of another machine is
    /// asked, and none that can be set.
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

/// How long to wait after so many tries for one pod that came to nothing.
pub(super) fn retry_after(tries: u32) -> Duration {
    retry::delay(tries, Duration::from_millis(600), RETRY_WITHIN / 2)
}

/// Time left until `then`; `None` when it has come.
pub(super) fn wait(now: Moment, then: Moment) -> Option<Duration> {
    Some(then.since(now)).filter(|wait| !wait.is_zero())
}
