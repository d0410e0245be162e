//! A row for each node: images, phase, progress and message.

use berth_api::Digest;
use berth_api::condition;
use berth_api::decode::Decoded;
use berth_api::insight::conditions::DEGRADED;
use berth_api::node::{BootcNode, BootcNodeStatus, Deployment, DesiredImage, Phase, Staging};
use berth_core::insight::is_silent;
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::text::{age, clean, short, until};
use crate::unreadable::unreadable;

/// An agent counts as silent after this many seconds without a heartbeat. By default, an agent sends a heartbeat every
/// 120 seconds.
const SILENT_AFTER: i64 = 15 * 60;

/// A node as `status` shows it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Name of the node.
    pub name: String,
    /// Phase that the agent reports.
    pub phase: Option<Phase>,
    /// Booted image: a version, or a short digest.
    pub version: String,
    /// Desired image: a version, or a short digest.
    pub target: String,
    /// Start of the phase.
    pub since: Option<Timestamp>,
    /// Progress of the node's pull.
    pub progress: Option<ProgressView>,
    /// Problem of the node, or why it waits.
    pub message: String,
}

/// Progress of a pull.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgressView {
    /// Bytes pulled so far.
    pub bytes: u64,
    /// Total bytes to pull; 0 if the host tool does not report them.
    pub bytes_total: u64,
    /// Percent, rounded down; `None` if the total is not known.
    pub percent: Option<u64>,
    /// Bytes per second.
    pub bytes_per_second: u64,
}

pub(crate) fn row(node: &Decoded<BootcNode>, now: Timestamp) -> NodeRow {
    let unknown = BootcNodeStatus::default();
    let status = node.status.as_ref().unwrap_or(&unknown);
    let (version, target) = versions(status.booted.as_ref(), node.spec.image.as_ref());
    let staging = status.phase == Some(Phase::Staging);
    let progress = status.progress.as_ref().filter(|_| staging);
    NodeRow {
        name: node.name_any(),
        phase: status.phase,
        version,
        target,
        since: status.phase_start_time.as_ref().map(|t| t.0),
        progress: progress.map(|p| ProgressView {
            bytes: p.bytes,
            bytes_total: p.bytes_total,
            percent: (p.bytes_total > 0).then(|| p.bytes.min(p.bytes_total) * 100 / p.bytes_total.max(1)),
            bytes_per_second: p.bytes_per_second,
        }),
        message: message(node, status, now).text,
    }
}

/// Returns the booted and the desired image as text: the version, or a short digest for an image without a version. If
/// two different images have the same version, returns both the version and the digest of each.
pub(crate) fn versions(booted: Option<&Deployment>, desired: Option<&DesiredImage>) -> (String, String) {
    let digests = (booted.and_then(|b| b.digest.as_ref()), desired.map(|d| &d.digest));
    let version = booted.and_then(|b| b.version.as_deref());
    let target = desired.and_then(|d| d.version.as_deref());
    let differ = digests.0.is_some() && digests.1.is_some() && digests.0 != digests.1;
    let same_word = version.is_some() && version == target;
    let shows_both = differ && same_word;
    (
        image_words(version, digests.0, shows_both),
        image_words(target, digests.1, shows_both),
    )
}

/// Returns the version, or a short digest if there is no version. With `shows_both`, returns both.
fn image_words(version: Option<&str>, digest: Option<&Digest>, shows_both: bool) -> String {
    match (version, digest) {
        (Some(version), Some(digest)) if shows_both => format!("{}@{}", clean(version), short(digest)),
        (Some(version), _) => clean(version),
        (None, Some(digest)) => short(digest),
        (None, None) => String::new(),
    }
}

/// Returns how long the agent has been silent; `None` if it is not silent. An agent counts as silent after
/// [`SILENT_AFTER`], or if the controller reports it as silent. For display only, because the result compares the
/// clocks of two machines.
pub(crate) fn silence(status: &BootcNodeStatus, now: Timestamp) -> Option<String> {
    silent_since(status, now).map(|since| age(since, now))
}

