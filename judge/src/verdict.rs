//! Judgement of a whole log: its turns, what was violated, and what could not be judged.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::evidence::Evidence;
use crate::history::{History, history, written};
use crate::judge::Judge;
use crate::log::{Log, Unfit};
use crate::turns::{Turn, turns};
use crate::violation::Violation;
use crate::{Truth, audit};

/// Knowledge of the caller beside the log.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Namespace of the berths.
    pub namespace: String,
    /// The fleet's limit, where one was in force all the time.
    pub fleet: Option<usize>,
    /// Longest time from a write until everybody has seen it, and between the clocks of the API servers.
    pub lag: SignedDuration,
}

/// Judgement of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// First and last write that is judged.
    pub from: Timestamp,
    /// See `from`.
    pub until: Timestamp,
    /// The turns, by their start.
    pub turns: Vec<Turn>,
    /// Everything that was wrong.
    pub violations: Vec<Violation>,
    /// Rules that this log does not let anybody judge, and why.
    pub not_judged: Vec<String>,
    /// Reboots without a berth of which nothing says that they were Berth's.
    pub others: Vec<Reboot>,
}

/// A reboot that Berth had no part in, as far as the log tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reboot {
    /// The node.
    pub node: String,
    /// Latest time at which it went down.
    pub at: Timestamp,
    /// Another image runs since.
    pub other_image: bool,
}

impl Log {
    /// Judges all that was taken in.
    ///
    /// # Errors
    /// When it shows no berth, or not what was written to one.
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
        let times = || history.values().flatten().map(|s| s.at);
        Ok(Report {
            from: times().min().unwrap_or_default(),
            until: times().max().unwrap_or_default(),
            not_judged: self.not_judged(terms, &evidence, &history),
            turns,
            violations,
            others: others.collect(),
        })
    }

    /// Sentences about what is missing.
    fn not_judged(&self, terms: &Terms, evidence: &Evidence, history: &History) -> Vec<String> {
        let mut said = vec![];
        let mut say = |missing: bool, words: &str| {
            if missing {
                said.push(words.to_owned());
            }
        };
        say(
            !self.sightings.agents,
            "I2, I3, I5 (what was booted): no status of a BootcNode has its body",
        );
        say(
            !self.sightings.kubelets,
            "I5 (Ready under the new boot), order of the pools: no status of a Node has its body",
        );
        say(
            !evidence.nodes,
            "I1 (cordoned before the reboot), I4: no write of a Node has its body",
        );
        say(
            !evidence.published,
            "I2 (what was published), order of the pools: no write of a BootcNode has its body",
        );
        say(
            !evidence.pool_statuses,
            "I1 (capacity), I8: no status of a BootcNodePool has its body",
        );
        say(
            terms.fleet.is_none(),
            "I1 (limit of the fleet): the log does not show it; say what it was with --fleet-limit",
        );
        say(
            !evidence.pods,
            "I1 (no pod left behind): the log does not show what became of each pod",
        );
        let bare = self.bare();
        if bare > 0 {
            said.push(format!("{bare} writes of Leases: they have no body"));
        }
        for (lease, states) in history {
            let gaps: Vec<String> = states
                .iter()
                .filter(|s| s.after_gap)
                .map(|s| s.at.to_string())
                .collect();
            if !gaps.is_empty() {
                said.push(format!(
                    "{lease}: writes of it are missing before {}; the turns of that time are not judged",
                    gaps.join(", ")
                ));
            }
        }
        let bad = self.bad();
        if bad.count > 0 {
            let more = if bad.count > bad.named.len() as u64 {
                ", …"
            } else {
                ""
            };
            said.push(format!(
                "lines that are no audit events ({}): {}{more}",
                bad.count,
                bad.named.join(", ")
            ));
        }
        said
    }
}

/// The largest capacity that each pool had.
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
