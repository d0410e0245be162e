//! Order of the pools: no berth of a pool is opened while an earlier pool has a member to update.

use std::collections::BTreeMap;

use berth_api::berth::{BerthState, Offer};
use jiff::Timestamp;
use serde_json::Value;

use crate::history::{History, RecordedState};
use crate::hosts::HostChange;
use crate::judge::Judge;
use crate::names::name_of;
use crate::violation::Violation;
use crate::write::text;

/// Successive values of each object of one kind, by the object's name.
pub(super) type Changes<T> = BTreeMap<String, Vec<Change<T>>>;

/// A value of an object, and the write that set it.
pub(super) struct Change<T> {
    version: u64,
    at: Timestamp,
    value: T,
}

/// A node's published pool and image, from its BootcNode.
#[derive(PartialEq)]
struct Published {
    uid: String,
    pool: String,
    /// Digest of the published image; `None` while it is not resolved, or while the BootcNode is being deleted.
    wanted: Option<String>,
}

impl Judge<'_> {
    /// Finds berths that were opened out of order. Ignores an order of pools, membership or digest that is not older
    /// than the lag, because Berth may not have seen it yet.
    pub(super) fn out_of_order(&self, history: &History) -> Vec<Violation> {
        if !self.evidence.ready {
            return vec![];
        }
        let orders = self.changes("bootcnodepools", |pool| strings(pool, "/spec/rollout/after"));
        let published = self.changes("bootcnodes", published);
        let labels = self.changes("nodes", |node| node.pointer("/metadata/labels").cloned());
        let mut wrong = vec![];
        for states in history.values() {
            let mut before: Option<&RecordedState> = None;
            for state in states {
                let was_offered = before.is_some_and(|s| matches!(s.berth.state, BerthState::Offered(_)));
                before = Some(state);
                let (BerthState::Offered(offer), false) = (&state.berth.state, was_offered) else {
                    continue;
                };
                let pool = state.berth.pool.as_str();
                let Some(after) = self.settled(&orders, pool, state).filter(|after| !after.is_empty()) else {
                    continue;
                };
                if self.goes_first(offer, state) || self.claims_not_ready(offer.node.as_str(), state) {
                    continue;
                }
                let mut honest = published.keys().filter(|node| !self.is_liar(node));
                let left = honest.find_map(|node| {
                    let member = self.settled(&published, node, state)?;
                    // If the labels changed lately, the node may have been excluded or moved to another pool.
                    let is_known = self.settled(&labels, node, state).is_some();
                    let counts = after.contains(&member.pool) && is_known && !self.vanished(&member.uid, state);
                    (counts && self.is_left(node, member, state)).then_some((node, member))
                });
                if let Some((node, member)) = left {
                    let text = format!(
                        "{} was opened for {} at {} although {node} of pool {}, which goes before {pool}, was not updated to {}",
                        state.berth.name(),
                        offer.node,
                        state.at,
                        member.pool,
                        member.wanted.as_deref().unwrap_or_default()
                    );
                    wrong.push(Violation::of_write("Order", state, text));
                }
            }
        }
        wrong
    }

    /// Returns the successive values of all objects of a kind, each with the write that set it.
    pub(super) fn changes<T: PartialEq>(&self, target: &'static str, value: impl Fn(&Value) -> T) -> Changes<T> {
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

    /// Returns the value that an object had when a berth was written. `None` if the value was not older than the lag,
    /// or if the log may lack a newer value.
    pub(super) fn settled<'c, T>(&self, changes: &'c Changes<T>, name: &str, state: &RecordedState) -> Option<&'c T> {
        let last = changes.get(name)?.iter().rfind(|c| c.version < state.version)?;
        (last.at + self.lag < state.received && !self.misses(last.version, state.version)).then_some(&last.value)
    }

    /// True if the offered node may not have been Ready. A node that is not Ready does not wait for earlier pools. If
    /// the records do not cover a host's kubelet, its node counts as not Ready.
    fn goes_first(&self, offer: &Offer, state: &RecordedState) -> bool {
        let settled = state.received - self.lag;
        !self.is_ready(offer.node.as_str(), settled) || self.lately_joined(state, &offer.uid.to_string())
    }

    /// True if a member still needed its update when the berth was opened. False if the log does not show it.
    fn is_left(&self, node: &str, member: &Published, state: &RecordedState) -> bool {
        let booted = self.booted(node, state.received, false);
        // A log may lack all events of this host, or only the latest.
        let is_known = booted.is_some_and(|(since, _)| {
            let mut events = self.of_host(node).iter().filter(|e| e.at <= state.received);
            let is_ready_known = events.any(|e| matches!(e.change, HostChange::Ready { .. }));
            is_ready_known && !self.misses_time(since, state.received)
        });
        if !self.evidence.boots && !is_known {
            return false;
        }
        let runs_wanted = booted.map(|(_, digest)| digest) == member.wanted.as_deref();
        member.wanted.is_some() && !(runs_wanted && self.is_ready(node, state.received))
    }

    /// True if at the time `by` the host's kubelet had reported Ready in the running boot.
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
