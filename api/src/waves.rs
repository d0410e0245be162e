//! The wave of each node within its pool. Pure; the controller plans by it, and the CLI shows it.

use std::collections::BTreeMap;

use kube::core::{Selector, SelectorExt};

use crate::keys;
use crate::membership;
use crate::pool::Wave;

/// Name of the wave of nodes that are in no other.
pub const REST: &str = "rest";
/// Name of the wave of control plane nodes that are in no other.
pub const CONTROL_PLANE: &str = "control-plane";

/// Says whether a Node with these labels is part of the control plane.
pub fn is_control_plane(labels: &BTreeMap<String, String>) -> bool {
    keys::LABELS_CONTROL_PLANE.iter().any(|key| labels.contains_key(*key))
}

/// The waves of a pool in order. They include those that its spec does not name: nodes in no wave, and control plane
/// nodes behind them.
#[derive(Debug)]
pub struct Waves {
    /// Selector of each named wave, and whether it selects control plane nodes too.
    selectors: Vec<(Option<Selector>, bool)>,
    names: Vec<String>,
}

impl Waves {
    /// Makes the waves of a pool whose spec names these.
    pub fn of(named: &[Wave]) -> Self {
        // One that means nothing selects nothing: its nodes come later, not earlier.
        let selector = |w: &Wave| {
            (
                membership::selector(w.node_selector.as_ref()).ok(),
                w.include_control_plane,
            )
        };
        let names = named.iter().map(|wave| wave.name.as_str()).chain([REST, CONTROL_PLANE]);
        Self {
            selectors: named.iter().map(selector).collect(),
            names: names.map(str::to_owned).collect(),
        }
    }

    /// The number of the wave of a node with these labels: the first one that selects it.
    pub fn number(&self, labels: &BTreeMap<String, String>) -> usize {
        let is_control_plane = is_control_plane(labels);
        let selects = |(selector, included): &(Option<Selector>, bool)| {
            (*included || !is_control_plane) && selector.as_ref().is_some_and(|s| s.matches(labels))
        };
        let after = self.selectors.len() + usize::from(is_control_plane);
        self.selectors.iter().position(selects).unwrap_or(after)
    }

    /// The name of the wave with that number.
    pub fn name(&self, number: usize) -> &str {
        self.names.get(number).map_or("", String::as_str)
    }
}
