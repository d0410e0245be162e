//! Moves the pods away from this agent's node, by the rules of `kubectl drain` (see [`super::pods`]).
//!
//! The drain works in passes. Each pass lists the pods, asks the due pods to leave, and returns the remaining pods and
//! the time until the next pass. A restart of the agent loses only the times when pods began to block. While an admin
//! must decide about a pod (see [`super::pods::Obstacle`]), no pod is moved: the drain could not end, and would disturb
//! the other pods without need. If the pool's `onTimeout` is Force, the other pods are moved anyway, and budgets are
//! ignored after the drain's timeout. [`Mover`] sends the requests that make a pod leave.

mod entry;
mod given;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use berth_api::node::DrainBlocker;
use berth_core::Moment;
pub use berth_core::agent::knowledge::DrainProgress;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use serde::Deserialize;

use self::entry::{Entry, RETRY_WITHIN, retry_after, wait};
pub use self::given::Given;
use super::evict::{Answer, ByRequest, Mover};
use super::pods::{Class, Pod};
pub use super::settings::Settings;
use super::{request, send, volumes};
use crate::clients::RequestError;

const CONCURRENT: usize = 8;
const PAGE: usize = 200;
/// Maximum number of blockers in the BootcNode's schema.
const MAX_BLOCKERS: usize = 10;
/// Minimum and maximum time between two passes while pods are terminating.
const LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Time between two passes while the drain waits for an admin.
const LOOK_BLOCKED: Duration = Duration::from_secs(10);
/// Maximum time without requests after the API server reports an overload.
const HOLD_BACK: Duration = Duration::from_secs(60);
/// How long to wait until volumes are detached, after their pods are gone.
const VOLUMES: Duration = Duration::from_secs(120);
/// A kubelet counts as away after its Node has been not Ready for this time. The Node of a running kubelet also becomes
/// not Ready during an outage of the API server. After the outage, that kubelet needs up to 50 s to watch its pods
/// again.
const KUBELET_AWAY: Duration = Duration::from_secs(90);
/// Maximum time between two passes in one [`NotReady`] span. After a longer gap, a new span begins, because the API
/// server may have been away.
const BLIND: Duration = Duration::from_secs(20);
/// Maximum length of a blocker's name in the BootcNode's schema, in characters.
const MAX_NAME: usize = 320;

/// The drain of one turn.
#[derive(Debug, Default)]
pub struct Drain {
    known: HashMap<String, Entry>,
    /// UIDs of all pods in the first pass.
    first: Option<HashSet<String>>,
    /// No requests are sent before this time, because the API server was overloaded.
    hold_back: Option<Moment>,
    /// When the wait for volumes began (for display), and when it ends.
    volumes: Option<(Timestamp, Moment)>,
    /// `None` while the Node is Ready.
    not_ready: Option<NotReady>,
    /// True if the last pass was forced: the drain had timed out, with `onTimeout: Force`.
    forced: bool,
    /// Number of consecutive passes without progress: no pod has left, and no request to move a pod was accepted.
    quiet: u32,
}

/// A span of consecutive passes that saw the Node not Ready.
#[derive(Debug, Clone, Copy)]
struct NotReady {
    since: Moment,
    last: Moment,
}

#[derive(Deserialize)]
struct PodList {
    #[serde(default)]
    metadata: ListMetadata,
    items: Option<Vec<Pod>>,
}

#[derive(Deserialize, Default)]
struct ListMetadata {
    #[serde(rename = "continue", default)]
    next: Option<String>,
}

async fn list(client: &Client, node: &str) -> Result<Vec<Pod>, RequestError> {
    let first = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}&limit={PAGE}");
    let mut path = first.clone();
    let mut pods = vec![];
    loop {
        let page: PodList = send(client, request("GET", &path, vec![], "application/json")?).await?;
        pods.extend(page.items.unwrap_or_default());
        match page.metadata.next.filter(|token| !token.is_empty()) {
            // The token is base64url, so only `=` needs escaping.
            Some(token) => path = format!("{first}&continue={}", token.replace('=', "%3D")),
            None => return Ok(pods),
        }
    }
}

