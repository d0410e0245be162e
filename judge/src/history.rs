//! History of each berth, write by write, and of what else the judge has to put beside it. All in the order of the
//! server's own counter: resourceVersions of all objects come from one.

use std::collections::BTreeMap;

use berth_api::berth::{Berth, HoldPhase, lease};
use berth_api::keys;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::Value;

use crate::audit::Record;
use crate::judge::Write;

/// A state that a berth had, from when on, and who made it so.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) at: Timestamp,
    /// Time when the request came in that made it so.
    pub(super) received: Timestamp,
    pub(super) version: u64,
    /// `berth-agent`, `berth-controller`, or whoever else.
    pub(super) program: String,
    /// The line that says so; empty where none does.
    pub(super) audit_id: String,
    /// The node that the writer's token is bound to.
    pub(super) claim: Option<String>,
    /// Something that is not on record came between this state and the one before.
    pub(super) after_gap: bool,
    /// The next state on record came after a gap: how long this one was in force is not known.
    pub(super) before_gap: bool,
    pub(super) berth: Berth,
}

/// Name that the judge gives to any program with the controller's identity.
pub(super) const CONTROLLER: &str = "berth-controller";

/// States of each berth, by Lease name, in the order of the server's answers.
pub(super) type History = BTreeMap<String, Vec<Seen>>;

/// States of all berths, in the order of the server's answers.
pub(super) fn in_order(history: &History) -> Vec<&Seen> {
    let mut ordered: Vec<&Seen> = history.values().flatten().collect();
    ordered.sort_by_key(|seen| seen.version);
    ordered
}

pub(super) fn history(audit: &[Record]) -> History {
    let mut history = History::new();
    let doubtful: Vec<_> = audit.iter().filter(|r| r.is_of("leases") && is_doubtful(r)).collect();
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
        if let Some(last) = states.last_mut()
            && built_on > last.version
        {
            let name = seen.berth.name();
            let unanswered = doubtful.iter().find_map(|r| unanswered(r, &name, last.version));
            match unanswered {
                Some(between) => states.push(Seen {
                    version: built_on,
                    ..between
                }),
                None => (last.before_gap, seen.after_gap) = (true, true),
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
        audit_id: record.audit_id.clone(),
        claim: record.node_claim.clone(),
        after_gap: false,
        before_gap: false,
        berth,
    };
    Some((seen.berth.name(), seen))
}

/// A write to that berth, as it was at that version, which may have been stored all the same.
fn unanswered(record: &Record, name: &str, built_on: u64) -> Option<Seen> {
    let request = record.request.as_ref()?;
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

pub(super) fn has_pool(object: &Value) -> bool {
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

/// Says whether the host holds a berth at that time, or at one that is less than `slack` away.
pub(super) fn holds(history: &History, host: &str, at: Timestamp, slack: SignedDuration) -> bool {
    let is_hers = |seen: &Seen| seen.berth.holding().is_some_and(|h| h.node.as_str() == host);
    history.values().any(|states| {
        let begun = states.iter().rposition(|s| s.at <= at - slack);
        let near = states.iter().skip(begun.unwrap_or(0));
        near.take_while(|s| s.at <= at + slack).any(is_hers)
    })
}

/// Successful writes whose answer is on record, by resource and subresource, in order.
pub(super) fn written(audit: &[Record]) -> BTreeMap<(&str, &str), Vec<Write<'_>>> {
    let mut found: BTreeMap<(&str, &str), Vec<Write<'_>>> = BTreeMap::new();
    for record in audit.iter().filter(|r| r.is_write() && r.succeeded()) {
        let Some(object) = &record.response else { continue };
        let version = version(object);
        if version > 0 {
            let key = (record.resource.as_str(), record.subresource.as_str());
            found.entry(key).or_default().push((version, record, object));
        }
    }
    for writes in found.values_mut() {
        writes.sort_by_key(|(version, ..)| *version);
    }
    found
}
