//! Reads a large audit log line by line. Keeps only the fields that a rule reads, and a status only if it has changed.
//! So memory use grows with the writes of berths and Nodes, but not with a cluster's heartbeats.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::audit::{Head, Record, head, parse};
use crate::sightings::Sightings;
use crate::write::{has_pool, is_doubtful};

const NAMED: usize = 5;

/// The part of a log that the judge reads.
#[derive(Debug, Default)]
pub struct Log {
    records: Vec<Record>,
    /// Audit IDs of the kept records. If a rotated file is read twice, its records are kept only once.
    ids: BTreeSet<String>,
    /// Last kept status of each pool.
    pools: BTreeMap<String, Value>,
    pub(crate) sightings: Sightings,
    pub(crate) bodies: Bodies,
    bad: Bad,
    lines: u64,
    leases_of_others: u64,
}

/// Kinds of writes whose bodies are in the log.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Bodies {
    pub(crate) nodes: bool,
    pub(crate) published: bool,
    pub(crate) pool_statuses: bool,
    /// Number of writes of Leases in Berth's namespace without a body.
    bare: u64,
    /// Number of writes of Leases in Berth's namespace with a body.
    leases: u64,
}

/// Lines that cannot be parsed.
#[derive(Debug, Default, Clone)]
pub(crate) struct Bad {
    pub(crate) count: u64,
    /// File and line number of the first few bad lines.
    pub(crate) named: Vec<String>,
}

/// Why a log cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The audit policy keeps no bodies of Leases.
    #[error(
        "the log has {0} writes of Leases in the namespace {1}, all without bodies: the audit policy has level Metadata \
         for Leases. Berth's writes need level RequestResponse; use the rules of manifests/audit-policy.yaml"
    )]
    Bare(u64, String),
    /// No line is a write of a berth.
    #[error(
        "none of the {0} lines is a write of a berth in the namespace {1}: give the audit log of the API servers from the \
         time of a rollout, and --namespace if Berth is installed in another namespace"
    )]
    Nothing(u64, String),
    /// No line is an audit event.
    #[error(
        "none of the {0} lines is an audit event in JSON: give a log that was written with --audit-log-format=json"
    )]
    Foreign(u64),
}

impl Log {
    /// Reads line `number` of `file`. A line that cannot be parsed is counted and skipped.
    pub fn take(&mut self, file: &str, number: u64, line: &[u8], namespace: &str) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        self.lines += 1;
        let record = match head(line) {
            Ok(head) if !is_of_interest(&head, namespace) => return,
            Ok(_) => parse(line),
            Err(error) => Err(error),
        };
        match record {
            Ok(Some(record)) => self.keep(record),
            Ok(None) => {}
            Err(_) => {
                self.bad.count += 1;
                if self.bad.named.len() < NAMED {
                    self.bad.named.push(format!("{file}:{number}"));
                }
            }
        }
    }

    fn keep(&mut self, mut record: Record) {
        let is_stored = record.is_write() && record.succeeded();
        let has_body = record.response.is_some();
        match record.target().as_str() {
            "bootcnodes/status" => return self.sightings.of_agent(&record),
            "nodes/status" => return self.sightings.of_kubelet(&record),
            "leases" if is_stored && !record.verb.starts_with("delete") => {
                self.bodies.leases += u64::from(has_body);
                self.bodies.bare += u64::from(!has_body);
            }
            "nodes" => self.bodies.nodes |= is_stored && has_body,
            "bootcnodes" => self.bodies.published |= is_stored && has_body,
            "bootcnodepools/status" => self.bodies.pool_statuses |= is_stored && has_body,
            _ => {}
        }
        // Count and drop writes of the controller's own Lease, which it renews every two seconds.
        if record.is_of("leases") && is_stored && record.response.as_ref().is_some_and(|lease| !has_pool(lease)) {
            self.leases_of_others += 1;
            return;
        }
        if !(is_stored || is_doubtful(&record) || matches!(record.code, 403 | 422)) {
            return;
        }
        if self.ids.contains(&record.audit_id) {
            return;
        }
        prune(&mut record);
        if record.target() == "bootcnodepools/status" && is_stored {
            let status = record.response.as_ref().and_then(|r| r.get("status")).cloned();
            let status = status.unwrap_or_default();
            if self.pools.get(&record.name) == Some(&status) {
                return;
            }
            self.pools.insert(record.name.clone(), status);
        }
        if !record.audit_id.is_empty() {
            self.ids.insert(record.audit_id.clone());
        }
        self.records.push(record);
    }

    /// Returns the kept records, ordered by time. Fails if the log shows no berth.
    pub(crate) fn records(&mut self, namespace: &str) -> Result<&[Record], Unfit> {
        if self.lines > 0 && self.bad.count == self.lines {
            return Err(Unfit::Foreign(self.lines));
        }
        if self.bodies.leases == 0 && self.bodies.bare > 0 {
            return Err(Unfit::Bare(self.bodies.bare, namespace.to_owned()));
        }
        let mut leases = self.records.iter().filter(|r| r.resource == "leases");
        if !leases.any(|r| r.response.as_ref().is_some_and(has_pool)) {
            return Err(Unfit::Nothing(self.lines, namespace.to_owned()));
        }
        self.records.sort_by_key(|r| r.at);
        Ok(&self.records)
    }

    pub(crate) fn kept(&self) -> &[Record] {
        &self.records
    }

    /// Returns the number of bad lines, and the file and line number of the first few.
    pub fn bad_lines(&self) -> (u64, &[String]) {
        (self.bad.count, &self.bad.named)
    }

    #[cfg(test)]
    pub(crate) fn ids(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn bad(&self) -> &Bad {
        &self.bad
    }

    /// Returns the number of writes of Leases that are not berths. These writes are not kept.
    pub fn leases_of_others(&self) -> u64 {
        self.leases_of_others
    }

    pub(crate) fn bare(&self) -> u64 {
        self.bodies.bare
    }
}

