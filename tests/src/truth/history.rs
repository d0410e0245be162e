//! History of each berth, write by write, and of what else the judge has to put beside it. All in the order of the
//! server's own counter: resourceVersions of all objects come from one.

use std::collections::BTreeMap;

use berth_api::berth::{Berth, HoldPhase, lease};
use berth_api::keys;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::Value;

use crate::audit::Record;

/// A state that a berth had, from when on, and who made it so.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) at: Timestamp,
    /// Time when the request came in that made it so.
    pub(super) received: Timestamp,
    pub(super) version: u64,
    /// `berth-agent`, `berth-controller`, or whoever else.
    pub(super) program: String,
    /// The node that the writer's token is bound to.
    pub(super) claim: Option<String>,
    /// Something that is not on record came between this state and the one before.
    pub(super) after_gap: bool,
    pub(super) berth: Berth,
}

/// Name that the judge gives to any program with the controller's identity.
pub(super) const CONTROLLER: &str = "berth-controller";

/// States of each berth, by Lease name, in the order of the server's answers.
pub(super) type History = BTreeMap<String, Vec<Seen>>;

pub(super) fn history(audit: &[Record]) -> History {
    let mut history = History::new();
    let mut ordered: Vec<_> = audit.iter().filter(|r| is_berth_write(r)).collect();
    ordered.sort_by_key(|r| r.response.as_ref().map_or(0, version));
    for record in ordered {
        let Some((name, mut seen)) = record.response.as_ref().and_then(|object| seen(record, object)) else {
            continue;
        };
        let states = history.entry(name).or_default();
        // A write that was stored, and whose answer nobody got: the next one builds on it.
        let built_on = record
            .request
            .as_ref()
            .filter(|_| record.verb == "update")
            .map_or(0, version);
        if let Some(last) = states.last()
            && built_on > last.version
        {
            let unanswered = audit
                .iter()
                .find_map(|r| unanswered(r, &seen.berth.name(), last.version));
            match unanswered {
                Some(between) => states.push(Seen {
                    version: built_on,
                    ..between
                }),
                None => seen.after_gap = true,
            }
        }
        states.push(seen);
    }
    history
}

fn seen(record: &Record, object: &Value) -> Option<(String, Seen)> {
    let lease: Lease = serde_json::from_value(object.clone()).ok()?;
    let berth = lease::read(&lease).ok()?;
    let program = match record.user.ends_with(":berth-controller") {
        true => CONTROLLER,
        false => record.program(),
    };
    let seen = Seen {
        at: record.at,
        received: record.received,
        version: version(object),
        program: program.to_owned(),
        claim: record.node_claim.clone(),
        after_gap: false,
        berth,
    };
    Some((seen.berth.name(), seen))
}

/// A write to that berth, as it was at that version, which may have been stored all the same.
fn unanswered(record: &Record, name: &str, built_on: u64) -> Option<Seen> {
    let request = record
        .request
        .as_ref()
        .filter(|_| is_doubtful(record) && record.target() == "leases")?;
    let (_, seen) = seen(record, request).filter(|(n, _)| n == name && version(request) == built_on)?;
    Some(Seen {
        at: record.received,
        ..seen
    })
}

/// Says whether it is unknown if this write was stored: the server said that it failed itself, or nothing.
pub(super) fn is_doubtful(record: &Record) -> bool {
    record.is_write()
        && !record.succeeded()
        && record.stage != "ResponseStarted"
        && (record.code == 0 || record.code >= 500)
}

fn is_berth_write(record: &Record) -> bool {
    let writes = record.is_write() && !record.verb.starts_with("delete");
    writes && record.resource == "leases" && record.succeeded() && record.response.as_ref().is_some_and(has_pool)
}

fn has_pool(object: &Value) -> bool {
    let labels = object.pointer("/metadata/labels").and_then(|l| l.as_object());
    labels.is_some_and(|l| l.contains_key(keys::LABEL_POOL))
}

/// An object's place in the order of all writes.
pub(super) fn version(object: &Value) -> u64 {
    text(object, "/metadata/resourceVersion")
        .and_then(|v| v.parse().ok())
        .unwrap_or(0)
}

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer).and_then(Value::as_str)
}

/// The commit under which a host may go down at that time: target and from.
pub(super) fn licence(history: &History, host: &str, at: Timestamp, boot: &str) -> Option<(String, Option<String>)> {
    history.values().find_map(|states| {
        let now = states.iter().rev().find(|s| s.at <= at)?;
        let holding = now.berth.holding().filter(|h| h.node.as_str() == host)?;
        let committed = holding.phase == HoldPhase::Committed && holding.boot_id.as_str() == boot;
        committed.then(|| {
            (
                holding.target.to_string(),
                holding.from.as_ref().map(ToString::to_string),
            )
        })
    })
}

/// Says whether the host holds a berth at that time.
pub(super) fn holds(history: &History, host: &str, at: Timestamp) -> bool {
    history.values().any(|states| {
        let now = states.iter().rev().find(|s| s.at <= at);
        now.and_then(|s| s.berth.holding())
            .is_some_and(|h| h.node.as_str() == host)
    })
}

/// Successful writes of one kind of object whose answer is on record: place in the order, and record.
pub(super) fn writes<'a>(audit: &'a [Record], target: &str) -> Vec<(u64, &'a Record, &'a Value)> {
    let ours = |r: &&Record| r.is_write() && r.succeeded() && r.target() == target;
    let found = audit
        .iter()
        .filter(ours)
        .filter_map(|r| Some((version(r.response.as_ref()?), r, r.response.as_ref()?)));
    let mut found: Vec<_> = found.filter(|(version, ..)| *version > 0).collect();
    found.sort_by_key(|(version, ..)| *version);
    found
}
