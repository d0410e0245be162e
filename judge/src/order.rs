//! Order of the pools: no berth of a pool is opened while one that goes before it has a member left to update.

use std::collections::BTreeMap;

use berth_api::berth::{BerthState, Offer};
use jiff::Timestamp;
use serde_json::Value;

use super::history::{History, Seen, text};
use super::{Violation, name_of};
use crate::hosts::HostChange;
use crate::judge::Judge;

/// Values that the objects of one kind have had, by name, in order.
type Changes<T> = BTreeMap<String, Vec<Change<T>>>;

/// A value that an object has from a write on.
struct Change<T> {
    version: u64,
    at: Timestamp,
    value: T,
}

/// Part of a BootcNode that says what its node should run in which pool.
#[derive(PartialEq)]
struct Published {
    uid: String,
    pool: String,
    /// The digest; none while it is not resolved, or the object is being deleted.
    wanted: Option<String>,
}

impl Judge<'_> {
    /// Every opening of a berth out of order. Only what every view of the cluster had seen by then counts: the order, the
    /// membership and the digest must have stood for longer than the lag.
    pub(super) fn out_of_order(&self, history: &History) -> Vec<Violation> {
        if !self.evidence.ready {
            return vec![];
        }
        let orders = self.changes("bootcnodepools", |pool| strings(pool, "/spec/rollout/after"));
        let published = self.changes("bootcnodes", published);
        let labels = self.changes("nodes", |node| node.pointer("/metadata/labels").cloned());
        let mut wrong = vec![];
        for states in history.values() {
            let mut before: Option<&Seen> = None;
            for seen in states {
                let was_offered = before.is_some_and(|s| matches!(s.berth.state, BerthState::Offered(_)));
                before = Some(seen);
                let (BerthState::Offered(offer), false) = (&seen.berth.state, was_offered) else {
                    continue;
                };
                let pool = seen.berth.pool.as_str();
                let Some(after) = self.settled(&orders, pool, seen).filter(|after| !after.is_empty()) else {
                    continue;
                };
                if self.goes_first(offer, seen) {
                    continue;
                }
                let left = published.keys().find_map(|node| {
                    let member = self.settled(&published, node, seen)?;
                    // It may have been moved, or excluded.
                    let is_known = self.settled(&labels, node, seen).is_some();
                    let counts = after.contains(&member.pool) && is_known && !self.vanished(&member.uid, seen);
                    (counts && self.is_left(node, member, seen)).then_some((node, member))
                });
                if let Some((node, member)) = left {
                    let text = format!(
                        "{} was opened for {} at {}, and {node} of {}, which goes before {pool}, was not updated to {}",
                        seen.berth.name(),
                        offer.node,
                        seen.at,
                        member.pool,
                        member.wanted.as_deref().unwrap_or_default()
                    );
                    wrong.push(Violation::of_write("Order", seen, text));
                }
            }
        }
        wrong
    }

    /// Values of all objects of a kind, each from the first write that has it.
    fn changes<T: PartialEq>(&self, target: &'static str, value: impl Fn(&Value) -> T) -> Changes<T> {
        let mut changes: Changes<T> = BTreeMap::new();
        for &(version, record, object) in self.writes(target) {
            let of = changes.entry(name_of(record, object).to_owned()).or_default();
            let value = value(object);
            if of.last().is_none_or(|last| last.value != value) {
                let at = record.at;
                of.push(Change { version, at, value });
            }
        }
        changes
    }

    /// The value that an object had when a berth was written, if every view of the cluster had seen it by then.
    fn settled<'c, T>(&self, changes: &'c Changes<T>, name: &str, seen: &Seen) -> Option<&'c T> {
        let last = changes.get(name)?.iter().rfind(|c| c.version < seen.version)?;
        (last.at + self.lag < seen.received && !self.misses(last.version, seen.version)).then_some(&last.value)
    }

    /// Says whether the node may be one that waits for no other pool: one that is not Ready. Of hosts whose kubelets are not
    /// on record nothing is known, so this rule says nothing of them.
    fn goes_first(&self, offer: &Offer, seen: &Seen) -> bool {
        let settled = seen.received - self.lag;
        !self.is_ready(offer.node.as_str(), settled) || self.lately_joined(seen, &offer.uid.to_string())
    }

    /// Says whether a member was not updated when the berth was opened.
    fn is_left(&self, node: &str, member: &Published, seen: &Seen) -> bool {
        let booted = self.booted(node, seen.received, false);
        // A log may not have come to a word of this host yet, or miss the last one.
        let is_known = booted.is_some_and(|(since, _)| {
            let mut events = self.of_host(node).iter().filter(|e| e.at <= seen.received);
            let is_ready_known = events.any(|e| matches!(e.change, HostChange::Ready { .. }));
            is_ready_known && !self.misses_time(since, seen.received)
        });
        if !self.evidence.boots && !is_known {
            return false;
        }
        let runs_wanted = booted.map(|(_, digest)| digest) == member.wanted.as_deref();
        member.wanted.is_some() && !(runs_wanted && self.is_ready(node, seen.received))
    }

    /// Says whether the host's kubelet had said by then that it is Ready under the boot that ran.
    fn is_ready(&self, host: &str, by: Timestamp) -> bool {
        let mut ready = false;
        for event in self.of_host(host).iter().filter(|e| e.at <= by) {
            match event.change {
                HostChange::Up { .. } | HostChange::Down => ready = false,
                HostChange::Ready { .. } => ready = true,
                HostChange::PullStarted { .. } | HostChange::PullEnded { .. } => {}
            }
        }
        ready
    }
}

fn published(object: &Value) -> Published {
    let stays = object.pointer("/metadata/deletionTimestamp").is_none();
    let wanted = text(object, "/spec/image/digest").filter(|_| stays);
    Published {
        uid: text(object, "/spec/nodeUID").unwrap_or_default().to_owned(),
        pool: text(object, "/spec/poolName").unwrap_or_default().to_owned(),
        wanted: wanted.map(str::to_owned),
    }
}

fn strings(object: &Value, pointer: &str) -> Vec<String> {
    let list = object.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}
