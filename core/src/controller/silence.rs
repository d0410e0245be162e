//! Insights of nodes whose agent is silent. An insight (`status.insight` of a BootcNode) describes the state and the
//! problems of a node for people. The controller writes it in place of a silent agent, for a few nodes at a time. The
//! controller never overwrites the insight of an agent that reports. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::insight::{NodeInsight, ScopeType};
use berth_api::node::BootcNodeStatus;
use berth_api::pool::PhaseDurations;
use berth_api::{keys, waves};
use jiff::Timestamp;

use crate::Moment;
use crate::controller::throttle::Throttle;
use crate::controller::view::{BootcNodeView, NodeView};
use crate::insight::{Inputs, Unavailable, held, insight};

const SILENT: &str = "its agent does not report: check that the agent runs and reaches the API server";

/// A node whose agent is silent, with its objects as the watches show them.
#[derive(Debug, Clone, PartialEq)]
pub struct Silent {
    /// Node of the silent agent.
    pub node: Arc<NodeView>,
    /// BootcNode of the silent agent.
    pub host: Arc<BootcNodeView>,
}

impl Silent {
    /// Returns the node's insight; `None` if the node belongs to no pool or its BootcNode cannot be parsed. `status`:
    /// the full status of the BootcNode, because the view has only parts of it.
    pub fn insight(&self, status: &BootcNodeStatus, now: Timestamp) -> Option<NodeInsight> {
        let (node, spec) = (&self.node, self.host.spec()?);
        let reasons = [
            (!node.ready, Unavailable::NotReady),
            (node.unschedulable, Unavailable::Unschedulable),
        ];
        let true_ones = reasons.into_iter().filter(|(is, _)| *is);
        let facts = Inputs {
            node: node.name.as_str(),
            pool: &spec.pool_name,
            scope: if waves::is_control_plane(&node.labels) {
                ScopeType::ControlPlane
            } else {
                ScopeType::WorkerPool
            },
            desired: spec.image.as_ref().map(|image| &image.digest),
            status,
            unavailable: Some(true_ones.map(|(_, reason)| reason).collect()),
            held: held(node.labels.contains_key(keys::LABEL_EXCLUDE), spec.paused),
            told: &status.conditions,
            silent: Some(SILENT),
            medians: PhaseDurations::default(),
        };
        insight(&facts, status.insight.as_ref(), now)
    }

    /// True if `self` and `other` have equal objects, and so lead to the same insight.
    fn is_as(&self, other: &Self) -> bool {
        let is_same = Arc::ptr_eq(&self.node, &other.node) && Arc::ptr_eq(&self.host, &other.host);
        is_same || self == other
    }
}

/// Nodes with silent agents whose insights are up to date, as far as this process has checked. A new leader checks each
/// node again, and finds the insight that the earlier leader wrote.
#[derive(Debug, Default)]
pub struct SilentQueue {
    done: BTreeMap<String, Silent>,
    throttle: Throttle,
}

impl SilentQueue {
    /// Returns the next batch of silent nodes to check: nodes that are new or have changed. Also returns when the next
    /// batch is due, if any node is left.
    pub fn pick(&mut self, silent: BTreeMap<String, Silent>, now: Moment) -> (Vec<(String, Silent)>, Option<Moment>) {
        // Forgets the nodes whose agents report again, so that a later silence is handled too.
        self.done.retain(|name, _| silent.contains_key(name));
        let due = silent
            .into_iter()
            .filter(|(name, silent)| self.done.get(name).is_none_or(|done| !done.is_as(silent)));
        let mut due = due.peekable();
        let picked = self.throttle.take(due.by_ref(), now);
        let next = due.peek().and(self.throttle.next());
        (picked, next)
    }

    /// Records that a node's insight is up to date.
    pub fn done(&mut self, name: String, silent: Silent) {
        self.done.insert(name, silent);
    }
}

#[cfg(test)]
mod tests;
