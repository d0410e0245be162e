//! `status --watch` for a file or a pipe: one line for each change.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::live::Stale;
use crate::insights::NodeLine;
use crate::render::{completion, numbers};
use crate::status::Report;
use crate::text::{age, clean};

/// Pull progress is reported in steps of this many percent.
const PROGRESS_STEP: u64 = 25;

/// Formats changes as lines. Keeps the state that was last reported.
#[derive(Debug, Default)]
pub(super) struct Lines {
    begun: bool,
    pools: BTreeMap<String, String>,
    /// Last reported state of each node, without ages and waiting times.
    nodes: BTreeMap<String, String>,
    findings: BTreeSet<String>,
    stale: bool,
}

impl Lines {
    /// Returns lines for the changes since the last call. The first call reports each pool, nodes that are being
    /// updated or have a message, and all health findings.
    pub(super) fn next(&mut self, report: &Report, stale: Option<&Stale>, now: Timestamp) -> String {
        let mut out: Vec<String> = Vec::new();
        match (stale, self.stale) {
            (Some(stale), false) => out.push(stale.text(now)),
            (None, true) => out.push("the data is up to date again".to_owned()),
            _ => {}
        }
        self.stale = stale.is_some();
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
            let state = state(line);
            let key = format!("{state}: {}", line.cause);
            let quiet = line.cause.is_empty() && matches!(line.assessment, Some("Completed" | "Outdated"));
            if self.nodes.get(&name) != Some(&key) && (self.begun || !quiet) {
                let message = match line.row.message.as_str() {
                    "" => String::new(),
                    message => format!(": {message}"),
                };
                out.push(format!("node {name}: {state}{message}"));
            }
            nodes.insert(name, key);
        }
        let gone = self.nodes.keys().filter(|name| !nodes.contains_key(*name));
        out.extend(gone.map(|name| format!("node {name}: no longer in a pool that is shown")));
        self.nodes = nodes;
    }

    fn findings(&mut self, report: &Report, now: Timestamp, out: &mut Vec<String>) {
        let mut findings = BTreeSet::new();
        for found in &report.health {
            let text = format!("{}, {}: {}", found.level.as_str(), found.impact.as_str(), found.message);
            if !self.findings.contains(&text) {
                let since = found
                    .since
                    .map_or_else(String::new, |since| format!(", for {}", age(since, now)));
                out.push(format!("health: {text}{since}"));
            }
            findings.insert(text);
        }
        let gone = self.findings.iter().filter(|text| !findings.contains(*text));
        out.extend(gone.map(|text| format!("health: resolved: {text}")));
        self.findings = findings;
    }
}

/// Returns a node's state, such as `Progressing, Updating, 4.1, 50% pulled`.
fn state(line: &NodeLine) -> String {
    let version = if line.row.version.is_empty() {
        "?"
    } else {
        &line.row.version
    };
    let mut state = format!("{}, {}, {version}", line.assessment.unwrap_or_default(), line.phase());
    if let Some(percent) = line.row.progress.as_ref().and_then(|p| p.percent) {
        state += &format!(", {}% pulled", percent / PROGRESS_STEP * PROGRESS_STEP);
    }
    state
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

    /// Returns a report on a pool with one node in this phase. The fields in `more` are added to the node's status.
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
    fn each_change_appends_one_line() {
        let mut lines = Lines::default();
        fn next(lines: &mut Lines, report: &Report) -> String {
            let text = lines.next(report, None, now());
            text.replace("2026-03-01T12:00:00Z  ", "")
        }
        let first = next(&mut lines, &rollout("Waiting", 0, json!({})));
        assert_eq!(
            first,
            "pool workers: Pending, 0% (0/1): 1 Available, 0 Progressing, 0 Draining\n"
        );
        let pulls = next(&mut lines, &rollout("Staging", 0, pulled(30)));
        assert!(
            pulls.ends_with("node n1: Progressing, Updating, v1, 25% pulled\n"),
            "{pulls}"
        );
        assert_eq!(
            next(&mut lines, &rollout("Staging", 0, pulled(40))),
            "",
            "the same quarter"
        );
        assert_eq!(
            next(&mut lines, &rollout("Staging", 0, pulled(50))),
            "node n1: Progressing, Updating, v1, 50% pulled\n"
        );
        let drains = next(&mut lines, &rollout("Draining", 0, blocked("2026-03-01T11:59:00Z")));
        assert!(
            drains.ends_with("node n1: Progressing, Draining, v1: shop/db-0: its budget, for 1m\n"),
            "{drains}"
        );
        assert_eq!(
            next(&mut lines, &rollout("Draining", 0, blocked("2026-03-01T11:58:00Z"))),
            "",
            "only an age differs"
        );
        let long = next(&mut lines, &rollout("Draining", 0, blocked("2026-03-01T11:40:00Z")));
        assert_eq!(
            long,
            "health: Warning, Update Speed: Node n1 cannot be drained, for 20m\n"
        );
        let done = next(&mut lines, &rollout("Updated", 1, json!({})));
        for part in [
            "pool workers: Completed, 100% (1/1)",
            "node n1: Completed, Updated, v2\n",
            "health: resolved: Warning, Update Speed: Node n1 cannot be drained\n",
        ] {
            assert!(done.contains(part), "{part}\n{done}");
        }
    }

    #[test]
    fn stale_data_is_reported_and_cleared_once() {
        let mut lines = Lines::default();
        let report = rollout("Waiting", 0, json!({}));
        lines.next(&report, None, now());
        let mut stale = Stale {
            kinds: "Nodes".to_owned(),
            since: now(),
            why: "connection refused".to_owned(),
        };
        let text = lines.next(&report, Some(&stale), now());
        assert!(
            text.contains("the data is 0s old (Nodes): connection refused"),
            "{text}"
        );
        "Nodes, Leases".clone_into(&mut stale.kinds);
        assert_eq!(lines.next(&report, Some(&stale), now()), "");
        assert!(lines.next(&report, None, now()).ends_with("up to date again\n"));
    }
}
