//! What no liar may do: write objects that belong to others (I6), or make the controller offer berths to two control
//! plane nodes at once (I11). Read from the audit log.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::liar::Liar;
use crate::audit::Record;

/// Objects that a kubelet may create or change for its own node, checked by Kubernetes itself.
const OF_KUBELET: [&str; 9] = [
    "pods",
    "pods/status",
    "pods/eviction",
    "events",
    "tokenreviews",
    "subjectaccessreviews",
    "selfsubjectreviews",
    "serviceaccounts/token",
    "certificatesigningrequests",
];

/// Violations of I6 and I11 in a rollout with a liar. `records` also has the last write of each object before the
/// rollout, which began at `since`.
pub(super) fn violations(records: &[Record], since: Timestamp, liar: &Liar) -> Vec<String> {
    let mut wrong = vec![];
    let servers: BTreeSet<String> = liar.servers.iter().map(|node| format!("node{node}")).collect();
    let name = liar.name();
    let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
    for record in in_order(records) {
        let holder = record.holder();
        if record.is_of("leases") && record.namespace == berth_api::keys::NAMESPACE {
            let lease = written(record);
            let before = holders.get(lease).copied().unwrap_or_default();
            if is_by(record, &name, since) && node_of(before) != Some(name.as_str()) {
                wrong.push(foreign(record, &name, before));
            }
            holders.insert(lease, holder.unwrap_or_default());
            let at_work: BTreeSet<&str> = holders.values().filter_map(|holder| node_of(holder)).collect();
            let of_servers: Vec<_> = at_work.iter().filter(|node| servers.contains(**node)).collect();
            let is_new = holder.and_then(node_of) != node_of(before);
            if of_servers.len() > 1 && is_new {
                wrong.push(format!(
                    "I11: the control plane nodes {of_servers:?} have berths at the same time, at {}",
                    record.at
                ));
            }
        } else if is_by(record, &name, since) && !is_own(record, &name) {
            wrong.push(foreign(record, &name, ""));
        }
    }
    wrong
}

fn foreign(record: &Record, liar: &str, before: &str) -> String {
    let (verb, target, name) = (&record.verb, record.target(), &record.name);
    let before = if before.is_empty() {
        String::new()
    } else {
        format!(", held by {before}")
    };
    format!(
        "I6: {liar} was allowed to {verb} {target} {name}{before} at {}",
        record.at
    )
}

/// Successful writes, in the order of resourceVersions where the log shows them.
fn in_order(records: &[Record]) -> Vec<&Record> {
    let mut writes: Vec<_> = records.iter().filter(|r| r.is_write() && r.succeeded()).collect();
    writes.sort_by_key(|record| (version(record).is_none(), version(record)));
    writes
}

fn version(record: &Record) -> Option<u64> {
    let version = record.response.as_ref()?.pointer("/metadata/resourceVersion")?;
    version.as_str()?.parse().ok()
}

/// True if a node's identities sent the request in this rollout.
fn is_by(record: &Record, node: &str, since: Timestamp) -> bool {
    let is_sender =
        record.node_claim.as_deref() == Some(node) || record.user.strip_prefix("system:node:") == Some(node);
    is_sender && record.received >= since
}

fn is_own(record: &Record, node: &str) -> bool {
    let target = record.target();
    match target.as_str() {
        "bootcnodes/status" | "nodes/status" | "leases" => record.name == node,
        "nodes" => written(record) == node,
        _ => OF_KUBELET.contains(&target.as_str()),
    }
}

/// Name of the written object. A record of a creation may have it only in the object.
fn written(record: &Record) -> &str {
    if !record.name.is_empty() {
        return &record.name;
    }
    let object = record.response.as_ref();
    object
        .and_then(|object| object.pointer("/metadata/name")?.as_str())
        .unwrap_or_default()
}

