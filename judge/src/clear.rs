//! I1: a node that goes down under a licence is cordoned by then, and the pods that could be moved are.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::history::{History, licence, text};
use super::{Violation, name_of};
use crate::judge::Judge;

/// Time from the agent's last look at its Node to the end of the host: a commit, an unlock, and a shutdown lie between.
const LAST_LOOK: SignedDuration = SignedDuration::from_secs(10);

/// Time after its grace period from which a pod may be left behind, where its kubelet is away.
const OVERDUE: SignedDuration = SignedDuration::from_secs(30);
/// Time for which a Node must not have been Ready before its kubelet counts as away. After an outage of the API server a kubelet that
/// runs is marked not Ready as well, and watches its pods again within 50 s.
const KUBELET_AWAY: SignedDuration = SignedDuration::from_secs(90);
/// Grace period of a pod that names none, as in Kubernetes.
const DEFAULT_GRACE: i64 = 30;

/// A pod, as the log shows it.
#[derive(Default)]
struct Pod {
    /// Namespace and name.
    name: String,
    /// Its node, and when it came there.
    bound: Option<(String, Timestamp)>,
    /// When it was asked to leave.
    leaving: Option<Timestamp>,
    /// Its grace period in seconds, where it names one.
    grace: Option<i64>,
    /// When it was gone.
    gone: Option<Timestamp>,
}

impl Pod {
    /// True if it should have ended long before.
    fn is_overdue(&self, at: Timestamp) -> bool {
        let grace = SignedDuration::from_secs(self.grace.unwrap_or(DEFAULT_GRACE).clamp(0, 365 * 86_400));
        self.leaving.is_some_and(|since| since + grace + OVERDUE <= at)
    }
}

impl Judge<'_> {
    /// Every reboot under a licence, beside what the API server knew of the node by then.
    pub(super) fn uncleared_reboots(&self, history: &History) -> Vec<Violation> {
        let pods = self.pods();
        let mut wrong = vec![];
        for (host, at, boot) in self.downs() {
            if licence(history, host, at, &boot).is_none() || self.is_excused(host, at) {
                continue;
            }
            let seen = at - LAST_LOOK - self.lag;
            if let Some(since) = self
                .uncordoned_since(host, at)
                .filter(|since| *since < seen && !self.misses_time(*since, at))
            {
                let text = format!("{host} went down at {at}, and was not cordoned since {since}");
                wrong.push(self.of_boot("I1", host, at, &boot, text));
            }
            if !self.evidence.pods || !self.drains(host, at) {
                continue;
            }
            let kubelet_is_away = self
                .not_ready_since(host, seen)
                .is_some_and(|since| since + KUBELET_AWAY <= at);
            let left = pods.iter().filter(|pod| !(kubelet_is_away && pod.is_overdue(at)));
            let left = left.filter(|pod| {
                let here = pod
                    .bound
                    .as_ref()
                    .is_some_and(|(node, since)| node == host && *since < seen);
                here && pod.gone.is_none_or(|gone| gone > at)
            });
            wrong.extend(left.map(|pod| {
                let text = format!("{host} went down at {at} with the pod {} on it", pod.name);
                self.of_boot("I1", host, at, &boot, text)
            }));
        }
        wrong
    }

    /// Since when the Node is schedulable; `None` when it is not, or the log does not know it.
    fn uncordoned_since(&self, host: &str, at: Timestamp) -> Option<Timestamp> {
        let mut since = None;
        for (_, record, node) in self.writes("nodes").iter().rev() {
            if name_of(record, node) != host || record.at > at {
                continue;
            }
            if record.unschedulable() == Some(true) {
                break;
            }
            since = Some(record.at);
        }
        since
    }

    /// Time since which the Node was not Ready; `None` if it was Ready at `at`, or the log does not say.
    fn not_ready_since(&self, host: &str, at: Timestamp) -> Option<Timestamp> {
        let mut since = None;
        for (_, record, node) in self.writes("nodes/status") {
            if name_of(record, node) != host || record.at > at {
                continue;
            }
            let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
            let mut ready = conditions
                .into_iter()
                .flatten()
                .filter(|c| text(c, "/type") == Some("Ready"));
            let Some(ready) = ready.next() else { continue };
            since = match text(ready, "/status") {
                Some("True") => None,
                _ => since.or(Some(record.at)),
            };
        }
        since
    }

    /// Says whether the pool has all ordinary pods moved, however long that takes.
    fn drains(&self, host: &str, at: Timestamp) -> bool {
        let mut specs = self
            .writes("bootcnodes")
            .iter()
            .filter(|(_, r, object)| name_of(r, object) == host && r.at <= at);
        let drain = specs
            .next_back()
            .and_then(|(_, _, object)| object.pointer("/spec/drain"));
        let Some(drain) = drain else { return true };
        let enabled = drain.get("enabled").and_then(Value::as_bool) != Some(false);
        enabled && drain.get("podSelector").is_none() && text(drain, "/onTimeout") != Some("Force")
    }

    /// Pods of ReplicaSets, which every drain moves.
    fn pods(&self) -> Vec<Pod> {
        let mut pods: BTreeMap<(String, String), Vec<Pod>> = BTreeMap::new();
        for record in self.audit.iter().filter(|r| r.succeeded() && r.resource == "pods") {
            let pod = record.response.as_ref().unwrap_or(&Value::Null);
            let name = match record.subresource.as_str() {
                "" => name_of(record, pod),
                _ => record.name.as_str(),
            };
            let lives = pods.entry((record.namespace.clone(), name.to_owned())).or_default();
            match (record.verb.as_str(), record.subresource.as_str()) {
                ("create", "") if text(pod, "/metadata/ownerReferences/0/kind") == Some("ReplicaSet") => {
                    let node = text(pod, "/spec/nodeName");
                    lives.push(Pod {
                        name: format!("{}/{name}", record.namespace),
                        bound: node.map(|node| (node.to_owned(), record.at)),
                        grace: pod
                            .pointer("/spec/terminationGracePeriodSeconds")
                            .and_then(Value::as_i64),
                        ..Pod::default()
                    });
                }
                ("create", "binding") => {
                    let node = record.request.as_ref().and_then(|b| text(b, "/target/name"));
                    if let Some(life) = lives.last_mut() {
                        life.bound = node.map(|node| (node.to_owned(), record.at));
                    }
                }
                ("create", "eviction") => {
                    if let Some(life) = lives.last_mut() {
                        life.leaving.get_or_insert(record.at);
                    }
                }
                ("delete", "") => {
                    // Who asks last for its end is its kubelet, when it has ended.
                    if let Some(life) = lives.last_mut() {
                        life.leaving.get_or_insert(record.at);
                        life.gone = Some(record.at);
                    }
                }
                _ => {}
            }
        }
        pods.into_values().flatten().collect()
    }
}
