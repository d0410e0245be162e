//! Who belongs to which pool, and who would if it were not excluded. The rules are the controller's.

use std::collections::BTreeMap;

use berth_api::keys;
use berth_api::membership::{self, Labelled, Membership, PoolSelector, Rule};
use berth_api::node::{BootcNode, BootcNodeStatus};
use berth_api::pool::{BootcNodePool, Target};
use berth_api::{Digest, NodeName, PoolName};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::Snapshot;

/// What is known of one node.
#[derive(Debug, Clone)]
pub(crate) struct Member<'a> {
    pub(crate) name: String,
    pub(crate) node: &'a Node,
    pub(crate) bootc: Option<&'a BootcNode>,
}

impl Member<'_> {
    pub(crate) fn status(&self) -> BootcNodeStatus {
        self.bootc.and_then(|b| b.status.clone()).unwrap_or_default()
    }

    pub(crate) fn architecture(&self) -> String {
        let info = self.node.status.as_ref().and_then(|s| s.node_info.as_ref());
        info.map(|i| i.architecture.clone()).unwrap_or_default()
    }

    pub(crate) fn ready(&self) -> bool {
        let conditions = self.node.status.iter().flat_map(|s| s.conditions.iter().flatten());
        conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
    }

    pub(crate) fn cordoned(&self) -> bool {
        self.node.spec.as_ref().is_some_and(|s| s.unschedulable == Some(true))
    }

    /// Why it does not serve, when it does not.
    pub(crate) fn unavailable(&self) -> Option<&'static str> {
        match (self.ready(), self.cordoned()) {
            (false, _) => Some("is NotReady"),
            (true, true) => Some("is cordoned"),
            (true, false) => None,
        }
    }

    /// The digest that the target has for its platform.
    pub(crate) fn wanted<'t>(&self, target: Option<&'t Target>) -> Option<&'t Digest> {
        target?.digest_for(&self.architecture())
    }

    pub(crate) fn up_to_date(&self, target: Option<&Target>) -> bool {
        let booted = self.status().booted.and_then(|b| b.digest);
        booted.is_some() && booted.as_ref() == self.wanted(target)
    }
}

/// Whether the label takes the node out of every pool.
pub(crate) fn is_excluded(node: &Node) -> bool {
    node.labels().contains_key(keys::LABEL_EXCLUDE)
}

/// Who belongs where.
#[derive(Debug)]
pub(crate) struct Roster<'a> {
    snapshot: &'a Snapshot,
    bootc: BTreeMap<String, &'a BootcNode>,
    /// Of the nodes that are not excluded.
    pub(crate) membership: Membership,
    /// Of those that are, as if they were not.
    pub(crate) without_label: Membership,
}

impl<'a> Roster<'a> {
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let bootc: BTreeMap<_, _> = snapshot
            .bootc_nodes
            .iter()
            .map(|node| (node.name_any(), node))
            .collect();
        let pools: Vec<_> = snapshot.pools.iter().map(rule).collect();
        let decide = |excluded: bool| {
            let nodes: Vec<_> = snapshot
                .nodes
                .iter()
                .filter(|node| is_excluded(node) == excluded)
                .map(|node| {
                    let current = bootc
                        .get(&node.name_any())
                        .map(|b| PoolName::new(b.spec.pool_name.clone()));
                    let mut labels = node.labels().clone();
                    labels.remove(keys::LABEL_EXCLUDE);
                    (NodeName::new(node.name_any()), labels, current)
                })
                .collect();
            let labelled = nodes
                .iter()
                .map(|(name, labels, current)| -> Labelled<'_> { (name, labels, current.as_ref()) });
            membership::membership(&pools, labelled)
        };
        let (membership, without_label) = (decide(false), decide(true));
        Self {
            snapshot,
            bootc,
            membership,
            without_label,
        }
    }

    /// The node of that name.
    pub(crate) fn node(&self, name: &str) -> Option<Member<'a>> {
        let node = self.snapshot.nodes.iter().find(|node| node.name_any() == name)?;
        Some(self.member(node))
    }

    fn member(&self, node: &'a Node) -> Member<'a> {
        Member {
            name: node.name_any(),
            node,
            bootc: self.bootc.get(&node.name_any()).copied(),
        }
    }

    fn of_pool(&self, membership: &Membership, pool: &str) -> Vec<Member<'a>> {
        let pool = PoolName::from(pool);
        let belongs = |node: &&Node| membership.pool_of(&NodeName::new(node.name_any())) == Some(&pool);
        let mut members: Vec<_> = self
            .snapshot
            .nodes
            .iter()
            .filter(belongs)
            .map(|node| self.member(node))
            .collect();
        members.sort_by(|a, b| a.name.cmp(&b.name));
        members
    }

    /// The members of a pool, by name.
    pub(crate) fn members(&self, pool: &str) -> Vec<Member<'a>> {
        self.of_pool(&self.membership, pool)
    }

    /// Nodes that would be members and are excluded, by name.
    pub(crate) fn excluded(&self, pool: &str) -> Vec<Member<'a>> {
        self.of_pool(&self.without_label, pool)
    }
}

fn rule(pool: &BootcNodePool) -> PoolSelector {
    let rule = match membership::selector(pool.spec.node_selector.as_ref()) {
        _ if pool.metadata.deletion_timestamp.is_some() => Rule::Nothing,
        Ok(selector) => Rule::Select(selector),
        Err(_) => Rule::Keep,
    };
    PoolSelector {
        name: PoolName::new(pool.name_any()),
        rule,
    }
}
