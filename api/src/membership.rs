//! Membership of nodes in pools. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys;
use crate::names::{NodeName, PoolName};
use kube::core::{Selector, SelectorExt};

/// A pool's name and its selector.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSelector {
    /// Name of the pool.
    pub name: PoolName,
    /// Rule for selecting its nodes.
    pub rule: Rule,
}

/// Rule for selecting nodes.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// Nodes that match the selector.
    Select(Selector),
    /// The pool's current nodes. Used while the selector is invalid, so that a typing error does not make nodes leave.
    Keep,
    /// No node, because the pool is being deleted.
    Nothing,
}

/// A node that more than one pool selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The node.
    pub node: NodeName,
    /// All pools that select it.
    pub pools: Vec<PoolName>,
    /// Pool that the node stays in because it is already a member.
    pub stays_in: Option<PoolName>,
}

impl Conflict {
    /// Describes the conflict in one line.
    pub fn message(&self) -> String {
        let pools: Vec<_> = self.pools.iter().map(PoolName::as_str).collect();
        let fate = match &self.stays_in {
            Some(pool) => format!("the node stays in {pool}"),
            None => "the node joins no pool".to_owned(),
        };
        format!(
            "selected by more than one pool: {}; {fate} until only one pool selects it",
            pools.join(", ")
        )
    }
}

/// The pool of each node, and the nodes that could not be assigned to a pool.
#[derive(Debug, Clone, Default)]
pub struct Membership {
    pools: BTreeMap<NodeName, PoolName>,
    /// Nodes of each pool. This index of `pools` avoids a scan of all nodes in a search for a pool's members.
    members: BTreeMap<PoolName, BTreeSet<NodeName>>,
    /// Nodes that are leaving each pool: their BootcNode names the pool, but they are no longer its members.
    leaving: BTreeMap<PoolName, BTreeSet<NodeName>>,
    /// Nodes that more than one pool selects.
    pub conflicts: BTreeMap<NodeName, Conflict>,
    /// Nodes with the label `berth.dev/exclude`, each with the pool that the node would otherwise belong to.
    pub excluded: BTreeMap<NodeName, PoolName>,
}

impl Membership {
    /// Makes a node a member of this pool only.
    pub fn join(&mut self, node: NodeName, pool: PoolName) {
        let before = self.pools.insert(node.clone(), pool.clone());
        if let Some(members) = before.and_then(|before| self.members.get_mut(&before)) {
            members.remove(&node);
        }
        self.members.entry(pool).or_default().insert(node);
    }

    /// Returns the pool of a node.
    pub fn pool_of(&self, node: &NodeName) -> Option<&PoolName> {
        self.pools.get(node)
    }

    /// Members of all pools, sorted by name.
    pub fn all(&self) -> impl ExactSizeIterator<Item = &NodeName> {
        self.pools.keys()
    }

    /// Nodes that are leaving a pool; a node that leaves two pools is returned twice.
    pub fn all_leaving(&self) -> impl Iterator<Item = &NodeName> {
        self.leaving.values().flatten()
    }

    /// Members of a pool, sorted by name.
    pub fn members(&self, pool: &PoolName) -> impl ExactSizeIterator<Item = &NodeName> {
        static NONE: BTreeSet<NodeName> = BTreeSet::new();
        self.members.get(pool).unwrap_or(&NONE).iter()
    }

    /// Records the pool that a node's BootcNode names. A node that is not a member of that pool is leaving it.
    pub fn record_pool(&mut self, node: NodeName, pool: PoolName) {
        if self.pools.get(&node) != Some(&pool) {
            self.leaving.entry(pool).or_default().insert(node);
        }
    }

    /// Nodes that are leaving a pool, sorted by name.
    pub fn leaving(&self, pool: &PoolName) -> impl Iterator<Item = &NodeName> {
        self.leaving.get(pool).into_iter().flatten()
    }

    /// Conflicts that involve a pool.
    pub fn conflicts_of<'a>(&'a self, pool: &'a PoolName) -> impl Iterator<Item = &'a Conflict> {
        self.conflicts.values().filter(move |c| c.pools.contains(pool))
    }
}

/// A node's name, its labels, and the pool in its BootcNode.
pub type NodeEntry<'a> = (&'a NodeName, &'a BTreeMap<String, String>, Option<&'a PoolName>);

