//! Verdict on a whole log: its turns, the violations, and the rules that could not be judged.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::audit;
use crate::evidence::Evidence;
use crate::history::{History, history};
use crate::judge::Judge;
use crate::log::{Log, Unfit};
use crate::truth::Truth;
use crate::turns::{Turn, turns};
use crate::violation::Violation;
use crate::write::written;

/// Facts that the log does not contain.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Namespace of the berths.
    pub namespace: String,
    /// The fleet's limit, if it did not change; `None` if unknown or unset.
    pub fleet: Option<usize>,
    /// Longest time until all programs see a write. Also the largest difference between the clocks of the API servers.
    pub lag: SignedDuration,
}

/// Verdict on a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Time of the first judged write of a berth.
    pub from: Timestamp,
    /// Time of the last judged write of a berth.
    pub until: Timestamp,
    /// Turns, ordered by their start.
    pub turns: Vec<Turn>,
    /// All violations.
    pub violations: Vec<Violation>,
    /// Rules that cannot be judged by this log, and why.
    pub not_judged: Vec<String>,
    /// Reboots without a berth that cannot be attributed to Berth.
    pub others: Vec<Reboot>,
}

/// A reboot that cannot be attributed to Berth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reboot {
    /// The node.
    pub node: String,
    /// Latest time when the node can have gone down.
    pub at: Timestamp,
    /// True if the node booted another image.
    pub other_image: bool,
}

impl Log {
    /// Judges the lines read so far. Fails if the log shows no berth, or no bodies of berths.
    pub fn judge(&mut self, terms: &Terms) -> Result<Report, Unfit> {
        self.records(&terms.namespace)?;
        let records = self.kept();
        let history = history(records);
        let hosts = self.sightings.events(&history);
        let bodies = self.bodies;
        let evidence = Evidence {
            whole: false,
            all_reboots: false,
            boots: false,
            ready: self.sightings.agents && self.sightings.kubelets,
            nodes: bodies.nodes,
            published: bodies.published,
            pool_statuses: bodies.pool_statuses,
            pods: false,
            lines: self.sightings.lines(),
        };
        let truth = Truth {
            hosts: &hosts,
            audit: records,
            excused: &[],
            swapped: &[],
            liars: &[],
            earlier_liars: &[],
            capacity: capacities(records),
            fleet: terms.fleet,
            evidence: &evidence,
            lag: terms.lag,
        };
        let mut violations = truth.violations();
        violations.sort_by(|a, b| (a.at, a.rule, &a.text).cmp(&(b.at, b.rule, &b.text)));
        violations.dedup();
        let others = Judge::new(&truth, &history).reboots_by_others(&history);
        let others = others
            .into_iter()
            .map(|(node, at, other_image)| Reboot { node, at, other_image });
        let turns = turns(&history, &hosts, &violations, &evidence);
        let times = history.values().flatten().map(|s| s.at);
        Ok(Report {
            from: times.clone().min().unwrap_or_default(),
            until: times.max().unwrap_or_default(),
            not_judged: self.not_judged(terms, &evidence, &history),
            turns,
            violations,
            others: others.collect(),
        })
    }

    /// Returns a sentence about each missing kind of evidence, each gap in the log, and lines that cannot be parsed.
    fn not_judged(&self, terms: &Terms, evidence: &Evidence, history: &History) -> Vec<String> {
        let missing = [
            (
                self.sightings.agents,
                "I2, I3, I5 (booted image): the log has no bodies of BootcNode statuses",
            ),
            (
                self.sightings.kubelets,
                "I5 (Ready in the new boot), order of the pools: the log has no bodies of Node statuses",
            ),
            (
                evidence.nodes,
                "I1 (cordoned before the reboot), I4, I11: the log has no bodies of Node writes",
            ),
            (
                evidence.published,
                "I2 (published image), order of the pools: the log has no bodies of BootcNode writes",
            ),
            (
                evidence.pool_statuses,
                "I1 (capacity), I8: the log has no bodies of BootcNodePool statuses",
            ),
            (
                terms.fleet.is_some(),
                "I1 (limit of the fleet): the log does not contain the limit; pass it with --fleet-limit",
            ),
            (
                evidence.pods,
                "I1 (no pod left behind): the log does not show when each pod ended",
            ),
        ];
        let missing = missing.into_iter().filter(|(is_there, _)| !is_there);
        let mut said: Vec<String> = missing.map(|(_, words)| words.to_owned()).collect();
        let bare = self.bare();
        if bare > 0 {
            said.push(format!("writes of Leases without a body: {bare}"));
        }
        for (lease, states) in history {
            let gaps: Vec<String> = states
                .iter()
                .filter(|s| s.after_gap)
                .map(|s| s.at.to_string())
                .collect();
            if !gaps.is_empty() {
                said.push(format!(
                    "{lease}: the log lacks writes before {}; turns at that time are not judged",
                    gaps.join(", ")
                ));
            }
        }
        said.extend(self.bad_lines_named());
        said
    }

    /// Returns a sentence about the lines that cannot be parsed, if any.
    fn bad_lines_named(&self) -> Option<String> {
        let bad = self.bad();
        let more = if bad.count > bad.named.len() as u64 {
            ", …"
        } else {
            ""
        };
        let named = bad.named.join(", ");
        let count = Some(bad.count).filter(|count| *count > 0)?;
        Some(format!("lines that are not audit events ({count}): {named}{more}"))
    }
}

/// Returns the largest capacity that each pool had.
fn capacities(records: &[audit::Record]) -> BTreeMap<String, usize> {
    let mut largest = BTreeMap::new();
    let statuses = written(records).remove(&("bootcnodepools", "status"));
    for (_, record, object) in statuses.into_iter().flatten() {
        let total = object
            .pointer("/status/berths/total")
            .and_then(serde_json::Value::as_u64);
        let Some(total) = total.and_then(|total| usize::try_from(total).ok()) else {
            continue;
        };
        let most = largest.entry(record.name.clone()).or_insert(0);
        *most = total.max(*most);
    }
    largest
}
