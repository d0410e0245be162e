//! What each pool and node does now.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use berth_api::berth::{BerthState, lease};
use berth_api::condition::{self, pool as types};
use berth_api::keys;
use berth_api::node::{BootcNode, BootcNodeStatus, Deployment, DesiredImage, Phase, Staging};
use berth_api::pool::BootcNodePool;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;

use crate::Snapshot;
use crate::text::{age, bar, clean, columns, cut, short, size, until};

/// An agent that has not been heard of for so long is worth a word: three of its signs of life are missing.
const SILENT: i64 = 15 * 60;

/// A pool, for people.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// Its name; empty for the nodes that left theirs, or whose pool is gone.
    pub name: String,
    /// The reference that its admin wrote.
    pub image: String,
    /// Version label of the target.
    pub version: Option<String>,
    /// What the reference was resolved to.
    pub digest: Option<berth_api::Digest>,
    /// Members.
    pub total: usize,
    /// Members that run the target and are not being worked on.
    pub updated: usize,
    /// Its berths.
    pub berths: Berths,
    /// What it does or waits for.
    pub progressing: Option<Warning>,
    /// Conditions that need a look.
    pub warnings: Vec<Warning>,
    /// Its nodes, by name.
    pub nodes: Vec<NodeRow>,
}

/// A pool's berths.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Berths {
    /// The pool's capacity.
    pub total: usize,
    /// Nodes that hold one, with the phase.
    pub held: Vec<String>,
    /// Nodes that are offered one.
    pub offered: Vec<String>,
    /// Leases that should be berths and are not.
    pub unreadable: Vec<String>,
}

/// A condition that is worth a line.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Warning {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// Its status.
    pub status: String,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Since when it has that status, where that is known.
    pub since: Option<Timestamp>,
}

/// A node, for people.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Where it is, in one word.
    pub phase: Option<Phase>,
    /// What it booted: a version, or a short digest.
    pub version: String,
    /// What it should run, likewise.
    pub target: String,
    /// Since when it is in that phase.
    pub since: Option<Timestamp>,
    /// How far its pull is.
    pub progress: Option<ProgressView>,
    /// What is wrong, or what it waits for.
    pub message: String,
}

/// How far a pull is.
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

impl From<&Condition> for Warning {
    fn from(condition: &Condition) -> Self {
        Self {
            type_: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: clean(&condition.message),
            since: Some(condition.last_transition_time.0),
        }
    }
}

/// All pools that the snapshot shows, by name, and behind them the nodes that left theirs, or whose pool is gone.
pub fn views(snapshot: &Snapshot, now: Timestamp) -> Vec<PoolView> {
    let mut views: Vec<_> = snapshot.shown().into_iter().map(|pool| pool_view(snapshot, pool, now)).collect();
    let pools: BTreeSet<String> = snapshot.pools.iter().map(|pool| pool.name_any()).collect();
    let leaving = rows(snapshot, now, |pool| !pools.contains(pool));
    if snapshot.only.is_none() && !leaving.is_empty() {
        views.push(PoolView {
            name: String::new(),
            image: String::new(),
            version: None,
            digest: None,
            total: leaving.len(),
            updated: 0,
            berths: Berths::default(),
            progressing: None,
            warnings: Vec::new(),
            nodes: leaving,
        });
    }
    views
}

fn pool_view(snapshot: &Snapshot, pool: &BootcNodePool, now: Timestamp) -> PoolView {
    let name = pool.name_any();
    let status = pool.status.clone().unwrap_or_default();
    let target = status.target.as_ref();
    PoolView {
        image: clean(pool.spec.image_ref()),
        version: target.and_then(|t| t.version.as_deref()).map(clean),
        digest: target.map(|t| t.digest.clone()),
        total: status.nodes.total as usize,
        updated: status.nodes.updated as usize,
        berths: berths(snapshot, pool),
        progressing: condition::find(&status.conditions, types::PROGRESSING).map(Warning::from),
        warnings: warnings(pool, &status.conditions),
        nodes: rows(snapshot, now, |pool| pool == name),
        name,
    }
}

