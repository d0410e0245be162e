//! The judge: was every disruption licensed, and were there never too many at once?
//!
//! [`Truth`] joins records: what became of each host, every write of a Lease and of a Node from the API server's audit log,
//! and the reboots that somebody else caused. A violation is a sentence that names the invariant. The rules are the same
//! for a test and for a cluster; the [`Evidence`] differs. A test has the harness's own record of its hosts and a whole log,
//! and trusts nothing that Berth says of itself. Of a cluster there is the log alone: [`log`] reads it, and
//! [`sightings`] makes out of it when each host ran which boot. What the log does not show is said, and is no pass.
//!
//! No I/O: the lines come from the caller.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::keys;
use jiff::Timestamp;

use self::history::{History, Seen, history, holds, licence};
use self::judge::Judge;
use crate::audit::Record;
use crate::hosts::{HostChange, HostEvent};

pub use crate::evidence::Evidence;
pub use crate::violation::Violation;

pub mod audit;
mod capacity;
mod clear;
mod cordons;
mod evidence;
mod history;
pub mod hosts;
mod judge;
pub mod log;
mod order;
mod protocol;
pub mod sightings;
#[cfg(test)]
mod tests;
pub mod turns;
pub mod verdict;
mod violation;

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
    /// Evidence that these records have.
    pub evidence: &'a Evidence,
    /// Longest delay of a request on its way in, or of a change until it is seen: as caused by the test between Berth
    /// and the API server.
    pub lag: jiff::SignedDuration,
}

/// Time after the test caused a reboot within which the host may go down for it.
const EXCUSED_FOR: jiff::SignedDuration = jiff::SignedDuration::from_secs(20);

impl Truth<'_> {
    /// Everything that was wrong, one sentence each. Empty is what a test wants.
    pub fn violations(&self) -> Vec<Violation> {
        let history = history(self.audit);
        Judge::new(self, &history).violations(&history)
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

    /// Most holders that a pool may have had. `None`: nobody can tell.
    fn most(&self, pool: &str) -> Option<usize> {
        let known = self.capacity.get(pool).copied();
        known.or_else(|| self.evidence.whole.then_some(0))
    }

    fn is_excused(&self, host: &str, at: Timestamp) -> bool {
        self.excused
            .iter()
            .any(|(h, from)| h == host && *from <= at && at <= *from + EXCUSED_FOR)
    }
}

