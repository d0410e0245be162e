//! The judge: was every disruption licensed, and were there never too many at once?
//!
//! It knows nothing of what Berth says of itself. It joins three records that others wrote: what the harness saw of
//! each host (the boot loader's view), every write of a Lease and of a Node from the API server's audit log, and the
//! reboots that the test caused itself. A violation is a sentence that names the invariant.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::keys;
use jiff::Timestamp;

use self::history::{History, history, holds, licence};
use crate::audit::Record;
use crate::hosts::{HostChange, HostEvent};

mod capacity;
mod clear;
mod cordons;
mod history;
mod order;
mod protocol;
#[cfg(test)]
mod tests;

/// The records of one test.
#[derive(Debug)]
pub struct Truth<'a> {
    /// Events of the hosts, in order.
    pub hosts: &'a [HostEvent],
    /// The API server's audit log.
    pub audit: &'a [Record],
    /// Reboots that the test itself caused: host, and when.
    pub excused: &'a [(String, Timestamp)],
    /// Most berths that may be held at once in each pool, over the whole test.
    pub capacity: BTreeMap<String, usize>,
    /// Most nodes of all pools that may be worked on or unavailable at once, over the whole test; `None`: the fleet has no
    /// limit.
    pub fleet: Option<usize>,
    /// Longest delay of a request on its way in, or of a change until it is seen: as caused by the test between Berth
    /// and the API server.
    pub lag: jiff::SignedDuration,
}

/// Time after the test caused a reboot within which the host may go down for it.
const EXCUSED_FOR: jiff::SignedDuration = jiff::SignedDuration::from_secs(20);