/// Returns when the agent became silent, by the rules of [`silence`]; `None` if it is not silent.
pub(crate) fn silent_since(status: &BootcNodeStatus, now: Timestamp) -> Option<Timestamp> {
    let reported = status.insight.as_ref().filter(|insight| is_silent(insight));
    let reported = reported.and_then(|insight| condition::find(&insight.conditions, DEGRADED));
    let beat = status.heartbeat_time.as_ref().map(|time| time.0);
    let long = beat.filter(|beat| now.as_second() - beat.as_second() > SILENT_AFTER);
    reported
        .map(|degraded| beat.unwrap_or(degraded.last_transition_time.0))
        .or(long)
}

/// Message about a node, with and without the times that change constantly.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeMessage {
    /// Text without ages and waiting times. Compared to detect changes.
    pub(crate) cause: String,
    pub(crate) text: String,
}

impl NodeMessage {
    pub(crate) fn new(cause: &str) -> Self {
        Self::with(cause, "")
    }

    fn with(cause: &str, times: &str) -> Self {
        Self {
            cause: clean(cause),
            text: clean(&format!("{cause}{times}")),
        }
    }
}

/// Returns the message about an agent that has been silent for `age`, or has never reported (`None`).
pub(crate) fn silent(age: Option<&str>) -> NodeMessage {
    match age {
        Some(age) => NodeMessage::with("its agent has not reported", &format!(" for {age}")),
        None => NodeMessage::new("no agent has reported yet"),
    }
}

/// Returns the most important message about a node, from its BootcNode.
pub(crate) fn message(node: &Decoded<BootcNode>, status: &BootcNodeStatus, now: Timestamp) -> NodeMessage {
    if let Some(found) = unreadable(node) {
        return NodeMessage::new(&format!("{}: {}", found.reason, found.message));
    }
    if node.status.is_none() {
        return silent(None);
    }
    if let Some(age) = silence(status, now) {
        return silent(Some(&age));
    }
    if let (Phase::Draining, [first, rest @ ..]) = (status.phase.unwrap_or(Phase::Idle), &*status.drain_blockers) {
        let more = match rest.len() {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        let times = format!(", for {}{more}", age(first.since.0, now));
        return NodeMessage::with(&format!("{}: {}", first.pod, first.reason), &times);
    }
    if let Some(failure) = &status.failure {
        let again = until(failure.next_try_time.0, now);
        let times = format!(" (try {}, next {again})", failure.attempts);
        return NodeMessage::with(&format!("{}: {}", failure.reason, failure.message), &times);
    }
    let degraded = condition::find_true(&status.conditions, condition::node::NODE_DEGRADED);
    let found = degraded.or_else(|| condition::find_true(&status.conditions, condition::node::WAITING));
    if let Some(found) = found {
        return NodeMessage::new(&format!("{}: {}", found.reason, found.message));
    }
    waiting(node, status, now)
}

/// Returns why a healthy node waits.
fn waiting(node: &BootcNode, status: &BootcNodeStatus, now: Timestamp) -> NodeMessage {
    let desired = node.spec.image.as_ref().map(|image| &image.digest);
    let waits = matches!(status.phase, Some(Phase::Pending | Phase::Waiting));
    if let Some(turn) = status
        .last_turn
        .as_ref()
        .filter(|t| waits && Some(&t.digest) == desired)
    {
        let again = until(turn.next_try_time.0, now);
        let times = format!(" (turn {}, next {again})", turn.attempts);
        return NodeMessage::with(&format!("last turn: {}: {}", turn.outcome, turn.message), &times);
    }
    if status.phase == Some(Phase::Pending) && node.spec.image.is_some() && node.spec.staging == Staging::Held {
        return NodeMessage::new("waits until the controller permits the pull");
    }
    NodeMessage::default()
}
