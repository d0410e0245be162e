//! Moving the pods of the own node away, by eviction.
//!
//! The engine works in passes: each one lists the pods anew, evicts those that are due, and says what is left and
//! when to look again. It keeps nothing that another process could not find out again, except since when a pod has
//! been in the way. While a pod is there that nobody would create again, nothing is evicted at all: the drain could
//! not end, and the other pods would have been disturbed for nothing.

use std::collections::HashMap;
use std::time::Duration;

use berth_api::node::DrainBlocker;
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use serde::Deserialize;

use super::evict::{Answer, evict};
use super::pods::{Class, Pod};
use super::{request, send};
use crate::clients::RequestError;

/// Evictions in flight at once.
const CONCURRENT: usize = 8;
/// Pods in one page of a list.
const PAGE: usize = 200;
/// Blockers that are told; the schema allows no more.
const MAX_BLOCKERS: usize = 10;
/// First and longest time between two tries for one pod.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// First and longest time between two looks at pods that are on their way out.
const LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Time between two looks when only a person can help.
const LOOK_BLOCKED: Duration = Duration::from_secs(10);
/// Longest reason of a blocker that the schema allows.
const MAX_REASON: usize = 512;

/// What a pass led to.
#[derive(Debug, Clone, PartialEq)]
pub enum DrainProgress {
    /// Nothing is left that has to go.
    Done,
    /// Some pods are still there.
    Waiting {
        /// What holds the drain up, those that only a person or a budget can release first.
        blockers: Vec<DrainBlocker>,
        /// When the next pass is due.
        next: Duration,
    },
}

/// What is known of a pod that is in the way.
#[derive(Debug, Clone)]
struct Blocked {
    since: Timestamp,
    tries: u32,
    next_try: Timestamp,
    reason: String,
    /// More of a hindrance than a pod that is just about to end.
    stuck: bool,
}

/// The drain of one turn.
#[derive(Debug, Default)]
pub struct Drain {
    /// Instead of each pod's own grace period, in seconds.
    pub grace_period: Option<u32>,
    /// By pod UID.
    blocked: HashMap<String, Blocked>,
    /// The API server asked us to hold back until then.
    hold_back: Option<Timestamp>,
    /// Passes since something was last seen to change.
    quiet: u32,
    jitter: u32,
}

#[derive(Deserialize)]
struct PodList {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(default)]
    items: Option<Vec<Pod>>,
}

#[derive(Deserialize, Default)]
struct ListMetadata {
    #[serde(rename = "continue", default)]
    next: Option<String>,
}

/// The pods of a node, all pages of them.
async fn list(client: &Client, node: &str) -> Result<Vec<Pod>, RequestError> {
    let first = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}&limit={PAGE}");
    let mut path = first.clone();
    let mut pods = vec![];
    loop {
        let page: PodList = send(client, request("GET", &path, vec![], "application/json")?).await?;
        pods.extend(page.items.unwrap_or_default());
        match page.metadata.next.filter(|token| !token.is_empty()) {
            // The token is base64url without padding or the like: nothing in it needs escaping but `=`.
            Some(token) => path = format!("{first}&continue={}", token.replace('=', "%3D")),
            None => return Ok(pods),
        }
    }
}

impl Drain {
    /// One pass.
    ///
    /// # Errors
    /// When the pods cannot be listed. That an eviction fails is no error here, but in the way.
    pub async fn pass(&mut self, client: &Client, node: &str, now: Timestamp) -> Result<DrainProgress, RequestError> {
        let pods = list(client, node).await?;
        let due = self.sort(&pods, now);
        let grace_period = self.grace_period;
        let answers: Vec<(&Pod, Answer)> = futures::stream::iter(due)
            .map(|pod| async move { (pod, evict(client, pod, grace_period).await) })
            .buffer_unordered(CONCURRENT)
            .collect()
            .await;
        for (pod, answer) in answers {
            self.note(pod, answer, now);
        }
        Ok(self.progress(&pods, now))
    }

