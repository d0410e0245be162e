//! I1: a node that goes down under a licence is cordoned by then, and the pods that could be moved are.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::history::{History, licence, text};
use super::{Violation, name_of};
use crate::judge::Judge;

/// Time from the agent's last look at its Node to the end of the host: a commit, an unlock, and a shutdown lie between.
const LAST_LOOK: SignedDuration = SignedDuration::from_secs(10);

/// A pod, as the log shows it.
#[derive(Default)]
struct Pod {
    /// Namespace and name.
    name: String,
    /// Its node, and when it came there.
    bound: Option<(String, Timestamp)>,
    /// When it was gone.
    gone: Option<Timestamp>,
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
            let left = pods.iter().filter(|pod| {
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
                        gone: None,
                    });
                }
                ("create", "binding") => {
                    let node = record.request.as_ref().and_then(|b| text(b, "/target/name"));
                    if let Some(life) = lives.last_mut() {
                        life.bound = node.map(|node| (node.to_owned(), record.at));
                    }
                }
                ("delete", "") => {
                    // Who asks last for its end is its kubelet, when it has ended.
                    if let Some(life) = lives.last_mut() {
                        life.gone = Some(record.at);
                    }
                }
                _ => {}
            }
        }
        pods.into_values().flatten().collect()
    }
}
