//! The changes of a status as lines, for a file or a pipe.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::live::Old;
use crate::insights::NodeLine;
use crate::render::{completion, numbers};
use crate::status::Report;
use crate::text::{age, clean};

/// Steps in which the progress of a pull is told, in percent.
const STEP: u64 = 25;

/// State that the lines have told so far.
#[derive(Debug, Default)]
pub(super) struct Lines {
    begun: bool,
    pools: BTreeMap<String, String>,
    /// Last words on each node, without what changes all the time.
    nodes: BTreeMap<String, String>,
    findings: BTreeSet<String>,
    old: bool,
}

impl Lines {
    /// Lines for what has changed since the last time. The first time, they tell of each pool, of the nodes that are at work or
    /// have something to say, and of what needs a look.
    pub(super) fn next(&mut self, report: &Report, old: Option<&Old>, now: Timestamp) -> String {
        let mut out: Vec<String> = Vec::new();
        match (old, self.old) {
            (Some(old), false) => out.push(old.text(now)),
            (None, true) => out.push("what is shown is up to date again".to_owned()),
            _ => {}
        }
        self.old = old.is_some();
        self.pools(report, &mut out);
        self.nodes(report, &mut out);
        self.findings(report, now, &mut out);
        self.begun = true;
        out.iter().map(|line| format!("{now:.0}  {line}\n")).collect()
    }

    fn pools(&mut self, report: &Report, out: &mut Vec<String>) {
        let mut pools = BTreeMap::new();
        for pool in &report.pools {
            let (counts, assessment) = (&pool.counts, pool.assessment.as_str());
            let text = format!("{assessment}, {}: {}", completion(counts), numbers(counts));
            if self.pools.get(&pool.name) != Some(&text) {
                out.push(format!("pool {}: {text}", pool.name));
            }
            pools.insert(pool.name.clone(), text);
        }
        let gone = self.pools.keys().filter(|name| !pools.contains_key(*name));
        out.extend(gone.map(|name| format!("pool {name}: gone")));
        self.pools = pools;
    }

    fn nodes(&mut self, report: &Report, out: &mut Vec<String>) {
        let mut nodes = BTreeMap::new();
        for line in report.pools.iter().flat_map(|pool| &pool.nodes) {
            let name = clean(&line.row.name);
            let said = said(line);
            let key = format!("{said}: {}", line.cause);
            let quiet = line.cause.is_empty() && matches!(line.assessment, Some("Completed" | "Outdated"));
            if self.nodes.get(&name) != Some(&key) && (self.begun || !quiet) {
                let message = match line.row.message.as_str() {
                    "" => String::new(),
                    message => format!(": {message}"),
                };
                out.push(format!("node {name}: {said}{message}"));
            }
            nodes.insert(name, key);
        }
        let gone = self.nodes.keys().filter(|name| !nodes.contains_key(*name));
        out.extend(gone.map(|name| format!("node {name}: in no pool that is shown any more")));
        self.nodes = nodes;
    }

    fn findings(&mut self, report: &Report, now: Timestamp, out: &mut Vec<String>) {
        let mut findings = BTreeSet::new();
        for found in &report.health {
            let text = format!("{}, {}: {}", found.level.as_str(), found.impact, found.message);
            if !self.findings.contains(&text) {
                let since = found
                    .since
                    .map_or_else(String::new, |since| format!(", for {}", age(since, now)));
                out.push(format!("health: {text}{since}"));
            }
            findings.insert(text);
        }
        let gone = self.findings.iter().filter(|text| !findings.contains(*text));
        out.extend(gone.map(|text| format!("health: over: {text}")));
        self.findings = findings;
    }
}

