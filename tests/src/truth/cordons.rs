//! I4: a cordon that an admin made is not undone by Berth, nor an admin's uncordon by a cordon that Berth leaves behind.

use std::collections::BTreeMap;

use super::history::{text, writes};
use super::{Truth, our_cordon};

impl Truth<'_> {
    /// Every write of a Node by an agent, beside what admins did before.
    pub(super) fn broken_cordons(&self) -> Vec<String> {
        // Nodes by UID: whether an admin's own cordon is in force, one that was made while none of ours was there.
        let mut admins: BTreeMap<String, bool> = BTreeMap::new();
        let mut wrong = vec![];
        for (_, record, node) in writes(self.audit, "nodes") {
            let Some(uid) = text(node, "/metadata/uid") else {
                continue;
            };
            let unschedulable = record.unschedulable() == Some(true);
            let state = admins.entry(uid.to_owned()).or_default();
            if record.program() != "berth-agent" {
                let asked = record
                    .request
                    .as_ref()
                    .and_then(|r| r.pointer("/spec/unschedulable"))
                    .is_some();
                if asked && !our_cordon(node) {
                    *state = unschedulable;
                } else if !unschedulable {
                    *state = false;
                }
                continue;
            }
            let name = &record.name;
            if *state && !unschedulable {
                wrong.push(format!(
                    "I4: {name} was uncordoned at {} although an admin had cordoned it",
                    record.at
                ));
                *state = false;
            }
            if !*state && unschedulable && !our_cordon(node) {
                wrong.push(format!(
                    "I4: {name} was left cordoned at {} although no admin wants that",
                    record.at
                ));
            }
        }
        wrong
    }
}
