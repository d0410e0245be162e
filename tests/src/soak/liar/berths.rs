//! Moves of berths with the agent's token: those that the protocol allows, in any order and with any values.

use berth_api::berth::Outcome;
use berth_api::{condition::Reason as _, keys};
use serde_json::{Value, json};

use super::request::{Identity, LEASES, Request};
use super::values::Draw;

/// Times that the admission policy accepts in a held berth.
const ACCEPTED_TIMES: [&str; 3] = [
    "0001-01-01T00:00:00.000000Z",
    "1969-12-31T23:59:59.000000Z",
    "2099-12-31T23:59:59.999999Z",
];

pub(super) fn name(lease: &Value) -> &str {
    lease
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(super) fn holder(lease: &Value) -> &str {
    lease
        .pointer("/spec/holderIdentity")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(super) fn is_berth(lease: &Value) -> bool {
    lease
        .pointer("/metadata/labels")
        .is_some_and(|labels| labels.get(keys::LABEL_POOL).is_some())
}

fn note<'a>(lease: &'a Value, key: &str) -> Option<&'a str> {
    lease.pointer("/metadata/annotations")?.get(key)?.as_str()
}

fn annotate(lease: &mut Value, key: &str, value: &str) {
    lease["metadata"]["annotations"][key] = json!(value);
}

fn remove(lease: &mut Value, keys: &[&str]) {
    let notes = lease
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut);
    if let Some(notes) = notes {
        notes.retain(|key, _| !keys.contains(&key.as_str()));
    }
}

pub(super) fn put(lease: &Value) -> Request {
    Request::put(Identity::Agent, format!("{LEASES}/{}", name(lease)), lease.clone())
}

/// The berth that the liar's node holds, if it holds one.
pub(super) fn held(draw: &Draw<'_>) -> Option<Value> {
    let mut leases = draw.view.leases.iter().filter(|lease| is_berth(lease));
    leases.find(|lease| holder(lease) == draw.view.node).cloned()
}

/// The berth that is offered to the liar's node, if there is one.
pub(super) fn offered(draw: &Draw<'_>) -> Option<Value> {
    let offered = format!("offered:{}", draw.view.node);
    let mut leases = draw.view.leases.iter().filter(|lease| is_berth(lease));
    leases.find(|lease| holder(lease) == offered).cloned()
}

fn renew(draw: &mut Draw<'_>, lease: &mut Value) {
    let time = draw.time().replace('Z', ".000000Z");
    lease["spec"]["renewTime"] = json!(time);
}

fn boot_id(draw: &mut Draw<'_>) -> String {
    if draw.random.one_in(8) {
        return "x".repeat(128);
    }
    draw.boot_id()
}

fn taken(draw: &mut Draw<'_>, mut lease: Value) -> Value {
    lease["spec"]["holderIdentity"] = json!(draw.view.node);
    annotate(&mut lease, keys::ANNOTATION_PHASE, "Taken");
    let boot_id = boot_id(draw);
    annotate(&mut lease, keys::ANNOTATION_BOOT_ID, &boot_id);
    if draw.coin() {
        let from = draw.digest();
        annotate(&mut lease, keys::ANNOTATION_FROM, &from);
    }
    renew(draw, &mut lease);
    lease
}

pub(super) fn take(draw: &mut Draw<'_>) -> Vec<Request> {
    let Some(lease) = offered(draw) else { return vec![] };
    vec![put(&taken(draw, lease))]
}

fn commit(draw: &mut Draw<'_>, lease: &mut Value, target: Option<String>) {
    annotate(lease, keys::ANNOTATION_PHASE, "Committed");
    let boot_id = boot_id(draw);
    annotate(lease, keys::ANNOTATION_BOOT_ID, &boot_id);
    if let Some(target) = target {
        annotate(lease, keys::ANNOTATION_TARGET, &target);
    }
}

