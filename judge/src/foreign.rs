//! I6: a node's credentials write only this node's objects, and no berth that Berth cannot read.

use std::collections::BTreeMap;

use berth_api::keys;

use crate::audit::Record;
use crate::history::is_unreadable;
use crate::judge::Judge;
use crate::names::name;
use crate::sender::{Sender, sender};
use crate::violation::Violation;
use crate::write::text;

/// Nodes of the pods, by namespace and name.
type Places<'a> = BTreeMap<(&'a str, &'a str), &'a str>;

impl Judge<'_> {
    /// Finds objects of others that a liar was allowed to write. Writes of berths are judged with the protocol.
    pub(super) fn foreign_writes(&self) -> Vec<Violation> {
        if self.liars.is_empty() {
            return vec![];
        }
        let places = self.places();
        let mut wrong = vec![];
        for record in self.audit.iter().filter(|r| r.is_write() && r.succeeded()) {
            let Some(sender) = sender(record).filter(|sender| self.is_liar(sender.node())) else {
                continue;
            };
            if !is_own(sender, record, &places) {
                let (node, verb, target, at) = (sender.node(), &record.verb, record.target(), record.at);
                let text = format!("{node} was allowed to {verb} {target} {} at {at}", name(record));
                wrong.push(Violation::of_record("I6", node, record, text));
            }
        }
        wrong
    }

    /// Finds berths that no program of Berth can read any more, and that a program of Berth wrote.
    pub(super) fn unreadable_berths(&self) -> Vec<Violation> {
        if !self.evidence.whole {
            return vec![];
        }
        let mut wrong = vec![];
        for record in self.audit.iter().filter(|r| is_unreadable(r)) {
            let sender = sender(record).map(Sender::node);
            let is_by_controller = record.user.ends_with(":berth-controller");
            let Some(who) = sender.or(is_by_controller.then_some("the controller")) else {
                continue;
            };
            let text = format!("{who} stored an unreadable berth {} at {}", name(record), record.at);
            wrong.push(Violation::of_record("I6", sender.unwrap_or_default(), record, text));
        }
        wrong
    }

    fn places(&self) -> Places<'_> {
        let mut places = Places::new();
        for record in self.audit.iter().filter(|r| r.succeeded() && r.verb == "create") {
            let node = match (record.resource.as_str(), record.subresource.as_str()) {
                ("pods", "") => record.response.as_ref().and_then(|pod| text(pod, "/spec/nodeName")),
                ("pods", "binding") => record.request.as_ref().and_then(|b| text(b, "/target/name")),
                _ => None,
            };
            if let Some(node) = node.filter(|node| !node.is_empty()) {
                places.insert((&record.namespace, name(record)), node);
            }
        }
        places
    }
}

/// True if a node's identity may make this write: the object belongs to the node, or to no single node.
fn is_own(sender: Sender<'_>, record: &Record, places: &Places<'_>) -> bool {
    let (target, written) = (record.target(), name(record));
    if matches!(target.as_str(), "selfsubjectreviews" | "selfsubjectaccessreviews") {
        return true;
    }
    let is_change = !record.verb.starts_with("delete");
    match sender {
        Sender::Agent(node) => match target.as_str() {
            "bootcnodes/status" => is_change && written == node,
            // The protocol has a rule for the holder of the berth.
            "leases" => record.verb == "update",
            _ => false,
        },
        Sender::Kubelet(node) => match target.as_str() {
            "nodes" | "nodes/status" => is_change && written == node,
            // A record of a creation has no name.
            "leases" => {
                is_change && record.namespace == "kube-node-lease" && (written == node || record.verb == "create")
            }
            "pods" if matches!(record.verb.as_str(), "create" | "delete") => is_on(node, record, places),
            "pods/status" | "pods/eviction" => is_on(node, record, places),
            "serviceaccounts/token" => record.namespace != keys::NAMESPACE || written != "berth-controller",
            "events" | "tokenreviews" | "subjectaccessreviews" | "certificatesigningrequests" => is_change,
            _ => false,
        },
    }
}

/// True if the pod is on this node, or if the log does not show where it is.
fn is_on(node: &str, record: &Record, places: &Places<'_>) -> bool {
    let at = places.get(&(record.namespace.as_str(), name(record)));
    at.is_none_or(|at| *at == node)
}