impl Truth<'_> {
    /// Everything that was wrong, one sentence each. Empty is what a test wants.
    pub fn violations(&self) -> Vec<String> {
        let history = history(self.audit);
        let mut wrong = self.unlicensed_reboots(&history);
        wrong.extend(self.too_many(&history));
        wrong.extend(self.unlicensed_disruptions(&history));
        wrong.extend(self.broken_protocol(&history));
        wrong.extend(self.beyond_capacity(&history));
        wrong.extend(self.beyond_fleet(&history));
        wrong.extend(self.out_of_order(&history));
        wrong.extend(self.broken_cordons());
        wrong.extend(self.uncleared_reboots(&history));
        wrong.extend(self.refused());
        wrong
    }

    /// A write of a berth that the admission policies had to stop is one that Berth should never have tried.
    fn refused(&self) -> impl Iterator<Item = String> {
        let by_policy = |r: &&Record| {
            let programs = r.program() == "berth-agent" || r.user.ends_with(":berth-controller");
            r.is_write() && programs && r.target() == "leases" && matches!(r.code, 403 | 422)
        };
        self.audit.iter().filter(by_policy).map(|r| {
            let who = r.node_claim.as_deref().unwrap_or("the controller");
            format!(
                "Policy: {who} wrote {} at {}, and was refused: {}",
                r.name, r.received, r.message
            )
        })
    }

    /// Number of reboots that had a licence: a test that saw none has proven nothing.
    pub fn licensed_reboots(&self) -> usize {
        let history = history(self.audit);
        self.downs()
            .filter(|(host, at, boot)| licence(&history, host, *at, boot).is_some())
            .count()
    }

    /// Each time a host went down: host, when, and the boot ID that ended.
    fn downs(&self) -> impl Iterator<Item = (&str, Timestamp, String)> {
        let mut boots: BTreeMap<&str, String> = BTreeMap::new();
        self.hosts.iter().filter_map(move |event| match &event.change {
            HostChange::Up { boot_id, .. } => {
                boots.insert(&event.host, boot_id.clone());
                None
            }
            HostChange::Down => Some((
                event.host.as_str(),
                event.at,
                boots.get(event.host.as_str()).cloned().unwrap_or_default(),
            )),
            _ => None,
        })
    }

    fn is_excused(&self, host: &str, at: Timestamp) -> bool {
        self.excused
            .iter()
            .any(|(h, from)| h == host && *from <= at && at <= *from + EXCUSED_FOR)
    }

    /// I2 and I3: a host goes down only under a commit for its boot, and boots only what that commit names; a host
    /// that the test takes down itself boots what it ran before.
    fn unlicensed_reboots(&self, history: &History) -> Vec<String> {
        let mut wrong = vec![];
        for (host, at, boot) in self.downs() {
            let before = self.booted(host, at, false);
            let after = self.booted(host, at, true);
            match licence(history, host, at, &boot) {
                Some((target, from)) => {
                    if let Some(after) = after
                        && after != target
                        && Some(&after) != before.as_ref()
                        && Some(&after) != from.as_ref()
                    {
                        wrong.push(format!("I2: {host} committed to {target} at {at} and booted {after}"));
                    }
                }
                None if !self.is_excused(host, at) => {
                    wrong.push(format!(
                        "I2: {host} went down at {at} under boot {boot} without a committed berth"
                    ));
                }
                None if after.is_some() && after != before => {
                    wrong.push(format!("I3: {host} was rebooted by the test at {at} and came back with another image: {after:?} in place of {before:?}"));
                }
                None => {}
            }
        }
        wrong
    }

    /// The digest that the host booted last before, or first after, a time.
    fn booted(&self, host: &str, at: Timestamp, after: bool) -> Option<String> {
        let mut ups = self
            .hosts
            .iter()
            .filter(|e| e.host == host)
            .filter_map(|e| match &e.change {
                HostChange::Up { digest, .. } => Some((e.at, digest.clone())),
                _ => None,
            });
        match after {
            true => ups.find(|(when, _)| *when > at).map(|(_, d)| d),
            false => ups.rfind(|(when, _)| *when < at).map(|(_, d)| d),
        }
    }

    /// I1: never more holders in a pool than its capacity, and never more of its hosts down under a licence.
    fn too_many(&self, history: &History) -> Vec<String> {
        let mut wrong = vec![];
        let mut times: Vec<_> = history.values().flatten().map(|s| s.at).collect();
        times.sort();
        times.dedup();
        for at in times {
            let mut holders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for states in history.values() {
                let Some(now) = states.iter().rev().find(|s| s.at <= at) else {
                    continue;
                };
                if let Some(holding) = now.berth.holding() {
                    holders
                        .entry(now.berth.pool.to_string())
                        .or_default()
                        .insert(holding.uid.to_string());
                }
            }
            for (pool, who) in holders {
                let most = self.capacity.get(&pool).copied().unwrap_or(0);
                if who.len() > most {
                    wrong.push(format!(
                        "I1: at {at} {} nodes hold a berth of {pool}, whose capacity is {most}",
                        who.len()
                    ));
                }
            }
        }
        wrong
    }

    /// I1(a): cordons and evictions that Berth makes happen under a berth of that node.
    fn unlicensed_disruptions(&self, history: &History) -> Vec<String> {
        let ours = |r: &&Record| r.succeeded() && r.program() == "berth-agent";
        let mut wrong = vec![];
        for record in self.audit.iter().filter(ours) {
            let host = record.user.strip_prefix("system:node:").unwrap_or_default();
            let cordons = record.resource == "nodes" && record.unschedulable() == Some(true) && sets_cordon(record);
            let evicts = record.resource == "pods" && record.subresource == "eviction";
            if !(cordons || evicts) {
                continue;
            }
            if !holds(history, host, record.received) {
                let what = if cordons { "cordoned" } else { "evicted a pod" };
                wrong.push(format!("I1: {host} {what} at {} without a berth", record.received));
            }
        }
        wrong
    }
}

/// Says whether the request itself asked for unschedulable: a restore of a node that an admin cordoned does not.
fn sets_cordon(record: &Record) -> bool {
    let asked = record.request.as_ref().and_then(|r| r.pointer("/spec/unschedulable"));
    asked.and_then(serde_json::Value::as_bool) == Some(true)
}

/// Says whether a Node carries the record of our cordon.
fn our_cordon(node: &serde_json::Value) -> bool {
    let annotations = node.pointer("/metadata/annotations").and_then(|a| a.as_object());
    annotations.is_some_and(|a| a.contains_key(keys::ANNOTATION_CORDON))
}

/// The name of a written object: requests that create one do not name it.
fn name_of<'a>(record: &'a Record, object: &'a serde_json::Value) -> &'a str {
    match record.name.as_str() {
        "" => history::text(object, "/metadata/name").unwrap_or_default(),
        name => name,
    }
}