impl Judge<'_> {
    /// Everything that was wrong.
    fn violations(&self, history: &History) -> Vec<Violation> {
        let mut wrong = self.unlicensed_reboots(history);
        wrong.extend(self.too_many(history));
        wrong.extend(self.unlicensed_disruptions(history));
        wrong.extend(self.broken_protocol(history));
        wrong.extend(self.beyond_capacity(history));
        wrong.extend(self.beyond_fleet(history));
        wrong.extend(self.out_of_order(history));
        wrong.extend(self.broken_cordons());
        wrong.extend(self.uncleared_reboots(history));
        wrong.extend(self.refused());
        wrong
    }

    /// A write of a berth that Berth's own permissions or admission policies had to stop is one that Berth should never have tried. What
    /// somebody else's policy or webhook refuses is no fault of Berth's.
    fn refused(&self) -> impl Iterator<Item = Violation> {
        let by_policy = |r: &&Record| {
            let programs = r.program() == "berth-agent" || r.user.ends_with(":berth-controller");
            r.is_write() && programs && r.is_of("leases") && matches!(r.code, 403 | 422) && r.refused_by_own_rules
        };
        self.audit.iter().filter(by_policy).map(|r| {
            let who = r.node_claim.as_deref().unwrap_or("the controller");
            let text = format!(
                "{who} wrote {} at {}, and was refused: {}",
                r.name, r.received, r.message
            );
            Violation::of_record("Policy", r.node_claim.as_deref().unwrap_or_default(), r, text)
        })
    }

    /// I2 and I3: a host goes down only under a commit for its boot, and boots only what that commit names; a host
    /// that somebody else takes down boots what it ran before.
    fn unlicensed_reboots(&self, history: &History) -> Vec<Violation> {
        let mut wrong = vec![];
        for (host, at, boot) in self.downs() {
            let (before, after) = self.around(host, at);
            let text = match licence(history, host, at, &boot) {
                Some((target, from)) => {
                    let Some(after) = after.filter(|a| *a != target && Some(a) != before.as_ref()) else {
                        continue;
                    };
                    if Some(&after) == from.as_ref() {
                        continue;
                    }
                    ("I2", format!("{host} committed to {target} at {at} and booted {after}"))
                }
                None if self.is_excused(host, at) => {
                    if after.is_none() || after == before {
                        continue;
                    }
                    (
                        "I3",
                        format!(
                            "{host} was rebooted by the test at {at} and came back with another image: {after:?} in place of {before:?}"
                        ),
                    )
                }
                None if !self.is_accused(history, host, at, &before, &after) => continue,
                None => (
                    "I2",
                    format!("{host} went down at {at} under boot {boot} without a committed berth"),
                ),
            };
            wrong.push(self.of_boot(text.0, host, at, &boot, text.1));
        }
        wrong
    }

    /// Says whether a reboot without a licence is Berth's fault, as far as this evidence can tell. Where every other reboot
    /// is known, it is. An audit log does not say who rebooted a machine that runs what it ran before; a member of a pool
    /// that then runs another image was updated without a licence.
    fn is_accused(
        &self,
        history: &History,
        host: &str,
        at: Timestamp,
        before: &Option<String>,
        after: &Option<String>,
    ) -> bool {
        let changed = after.is_some() && before.is_some() && after != before;
        // Nobody saw when it went down.
        let since = self.booted(host, at, false).map_or(at, |(since, _)| since);
        self.evidence.all_reboots || changed && self.is_member(host, at) && !self.is_unknown(history, host, since, at)
    }

    /// Reboots without a licence of which nothing says that they were Berth's: host, when, and whether another image runs
    /// since.
    pub(crate) fn reboots_by_others(&self, history: &History) -> Vec<(String, Timestamp, bool)> {
        let mut found = vec![];
        for (host, at, boot) in self.downs() {
            let (before, after) = self.around(host, at);
            let is_open = licence(history, host, at, &boot).is_none() && !self.is_excused(host, at);
            if is_open && !self.is_accused(history, host, at, &before, &after) {
                found.push((
                    host.to_owned(),
                    at,
                    before.is_some() && after.is_some() && before != after,
                ));
            }
        }
        found
    }

    /// Says whether the node was published as a member of a pool when it went down.
    fn is_member(&self, host: &str, at: Timestamp) -> bool {
        let mut before = self
            .writes("bootcnodes")
            .iter()
            .filter(|(_, r, object)| r.at <= at && name_of(r, object) == host);
        let last = before.next_back();
        last.is_some_and(|(_, _, object)| history::text(object, "/spec/poolName").is_some_and(|pool| !pool.is_empty()))
    }

    /// Says whether the log is not whole where it would show if the node held a berth at some time between these two: it
    /// begins within a turn of that node, or misses writes of any berth, which may be those of a whole turn.
    fn is_unknown(&self, history: &History, host: &str, from: Timestamp, until: Timestamp) -> bool {
        let is_hers = |seen: &Seen| seen.berth.node().is_some_and(|(node, _)| node.as_str() == host);
        let begins_late = |first: &Seen| first.at >= until && is_hers(first);
        let mut firsts = history.values().filter_map(|states| states.first());
        !self.evidence.whole && (self.misses_time(from, until) || firsts.any(begins_late))
    }

    /// A violation that the end of a boot shows, with the line that showed the next one.
    fn of_boot(&self, rule: &'static str, host: &str, at: Timestamp, boot: &str, text: String) -> Violation {
        let next = self.evidence.lines.get(&(host.to_owned(), boot.to_owned()));
        Violation::of_host(rule, host, at, text).and(next.map_or("", String::as_str))
    }

    /// The digests that the host booted last before, and first after, a time.
    fn around(&self, host: &str, at: Timestamp) -> (Option<String>, Option<String>) {
        let booted = |after| self.booted(host, at, after).map(|(_, digest)| digest.to_owned());
        (booted(false), booted(true))
    }

    /// I1: never more holders in a pool than its capacity, and never more of its hosts down under a licence.
    fn too_many(&self, history: &History) -> Vec<Violation> {
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
                if let Some(holding) = now.berth.holding().filter(|_| self.lasts(now)) {
                    holders
                        .entry(now.berth.pool.to_string())
                        .or_default()
                        .insert(holding.uid.to_string());
                }
            }
            for (pool, who) in holders {
                let Some(most) = self.most(&pool) else { continue };
                if who.len() > most {
                    let written = history.values().flatten().filter(|s| s.at == at);
                    let text = format!(
                        "at {at} {} nodes hold a berth of {pool}, whose capacity is {most}",
                        who.len()
                    );
                    wrong.push(Violation {
                        rule: "I1",
                        text,
                        node: None,
                        at,
                        audit_ids: written.map(|s| s.audit_id.clone()).collect(),
                    });
                }
            }
        }
        wrong
    }

    /// Difference between the clocks of the log: one of several API servers has as many.
    fn slack(&self) -> jiff::SignedDuration {
        match self.evidence.boots {
            true => jiff::SignedDuration::ZERO,
            false => self.lag,
        }
    }

    /// I1(a): cordons and evictions that Berth makes happen under a berth of that node.
    fn unlicensed_disruptions(&self, history: &History) -> Vec<Violation> {
        let ours = |r: &&Record| r.succeeded() && r.program() == "berth-agent";
        let slack = self.slack();
        let mut wrong = vec![];
        for record in self.audit.iter().filter(ours) {
            let host = record.user.strip_prefix("system:node:").unwrap_or_default();
            let cordons = record.resource == "nodes" && record.unschedulable() == Some(true) && sets_cordon(record);
            let evicts = record.resource == "pods" && record.subresource == "eviction";
            if !(cordons || evicts) {
                continue;
            }
            let at = record.received;
            if !holds(history, host, at, slack) && !self.is_unknown(history, host, at - slack, at + slack) {
                let what = if cordons { "cordoned" } else { "evicted a pod" };
                let text = format!("{host} {what} at {} without a berth", record.received);
                wrong.push(Violation::of_record("I1", host, record, text));
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