    /// Brings what is known up to date with the list, and answers the pods that are to be evicted now.
    fn sort<'a>(&mut self, pods: &'a [Pod], now: Timestamp) -> Vec<&'a Pod> {
        let mut in_the_way: Vec<(&Pod, Class)> = pods.iter().map(|pod| (pod, pod.class())).collect();
        in_the_way.retain(|(_, class)| *class != Class::Left);
        let before = self.blocked.len();
        self.blocked.retain(|uid, _| in_the_way.iter().any(|(pod, _)| pod.metadata.uid == *uid));
        self.quiet = if self.blocked.len() == before { self.quiet.saturating_add(1) } else { 0 };
        for (pod, class) in &in_the_way {
            let known = self.blocked.entry(pod.metadata.uid.clone());
            let blocked = known.or_insert_with(|| Blocked::new(now));
            match class {
                Class::Terminating => blocked.set("Terminating", false),
                Class::Unmanaged => blocked
                    .set("Unmanaged: no controller would create it again; delete it, or let something own it", true),
                Class::Evicted | Class::Left => {}
            }
        }
        let held_back = self.hold_back.is_some_and(|until| now < until);
        if held_back || in_the_way.iter().any(|(_, class)| *class == Class::Unmanaged) {
            return vec![];
        }
        let is_due = |pod: &&Pod| self.blocked.get(&pod.metadata.uid).is_none_or(|b| b.next_try <= now);
        let evicted = in_the_way.into_iter().filter(|(_, class)| *class == Class::Evicted);
        evicted.map(|(pod, _)| pod).filter(is_due).collect()
    }

    /// Remembers what an eviction led to.
    fn note(&mut self, pod: &Pod, answer: Answer, now: Timestamp) {
        let jitter = self.next_jitter();
        let blocked = self.blocked.entry(pod.metadata.uid.clone()).or_insert_with(|| Blocked::new(now));
        let name = pod.full_name();
        match &answer {
            Answer::Accepted | Answer::Gone => {
                tracing::info!(pod = name, ?answer, "evicted");
                self.quiet = 0;
                blocked.tries = 0;
                blocked.set("Terminating", false);
                // The next list shows it as terminating, or not at all.
                blocked.next_try = later(now, RETRY.1);
                return;
            }
            Answer::Overloaded(pause) => {
                self.hold_back = Some(later(now, (*pause).min(Duration::from_secs(60))));
                blocked.set("the API server is overloaded", false);
                return;
            }
            Answer::Budget(text) => blocked.set(text, true),
            Answer::Misconfigured(text) => blocked.set(text, true),
            Answer::Refused(text) => blocked.set(&format!("the eviction is refused: {text}"), true),
            Answer::Failed(text) => blocked.set(&format!("the eviction failed: {text}"), true),
        }
        if blocked.tries == 0 {
            tracing::info!(pod = name, reason = blocked.reason, "cannot be evicted yet");
        }
        blocked.next_try = later(now, retry_after(blocked.tries, jitter));
        blocked.tries = blocked.tries.saturating_add(1);
    }

    /// What is left, and when to look again.
    fn progress(&self, pods: &[Pod], now: Timestamp) -> DrainProgress {
        let mut left: Vec<(&Pod, &Blocked, Class)> = pods
            .iter()
            .filter_map(|pod| Some((pod, self.blocked.get(&pod.metadata.uid)?, pod.class())))
            .filter(|(_, _, class)| *class != Class::Left)
            .collect();
        if left.is_empty() {
            return DrainProgress::Done;
        }
        let only_people_can_help = left.iter().any(|(_, _, class)| *class == Class::Unmanaged);
        let quiet = LOOK.0.saturating_mul(1 << self.quiet.min(8)).min(LOOK.1);
        let tries =
            left.iter().filter(|(_, _, class)| *class == Class::Evicted).map(|(_, b, _)| until(now, b.next_try));
        let leaving = left.iter().any(|(_, b, _)| !b.stuck);
        let next = match self.hold_back.filter(|until| *until > now) {
            _ if only_people_can_help => LOOK_BLOCKED,
            Some(held) => until(now, held),
            None if leaving => quiet,
            None => tries.min().unwrap_or(quiet),
        };
        left.sort_by(|(p, a, _), (q, b, _)| {
            b.stuck.cmp(&a.stuck).then(a.since.cmp(&b.since)).then_with(|| p.full_name().cmp(&q.full_name()))
        });
        let blocker = |(pod, blocked, _): &(&Pod, &Blocked, Class)| DrainBlocker {
            pod: pod.full_name(),
            reason: blocked.reason.clone(),
            since: Time::from(blocked.since),
        };
        DrainProgress::Waiting {
            blockers: left.iter().take(MAX_BLOCKERS).map(blocker).collect(),
            next: next.max(LOOK.0),
        }
    }

    /// Spreads the retries of pods and nodes: a small generator is enough for that.
    fn next_jitter(&mut self) -> u32 {
        if self.jitter == 0 {
            self.jitter = std::process::id() | 1;
        }
        self.jitter = self.jitter.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.jitter >> 16
    }
}