/// The node that holds a berth or is offered it.
fn node_of(holder: &str) -> Option<&str> {
    let node = holder.strip_prefix("offered:").unwrap_or(holder);
    (!node.is_empty() && !node.contains(':')).then_some(node)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    const AGENT: &str = "system:serviceaccount:berth-system:berth-agent";

    fn liar() -> Liar {
        Liar {
            node: 7,
            has_agent: false,
            pace: Duration::from_millis(50),
            lasts: None,
            repertoire: BTreeSet::new(),
            servers: vec![1, 2, 3],
            seed: 1,
        }
    }

    /// A successful write at second `at`, in the order of resourceVersions.
    fn write(at: u32, user: &str, claim: Option<&str>, resource: &str, object: &Value) -> Record {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = json!(at.to_string());
        let extra = claim.map(|node| json!({ "authentication.kubernetes.io/node-name": [node] }));
        let time = format!("2026-01-01T00:00:{at:02}.000000Z");
        let line = json!({
            "auditID": "x", "stage": "ResponseComplete", "requestURI": "/x", "verb": "update",
            "user": { "username": user, "extra": extra.unwrap_or_else(|| json!({})) },
            "objectRef": {
                "resource": resource, "subresource": subresource, "name": object["metadata"]["name"],
                "namespace": "berth-system",
            },
            "responseStatus": { "code": 200 }, "responseObject": object,
            "requestReceivedTimestamp": time, "stageTimestamp": time,
        });
        berth_judge::audit::parse(line.to_string().as_bytes()).unwrap().unwrap()
    }

    fn berth(at: u32, user: &str, claim: Option<&str>, name: &str, holder: &str) -> Record {
        let lease = json!({ "metadata": { "name": name }, "spec": { "holderIdentity": holder } });
        write(at, user, claim, "leases", &lease)
    }

    fn found(records: &[Record]) -> Vec<String> {
        violations(records, "2026-01-01T00:00:02Z".parse().unwrap(), &liar())
    }

    #[test]
    fn a_liar_may_write_its_own_objects_only() {
        let own = json!({ "metadata": { "name": "node7" } });
        let other = json!({ "metadata": { "name": "node70" } });
        let ok = [
            write(3, AGENT, Some("node7"), "bootcnodes/status", &own),
            write(4, "system:node:node7", None, "nodes", &own),
            write(5, "system:node:node70", None, "nodes", &other),
            write(
                6,
                "system:node:node7",
                None,
                "events",
                &json!({ "metadata": { "name": "x" } }),
            ),
            // Before the rollout, when the node was another's.
            write(1, AGENT, Some("node7"), "bootcnodes/status", &other),
        ];
        assert!(found(&ok).is_empty(), "{:?}", found(&ok));
        let wrong = [
            write(3, AGENT, Some("node7"), "bootcnodes/status", &other),
            write(4, "system:node:node7", None, "nodes/status", &other),
            write(5, AGENT, Some("node7"), "bootcnodepools", &own),
        ];
        assert_eq!(found(&wrong).len(), 3, "{:?}", found(&wrong));
        assert!(
            found(&wrong)
                .iter()
                .all(|text| text.starts_with("I6: node7 was allowed to update"))
        );
    }

    #[test]
    fn a_liar_may_write_its_own_berths_only() {
        let controller = "system:serviceaccount:berth-system:berth-controller";
        let mut records = vec![
            berth(3, controller, None, "workers-0", "offered:node7"),
            berth(4, AGENT, Some("node7"), "workers-0", "node7"),
            berth(5, AGENT, Some("node7"), "workers-0", "closed:released"),
            berth(6, controller, None, "workers-0", "offered:node4"),
        ];
        assert!(found(&records).is_empty(), "{:?}", found(&records));
        records.push(berth(7, AGENT, Some("node7"), "workers-0", "node7"));
        let found = found(&records);
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert!(
            one.starts_with("I6: node7 was allowed to update leases workers-0, held by offered:node4"),
            "{one}"
        );
    }

    #[test]
    fn two_servers_never_have_berths_at_once() {
        let controller = "system:serviceaccount:berth-system:berth-controller";
        let mut records = vec![
            berth(3, controller, None, "workers-0", "offered:node1"),
            berth(4, AGENT, Some("node1"), "workers-0", "node1"),
            berth(5, controller, None, "workers-1", "offered:node4"),
            berth(6, AGENT, Some("node1"), "workers-0", "closed:released"),
            berth(7, controller, None, "workers-2", "offered:node2"),
        ];
        assert!(found(&records).is_empty(), "{:?}", found(&records));
        records.push(berth(8, controller, None, "workers-0", "offered:node3"));
        let found = found(&records);
        assert!(found.len() == 1 && found[0].starts_with("I11: "), "{found:?}");
    }
}