/// `Progressing, Updating, 4.1, 50% pulled`.
fn said(line: &NodeLine) -> String {
    let version = if line.row.version.is_empty() {
        "?"
    } else {
        &line.row.version
    };
    let mut said = format!("{}, {}, {version}", line.assessment.unwrap_or_default(), line.phase());
    if let Some(percent) = line.row.progress.as_ref().and_then(|p| p.percent) {
        said += &format!(", {}% pulled", percent / STEP * STEP);
    }
    said
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{Snapshot, report};

    const DIGESTS: [&str; 2] = [
        "sha256:1111111111111111111111111111111111111111111111111111111111111111",
        "sha256:2222222222222222222222222222222222222222222222222222222222222222",
    ];

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    /// A pool with one node in that phase, with these parts of its status besides.
    fn rollout(phase: &str, runs: usize, more: Value) -> Report {
        let version = if runs == 0 { "v1" } else { "v2" };
        let mut status = json!({
            "phase": phase, "booted": { "digest": DIGESTS[runs], "version": version, "image": "i", "architecture": "amd64" },
        });
        status
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let spec = json!({
            "poolName": "workers", "nodeUID": "u",
            "image": { "ref": "r", "digest": DIGESTS[1], "indexDigest": DIGESTS[1], "version": "v2" },
        });
        let snapshot = json!({
            "pools": [{ "metadata": { "name": "workers" }, "spec": { "nodeSelector": {}, "image": { "ref": "r" } } }],
            "bootcNodes": [{ "metadata": { "name": "n1" }, "spec": spec, "status": status }],
        });
        let snapshot: Snapshot = serde_json::from_value(snapshot).unwrap();
        report(&snapshot, now())
    }

    fn blocked(since: &str) -> Value {
        json!({ "drainBlockers": [{ "pod": "shop/db-0", "reason": "its budget", "since": since }] })
    }

    fn pulled(bytes: u64) -> Value {
        json!({ "progress": { "bytes": bytes, "bytesTotal": 100, "bytesPerSecond": 1 } })
    }

    #[test]
    fn a_line_is_appended_for_each_change_and_for_nothing_else() {
        let mut lines = Lines::default();
        let mut next = |report: &Report| {
            let text = lines.next(report, None, now());
            text.replace("2026-03-01T12:00:00Z  ", "")
        };
        let first = next(&rollout("Waiting", 0, json!({})));
        assert_eq!(
            first,
            "pool workers: Pending, 0% (0/1): 1 Available, 0 Progressing, 0 Draining\n"
        );
        let pulls = next(&rollout("Staging", 0, pulled(30)));
        assert!(
            pulls.ends_with("node n1: Progressing, Updating, v1, 25% pulled\n"),
            "{pulls}"
        );
        assert_eq!(next(&rollout("Staging", 0, pulled(40))), "", "the same quarter");
        assert_eq!(
            next(&rollout("Staging", 0, pulled(50))),
            "node n1: Progressing, Updating, v1, 50% pulled\n"
        );
        let drains = next(&rollout("Draining", 0, blocked("2026-03-01T11:59:00Z")));
        assert!(
            drains.ends_with("node n1: Progressing, Draining, v1: shop/db-0: its budget, for 1m\n"),
            "{drains}"
        );
        assert_eq!(
            next(&rollout("Draining", 0, blocked("2026-03-01T11:58:00Z"))),
            "",
            "only an age differs"
        );
        let long = next(&rollout("Draining", 0, blocked("2026-03-01T11:40:00Z")));
        assert_eq!(
            long,
            "health: Warning, Update Speed: Node n1 cannot be drained, for 20m\n"
        );
        let done = next(&rollout("Updated", 1, json!({})));
        for part in [
            "pool workers: Completed, 100% (1/1)",
            "node n1: Completed, Updated, v2\n",
            "health: over: Warning, Update Speed: Node n1 cannot be drained\n",
        ] {
            assert!(done.contains(part), "{part}\n{done}");
        }
    }

    #[test]
    fn what_is_old_is_said_once_and_taken_back_once() {
        let mut lines = Lines::default();
        let report = rollout("Waiting", 0, json!({}));
        lines.next(&report, None, now());
        let mut old = Old {
            kinds: "Nodes".to_owned(),
            since: now(),
            why: "connection refused".to_owned(),
        };
        let said = lines.next(&report, Some(&old), now());
        assert!(
            said.contains("what is shown is old, for 0s (Nodes): connection refused"),
            "{said}"
        );
        "Nodes, Leases".clone_into(&mut old.kinds);
        assert_eq!(lines.next(&report, Some(&old), now()), "");
        assert!(
            lines
                .next(&report, None, now())
                .ends_with("what is shown is up to date again\n")
        );
    }
}
