//! Lies in the status of the liar's BootcNode, with the agent's token.

use berth_api::condition::{Reason, node as types};
use berth_api::node::Phase;
use berth_api::node::timeline::{ChapterName, ProofPart};
use serde_json::{Value, json};

use super::request::{BOOTC_NODES, Identity, Request};
use super::values::Draw;

/// Longest list of failed digests that the CRD allows.
const FAILED_MAX: usize = 16;

fn write(draw: &Draw<'_>, status: Value) -> Vec<Request> {
    let path = format!("{BOOTC_NODES}/{}/status", draw.view.node);
    vec![Request::patch(Identity::Agent, path, json!({ "status": status }))]
}

/// A sign of life of this boot and this Node: the controller ignores reports of others.
fn alive(draw: &Draw<'_>) -> Value {
    let time = jiff::Timestamp::from_second(draw.view.now).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    json!({
        "nodeUID": draw.view.uid, "bootID": draw.view.boot_id, "agentVersion": "0.0.0",
        "observedGeneration": draw.view.generation(), "heartbeatTime": time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "retryToken": draw.view.bootc_node.pointer("/spec/retryToken"),
    })
}

/// Adds fields to an object.
fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

fn condition(draw: &mut Draw<'_>, type_: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": draw.text(60), "lastTransitionTime": draw.time(),
    })
}

