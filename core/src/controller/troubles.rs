//! Nodes that become degraded or recover, found by comparison with the last call. Pure. A new leader does not report
//! nodes that are degraded when it starts, because an earlier leader has reported them. When such a node recovers, the
//! new leader reports that.

use std::collections::BTreeMap;

use berth_api::condition::Word;
use berth_api::{NodeName, NodeUid, PoolName};

use crate::controller::snapshot::Snapshot;
use crate::controller::view::{BootcNodeContent, NodeView};
use crate::finding::Finding;

/// Maximum number of nodes that are reported one by one for the same reason. A registry outage can affect thousands of
/// nodes at once. The pool's status and the metrics count all of them.
pub const TOLD_OF: usize = 10;

/// A change of a node's condition `NodeDegraded`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TroubleNews {
    /// The node.
    pub node: NodeName,
    /// UID of the node.
    pub uid: NodeUid,
    /// Pool of the node.
    pub pool: PoolName,
    /// Problem of the node; `None` if a problem that was reported is over.
    pub trouble: Option<Finding>,
}

impl TroubleNews {
    fn of(node: &NodeView, content: &BootcNodeContent, trouble: Option<Finding>) -> Self {
        Self {
            node: node.name.clone(),
            uid: node.uid.clone(),
            pool: content.spec.pool_name.as_str().into(),
            trouble,
        }
    }
}

/// Degraded nodes, as of the last call of [`Self::see`].
#[derive(Debug, Default)]
pub struct Troubles {
    known: BTreeMap<NodeUid, Known>,
    /// True after the first call of [`Self::see`].
    began: bool,
}

#[derive(Debug)]
struct Known {
    reason: Word,
    is_told: bool,
}

impl Troubles {
    /// Records the current nodes. Returns the nodes that became degraded, changed their reason, or recovered.
    pub fn see(&mut self, snapshot: &Snapshot) -> Vec<TroubleNews> {
        let mut news = vec![];
        let mut before = std::mem::take(&mut self.known);
        let mut told: BTreeMap<String, usize> = BTreeMap::new();
        for known in before.values().filter(|known| known.is_told) {
            *told.entry(known.reason.to_string()).or_default() += 1;
        }
        for (name, host) in snapshot.bootc_nodes.iter() {
            let Some(node) = snapshot.nodes.get(name) else {
                continue;
            };
            let uid = &node.view.uid;
            let known = before.remove(uid);
            let Ok(content) = &host.view.content else {
                self.known.extend(known.map(|known| (uid.clone(), known)));
                continue;
            };
            let Some(trouble) = content.trouble(&node.view.name) else {
                if known.is_some_and(|known| known.is_told) {
                    news.push(TroubleNews::of(&node.view, content, None));
                }
                continue;
            };
            let known = match known {
                Some(known) if known.reason == trouble.reason => known,
                _ => {
                    let others = told.entry(trouble.reason.to_string()).or_default();
                    let is_told = *others < TOLD_OF;
                    if is_told {
                        *others += 1;
                    }
                    // An earlier leader has already reported the troubles that the first call sees.
                    if is_told && self.began {
                        news.push(TroubleNews::of(&node.view, content, Some(trouble.clone())));
                    }
                    let reason = trouble.reason.clone();
                    Known { reason, is_told }
                }
            };
            self.known.insert(uid.clone(), known);
        }
        self.began = true;
        news
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::decode::Decoded;
    use berth_api::node::BootcNode;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::snapshot::Entry;
    use crate::controller::view::{BootcNodeView, NodeView};

    /// Returns the reported changes: name of the node, and reason (`None`: recovered). `nodes`: name of each node, and
    /// reason of its trouble (`-`: none).
    fn look(troubles: &mut Troubles, nodes: &[(&str, &str)]) -> Vec<(String, Option<String>)> {
        let mut snapshot = Snapshot::default();
        for (name, reason) in nodes {
            let (metadata, uid) = (
                json!({ "name": name, "uid": format!("uid-{name}") }),
                format!("uid-{name}"),
            );
            let node: Decoded<Node> = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            let conditions: Vec<Value> = (*reason != "-")
                .then(|| {
                    json!({
                        "type": "NodeDegraded", "status": "True", "reason": reason, "message": format!("{name}: {reason}"),
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    })
                })
                .into_iter()
                .collect();
            let host: BootcNode = serde_json::from_value(json!({
                "metadata": metadata, "spec": { "poolName": "p", "nodeUID": uid }, "status": { "conditions": conditions },
            }))
            .unwrap();
            let view = BootcNodeView::of(host.into());
            Arc::make_mut(&mut snapshot.nodes).insert((*name).to_owned(), Entry::new(NodeView::of(&node)));
            Arc::make_mut(&mut snapshot.bootc_nodes).insert((*name).to_owned(), Entry::new(view));
        }
        let news = troubles.see(&snapshot).into_iter();
        news.map(|n| (n.node.to_string(), n.trouble.map(|found| found.reason.to_string())))
            .collect()
    }

    #[test]
    fn each_trouble_and_its_end_are_reported_once() {
        let mut troubles = Troubles::default();
        let first = [("a", "DiskFull"), ("b", "-")];
        let both = [("a", "-"), ("b", "NodeNotReady")];
        for (nodes, expected) in [
            // A new leader does not report existing troubles again.
            (&first[..], &[][..]),
            (&first, &[]),
            // The trouble of a, which an earlier leader reported, has ended.
            (&both, &[("a", None), ("b", Some("NodeNotReady"))]),
            (&both, &[]),
            (&[("b", "DiskFull")], &[("b", Some("DiskFull"))]),
            (&[("b", "-")], &[("b", None)]),
            (&[("b", "-")], &[]),
        ] {
            let found = look(&mut troubles, nodes);
            let found: Vec<_> = found
                .iter()
                .map(|(node, reason)| (node.as_str(), reason.as_deref()))
                .collect();
            assert_eq!(found, expected, "{nodes:?}");
        }
    }

    #[test]
    fn a_shared_trouble_is_reported_for_some() {
        let mut troubles = Troubles::default();
        let names: Vec<String> = (0..40).map(|n| format!("n{n}")).collect();
        let [well, all] =
            ["-", "ImageNotFound"].map(|reason| names.iter().map(|name| (name.as_str(), reason)).collect::<Vec<_>>());
        look(&mut troubles, &well);
        let mut but_one = all.clone();
        but_one[39].1 = "-";
        assert_eq!(look(&mut troubles, &but_one).len(), TOLD_OF);
        assert!(
            look(&mut troubles, &all).is_empty(),
            "a node beyond the maximum is not reported later"
        );
        assert_eq!(
            look(&mut troubles, &well).len(),
            TOLD_OF,
            "the end of a reported trouble"
        );
        assert_eq!(look(&mut troubles, &all).len(), TOLD_OF, "room again");
    }
}