impl Blocked {
    fn new(now: Timestamp) -> Self {
        Self { since: now, tries: 0, next_try: now, reason: "waiting to be evicted".to_owned(), stuck: false }
    }

    fn set(&mut self, reason: &str, stuck: bool) {
        self.reason = reason.chars().take(MAX_REASON).collect();
        self.stuck = stuck;
    }
}

/// From one second, doubling, to ten; up to a quarter less.
fn retry_after(tries: u32, jitter: u32) -> Duration {
    let full = RETRY.0.saturating_mul(1 << tries.min(8)).min(RETRY.1);
    full - full.mul_f64(f64::from(jitter % 256) / 1024.0)
}

fn later(now: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    now.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn until(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, terminating: bool, owner: &str) -> Pod {
        let owners = json!([{"apiVersion": "apps/v1", "kind": owner, "controller": true}]);
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "d", "uid": name,
                "deletionTimestamp": terminating.then_some("2026-11-01T00:00:00Z"),
                "ownerReferences": if owner.is_empty() { json!(null) } else { owners },
            },
            "status": {"phase": "Running"},
        }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn waiting(progress: DrainProgress) -> (Vec<DrainBlocker>, Duration) {
        match progress {
            DrainProgress::Waiting { blockers, next } => (blockers, next),
            DrainProgress::Done => panic!("done"),
        }
    }

    fn names(pods: &[&Pod]) -> Vec<String> {
        pods.iter().map(|pod| pod.metadata.name.clone()).collect()
    }

    #[test]
    fn nothing_to_move_is_done_at_once() {
        let pods = [pod("a", false, "DaemonSet"), pod("b", true, "DaemonSet")];
        let mut drain = Drain::default();
        assert!(drain.sort(&pods, at(0)).is_empty());
        assert_eq!(drain.progress(&pods, at(0)), DrainProgress::Done);
        assert_eq!(drain.progress(&[], at(0)), DrainProgress::Done);
    }

    #[test]
    fn an_evicted_pod_is_waited_for_and_not_evicted_again() {
        let running = [pod("a", false, "ReplicaSet")];
        let mut drain = Drain::default();
        assert_eq!(names(&drain.sort(&running, at(0))), ["a"]);
        drain.note(&running[0], Answer::Accepted, at(0));
        let (blockers, next) = waiting(drain.progress(&running, at(0)));
        assert_eq!((blockers[0].reason.as_str(), next), ("Terminating", LOOK.0));
        assert!(drain.sort(&[pod("a", true, "ReplicaSet")], at(1)).is_empty());
        assert!(drain.sort(&running, at(1)).is_empty(), "a stale list does not evict twice");
        assert!(drain.sort(&[], at(2)).is_empty());
        assert_eq!(drain.progress(&[], at(2)), DrainProgress::Done);
    }

    #[test]
    fn a_budget_is_named_with_its_own_words_and_tried_again_less_and_less_often() {
        let pods = [pod("a", false, "ReplicaSet")];
        let words = "The disruption budget web needs 2 healthy pods and has 2 currently";
        let mut drain = Drain::default();
        let mut now = at(0);
        let mut pauses = vec![];
        for _ in 0..6 {
            assert_eq!(drain.sort(&pods, now).len(), 1);
            drain.note(&pods[0], Answer::Budget(words.to_owned()), now);
            let (blockers, next) = waiting(drain.progress(&pods, now));
            assert_eq!((blockers[0].pod.as_str(), blockers[0].reason.as_str()), ("d/a", words));
            assert_eq!(blockers[0].since.0, at(0), "since the first time");
            assert!(drain.sort(&pods, now).is_empty(), "not before it is due");
            pauses.push(next);
            now = later(now, next);
        }
        assert!(pauses[0] <= RETRY.0 && pauses[0] >= RETRY.0.mul_f64(0.7), "{pauses:?}");
        assert!(pauses[5] <= RETRY.1 && pauses[5] >= RETRY.1.mul_f64(0.7), "{pauses:?}");
    }

    #[test]
    fn an_unmanaged_pod_stops_everything_and_is_told_first() {
        let pods = [pod("a", false, "ReplicaSet"), pod("z", false, "")];
        let mut drain = Drain::default();
        assert!(drain.sort(&pods, at(0)).is_empty());
        let (blockers, next) = waiting(drain.progress(&pods, at(0)));
        assert_eq!((blockers[0].pod.as_str(), next), ("d/z", LOOK_BLOCKED));
        assert!(blockers[0].reason.starts_with("Unmanaged"));
        let mended = [pod("a", false, "ReplicaSet")];
        assert_eq!(names(&drain.sort(&mended, at(10))), ["a"]);
    }

    #[test]
    fn overload_holds_everything_back() {
        let pods = [pod("a", false, "ReplicaSet"), pod("b", false, "ReplicaSet")];
        let mut drain = Drain::default();
        drain.sort(&pods, at(0));
        drain.note(&pods[0], Answer::Overloaded(Duration::from_secs(3)), at(0));
        assert_eq!(waiting(drain.progress(&pods, at(0))).1, Duration::from_secs(3));
        assert!(drain.sort(&pods, at(2)).is_empty());
        assert_eq!(drain.sort(&pods, at(3)).len(), 2);
    }

    #[test]
    fn a_pod_that_comes_again_is_another_one_and_the_list_is_bounded() {
        let mut drain = Drain::default();
        drain.sort(&[pod("a", false, "ReplicaSet")], at(0));
        let many: Vec<Pod> = (0..20).map(|n| pod(&format!("p{n}"), true, "ReplicaSet")).collect();
        drain.sort(&many, at(5));
        let (blockers, _) = waiting(drain.progress(&many, at(5)));
        assert_eq!(blockers.len(), MAX_BLOCKERS);
        assert!(blockers.iter().all(|b| b.since.0 == at(5)));
        assert_eq!(drain.blocked.len(), 20, "what is gone is forgotten");
    }

    #[test]
    fn looks_less_often_while_nothing_changes() {
        let pods = [pod("a", true, "ReplicaSet")];
        let mut drain = Drain::default();
        let mut last = Duration::ZERO;
        for second in 0..10 {
            drain.sort(&pods, at(second));
            let (_, next) = waiting(drain.progress(&pods, at(second)));
            assert!(next >= last);
            last = next;
        }
        assert_eq!(last, LOOK.1);
    }
}
