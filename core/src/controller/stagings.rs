//! Durations of the members' pulls, for a histogram. Pure. Each pull is reported once. A new leader does not report
//! pulls that ended before it started.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{NodeUid, PoolName};
use jiff::Timestamp;

use crate::controller::snapshot::Snapshot;

/// A finished pull on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagingNews {
    /// Pool of the node.
    pub pool: PoolName,
    /// Time from the start of the pull until the image was staged, as measured by the agent.
    pub took: Duration,
}

/// Last pull of each node, to notice a new one.
#[derive(Debug, Default)]
pub struct Stagings {
    /// End of the last pull, by the node's clock. Compared only with earlier values from the same node.
    known: BTreeMap<NodeUid, Option<Timestamp>>,
    /// True after the first call of [`Self::see`].
    began: bool,
}

impl Stagings {
    /// Records the current nodes, and returns the pulls that ended since the last call.
    pub fn see(&mut self, snapshot: &Snapshot) -> Vec<StagingNews> {
        let mut news = vec![];
        let mut before = std::mem::take(&mut self.known);
        for (name, host) in snapshot.bootc_nodes.iter() {
            let Some(node) = snapshot.nodes.get(name) else {
                continue;
            };
            let uid = &node.view.uid;
            let old = before.remove(uid);
            let Some(content) = host.view.readable() else {
                self.known.extend(old.map(|old| (uid.clone(), old)));
                continue;
            };
            let last = content.report.measured.staging_ended;
            self.known.insert(uid.clone(), last);
            // If a node has joined since the last call, its first pull is reported too.
            let is_news = self.began && last.is_some() && old.flatten() != last;
            if let (true, Some(took)) = (is_news, content.report.measured.staging) {
                let pool = content.spec.pool_name.as_str().into();
                news.push(StagingNews { pool, took });
            }
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
    use serde_json::json;

    use super::*;
    use crate::controller::snapshot::Entry;
    use crate::controller::view::{BootcNodeView, NodeView};

    /// Returns the reported durations in seconds. `nodes`: name, start of the last pull (0: no pull), and duration of
    /// the pull.
    fn look(stagings: &mut Stagings, nodes: &[(&str, i64, i64)]) -> Vec<u64> {
        let mut snapshot = Snapshot::default();
        for (name, began, took) in nodes {
            let uid = format!("uid-{name}");
            let metadata = json!({ "name": name, "uid": uid });
            let node: Decoded<Node> = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            let [start, end] = [*began, began + took].map(|second| Timestamp::from_second(second).unwrap().to_string());
            let chapters = match began {
                0 => json!([]),
                _ => json!([
                    { "name": "Prepared", "startTime": start, "endTime": end },
                    { "name": "Waited", "startTime": end },
                ]),
            };
            let digest = format!("sha256:{}", "1".repeat(64));
            let update = json!({ "to": { "digest": digest }, "chapters": chapters });
            let host: BootcNode = serde_json::from_value(json!({
                "metadata": metadata, "spec": { "poolName": "p", "nodeUID": uid },
                "status": { "timeline": { "updates": [update] } },
            }))
            .unwrap();
            let view = BootcNodeView::of(host.into());
            Arc::make_mut(&mut snapshot.nodes).insert((*name).to_owned(), Entry::new(NodeView::of(&node)));
            Arc::make_mut(&mut snapshot.bootc_nodes).insert((*name).to_owned(), Entry::new(view));
        }
        let news = stagings.see(&snapshot).into_iter();
        news.map(|news| news.took.as_secs()).collect()
    }

    #[test]
    fn each_pull_is_measured_once() {
        let mut stagings = Stagings::default();
        assert!(
            look(&mut stagings, &[("a", 100, 30), ("b", 0, 0)]).is_empty(),
            "the pull ended before the first call"
        );
        assert!(look(&mut stagings, &[("a", 100, 30), ("b", 0, 0)]).is_empty());
        assert_eq!(look(&mut stagings, &[("a", 100, 30), ("b", 200, 40)]), [40]);
        assert!(look(&mut stagings, &[("a", 100, 30), ("b", 200, 40)]).is_empty());
        assert_eq!(
            look(&mut stagings, &[("a", 300, 30), ("b", 200, 40)]),
            [30],
            "as long as the last one"
        );
        assert_eq!(
            look(&mut stagings, &[("a", 300, 30), ("b", 200, 40), ("c", 10, 5)]),
            [5],
            "a new node"
        );
    }
}
