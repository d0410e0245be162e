//! I4: Berth does not undo an admin's cordon, and leaves no cordon of its own behind.

use std::collections::BTreeMap;

use berth_api::keys;
use serde_json::Value;

use crate::judge::Judge;
use crate::violation::Violation;
use crate::write::{our_cordon, text};

impl Judge<'_> {
    /// Checks every write of a Node by an agent against the admins' earlier writes.
    pub(super) fn broken_cordons(&self) -> Vec<Violation> {
        // By the Node's UID: resourceVersion of its last write, and whether an admin's own cordon applies. A cordon is
        // an admin's own if an admin set it while the Node had no cordon of Berth.
        let mut admins: BTreeMap<&str, (u64, bool)> = BTreeMap::new();
        let mut wrong = vec![];
        for &(version, record, node) in self.writes("nodes") {
            let Some(uid) = text(node, "/metadata/uid") else {
                continue;
            };
            let unschedulable = record.unschedulable() == Some(true);
            let (last, state) = admins
                .entry(uid)
                .or_insert_with(|| (version, admins_before(node, unschedulable)));
            if self.misses(*last, version) {
                *state = admins_before(node, unschedulable);
            }
            *last = version;
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
            if self.is_liar(name) {
                continue;
            }
            if *state && !unschedulable {
                let text = format!(
                    "{name} was uncordoned at {} although an admin had cordoned it",
                    record.at
                );
                wrong.push(Violation::of_record("I4", name, record, text));
                *state = false;
            }
            if !*state && unschedulable && !our_cordon(node) {
                let text = format!(
                    "{name} was left cordoned at {} although no admin had cordoned it",
                    record.at
                );
                wrong.push(Violation::of_record("I4", name, record, text));
            }
        }
        wrong
    }
}

/// True if an admin had cordoned the Node before its first recorded write, or before the first write after a gap.
/// `node` and `unschedulable` are the Node's state after that write.
fn admins_before(node: &Value, unschedulable: bool) -> bool {
    let annotations = node.get("metadata").and_then(|m| m.get("annotations"));
    let record = annotations
        .and_then(|a| a.get(keys::ANNOTATION_CORDON))
        .and_then(Value::as_str);
    let before = record.and_then(|r| serde_json::from_str::<Value>(r).ok());
    if our_cordon(node) {
        before.is_some_and(|b| b.get("unschedulable").and_then(Value::as_bool) == Some(true))
    } else {
        unschedulable
    }
}
