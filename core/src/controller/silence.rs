//! Insights of nodes whose agent is silent. The controller writes them in the agents' place, a few at a time, and never over the
//! word of an agent that speaks. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::insight::{NodeInsight, ScopeType};
use berth_api::node::BootcNodeStatus;
use berth_api::pool::PhaseDurations;
use berth_api::{keys, waves};
use jiff::Timestamp;

use crate::Moment;
use crate::controller::view::{BootcNodeView, NodeView};
use crate::insight::{Facts, Unavailable, held, insight};

/// Line about the agent.
const SILENT: &str = "no word from its agent: see whether it runs, and whether it reaches the API server";
/// So many nodes are looked at in one go,
const BATCH: usize = 10;
/// and no more before this has passed: fifty a second.
const INTERVAL: Duration = Duration::from_millis(200);

/// A node whose agent is silent, as the watches show it.
#[derive(Debug, Clone, PartialEq)]
pub struct Silent {
    /// Its Node.
    pub node: Arc<NodeView>,
    /// Its BootcNode.
    pub host: Arc<BootcNodeView>,
}

impl Silent {
    /// The insight that it should have, given the whole status of its BootcNode, which the view has not. `None`: it belongs to no
    /// pool, or its BootcNode cannot be read.
    pub fn insight(&self, status: &BootcNodeStatus, now: Timestamp) -> Option<NodeInsight> {
        let (node, spec) = (&self.node, self.host.spec()?);
        let reasons = [
            (!node.ready, Unavailable::NotReady),
            (node.unschedulable, Unavailable::Unschedulable),
        ];
        let true_ones = reasons.into_iter().filter(|(is, _)| *is);
        let facts = Facts {
            node: node.name.as_str(),
            pool: &spec.pool_name,
            scope: match waves::is_control_plane(&node.labels) {
                true => ScopeType::ControlPlane,
                false => ScopeType::WorkerPool,
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

    /// Says whether an insight made from the other one would be the same.
    fn is_as(&self, other: &Self) -> bool {
        let is_same = Arc::ptr_eq(&self.node, &other.node) && Arc::ptr_eq(&self.host, &other.host);
        is_same || self == other
    }
}

/// The nodes whose agents are silent, and which of them this process has looked at. A leader that starts anew looks at each
/// once more, and finds what the former one wrote.
#[derive(Debug, Default)]
pub struct Deputy {
    done: BTreeMap<String, Silent>,
    /// Nobody is looked at before that.
    next: Option<Moment>,
}

impl Deputy {
    /// Takes in all whose agents are silent now, and picks those whose turn it is: nobody has looked at them since something
    /// changed that their insight depends on. Answers also when the next one is due, if one is left over.
    pub fn pick(&mut self, silent: BTreeMap<String, Silent>, now: Moment) -> (Vec<(String, Silent)>, Option<Moment>) {
        // One that speaks again and falls silent once more is looked at anew.
        self.done.retain(|name, _| silent.contains_key(name));
        let is_due = |(name, silent): &(String, Silent)| !self.done.get(name).is_some_and(|done| done.is_as(silent));
        let mut due = silent.into_iter().filter(is_due).peekable();
        if let Some(next) = self.next.filter(|next| now < *next) {
            return (vec![], due.peek().map(|_| next));
        }
        let picked: Vec<_> = due.by_ref().take(BATCH).collect();
        if picked.is_empty() {
            return (picked, None);
        }
        let next = now + INTERVAL;
        self.next = Some(next);
        let more = due.peek().map(|_| next);
        (picked, more)
    }

    /// Takes note that a node's insight is as it should be.
    pub fn done(&mut self, name: String, silent: Silent) {
        self.done.insert(name, silent);
    }
}

#[cfg(test)]
mod tests;
