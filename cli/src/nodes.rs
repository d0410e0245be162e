//! State of each node, and what it waits for.

use berth_api::condition;
use berth_api::insight::conditions::DEGRADED;
use berth_api::node::{BootcNode, BootcNodeStatus, Deployment, DesiredImage, Phase, Staging};
use berth_core::insight::is_silent;
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::text::{age, clean, short, until};

/// Seconds of an agent's silence that are worth a message: three of its signs of life are missing.
const SILENT: i64 = 15 * 60;

/// A node, for people.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Phase in one word.
    pub phase: Option<Phase>,
    /// Booted image: a version, or a short digest.
    pub version: String,
    /// Desired image, likewise.
    pub target: String,
    /// Start of that phase.
    pub since: Option<Timestamp>,
    /// Progress of its pull.
    pub progress: Option<ProgressView>,
    /// Trouble of the node, or what it waits for.
    pub message: String,
}

/// Progress of a pull.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgressView {
    /// Bytes that are there.
    pub bytes: u64,
    /// Bytes to be pulled; 0 when the host tool does not say.
    pub bytes_total: u64,
    /// Whole percent, where that is known.
    pub percent: Option<u64>,
    /// Bytes per second.
    pub bytes_per_second: u64,
}

pub(crate) fn row(node: &BootcNode, now: Timestamp) -> NodeRow {
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
        message: said(node, status, now).text,
    }
}

/// The booted and the desired image, by version where there is one. Equal versions of different images are told apart
/// by their digests.
pub(crate) fn versions(booted: Option<&Deployment>, desired: Option<&DesiredImage>) -> (String, String) {
    let digests = (booted.and_then(|b| b.digest.as_ref()), desired.map(|d| &d.digest));
    let version = booted.and_then(|b| b.version.as_deref());
    let target = desired.and_then(|d| d.version.as_deref());
    let differ = digests.0.is_some() && digests.1.is_some() && digests.0 != digests.1;
    let same_word = version.is_some() && version == target;
    let named = |version: Option<&str>, digest: Option<&berth_api::Digest>| match (version, digest) {
        (Some(version), Some(digest)) if differ && same_word => format!("{}@{}", clean(version), short(digest)),
        (Some(version), _) => clean(version),
        (None, Some(digest)) => short(digest),
        (None, None) => String::new(),
    };
    (named(version, digests.0), named(target, digests.1))
}

/// Time since the agent was heard of, when that is long, or when the controller says so and nothing has taken the place of its
/// word. For people alone: it compares two clocks.
pub(crate) fn silence(status: &BootcNodeStatus, now: Timestamp) -> Option<String> {
    let told = status.insight.as_ref().filter(|insight| is_silent(insight));
    let told = told.and_then(|insight| condition::find(&insight.conditions, DEGRADED));
    let beat = status.heartbeat_time.as_ref().map(|time| time.0);
    let long = beat.filter(|beat| now.as_second() - beat.as_second() > SILENT);
    let since = told.map(|told| beat.unwrap_or(told.last_transition_time.0)).or(long)?;
    Some(age(since, now))
}

/// The one thing that a person should know about a node, for its people and for those who look for what has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// Its text, without ages and times to wait, which change all the time.
    pub(crate) cause: String,
    /// The whole line.
    pub(crate) text: String,
}

impl Said {
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

/// Line about an agent of which nothing was heard for so long.
pub(crate) fn silent(age: Option<&str>) -> Said {
    match age {
        Some(age) => Said::with("no word from its agent", &format!(" for {age}")),
        None => Said::new("no word from an agent yet"),
    }
}

/// The one thing that a person should know about a node, as far as its BootcNode tells.
pub(crate) fn said(node: &BootcNode, status: &BootcNodeStatus, now: Timestamp) -> Said {
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
        return Said::with(&format!("{}: {}", first.pod, first.reason), &times);
    }
    if let Some(failure) = &status.failure {
        let again = until(failure.next_try_time.0, now);
        let times = format!(" (try {}, next {again})", failure.attempts);
        return Said::with(&format!("{}: {}", failure.reason, failure.message), &times);
    }
    let degraded = condition::find_true(&status.conditions, condition::node::NODE_DEGRADED);
    let told = || condition::find_true(&status.conditions, condition::node::WAITING);
    if let Some(told) = degraded.or_else(told) {
        return Said::new(&format!("{}: {}", told.reason, told.message));
    }
    waiting(node, status, now)
}

/// Describes what a healthy node waits for.
fn waiting(node: &BootcNode, status: &BootcNodeStatus, now: Timestamp) -> Said {
    let desired = node.spec.image.as_ref().map(|image| &image.digest);
    let waits = matches!(status.phase, Some(Phase::Pending | Phase::Waiting));
    if let Some(turn) = status
        .last_turn
        .as_ref()
        .filter(|t| waits && Some(&t.digest) == desired)
    {
        let again = until(turn.next_try_time.0, now);
        let times = format!(" (turn {}, next {again})", turn.attempts);
        return Said::with(&format!("last turn: {}: {}", turn.outcome, turn.message), &times);
    }
    if status.phase == Some(Phase::Pending) && node.spec.staging == Staging::Held {
        return Said::new("waits for its turn to pull");
    }
    Said::default()
}