/// A value of an enum in its written form.
fn word<R: Reason>(draw: &mut Draw<'_>) -> &'static str {
    R::ALL[draw.random.below(R::ALL.len())].word()
}

fn deployment(draw: &mut Draw<'_>) -> Value {
    let fields = json!({
        "digest": draw.digest(), "version": draw.text(256), "architecture": draw.one_of(&["amd64", "arm64", "s390x"]),
        "timestamp": draw.time(), "locked": draw.coin(), "pinned": draw.coin(), "softRebootCapable": draw.coin(),
    });
    let mut fields = draw.some_of(fields);
    fields["image"] = json!(format!("registry.test/os@{}", draw.digest()));
    fields
}

pub(super) fn heartbeat(draw: &mut Draw<'_>) -> Vec<Request> {
    write(draw, alive(draw))
}

/// The status of a node that waits for a berth for the published image.
pub(super) fn prepared(draw: &mut Draw<'_>) -> Vec<Request> {
    let wanted = draw.view.wanted().to_owned();
    let conditions = vec![
        condition(draw, types::UPDATED, "False", "Pending"),
        condition(draw, types::IMAGE_PULLED, "True", "AsExpected"),
        condition(draw, types::STAGED, "True", "Locked"),
        condition(draw, types::UPDATE_PREPARED, "True", "Ready"),
        condition(draw, types::NODE_DEGRADED, "False", "AsExpected"),
    ];
    let status = json!({
        "booted": { "image": "registry.test/os", "digest": draw.view.before, "architecture": "amd64" },
        "staged": { "image": "registry.test/os", "digest": wanted, "locked": true, "architecture": "amd64" },
        "phase": "Waiting", "failedDigests": [], "failure": null, "lastTurn": null, "conditions": conditions,
        "clockSynchronized": true,
    });
    write(draw, with(alive(draw), status))
}

pub(super) fn updated(draw: &mut Draw<'_>) -> Vec<Request> {
    let wanted = draw.view.wanted().to_owned();
    let conditions = vec![
        condition(draw, types::UPDATED, "True", "AsExpected"),
        condition(draw, types::RESUMED, "True", "AsExpected"),
        condition(draw, types::UPDATE_COMPLETE, "True", "AsExpected"),
    ];
    let status = json!({
        "booted": { "image": "registry.test/os", "digest": wanted, "architecture": "amd64" }, "staged": null,
        "phase": "Updated", "conditions": conditions,
    });
    write(draw, with(alive(draw), status))
}

/// A pull that makes some progress at each report and never ends.
pub(super) fn pulling(draw: &mut Draw<'_>) -> Vec<Request> {
    let conditions = vec![condition(draw, types::IMAGE_PULLED, "Unknown", "Pulling")];
    let progress = json!({
        "bytes": draw.number(), "bytesTotal": draw.number(), "bytesPerSecond": draw.number(),
    });
    let status = json!({
        "booted": { "image": "registry.test/os", "digest": draw.view.before }, "staged": null, "phase": "Staging",
        "progress": progress, "conditions": conditions, "phaseStartTime": draw.time(),
    });
    write(draw, with(alive(draw), status))
}

pub(super) fn failed_digests(draw: &mut Draw<'_>) -> Vec<Request> {
    let count = if draw.coin() {
        1
    } else {
        draw.random.below(FAILED_MAX + 1)
    };
    let mut digests: Vec<_> = (0..count).map(|_| draw.digest()).collect();
    digests.dedup();
    let conditions = vec![condition(draw, types::NODE_DEGRADED, "True", "Failed")];
    let mut status = json!({ "failedDigests": digests });
    if draw.coin() {
        status["conditions"] = json!(conditions);
    }
    write(draw, with(alive(draw), status))
}

/// Any values of the fields that decisions may read.
pub(super) fn any(draw: &mut Draw<'_>) -> Vec<Request> {
    let identity = json!({
        "nodeUID": if draw.coin() { draw.view.uid.clone() } else { draw.hex(32) }, "bootID": draw.boot_id(),
        "observedGeneration": draw.number(), "agentVersion": draw.word(), "bootcVersion": draw.word(),
        "heartbeatTime": draw.time(), "retryToken": draw.text(64),
    });
    let state = json!({
        "booted": deployment(draw), "staged": deployment(draw), "rollback": deployment(draw),
        "rollbackQueued": draw.coin(), "phase": word::<Phase>(draw), "phaseStartTime": draw.time(), "berth": draw.text(80),
        "notApplied": { "digest": draw.digest(), "attempts": draw.number() }, "tried": draw.digest(),
        "drainSeconds": draw.number(), "rebootSeconds": draw.number(), "clockSynchronized": draw.coin(),
        "platformVariant": draw.one_of(&["v1", "v2", "v3", "v8", "x"]), "bootSafeguards": ["Greenboot"],
        "backend": { "name": draw.one_of(&["Bootc", "RpmOstree"]), "reason": draw.text(60) },
    });
    let status = with(draw.some_of(identity), draw.some_of(state));
    write(draw, status)
}

pub(super) fn conditions(draw: &mut Draw<'_>) -> Vec<Request> {
    let mut conditions = vec![];
    for type_ in types::ALL {
        if draw.coin() {
            conditions.push(draw.condition(type_));
        }
    }
    if draw.random.one_in(4) {
        let more = (0..32 - conditions.len()).map(|n| format!("Type{n}"));
        conditions.extend(more.map(|type_| draw.condition(&type_)));
    }
    write(draw, json!({ "conditions": conditions }))
}

/// Times of extreme years, wherever a status has one.
pub(super) fn times(draw: &mut Draw<'_>) -> Vec<Request> {
    let (wanted, before) = (draw.view.wanted().to_owned(), draw.view.before.clone());
    let times: Vec<_> = (0..10).map(|_| draw.extreme_time()).collect();
    let fields = json!({
        "heartbeatTime": times[0], "phaseStartTime": times[1],
        "booted": { "image": "registry.test/os", "digest": before, "timestamp": times[2] },
        "failure": { "reason": "Failed", "message": "x", "attempts": 1, "nextTryTime": times[3] },
        "lastTurn": {
            "outcome": "DrainTimeout", "message": "x", "digest": wanted, "attempts": 1, "nextTryTime": times[4],
        },
        "deployments": [{ "pool": "workers", "digest": wanted, "manifest": wanted, "deployedTime": times[5] }],
        "drainBlockers": [{ "pod": "default/x", "reason": "x", "since": times[6] }],
        "timeline": { "joined": { "pool": "workers", "startTime": times[7] } },
        "bootImage": { "source": "x", "version": "1.0.0", "provisionedTime": times[8] },
        "conditions": [{
            "type": "Updated", "status": "False", "reason": "Pending", "message": "", "lastTransitionTime": times[9],
        }],
    });
    let mut fields = draw.some_of(fields);
    // At least one of them.
    fields["heartbeatTime"] = json!(draw.one_of(&["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"]));
    write(draw, fields)
}

pub(super) fn boot_image(draw: &mut Draw<'_>) -> Vec<Request> {
    let versions = [
        "0.0.1",
        "1.0.0",
        "99999.0.0",
        "999999999999999999999.1",
        "x",
        "",
        "9.6.20251023-0",
    ];
    let fields = json!({
        "version": draw.one_of(&versions), "image": draw.text(512), "digest": draw.digest(),
        "provisionedTime": draw.time(), "error": draw.text(512),
    });
    let image = with(json!({ "source": draw.text(128) }), draw.some_of(fields));
    let image = if draw.random.one_in(6) { Value::Null } else { image };
    write(draw, json!({ "bootImage": image }))
}

pub(super) fn first_boot(draw: &mut Draw<'_>) -> Vec<Request> {
    let outcomes = [
        "Allowed",
        "Refused",
        "Unknown",
        "PivotFailed",
        "HostFailed",
        "NotFirstBoot",
    ];
    let fields = json!({
        "message": draw.text(1_100), "image": draw.text(512), "digest": draw.digest(), "version": draw.text(256),
        "bootImageVersion": draw.text(128), "pivoted": draw.coin(), "held": draw.coin(), "startTime": draw.time(),
        "endTime": draw.time(),
    });
    let outcome = json!({ "outcome": draw.one_of(&outcomes) });
    let first_boot = with(outcome, draw.some_of(fields));
    write(draw, json!({ "firstboot": first_boot }))
}

fn update(draw: &mut Draw<'_>) -> Value {
    let chapters: Vec<_> = (0..draw.random.below(7))
        .map(|_| json!({ "name": word::<ChapterName>(draw), "startTime": draw.time(), "endTime": draw.time() }))
        .collect();
    let proof: Vec<_> = (0..draw.random.below(8))
        .map(|_| json!({ "name": word::<ProofPart>(draw), "seconds": draw.number() }))
        .collect();
    json!({
        "from": { "digest": draw.digest() }, "to": { "digest": draw.digest(), "version": draw.text(256) },
        "chapters": chapters, "proof": proof, "clockSet": draw.coin(),
    })
}

fn turn(draw: &mut Draw<'_>) -> Value {
    let outcome = draw.one_of(&["Proven", "RolledBack", "Failed", "NotApplied", "TimedOut", "TakenAway"]);
    json!({
        "berth": format!("workers-{}", draw.random.below(4)), "nodeUID": draw.view.uid, "from": draw.digest(),
        "to": draw.digest(), "bootIDBefore": draw.boot_id(), "startTime": draw.time(), "endTime": draw.time(),
        "drainSeconds": draw.number(), "reason": draw.text(64), "outcome": outcome,
        "proof": { "booted": draw.digest(), "bootID": draw.boot_id(), "nodeReady": draw.coin() },
    })
}

fn insight(draw: &mut Draw<'_>) -> Value {
    let conditions = vec![draw.condition("Updating"), draw.condition("Degraded")];
    let resource = json!({ "resource": "nodes", "name": draw.other_node() });
    json!({
        "name": draw.other_node(), "resource": resource, "poolResource": resource, "scopeType": "WorkerPool",
        "estToComplete": draw.one_of(&["1s", "9999h", "0s"]), "message": draw.text(100), "conditions": conditions,
    })
}

/// Records of the past. The controller makes medians, histories and estimates of them.
pub(super) fn record(draw: &mut Draw<'_>) -> Vec<Request> {
    let deployments: Vec<_> = (0..draw.random.below(4))
        .map(|_| {
            json!({
                "pool": draw.one_of(&["workers", "spare", "x"]), "digest": draw.digest(), "manifest": draw.digest(),
                "version": draw.text(256), "deployedTime": draw.time(),
            })
        })
        .collect();
    let blockers: Vec<_> = (0..draw.random.below(11))
        .map(|_| json!({ "pod": draw.text(320), "reason": draw.text(512), "since": draw.time() }))
        .collect();
    let fields = json!({
        "timeline": { "updates": [update(draw)] }, "turns": [turn(draw), turn(draw)], "deployments": deployments,
        "drainBlockers": blockers, "insight": insight(draw),
        "failure": {
            "reason": draw.reason(), "message": draw.text(1_100), "digest": draw.digest(), "attempts": draw.number(),
            "nextTryTime": draw.time(),
        },
        "lastTurn": {
            "outcome": draw.one_of(&["DrainTimeout", "NotApplied", "Failed", "X"]), "message": draw.text(1_100),
            "digest": draw.digest(), "attempts": draw.number(), "nextTryTime": draw.time(),
        },
    });
    let status = draw.some_of(fields);
    write(draw, status)
}

/// The longest strings and lists that the CRD allows.
pub(super) fn bulk(draw: &mut Draw<'_>) -> Vec<Request> {
    let long = |length: usize| "💥".repeat(length);
    let conditions: Vec<_> = (0..32)
        .map(|n| {
            json!({
                "type": format!("Type{n}"), "status": "True", "reason": "X".repeat(1_000),
                "message": "x".repeat(32_768), "lastTransitionTime": draw.time(),
            })
        })
        .collect();
    let blockers: Vec<_> = (0..10)
        .map(|_| json!({ "pod": long(320), "reason": long(512), "since": draw.time() }))
        .collect();
    let digests: Vec<_> = (0..FAILED_MAX).map(|_| draw.digest()).collect();
    let status = json!({
        "conditions": conditions, "drainBlockers": blockers, "failedDigests": digests,
        "booted": { "image": long(512), "digest": draw.view.before, "version": long(256) },
        "platformVariant": long(32), "retryToken": long(64), "agentVersion": long(64),
    });
    write(draw, status)
}