impl Drain {
    /// Makes one pass. A pod that cannot be moved becomes a blocker; it is not an error.
    pub async fn pass(&mut self, client: &Client, given: &Given<'_>) -> Result<DrainProgress, RequestError> {
        let pods = list(client, given.node).await?;
        let settings = given.settings;
        let delete = settings.disable_eviction || settings.forced;
        let mover = ByRequest {
            client,
            grace_period: settings.grace_period,
            delete,
        };
        let progress = self.move_pods(&mover, &pods, given).await;
        // A kubelet that is not ready unmounts no volumes, so the drain does not wait for them.
        if !matches!(progress, DrainProgress::Done { .. }) || !given.node_ready {
            return Ok(progress);
        }
        let staying = pods.iter().filter(|pod| pod.class(settings) == Class::Stays);
        let lingering = volumes::lingering(client, given.node, staying).await?;
        Ok(self.wait_for_volumes(progress, &lingering, given))
    }

    async fn move_pods(&mut self, mover: &impl Mover, pods: &[Pod], given: &Given<'_>) -> DrainProgress {
        let due = self.sort(pods, given);
        let answers: Vec<(&Pod, Answer)> = futures::stream::iter(due)
            .map(|pod| async move { (pod, mover.ask(pod).await) })
            .buffer_unordered(CONCURRENT)
            .collect()
            .await;
        for (pod, answer) in answers {
            self.note(pod, answer, given);
        }
        self.progress(pods, given)
    }

    fn watch_kubelet(&mut self, given: &Given<'_>) {
        let now = given.clock;
        if given.node_ready {
            self.not_ready = None;
            return;
        }
        let since = match self.not_ready {
            Some(seen) if now.since(seen.last) <= BLIND => seen.since,
            _ => now,
        };
        self.not_ready = Some(NotReady { since, last: now });
    }

    /// True if the Node has been not Ready for [`KUBELET_AWAY`]. Its kubelet then cannot end pods.
    fn kubelet_is_away(&self, given: &Given<'_>) -> bool {
        let not_ready = self.not_ready.filter(|_| !given.node_ready);
        not_ready.is_some_and(|seen| given.clock.since(seen.since) >= KUBELET_AWAY)
    }

    /// Updates the entries from the list of pods. Returns the pods to ask in this pass.
    fn sort<'a>(&mut self, pods: &'a [Pod], given: &Given<'_>) -> Vec<&'a Pod> {
        let now = given.clock;
        self.watch_kubelet(given);
        let before = self.known.len();
        let mut classes: Vec<(&Pod, Class)> = pods.iter().map(|pod| (pod, pod.class(given.settings))).collect();
        classes.retain(|(_, class)| *class != Class::Stays);
        self.known
            .retain(|uid, _| classes.iter().any(|(pod, _)| pod.metadata.uid == *uid));
        self.quiet = if self.known.len() == before {
            self.quiet.saturating_add(1)
        } else {
            0
        };
        let first = self
            .first
            .get_or_insert_with(|| pods.iter().map(|pod| pod.metadata.uid.clone()).collect());
        for (pod, class) in &classes {
            let late = !first.contains(&pod.metadata.uid);
            let entry = self
                .known
                .entry(pod.metadata.uid.clone())
                .or_insert_with(|| Entry::new(given, late));
            match class {
                Class::Terminating => entry.seen_ending(now),
                Class::Blocked(obstacle) => entry.set(obstacle.reason(), true),
                // A forced drain does not wait for budgets.
                _ if given.settings.forced && !self.forced => entry.next_try = now,
                Class::Finished | Class::Moves | Class::Stays => {}
            }
        }
        if given.settings.forced && !self.forced {
            tracing::warn!(
                "the drain timed out (onTimeout: Force): deleting pods that only a PodDisruptionBudget blocks; unmanaged pods and pods with emptyDir data still block the drain"
            );
        }
        self.forced = given.settings.forced;
        let blocked = !given.settings.despite_obstacles
            && classes
                .iter()
                .any(|(pod, class)| class.is_blocked() && self.must_leave(pod, *class, given).is_some());
        if self.held_back(now).is_some() || blocked {
            return vec![];
        }
        let mut due = vec![];
        for (pod, class) in classes {
            if matches!(class, Class::Moves | Class::Finished)
                && let Some(entry) = self.must_leave(pod, class, given)
                && wait(now, entry.next_try).is_none()
            {
                due.push(pod);
            }
        }
        due
    }

