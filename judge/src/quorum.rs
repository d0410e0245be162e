//! I11: of the control plane nodes, over all pools, one at a time has a berth or an offer.

use std::collections::BTreeMap;

use berth_api::keys;
use serde_json::Value;

use crate::history::{History, RecordedState, in_order};
use crate::judge::Judge;
use crate::violation::Violation;

impl Judge<'_> {
    /// Finds offers to a control plane node while another one had a berth. Ignores labels that are not older than the
    /// lag, because Berth may not have seen them yet.
    pub(super) fn two_servers(&self, history: &History) -> Vec<Violation> {
        let servers = self.changes("nodes", is_server);
        let is_server = |node: &str, state: &RecordedState| self.settled(&servers, node, state) == Some(&true);
        let mut now: BTreeMap<String, &RecordedState> = BTreeMap::new();
        let mut wrong = vec![];
        for state in in_order(history) {
            let lease = state.berth.name();
            let before = now.insert(lease.clone(), state);
            let was_open = before.is_some_and(|before| before.berth.node().is_some());
            let Some(offer) = state
                .berth
                .offer()
                .filter(|offer| !was_open && is_server(offer.node.as_str(), state))
            else {
                continue;
            };
            let others = now.iter().filter(|(name, s)| **name != lease && self.lasts(s));
            let mut others = others.filter_map(|(_, s)| Some((s, s.berth.node()?)));
            let other = others.find(|(_, (node, uid))| {
                let is_other = **uid != offer.uid && is_server(node.as_str(), state);
                is_other && !self.vanished(uid.as_str(), state)
            });
            if let Some((held, (node, _))) = other {
                let text = format!(
                    "{lease} was opened for {} at {} while another control plane node, {node}, had {}",
                    offer.node,
                    state.at,
                    held.berth.name()
                );
                wrong.push(Violation::of_write("I11", state, text).and(&held.audit_id));
            }
        }
        wrong
    }
}

fn is_server(node: &Value) -> bool {
    let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
    labels.is_some_and(|labels| {
        keys::LABELS_CONTROL_PLANE
            .iter()
            .any(|label| labels.contains_key(*label))
    })
}
