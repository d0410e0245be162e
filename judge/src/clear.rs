//! I1: before a node goes down under a licence, it is cordoned, and the pods that can be moved are gone.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::history::{History, licence};
use crate::judge::Judge;
use crate::names::name_of;
use crate::violation::Violation;
use crate::write::text;

/// Longest time from the agent's last check of its Node until the host goes down: commit, unlock and shutdown.
const LAST_LOOK: SignedDuration = SignedDuration::from_secs(10);

/// A pod counts as overdue when its grace period has been over for this long. If the kubelet of a node is away,
/// overdue pods may stay on the node.
const OVERDUE: SignedDuration = SignedDuration::from_secs(30);
/// A kubelet counts as away when its Node has been not Ready for this long. An outage of the API server also makes the
/// Node of a running kubelet not Ready, and that kubelet then needs up to 50 s to watch its pods again.
const KUBELET_AWAY: SignedDuration = SignedDuration::from_secs(90);
/// Kubernetes' default grace period, in seconds.
const DEFAULT_GRACE: i64 = 30;

#[derive(Default)]
struct Pod {
    name: String,
    /// Node that the pod is bound to, and the time of the binding.
    bound: Option<(String, Timestamp)>,
    /// Time of the first request to evict or delete the pod.
    leaving: Option<Timestamp>,
    /// Grace period in seconds, if the pod names one.
    grace: Option<i64>,
    /// Time of the last request to delete the pod.
    gone: Option<Timestamp>,
}

impl Pod {
    fn is_overdue(&self, at: Timestamp) -> bool {
        let grace = SignedDuration::from_secs(self.grace.unwrap_or(DEFAULT_GRACE).clamp(0, 365 * 86_400));
        self.leaving.is_some_and(|since| since + grace + OVERDUE <= at)
    }
}

impl Judge<'_> {
    /// Finds hosts that went down under a licence while their Node was not cordoned, or while it had pods that a drain
    /// moves.
    pub(super) fn uncleared_reboots(&self, history: &History) -> Vec<Violation> {
        let pods = self.pods();
        let mut wrong = vec![];
        for (host, at, boot) in self.downs() {
            if licence(history, host, at, &boot).is_none() || self.is_excused(host, at) || self.is_liar(host) {
                continue;
            }
            let known_by = at - LAST_LOOK - self.lag;
            if let Some(since) = self
                .uncordoned_since(host, at)
                .filter(|since| *since < known_by && !self.misses_time(*since, at))
            {
                let text =
                    format!("{host} went down at {at} without a cordon; its Node had been schedulable since {since}");
                wrong.push(self.of_boot("I1", host, at, &boot, text));
            }
            if !self.evidence.pods || !self.drains(host, at) {
                continue;
            }
            let kubelet_is_away = self
                .not_ready_since(host, known_by)
                .is_some_and(|since| since + KUBELET_AWAY <= at);
            let left = pods.iter().filter(|pod| !(kubelet_is_away && pod.is_overdue(at)));
            let left = left.filter(|pod| {
                let here = pod
                    .bound
                    .as_ref()
                    .is_some_and(|(node, since)| node == host && *since < known_by);
                here && pod.gone.is_none_or(|gone| gone > at)
            });
            wrong.extend(left.map(|pod| {
                let text = format!(
                    "{host} went down at {at} while the pod {} was still on the host",
                    pod.name
                );
                self.of_boot("I1", host, at, &boot, text)
            }));
        }
        wrong
    }

    /// Returns since when the Node has been schedulable; `None` if it was cordoned at `at`, or the log does not show
    /// it.
    fn uncordoned_since(&self, host: &str, at: Timestamp) -> Option<Timestamp> {
        let doubt = self.last_unanswered_cordon(host, at);
        // The answer to each write of the status has the whole Node, too.
        let writes = self.writes("nodes").iter().chain(self.writes("nodes/status"));
        let of_host = writes
            .filter(|(_, record, node)| name_of(record, node) == host && record.at <= at && node.get("spec").is_some());
        let mut of_host: Vec<_> = of_host.collect();
        of_host.sort_by_key(|(version, ..)| *version);
        let mut since = None;
        for (_, record, _) in of_host.into_iter().rev() {
            if record.unschedulable() == Some(true) || doubt.is_some_and(|doubt| record.received <= doubt) {
                break;
            }
            since = Some(record.at);
        }
        since
    }

    /// Time when the last unanswered request to cordon the host's Node ended. The API server may have stored that cordon.
    fn last_unanswered_cordon(&self, host: &str, at: Timestamp) -> Option<Timestamp> {
        let asked = self.doubtful("nodes").filter(|record| {
            let wanted = record
                .request
                .as_ref()
                .and_then(|body| body.pointer("/spec/unschedulable"));
            record.name == host && record.received <= at && wanted == Some(&Value::Bool(true))
        });
        asked.map(|record| record.at).max()
    }

    /// Returns since when the Node has been not Ready; `None` if it was Ready at `at`, or the log does not show it.
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

    /// True if the host's pool drains all ordinary pods, and never forces pods out at a timeout (`onTimeout: Force`).
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

    /// Returns the pods of ReplicaSets, which every drain moves.
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
                    // The last request to delete a pod is from the kubelet, when the pod has ended.
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