/// The Leases are the truth; what the controller last counted stands in where they cannot be read.
fn berths(snapshot: &Snapshot, pool: &BootcNodePool) -> Berths {
    let counts = pool.status.as_ref().map(|s| s.berths.clone());
    let counts = counts.unwrap_or_default();
    let mut berths = Berths { total: counts.total as usize, ..Berths::default() };
    let name = pool.name_any();
    let of_pool = |lease: &&_| ResourceExt::labels(*lease).get(keys::LABEL_POOL) == Some(&name);
    for lease in snapshot.leases.iter().filter(of_pool) {
        match lease::read(lease).map(|berth| berth.state) {
            Ok(BerthState::Held(holding)) => berths.held.push(holding.node.to_string()),
            Ok(BerthState::Offered(offer)) => berths.offered.push(offer.node.to_string()),
            Ok(BerthState::Closed(_)) => {}
            Err(error) => berths.unreadable.push(clean(&error.to_string())),
        }
    }
    if snapshot.leases.is_empty() {
        berths.held = vec!["?".to_owned(); counts.held as usize];
        berths.offered = vec!["?".to_owned(); counts.offered as usize];
    }
    berths.held.sort();
    berths.offered.sort();
    berths
}

/// Conditions that keep a pool from its target. A spec that nobody has read yet is one as well.
fn warnings(pool: &BootcNodePool, conditions: &[Condition]) -> Vec<Warning> {
    let matters = |c: &&Condition| match c.type_.as_str() {
        types::IMAGE_RESOLVED => c.status != "True",
        types::PROGRESSING | types::UPDATED => false,
        _ => c.status == "True",
    };
    let mut warnings: Vec<_> = conditions.iter().filter(matters).map(Warning::from).collect();
    let observed = pool.status.as_ref().and_then(|s| s.observed_generation);
    if observed.is_none_or(|seen| Some(seen) < pool.metadata.generation) && pool.metadata.generation.is_some() {
        warnings.push(Warning {
            type_: "Unread".to_owned(),
            status: "True".to_owned(),
            reason: "ControllerBehind".to_owned(),
            message: "the controller has not read the last change of this pool yet".to_owned(),
            since: None,
        });
    }
    warnings
}

fn rows(snapshot: &Snapshot, now: Timestamp, of: impl Fn(&str) -> bool) -> Vec<NodeRow> {
    let mut rows: Vec<_> =
        snapshot.bootc_nodes.iter().filter(|node| of(&node.spec.pool_name)).map(|node| row(node, now)).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

fn row(node: &BootcNode, now: Timestamp) -> NodeRow {
    let status = node.status.clone().unwrap_or_default();
    let (version, target) = versions(status.booted.as_ref(), node.spec.image.as_ref());
    let staging = status.phase == Some(Phase::Staging);
    let progress = status.progress.filter(|_| staging);
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
        message: clean(&message(node, &status, now)),
    }
}

/// What is booted and what should be: versions where there are any, told apart by digests where they are equal and
/// the images are not.
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

/// The one thing that a person should know about a node.
fn message(node: &BootcNode, status: &BootcNodeStatus, now: Timestamp) -> String {
    if node.status.is_none() {
        return "no word from an agent yet".to_owned();
    }
    let silent = status.heartbeat_time.as_ref().filter(|beat| now.as_second() - beat.0.as_second() > SILENT);
    if let Some(beat) = silent {
        return format!("no word from its agent for {}", age(beat.0, now));
    }
    if let (Phase::Draining, [first, rest @ ..]) = (status.phase.unwrap_or(Phase::Idle), &*status.drain_blockers) {
        let more = match rest.len() {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        return format!("{}: {}, for {}{more}", first.pod, first.reason, age(first.since.0, now));
    }
    if let Some(failure) = &status.failure {
        let again = until(failure.next_try_time.0, now);
        let tries = failure.attempts;
        return format!("{}: {} (try {tries}, next {again})", failure.reason, failure.message);
    }
    let degraded = condition::find(&status.conditions, condition::node::NODE_DEGRADED);
    if let Some(degraded) = degraded.filter(|c| c.status == "True") {
        return format!("{}: {}", degraded.reason, degraded.message);
    }
    if let Some(hold) = &node.spec.hold {
        return format!("{}: {}", hold.reason, hold.message);
    }
    waiting(node, status, now)
}

/// What a healthy node waits for.
fn waiting(node: &BootcNode, status: &BootcNodeStatus, now: Timestamp) -> String {
    let desired = node.spec.image.as_ref().map(|image| &image.digest);
    let waits = matches!(status.phase, Some(Phase::Pending | Phase::Waiting));
    if let Some(turn) = status.last_turn.as_ref().filter(|t| waits && Some(&t.digest) == desired) {
        let again = until(turn.next_try_time.0, now);
        return format!("last turn: {}: {} (turn {}, next {again})", turn.outcome, turn.message, turn.attempts);
    }
    if status.phase == Some(Phase::Pending) && node.spec.staging == Staging::Held {
        return "waits for its turn to pull".to_owned();
    }
    String::new()
}

/// The table. No line is longer than `width`, unless that is 0.
pub fn render(snapshot: &Snapshot, now: Timestamp, width: usize) -> String {
    let mut out = String::new();
    for note in &snapshot.notes {
        out += &(cut(&format!("! {}", clean(note)), width) + "\n");
    }
    let views = views(snapshot, now);
    if views.is_empty() {
        out += "There are no pools: nothing is asked of any node. Create a BootcNodePool to begin.\n";
    }
    for (i, view) in views.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        out += &head(view, now, width);
        out += &table(view, now, width);
    }
    out
}

