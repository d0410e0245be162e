//! Builds the history of each berth from its writes, in the order of resourceVersions. The API server numbers the
//! writes of all objects with one counter, so resourceVersions of different objects can be compared.

use std::collections::BTreeMap;

use berth_api::berth::{Berth, HoldPhase, lease};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::Value;

use crate::audit::Record;
use crate::write::{has_pool, is_doubtful, version};

/// A recorded state of a berth, and the write that stored it.
#[derive(Debug, Clone)]
pub(super) struct RecordedState {
    pub(super) at: Timestamp,
    /// Time when the API server received the write.
    pub(super) received: Timestamp,
    pub(super) version: u64,
    /// `berth-agent`, `berth-controller`, or another program.
    pub(super) program: String,
    /// Audit ID of the line that shows the state; empty if no line does.
    pub(super) audit_id: String,
    /// Node that the writer's token is bound to.
    pub(super) claim: Option<String>,
    /// True if writes between the previous state and this one are not recorded.
    pub(super) after_gap: bool,
    /// True if writes between this state and the next are not recorded, so that it is unknown how long this state
    /// lasted.
    pub(super) before_gap: bool,
    pub(super) berth: Berth,
}

/// Program name for any client with the controller's identity.
pub(super) const CONTROLLER: &str = "berth-controller";

/// States of each berth, by Lease name, in the order of resourceVersions.
pub(super) type History = BTreeMap<String, Vec<RecordedState>>;

/// Returns the states of all berths in the order of resourceVersions.
pub(super) fn in_order(history: &History) -> Vec<&RecordedState> {
    let mut ordered: Vec<&RecordedState> = history.values().flatten().collect();
    ordered.sort_by_key(|state| state.version);
    ordered
}

pub(super) fn history(audit: &[Record]) -> History {
    let mut history = History::new();
    let doubtful: Vec<_> = audit.iter().filter(|r| r.is_of("leases") && is_doubtful(r)).collect();
    let mut ordered: Vec<_> = audit.iter().filter(|r| is_berth_write(r)).collect();
    ordered.sort_by_key(|r| r.response.as_ref().map_or(0, version));
    for record in ordered {
        let Some((name, mut state)) = record
            .response
            .as_ref()
            .and_then(|object| recorded_state(record, object))
        else {
            continue;
        };
        let states = history.entry(name).or_default();
        // This write may build on an earlier write that was stored although its response was lost.
        let built_on = record
            .request
            .as_ref()
            .filter(|_| record.verb == "update")
            .map_or(0, version);
        if let Some(last) = states.last_mut()
            && built_on > last.version
        {
            let name = state.berth.name();
            let unanswered = doubtful.iter().find_map(|r| unanswered(r, &name, last.version));
            match unanswered {
                Some(between) => states.push(RecordedState {
                    version: built_on,
                    ..between
                }),
                None => (last.before_gap, state.after_gap) = (true, true),
            }
        }
        states.push(state);
    }
    history
}

fn recorded_state(record: &Record, object: &Value) -> Option<(String, RecordedState)> {
    let mut timeless = object.clone();
    // No rule reads `renewTime`. An agent may have written one that cannot be parsed, to hide its write.
    if let Some(spec) = timeless.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("renewTime");
    }
    let lease: Lease = serde_json::from_value(timeless).ok()?;
    let berth = lease::read(&lease).ok()?;
    let program = if record.user.ends_with(":berth-controller") {
        CONTROLLER
    } else {
        record.program()
    };
    let state = RecordedState {
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
    Some((state.berth.name(), state))
}

/// Returns the berth's state in an unanswered write that updates the resourceVersion `built_on`. `None` for any other
/// write.
fn unanswered(record: &Record, name: &str, built_on: u64) -> Option<RecordedState> {
    let request = record.request.as_ref()?;
    let (_, state) = recorded_state(record, request).filter(|(n, _)| n == name && version(request) == built_on)?;
    Some(RecordedState {
        at: record.received,
        ..state
    })
}

/// True if a successful write of a berth stored a state that Berth cannot read.
pub(super) fn is_unreadable(record: &Record) -> bool {
    let object = record.response.as_ref().filter(|_| is_berth_write(record));
    object.is_some_and(|object| recorded_state(record, object).is_none())
}

fn is_berth_write(record: &Record) -> bool {
    let writes = record.is_write() && !record.verb.starts_with("delete");
    writes && record.resource == "leases" && record.succeeded() && record.response.as_ref().is_some_and(has_pool)
}

/// Returns the target and the previous image of the commit that allowed a host to go down at this time; `None` if there
/// was no such commit.
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

impl RecordedState {
    /// Node whose agent wrote the state. The controller's token may name a node too.
    pub(super) fn writer(&self) -> Option<&str> {
        self.claim.as_deref().filter(|_| self.program != CONTROLLER)
    }

    pub(super) fn is_of(&self, host: &str) -> bool {
        self.berth.node().is_some_and(|(node, _)| node.as_str() == host)
    }
}

/// True if the host holds a berth at this time, or less than `slack` before or after it.
pub(super) fn holds(history: &History, host: &str, at: Timestamp, slack: SignedDuration) -> bool {
    history.values().any(|states| {
        let begun = states.iter().rposition(|s| s.at <= at - slack);
        let near = states.iter().skip(begun.unwrap_or(0));
        let mut held = near
            .take_while(|s| s.at <= at + slack)
            .filter_map(|s| s.berth.holding());
        held.any(|holding| holding.node.as_str() == host)
    })
}