/// True if a rule reads lines with this head. Lines that were logged before the response are left out, because they do
/// not show the stored object.
fn is_of_interest(head: &Head, namespace: &str) -> bool {
    if matches!(head.stage.as_str(), "RequestReceived" | "ResponseStarted") {
        return false;
    }
    if matches!(head.verb.as_str(), "get" | "list" | "watch") {
        return false;
    }
    let of = &head.object_ref;
    match (of.api_group.as_str(), of.resource.as_str(), of.subresource.as_str()) {
        ("coordination.k8s.io", "leases", "") => of.namespace == namespace,
        ("", "nodes", "" | "status") | ("", "pods", "eviction") => true,
        ("berth.dev", "bootcnodes" | "bootcnodepools", "" | "status") => true,
        _ => false,
    }
}

/// Reduces the bodies to the fields that the rules read.
fn prune(record: &mut Record) {
    let target = record.target();
    for body in [&mut record.request, &mut record.response] {
        let Some(whole) = body.as_ref() else { continue };
        *body = match target.as_str() {
            "leases" => continue,
            "nodes" => Some(node(whole)),
            "bootcnodes" => Some(json!({ "metadata": metadata(whole), "spec": whole.get("spec") })),
            "bootcnodepools" => {
                let after = whole.pointer("/spec/rollout/after");
                Some(json!({ "metadata": metadata(whole), "spec": { "rollout": { "after": after } } }))
            }
            "bootcnodepools/status" => {
                let (total, failures) = (whole.pointer("/status/berths/total"), whole.pointer("/status/failures"));
                Some(json!({
                    "metadata": metadata(whole),
                    "status": { "berths": { "total": total }, "failures": failures },
                }))
            }
            _ => None,
        };
    }
}

fn metadata(object: &Value) -> Map<String, Value> {
    let keys = ["name", "uid", "resourceVersion", "deletionTimestamp"];
    let found = keys.iter().filter_map(|key| {
        let value = object.pointer(&format!("/metadata/{key}"))?;
        Some(((*key).to_owned(), value.clone()))
    });
    found.collect()
}

/// Reduces a Node, or a patch of a Node. Absent fields stay absent.
fn node(object: &Value) -> Value {
    let mut kept = metadata(object);
    for key in ["labels", "annotations"] {
        if let Some(value) = object.pointer(&format!("/metadata/{key}")) {
            kept.insert(key.to_owned(), value.clone());
        }
    }
    match object.pointer("/spec/unschedulable") {
        Some(value) => json!({ "metadata": kept, "spec": { "unschedulable": value } }),
        None => json!({ "metadata": kept }),
    }
}