/// Assigns nodes to pools. A node that two pools select stays in its current pool if it has one; otherwise it joins
/// neither.
pub fn membership<'a>(pools: &[PoolSelector], nodes: impl IntoIterator<Item = NodeEntry<'a>>) -> Membership {
    let mut result = Membership::default();
    for (node, labels, current) in nodes {
        let selecting: BTreeSet<&PoolName> = pools
            .iter()
            .filter(|p| match &p.rule {
                Rule::Select(selector) => selector.matches(labels),
                Rule::Keep => current == Some(&p.name),
                Rule::Nothing => false,
            })
            .map(|p| &p.name)
            .collect();
        if labels.contains_key(keys::LABEL_EXCLUDE) {
            let pool = current.filter(|c| selecting.contains(c)).or(selecting.first().copied());
            result.excluded.extend(pool.map(|pool| (node.clone(), pool.clone())));
            continue;
        }
        let pool = match selecting.len() {
            0 => None,
            1 => selecting.first().copied(),
            _ => {
                let stays_in = current.filter(|c| selecting.contains(c));
                let conflict = Conflict {
                    node: node.clone(),
                    pools: selecting.iter().map(|p| (*p).clone()).collect(),
                    stays_in: stays_in.cloned(),
                };
                result.conflicts.insert(node.clone(), conflict);
                stays_in
            }
        };
        if let Some(pool) = pool {
            result.join(node.clone(), pool.clone());
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, key: &str, value: &str) -> PoolSelector {
        PoolSelector {
            name: name.into(),
            rule: Rule::Select(Selector::from_iter([(key.to_owned(), value.to_owned())])),
        }
    }

    fn decide(pools: &[PoolSelector], labels: &[(&str, &str)], current: Option<&str>) -> Membership {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let current = current.map(PoolName::from);
        membership(pools, [(&"n1".into(), &labels, current.as_ref())])
    }

    #[test]
    fn one_pool_takes_what_it_selects() {
        let pools = [pool("a", "role", "worker")];
        let selected = decide(&pools, &[("role", "worker")], None);
        assert_eq!(selected.pools[&"n1".into()], "a".into());
        for labels in [&[("role", "infra")][..], &[]] {
            assert!(decide(&pools, labels, None).pools.is_empty(), "{labels:?}");
        }
    }

    #[test]
    fn a_node_is_a_member_of_one_pool() {
        let (mut all, [a, b]) = (Membership::default(), ["a", "b"].map(PoolName::from));
        for (node, pool) in [("n2", &a), ("n1", &a), ("n2", &b), ("n1", &a)] {
            all.join(node.into(), pool.clone());
        }
        for (pool, expected) in [(&a, vec!["n1"]), (&b, vec!["n2"]), (&"c".into(), vec![])] {
            let members: Vec<_> = all.members(pool).map(NodeName::as_str).collect();
            assert_eq!(members, expected, "{pool}");
        }
        assert_eq!(all.pool_of(&"n2".into()), Some(&b));
    }

    #[test]
    fn an_empty_selector_takes_all() {
        let all = PoolSelector {
            name: "all".into(),
            rule: Rule::Select(Selector::default()),
        };
        assert_eq!(decide(&[all], &[], None).pools.len(), 1);
    }

    #[test]
    fn a_node_of_two_pools_stays_or_joins_neither() {
        let pools = [pool("a", "x", "1"), pool("b", "y", "1")];
        let both: &[(&str, &str)] = &[("x", "1"), ("y", "1")];
        let node = NodeName::from("n1");
        for (current, expected) in [(None, None), (Some("b"), Some("b")), (Some("c"), None)] {
            let result = decide(&pools, both, current);
            let expected = expected.map(PoolName::from);
            assert_eq!(result.pool_of(&node), expected.as_ref(), "{current:?}");
            assert_eq!(result.conflicts[&node].stays_in, expected);
            assert_eq!(result.conflicts_of(&"a".into()).count(), 1);
            assert_eq!(result.conflicts_of(&"b".into()).count(), 1);
            assert!(result.conflicts[&node].message().contains("a, b"));
        }
    }

    #[test]
    fn an_invalid_selector_keeps_members_but_adds_none() {
        let keep = PoolSelector {
            name: "a".into(),
            rule: Rule::Keep,
        };
        let pools = [keep, pool("b", "x", "1")];
        assert_eq!(decide(&pools, &[], Some("a")).pools.len(), 1);
        assert!(decide(&pools, &[], None).pools.is_empty());
        let both = decide(&pools, &[("x", "1")], Some("a"));
        assert_eq!(both.pools[&"n1".into()], "a".into());
        assert_eq!(both.conflicts.len(), 1);
    }

    #[test]
    fn a_deleted_pool_releases_its_nodes() {
        let nothing = PoolSelector {
            name: "a".into(),
            rule: Rule::Nothing,
        };
        assert!(decide(&[nothing], &[], Some("a")).pools.is_empty());
    }

    #[test]
    fn an_excluded_node_is_counted_separately() {
        let pools = [pool("a", "x", "1"), pool("b", "y", "1")];
        let labels: &[(&str, &str)] = &[("x", "1"), ("y", "1"), (keys::LABEL_EXCLUDE, "")];
        let result = decide(&pools, labels, Some("b"));
        assert!(result.pools.is_empty() && result.conflicts.is_empty());
        assert_eq!(result.excluded[&"n1".into()], "b".into());
    }
}