    /// Returns the pod's entry if the drain must wait for the pod; `None` if the drain continues without it.
    fn must_leave(&self, pod: &Pod, class: Class, given: &Given<'_>) -> Option<&Entry> {
        let entry = self.known.get(&pod.metadata.uid)?;
        let left_behind = entry.left_behind(pod, class, given, self.kubelet_is_away(given));
        left_behind.is_none().then_some(entry)
    }

    fn note(&mut self, pod: &Pod, answer: Answer, given: &Given<'_>) {
        let now = given.clock;
        let entry = self
            .known
            .entry(pod.metadata.uid.clone())
            .or_insert_with(|| Entry::new(given, false));
        let name = pod.full_name();
        match &answer {
            Answer::Accepted | Answer::Gone => {
                if given.settings.forced {
                    tracing::warn!(pod = name, ?answer, "deleted the pod by force");
                } else {
                    tracing::info!(pod = name, ?answer, "the pod leaves the node");
                }
                self.quiet = 0;
                entry.by_force |= given.settings.forced && answer == Answer::Accepted;
                entry.tries = 0;
                entry.ends();
                // The next list shows whether the pod is terminating or gone.
                entry.next_try = now + RETRY_WITHIN;
                return;
            }
            Answer::Overloaded(pause) => {
                self.hold_back = Some(now + (*pause).min(HOLD_BACK));
                entry.set("the API server is overloaded", false);
                return;
            }
            Answer::Ending(text) => entry.set(&format!("the pod's namespace is being deleted: {text}"), false),
            Answer::Budget(text) => entry.set(text, true),
            Answer::Misconfigured(text) => entry.set(text, true),
            Answer::Refused(text) => entry.set(&format!("the API server rejects the eviction: {text}"), true),
            Answer::Failed(text) => entry.set(&format!("the eviction request failed: {text}"), true),
        }
        if entry.tries == 0 {
            tracing::info!(pod = name, reason = entry.reason, "the pod cannot be moved yet");
        }
        entry.tries = entry.tries.saturating_add(1);
        entry.next_try = now + retry_after(entry.tries);
    }

    fn progress(&mut self, pods: &[Pod], given: &Given<'_>) -> DrainProgress {
        let mut left: Vec<(&Pod, &Entry, Class)> = vec![];
        let mut left_behind = vec![];
        let mut told = vec![];
        let kubelet_is_away = self.kubelet_is_away(given);
        for pod in pods {
            let class = pod.class(given.settings);
            let Some(entry) = self.known.get(&pod.metadata.uid).filter(|_| class != Class::Stays) else {
                continue;
            };
            match entry.left_behind(pod, class, given, kubelet_is_away) {
                None => left.push((pod, entry, class)),
                Some(why) => {
                    if !entry.told {
                        tracing::warn!(pod = pod.full_name(), why, "the drain continues without this pod");
                        told.push(pod.metadata.uid.clone());
                    }
                    left_behind.push(entry.blocker_because(pod, why));
                }
            }
        }
        let progress = if left.is_empty() {
            DrainProgress::Done { left_behind }
        } else {
            DrainProgress::Waiting {
                next: self.next(&left, given),
                blockers: blockers(left),
            }
        };
        for uid in told {
            self.known.entry(uid).and_modify(|entry| entry.told = true);
        }
        progress
    }

