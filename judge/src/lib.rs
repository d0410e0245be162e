//! The judge checks that every disruption had a licence, and that there were never too many disruptions at once.
//!
//! [`Truth`] joins three kinds of records: the events of each host, every write of a Lease and of a Node from the API
//! server's audit log, and the reboots that Berth did not cause. A violation is a sentence that names the invariant.
//! Tests and clusters have the same rules but different [`Evidence`]. A test has the harness's record of the hosts and
//! a complete log, and does not trust Berth's own reports. A cluster has only the log: [`log`] reads it, and
//! [`sightings`] derives from it when each host ran which boot. A rule that the log cannot prove has not passed, so
//! the verdict lists it.
//!
//! No I/O: the caller supplies the lines.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::audit::Record;
use crate::history::{History, history, holds, licence};
use crate::judge::Judge;
use crate::names::name_of;
use crate::write::text;

pub use crate::evidence::Evidence;
pub use crate::truth::Truth;
pub use crate::violation::Violation;

pub mod audit;
mod capacity;
mod claims;
mod clear;
mod cordons;
mod evidence;
mod failed;
mod foreign;
mod history;
pub mod hosts;
mod judge;
pub mod log;
mod names;
mod order;
mod protocol;
mod quorum;
mod sender;
pub mod sightings;
#[cfg(test)]
mod tests;
mod truth;
pub mod turns;
pub mod verdict;
mod violation;
mod write;

impl Truth<'_> {
    /// Returns all violations. A test expects none.
    pub fn violations(&self) -> Vec<Violation> {
        let history = history(self.audit);
        Judge::new(self, &history).violations(&history)
    }
}