fn release(draw: &mut Draw<'_>, lease: &mut Value) {
    annotate(lease, keys::ANNOTATION_PHASE, "Releasing");
    let outcome = match draw.random.within(0..=2) {
        0 => Outcome::Failed,
        1 => Outcome::Updated,
        _ => Outcome::ALL[draw.random.below(Outcome::ALL.len())],
    };
    annotate(lease, keys::ANNOTATION_OUTCOME, outcome.word());
}

/// Closes a berth, as its holder does after its release has begun.
pub(super) fn close(draw: &mut Draw<'_>, lease: &mut Value) {
    let has_failed = note(lease, keys::ANNOTATION_OUTCOME) == Some("Failed");
    lease["spec"]["holderIdentity"] = json!(if has_failed { "closed:failed" } else { "closed:released" });
    if draw.coin() {
        remove(
            lease,
            &[
                keys::ANNOTATION_NODE_UID,
                keys::ANNOTATION_FROM,
                keys::ANNOTATION_BOOT_ID,
                keys::ANNOTATION_PHASE,
                keys::ANNOTATION_REVOKE,
                keys::ANNOTATION_OPEN_UNTIL,
            ],
        );
    }
    if !draw.random.one_in(4) {
        let node = draw.view.node.clone();
        annotate(lease, keys::ANNOTATION_LAST_NODE, &node);
    }
}

fn next(draw: &mut Draw<'_>, mut lease: Value) -> Value {
    let phase = note(&lease, keys::ANNOTATION_PHASE).unwrap_or_default().to_owned();
    let other = draw.coin().then(|| draw.digest());
    match (phase.as_str(), draw.random.within(0..=3)) {
        ("Releasing", 0..=2) => close(draw, &mut lease),
        ("Taken", 0 | 1) | ("Committed", 0) => commit(draw, &mut lease, other),
        ("Committed", 1) => annotate(&mut lease, keys::ANNOTATION_PHASE, "Taken"),
        ("Taken" | "Committed", 2) => release(draw, &mut lease),
        _ => {}
    }
    renew(draw, &mut lease);
    lease
}

/// A move of a held berth.
pub(super) fn moved(draw: &mut Draw<'_>) -> Vec<Request> {
    let Some(lease) = held(draw) else { return vec![] };
    vec![put(&next(draw, lease))]
}

/// Gives a held berth back: a write that begins the release, then one that closes the berth. The outcome is seldom a
/// failure: a failed node is offered no other berth for this image.
pub(super) fn given_back(draw: &mut Draw<'_>) -> Vec<Request> {
    let Some(mut lease) = held(draw) else { return vec![] };
    if note(&lease, keys::ANNOTATION_PHASE) == Some("Releasing") {
        close(draw, &mut lease);
    } else {
        let outcomes = [Outcome::Updated, Outcome::Revoked, Outcome::NotApplied];
        let outcome = outcomes[draw.random.below(outcomes.len())];
        let outcome = if draw.random.one_in(8) {
            Outcome::Failed
        } else {
            outcome
        };
        annotate(&mut lease, keys::ANNOTATION_PHASE, "Releasing");
        annotate(&mut lease, keys::ANNOTATION_OUTCOME, outcome.word());
    }
    renew(draw, &mut lease);
    vec![put(&lease)]
}

/// Moves or takes with an extreme `renewTime`.
pub(super) fn times(draw: &mut Draw<'_>) -> Vec<Request> {
    let next = match (held(draw), offered(draw)) {
        (Some(lease), _) => next(draw, lease),
        (None, Some(lease)) => taken(draw, lease),
        (None, None) => return vec![],
    };
    let mut lease = next;
    // The policy accepts no extreme time in a closed berth.
    if !holder(&lease).starts_with("closed:") {
        lease["spec"]["renewTime"] = json!(draw.one_of(&ACCEPTED_TIMES));
    }
    if draw.random.one_in(4) {
        lease["metadata"]["managedFields"] = draw.field_owners("coordination.k8s.io/v1");
    }
    vec![put(&lease)]
}
