//! State that the drain keeps of one pod.

use std::time::Duration;

use berth_api::node::DrainBlocker;
use berth_shell::retry;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Given;
use crate::node::pods::{Class, Pod};

/// No two tries for one pod are further apart than this.
pub(super) const RETRY_WITHIN: Duration = Duration::from_secs(10);
/// Time after its grace period for which a pod still counts as about to end. A kubelet needs a moment for volumes and
/// network, and the clocks of this node and of the API server may differ by a little.
pub(super) const OVERDUE: Duration = Duration::from_secs(30);
/// Grace period of a pod that names none, as in Kubernetes.
const DEFAULT_GRACE: u64 = 30;
/// Longest reason of a blocker that the schema allows.
const MAX_REASON: usize = 512;

/// State of a pod that had to go at some time.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) since: Timestamp,
    pub(super) tries: u32,
    pub(super) next_try: Timestamp,
    pub(super) reason: String,
    /// More of a hindrance than a pod that is just about to end.
    pub(super) stuck: bool,
    /// The pod was deleted because the drain took too long.
    pub(super) by_force: bool,
    /// A log line has said that it is left behind.
    pub(super) told: bool,
    /// The pod was not there yet when the drain began.
    pub(super) late: bool,
    ending_since: Option<Timestamp>,
}

impl Entry {
    pub(super) fn new(now: Timestamp, late: bool) -> Self {
        Self {
            since: now,
            tries: 0,
            next_try: now,
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
    pub(super) fn seen_ending(&mut self, now: Timestamp) {
        self.ending_since.get_or_insert(now);
        self.ends();
    }

    /// Reason for which the drain goes on without this pod, when it does.
    pub(super) fn left_behind(&self, pod: &Pod, class: Class, given: &Given<'_>) -> Option<&'static str> {
        match class {
            // To move it would only bring the next one: there is no end to that, and no end is waited for.
            Class::Finished | Class::Moves | Class::Blocked(_) if self.late && pod.tolerates_cordon() => {
                Some("Arrived: it came after the drain had begun, since it tolerates the cordon")
            }
            // Asked, and not moved. Nothing of it runs, so nothing is lost by a reboot.
            Class::Finished if self.tries > 0 => Some("Finished: it cannot be moved, and nothing of it runs"),
            Class::Terminating if !self.is_overdue(pod, given.now) => None,
            Class::Terminating if !given.node_ready => {
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

    /// Says whether the pod is long overdue. A pod that began to terminate before this agent looked is as late as its
    /// deletion time says. In case this node's clock is ahead, the pod must also have been watched for a moment.
    fn is_overdue(&self, pod: &Pod, now: Timestamp) -> bool {
        let Some(since) = self.ending_since else { return false };
        let watched = until(since, now);
        let grace = pod.metadata.deletion_grace_period_seconds;
        let grace = grace.map_or(DEFAULT_GRACE, |seconds| u64::try_from(seconds).unwrap_or(0));
        let gone_by = pod
            .metadata
            .deletion_timestamp
            .as_deref()
            .and_then(|text| text.parse::<Timestamp>().ok());
        watched >= OVERDUE
            && (gone_by.is_some_and(|gone_by| now >= later(gone_by, OVERDUE))
                || watched >= OVERDUE.saturating_add(Duration::from_secs(grace)))
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

pub(super) fn later(now: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    now.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Time left until `then`, which is at most `longest` ahead; `None` when it has come. A time that is further ahead was
/// set before the clock was set back, and counts as come.
pub(super) fn wait(now: Timestamp, then: Timestamp, longest: Duration) -> Option<Duration> {
    Some(until(now, then)).filter(|wait| !wait.is_zero() && *wait <= longest)
}

/// Time from one instant to the other; zero when the second one is earlier.
fn until(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}