fn head(view: &PoolView, now: Timestamp, width: usize) -> String {
    if view.name.is_empty() {
        return "Nodes of no pool\n".to_owned();
    }
    let (updated, total) = (view.updated, view.total);
    let mut lines = vec![
        format!("Pool {}  {}{}", view.name, view.image, resolved(view)),
        format!("  {updated} of {total} updated, {}", berths_text(&view.berths)),
    ];
    let progressing = view.progressing.as_ref();
    if let Some(p) = progressing.filter(|p| p.status == "True" || !p.message.is_empty()) {
        lines.push(format!("  {}", condition_text(p, now)));
    }
    lines.extend(view.warnings.iter().map(|w| format!("  ! {}", condition_text(w, now))));
    lines.extend(view.berths.unreadable.iter().map(|e| format!("  ! {e}")));
    lines.iter().map(|line| cut(line, width) + "\n").collect()
}

/// `Degraded for 3m: NodeDegraded: …`, without saying a word twice.
fn condition_text(c: &Warning, now: Timestamp) -> String {
    let mut text = match c.status.as_str() {
        "True" => c.type_.clone(),
        "False" => format!("not {}", c.type_),
        _ => format!("{} unknown", c.type_),
    };
    if let Some(since) = c.since {
        let _ = write!(text, " for {}", age(since, now));
    }
    let reason = Some(&c.reason).filter(|reason| **reason != c.type_);
    for part in reason.into_iter().chain(Some(&c.message)) {
        if !part.is_empty() {
            let _ = write!(text, ": {part}");
        }
    }
    text
}

fn resolved(view: &PoolView) -> String {
    match (&view.version, &view.digest) {
        (Some(version), Some(digest)) => format!(" = {version} ({})", short(digest)),
        (None, Some(digest)) => format!(" = {}", short(digest)),
        _ => " (not resolved yet)".to_owned(),
    }
}

fn berths_text(berths: &Berths) -> String {
    let named = |names: &[String]| match names.iter().all(|name| name == "?") {
        true => String::new(),
        false => format!(" ({})", names.join(", ")),
    };
    let mut text = format!("{} of {} berths held{}", berths.held.len(), berths.total, named(&berths.held));
    if !berths.offered.is_empty() {
        let _ = write!(text, ", {} offered{}", berths.offered.len(), named(&berths.offered));
    }
    text
}

fn table(view: &PoolView, now: Timestamp, width: usize) -> String {
    if view.nodes.is_empty() {
        return "  no nodes\n".to_owned();
    }
    let rows: Vec<Vec<String>> = view
        .nodes
        .iter()
        .map(|node| {
            vec![
                node.name.clone(),
                node.phase.map_or_else(String::new, |p| p.as_str().to_owned()),
                node.version.clone(),
                node.target.clone(),
                node.since.map_or_else(String::new, |since| age(since, now)),
                node.progress.as_ref().map_or_else(String::new, progress_text),
                node.message.clone(),
            ]
        })
        .collect();
    let heads = ["NAME", "PHASE", "VERSION", "TARGET", "SINCE", "PROGRESS", "MESSAGE"];
    columns(&heads, &rows, width)
}

fn progress_text(progress: &ProgressView) -> String {
    let rate = match progress.bytes_per_second {
        0 => String::new(),
        rate => format!(" {}/s", size(rate)),
    };
    match progress.percent {
        Some(percent) => format!("{} {percent:>3}%{rate}", bar(progress.bytes, progress.bytes_total)),
        None => format!("{}{rate}", size(progress.bytes)),
    }
}
