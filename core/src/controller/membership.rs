//! Pool membership, from the watched objects. Pure. Membership is computed again only if an input changed, because
//! matching every node with every pool costs more than a plan.

use std::sync::Arc;

use berth_api::membership::{self, Membership, PoolSelector, Rule};
use berth_api::{PoolName, keys};

use crate::controller::snapshot::Snapshot;
use crate::controller::view::{BootcNodeView, NodeView, PoolView};

/// The membership, and the input that it was computed from.
#[derive(Debug, Default)]
pub struct MembershipCache {
    pools: Vec<PoolSelector>,
    nodes: Vec<Known>,
    membership: Arc<Membership>,
}

#[derive(Debug)]
struct Known {
    node: Arc<NodeView>,
    /// Pool that the node's BootcNode names.
    current: Option<PoolName>,
    /// Pool label of the node's BootcNode. The label stays until the node is released.
    label: Option<PoolName>,
}

impl MembershipCache {
    /// Returns the current membership.
    pub fn of(&mut self, snapshot: &Snapshot) -> Arc<Membership> {
        let pools = snapshot.pools.values().map(|entry| PoolSelector {
            name: entry.view.name.clone(),
            rule: rule(&entry.view),
        });
        let pools: Vec<PoolSelector> = pools.collect();
        let same = pools == self.pools
            && snapshot.nodes.len() == self.nodes.len()
            && nodes(snapshot).zip(&self.nodes).all(|(seen, known)| known.is(seen));
        if !same {
            let nodes = nodes(snapshot);
            let known = nodes.map(|(node, current, label)| Known {
                node: node.clone(),
                current: current.map(PoolName::from),
                label: label.map(PoolName::from),
            });
            (self.pools, self.nodes) = (pools, known.collect());
            let nodes = self
                .nodes
                .iter()
                .map(|known| (&known.node.name, &known.node.labels, known.current.as_ref()));
            let mut membership = membership::membership(&self.pools, nodes);
            for known in &self.nodes {
                // A node that left its pool is recorded as leaving. An excluded node is not: it counts in no pool.
                let pool = known
                    .label
                    .clone()
                    .filter(|_| !known.node.labels.contains_key(keys::LABEL_EXCLUDE));
                if let Some(pool) = pool {
                    membership.record_pool(known.node.name.clone(), pool);
                }
            }
            self.membership = Arc::new(membership);
        }
        self.membership.clone()
    }
}

impl Known {
    fn is(&self, (node, current, label): (&Arc<NodeView>, Option<&str>, Option<&str>)) -> bool {
        (Arc::ptr_eq(&self.node, node) || self.node.name == node.name && self.node.labels == node.labels)
            && self.current.as_ref().map(PoolName::as_str) == current
            && self.label.as_ref().map(PoolName::as_str) == label
    }
}

/// Returns every Node, with the pool in its BootcNode's spec and the pool label of its BootcNode.
fn nodes(snapshot: &Snapshot) -> impl Iterator<Item = (&Arc<NodeView>, Option<&str>, Option<&str>)> {
    snapshot.nodes.iter().map(|(name, entry)| {
        let host = snapshot.bootc_nodes.get(name).map(|host| host.view.as_ref());
        let spec = host.and_then(BootcNodeView::spec);
        (
            &entry.view,
            spec.map(|spec| spec.pool_name.as_str()).filter(|pool| !pool.is_empty()),
            host.and_then(|host| host.pool_label.as_deref()),
        )
    })
}

fn rule(pool: &PoolView) -> Rule {
    match &pool.object {
        Ok(object) if object.metadata.deletion_timestamp.is_some() => Rule::Nothing,
        Ok(object) => match object.spec.selector() {
            Ok(selector) => Rule::Select(selector.clone()),
            Err(_) => Rule::Keep,
        },
        Err(_) => Rule::Keep,
    }
}

#[cfg(test)]
mod tests {

    use serde_json::json;

    use super::*;
    use crate::controller::snapshot::Entry;

    fn node(world: &mut Snapshot, name: &str, role: &str, ready: &str) {
        let object = json!({
            "metadata": { "name": name, "labels": { "role": role } },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        Arc::make_mut(&mut world.nodes).insert(
            name.to_owned(),
            Entry::new(NodeView::of(&serde_json::from_value(object).unwrap())),
        );
    }

    fn pool(world: &mut Snapshot, name: &str, role: &str, updated: u32) {
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": name },
            "spec": { "nodeSelector": { "matchLabels": { "role": role } }, "image": { "ref": "r.example/os:1" } },
            "status": { "nodes": { "updated": updated } },
        });
        Arc::make_mut(&mut world.pools).insert(
            name.to_owned(),
            Entry::new(PoolView::of(serde_json::from_value(object).unwrap())),
        );
    }

    fn host(world: &mut Snapshot, name: &str, pool: &str) {
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode", "metadata": { "name": name },
            "spec": { "poolName": pool },
        });
        Arc::make_mut(&mut world.bootc_nodes).insert(
            name.to_owned(),
            Entry::new(BootcNodeView::of(serde_json::from_value(object).unwrap())),
        );
    }

    #[test]
    fn membership_is_computed_again_only_if_needed() {
        let (mut belonging, mut world) = (MembershipCache::default(), Snapshot::default());
        node(&mut world, "n1", "worker", "True");
        pool(&mut world, "a", "worker", 0);
        type Change = fn(&mut Snapshot);
        let changes: [(&str, Change, bool, &str); 11] = [
            ("nothing", |_| {}, true, "a"),
            ("n1 is not Ready", |w| node(w, "n1", "worker", "False"), true, "a"),
            ("a status", |w| pool(w, "a", "worker", 1), true, "a"),
            ("other labels", |w| node(w, "n1", "infra", "True"), false, ""),
            ("another selector", |w| pool(w, "a", "infra", 1), false, "a"),
            ("another node", |w| node(w, "n2", "infra", "True"), false, "a"),
            ("another pool", |w| pool(w, "b", "infra", 0), false, ""),
            ("the BootcNode names b", |w| host(w, "n1", "b"), false, "b"),
            ("no BootcNode", |w| Arc::make_mut(&mut w.bootc_nodes).clear(), false, ""),
            (
                "b is deleted",
                |w| drop(Arc::make_mut(&mut w.pools).remove("b")),
                false,
                "a",
            ),
            (
                "n1 is deleted",
                |w| drop(Arc::make_mut(&mut w.nodes).remove("n1")),
                false,
                "",
            ),
        ];
        for (what, change, is_kept, pool) in changes {
            let before = belonging.of(&world);
            change(&mut world);
            let after = belonging.of(&world);
            assert_eq!(Arc::ptr_eq(&before, &after), is_kept, "{what}");
            assert_eq!(after.pool_of(&"n1".into()).map_or("", PoolName::as_str), pool, "{what}");
        }
    }

    #[test]
    fn a_pool_that_is_deleted_selects_nothing() {
        let mut world = Snapshot::default();
        node(&mut world, "n1", "worker", "True");
        pool(&mut world, "a", "worker", 0);
        let selected = MembershipCache::default().of(&world);
        assert_eq!(selected.pool_of(&"n1".into()), Some(&"a".into()));
        let entry = &Arc::make_mut(&mut world.pools)["a"];
        let mut view = PoolView::clone(&entry.view);
        let deleted = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        view.object.as_mut().unwrap().metadata.deletion_timestamp = Some(deleted);
        Arc::make_mut(&mut world.pools).insert("a".to_owned(), Entry::new(view));
        let selected = MembershipCache::default().of(&world);
        assert_eq!(selected.pool_of(&"n1".into()), None);
    }
}
