//! Waves of a pool, and the wave of each node. Pure. The controller plans with the waves, and the CLI shows them.

use std::collections::BTreeMap;

use kube::core::{Selector, SelectorExt};

use crate::pool::Wave;
use crate::{Written, keys};

/// Name of the wave of nodes that are in no named wave.
pub const REST: &str = "rest";
/// Name of the wave of control plane nodes that are in no named wave.
pub const CONTROL_PLANE: &str = "control-plane";

/// True if a Node with these labels is part of the control plane.
pub fn is_control_plane(labels: &BTreeMap<String, String>) -> bool {
    keys::LABELS_CONTROL_PLANE.iter().any(|key| labels.contains_key(*key))
}

/// Waves of a pool, in order: the named waves, nodes in no named wave, and control plane nodes in no named wave.
#[derive(Debug)]
pub struct Waves {
    /// Selector of each named wave, and true if the wave includes control plane nodes.
    selectors: Vec<(Option<Written<Selector>>, bool)>,
    names: Vec<String>,
}

impl Waves {
    /// Returns the waves of a pool with these named waves.
    pub fn of(named: &[Wave]) -> Self {
        let selectors = named
            .iter()
            .map(|wave| (wave.node_selector.clone(), wave.include_control_plane));
        let names = named.iter().map(|wave| wave.name.as_str()).chain([REST, CONTROL_PLANE]);
        Self {
            selectors: selectors.collect(),
            names: names.map(str::to_owned).collect(),
        }
    }

    /// Returns the number, from 0, of the wave of a node with these labels: the first wave that selects the node.
    pub fn number(&self, labels: &BTreeMap<String, String>) -> usize {
        let is_control_plane = is_control_plane(labels);
        let number = self.selectors.iter().position(|(selector, included)| {
            // An invalid selector selects no node. The nodes meant by it are then updated in a later wave, not an
            // earlier one.
            let selector = selector.as_ref().and_then(|written| written.get().ok());
            (*included || !is_control_plane) && selector.is_some_and(|s| s.matches(labels))
        });
        number.unwrap_or(self.selectors.len() + usize::from(is_control_plane))
    }

    /// Name of the wave with this number.
    pub fn name(&self, number: usize) -> &str {
        self.names.get(number).map_or("", String::as_str)
    }
}