impl Judge<'_> {
    fn violations(&self, history: &History) -> Vec<Violation> {
        let mut wrong = self.unlicensed_reboots(history);
        wrong.extend(self.too_many(history));
        wrong.extend(self.unlicensed_disruptions(history));
        wrong.extend(self.broken_protocol(history));
        wrong.extend(self.beyond_capacity(history));
        wrong.extend(self.beyond_fleet(history));
        wrong.extend(self.out_of_order(history));
        wrong.extend(self.failed_again(history));
        wrong.extend(self.two_servers(history));
        wrong.extend(self.broken_cordons());
        wrong.extend(self.uncleared_reboots(history));
        wrong.extend(self.refused());
        wrong.extend(self.foreign_writes());
        wrong.extend(self.unreadable_berths());
        wrong
    }

    /// Finds Berth's writes of berths that Berth's own permissions or admission policies rejected: Berth must not try
    /// such a write. A rejection by another policy or webhook is not a violation.
    fn refused(&self) -> impl Iterator<Item = Violation> {
        let refused = self.audit.iter().filter(|r| is_refused_by_own_rules(r));
        let honest = refused.filter(|r| !self.is_by_liar(r));
        honest.map(|r| {
            let who = r.node_claim.as_deref().unwrap_or("the controller");
            let text = format!(
                "{who} tried to write {} at {} and was refused: {}",
                r.name, r.received, r.message
            );
            Violation::of_record("Policy", r.node_claim.as_deref().unwrap_or_default(), r, text)
        })
    }

    /// I2 and I3: a host goes down only under a commit for its boot, and then boots the commit's target or its previous
    /// image. A host that another program reboots must boot the same image again.
    fn unlicensed_reboots(&self, history: &History) -> Vec<Violation> {
        let mut wrong = vec![];
        for (host, at, boot) in self.downs().filter(|(host, ..)| !self.is_liar(host)) {
            let (before, after) = self.around(host, at);
            let text = match licence(history, host, at, &boot) {
                Some((target, from)) => {
                    let Some(after) = after.filter(|a| *a != target && Some(a) != before.as_ref()) else {
                        continue;
                    };
                    if Some(&after) == from.as_ref() {
                        continue;
                    }
                    (
                        "I2",
                        format!("{host} went down at {at} with a commit for {target}, but booted {after}"),
                    )
                }
                None if self.is_excused(host, at) => {
                    if after.is_none() || after == before || self.may_swap(host, at) {
                        continue;
                    }
                    (
                        "I3",
                        format!(
                            "{host} was rebooted by the test at {at} and came back with another image: {after:?} in place of {before:?}"
                        ),
                    )
                }
                None if self.is_undone(history, host, at, &before, &after) => continue,
                None if !self.is_accused(history, host, at, &before, &after) => continue,
                None => (
                    "I2",
                    format!("{host} went down at {at}, at the end of boot {boot}, without a committed berth"),
                ),
            };
            wrong.push(self.of_boot(text.0, host, at, &boot, text.1));
        }
        wrong
    }

    /// True if a reboot undid the boot that a commit licensed: the host ran the target and then the previous image
    /// again. A commit covers one such reboot.
    fn is_undone(
        &self,
        history: &History,
        host: &str,
        at: Timestamp,
        before: &Option<String>,
        after: &Option<String>,
    ) -> bool {
        let earlier = self.downs().filter(|(name, when, _)| *name == host && *when < at);
        let licensed = earlier
            .last()
            .and_then(|(_, _, boot)| licence(history, host, at, &boot));
        licensed.is_some_and(|(target, from)| *before == Some(target) && (after.is_none() || *after == from))
    }

    /// True if the evidence shows that Berth caused a reboot without a licence. If the records list every reboot by
    /// others, Berth caused all other reboots. An audit log does not show who rebooted a machine into the same image.
    /// But if a member of a pool runs another image after the reboot, Berth updated it without a licence.
    fn is_accused(
        &self,
        history: &History,
        host: &str,
        at: Timestamp,
        before: &Option<String>,
        after: &Option<String>,
    ) -> bool {
        let changed = after.is_some() && before.is_some() && after != before;
        // The log does not show when the host went down, so begin at its last boot.
        let since = self.booted(host, at, false).map_or(at, |(since, _)| since);
        self.evidence.all_reboots || changed && self.is_member(host, at) && !self.is_unknown(history, host, since, at)
    }

    /// Returns reboots without a licence that cannot be attributed to Berth: host, time, and true if the host then
    /// booted another image.
    pub(crate) fn reboots_by_others(&self, history: &History) -> Vec<(String, Timestamp, bool)> {
        let mut found = vec![];
        for (host, at, boot) in self.downs() {
            let (before, after) = self.around(host, at);
            let is_open = licence(history, host, at, &boot).is_none() && !self.is_excused(host, at);
            let is_undone = self.is_undone(history, host, at, &before, &after);
            if is_open && !is_undone && !self.is_accused(history, host, at, &before, &after) {
                found.push((
                    host.to_owned(),
                    at,
                    before.is_some() && after.is_some() && before != after,
                ));
            }
        }
        found
    }

    /// True if the node was published as a member of a pool when it went down.
    fn is_member(&self, host: &str, at: Timestamp) -> bool {
        let mut before = self
            .writes("bootcnodes")
            .iter()
            .filter(|(_, r, object)| r.at <= at && name_of(r, object) == host);
        let last = before.next_back();
        last.is_some_and(|(_, _, object)| text(object, "/spec/poolName").is_some_and(|pool| !pool.is_empty()))
    }

    /// True if the log may lack a berth that the node held between these times. The log may begin within a turn of the
    /// node, or it may lack writes of berths from that time.
    fn is_unknown(&self, history: &History, host: &str, from: Timestamp, until: Timestamp) -> bool {
        let firsts = history.values().filter_map(|states| states.first());
        let mut late = firsts.filter(|first| first.at >= until);
        !self.evidence.whole && (self.misses_time(from, until) || late.any(|first| first.is_of(host)))
    }

    /// Returns a violation at the end of a boot, with the audit ID of the line that showed the host's next boot.
    fn of_boot(&self, rule: &'static str, host: &str, at: Timestamp, boot: &str, text: String) -> Violation {
        let next = self.evidence.lines.get(&(host.to_owned(), boot.to_owned()));
        Violation::of_host(rule, host, at, text).and(next.map_or("", String::as_str))
    }

    /// Returns the digests of the host's last boot before this time and first boot after it.
    fn around(&self, host: &str, at: Timestamp) -> (Option<String>, Option<String>) {
        let both = [false, true].map(|after| self.booted(host, at, after));
        both.map(|booted| booted.map(|(_, digest)| digest.to_owned())).into()
    }

    /// I1: a pool never has more holders than its capacity, and so never more hosts down under a licence.
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
                        "at {at}, {} nodes hold a berth of pool {pool}, whose capacity is {most}",
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

    /// Returns the tolerance for clock differences between API servers. Zero if the test harness recorded the boots.
    fn slack(&self) -> jiff::SignedDuration {
        if self.evidence.boots {
            jiff::SignedDuration::ZERO
        } else {
            self.lag
        }
    }

    /// I1(a): Berth cordons a Node or evicts its pods only under a berth of that node.
    fn unlicensed_disruptions(&self, history: &History) -> Vec<Violation> {
        let slack = self.slack();
        let mut wrong = vec![];
        let ours = self.audit.iter().filter(|r| r.program() == "berth-agent");
        for record in ours.filter(|r| r.succeeded()) {
            let host = record.user.strip_prefix("system:node:").unwrap_or_default();
            let cordons = record.resource == "nodes" && record.unschedulable() == Some(true) && sets_cordon(record);
            let evicts = record.resource == "pods" && record.subresource == "eviction";
            if !(cordons || evicts) || self.is_liar(host) {
                continue;
            }
            let at = record.received;
            if !holds(history, host, at, slack) && !self.is_unknown(history, host, at - slack, at + slack) {
                let what = if cordons { "cordoned its Node" } else { "evicted a pod" };
                let text = format!("{host} {what} at {} without a berth", record.received);
                wrong.push(Violation::of_record("I1", host, record, text));
            }
        }
        wrong
    }
}

/// True if this is Berth's own write of a berth, and Berth's own rules rejected it.
fn is_refused_by_own_rules(record: &Record) -> bool {
    let is_ours = record.program() == "berth-agent" || record.user.ends_with(":berth-controller");
    let is_refused = matches!(record.code, 403 | 422) && record.refused_by_own_rules;
    is_ours && is_refused && record.is_write() && record.is_of("leases")
}

/// True if the request itself sets `unschedulable`. When an agent restores a node that an admin cordoned, its request
/// does not set the field.
fn sets_cordon(record: &Record) -> bool {
    let asked = record.request.as_ref().and_then(|r| r.pointer("/spec/unschedulable"));
    asked.and_then(serde_json::Value::as_bool) == Some(true)
}