    /// Returns how long to send no requests, because the API server is overloaded; `None` if requests may be sent now.
    fn held_back(&self, now: Moment) -> Option<Duration> {
        wait(now, self.hold_back?)
    }

    fn next(&self, left: &[(&Pod, &Entry, Class)], given: &Given<'_>) -> Duration {
        let now = given.clock;
        let only_people_can_help = if given.settings.despite_obstacles {
            left.iter().all(|(_, _, class)| class.is_blocked())
        } else {
            left.iter().any(|(_, _, class)| class.is_blocked())
        };
        let quiet = LOOK.0.saturating_mul(1 << self.quiet.min(8)).min(LOOK.1);
        let asked = left.iter().filter(|(_, _, class)| *class != Class::Terminating);
        let tries = asked.map(|(_, entry, _)| wait(now, entry.next_try).unwrap_or_default());
        let leaving = left.iter().any(|(_, entry, _)| !entry.stuck);
        let next = match self.held_back(now) {
            _ if only_people_can_help => LOOK_BLOCKED,
            Some(held) => held,
            None if leaving => quiet,
            None => tries.min().unwrap_or(quiet),
        };
        next.max(LOOK.0)
    }

    /// Waits a limited time until the volumes of gone pods are detached. The reboot unmounts the volumes in any case.
    /// But if a volume stays attached, a pod on another node that needs it cannot start until this node is back.
    fn wait_for_volumes(&mut self, done: DrainProgress, lingering: &[String], given: &Given<'_>) -> DrainProgress {
        if lingering.is_empty() {
            return done;
        }
        let now = given.clock;
        let most = if given.left.is_zero() {
            VOLUMES
        } else {
            VOLUMES.min(given.left / 2)
        };
        let (since, end) = *self.volumes.get_or_insert((given.now, now + most));
        if let Some(rest) = wait(now, end) {
            let reason = "no pod uses the volume, but it is still attached to this node";
            return DrainProgress::Waiting {
                blockers: volume_blockers(lingering, reason, since),
                next: rest.min(LOOK.1).max(LOOK.0),
            };
        }
        let DrainProgress::Done { mut left_behind } = done else {
            return done;
        };
        tracing::warn!(
            volumes = lingering.join(" "),
            "volumes are still attached; the drain continues without waiting for them"
        );
        let reason =
            "the volume is still attached to this node; pods on other nodes that need it start when this node is back";
        left_behind.extend(volume_blockers(lingering, reason, since));
        DrainProgress::Done { left_behind }
    }
}

/// Returns the first [`MAX_BLOCKERS`] volumes as blockers with this reason.
fn volume_blockers(volumes: &[String], reason: &str, since: Timestamp) -> Vec<DrainBlocker> {
    let mut blockers = vec![];
    for name in volumes.iter().take(MAX_BLOCKERS) {
        blockers.push(DrainBlocker {
            pod: format!("volume {name}").chars().take(MAX_NAME).collect(),
            reason: reason.to_owned(),
            since: Time::from(since),
        });
    }
    blockers
}

/// Returns at most [`MAX_BLOCKERS`] blocking pods. Pods that cannot be moved for now come first. Within each group, the
/// pods that have blocked longest come first.
fn blockers(mut left: Vec<(&Pod, &Entry, Class)>) -> Vec<DrainBlocker> {
    left.sort_by(|(p, a, _), (q, b, _)| {
        b.stuck
            .cmp(&a.stuck)
            .then(a.since.cmp(&b.since))
            .then_with(|| p.full_name().cmp(&q.full_name()))
    });
    left.iter()
        .take(MAX_BLOCKERS)
        .map(|(pod, entry, _)| entry.blocker(pod))
        .collect()
}
