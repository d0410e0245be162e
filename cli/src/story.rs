//! `kubectl berth node`: the state of one node, its past updates, and advice.

use std::fmt::Write as _;

use berth_api::backend::NodeBackend;
use berth_api::berth::{BerthState, HoldPhase};
use berth_api::condition::{self, CommonReason, node as types};
use berth_api::decode::Decoded;
use berth_api::firstboot::NodeFirstboot;
use berth_api::node::timeline::{Chapter, ImageVersion, NodeUpdate, ProofStep, TurnRecord};
use berth_api::node::{BootSafeguard, BootcNode, DrainBlocker, Phase};
use berth_core::agent::backend;
use berth_core::finding::Finding;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use serde::Serialize;

use crate::health::troubles;
use crate::nodes::{self, NodeRow};
use crate::snapshot::Snapshot;
use crate::table::columns;
use crate::text::{age, clean, cut, seconds, short, wrapped};
use crate::unreadable::{pool_of, subject};
use crate::view::Warning;

/// Conditions that, if True, explain why a node makes no progress.
const BLOCKING: [&str; 4] = [
    types::IMPLAUSIBLE,
    types::NODE_DEGRADED,
    types::REBOOT_TIMED_OUT,
    types::WAITING,
];

/// Output of `kubectl berth node`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Story {
    /// The node's row in the output of `status`.
    #[serde(flatten)]
    pub row: NodeRow,
    /// The node's pool; empty if the node has left its pool.
    pub pool: String,
    /// Time when the node joined its pool, if an agent recorded it.
    pub joined: Option<Timestamp>,
    /// Result of the node's first-boot check, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firstboot: Option<NodeFirstboot>,
    /// Chapter of the first boot in the node's timeline; `None` if the agent is too old to write it.
    #[serde(skip)]
    first_chapter: Option<Chapter>,
    /// Mechanisms of the host, such as greenboot, that protect its boots without the agent. `None` if no agent has read
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<NodeBackend>,
    /// Mechanisms of the host, such as greenboot, that detect a failed boot without the agent. `None` if no agent has
    /// read them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_safeguards: Option<Vec<BootSafeguard>>,
    /// True if the host has Berth's rollback guard.
    pub rollback_guard: bool,
    /// Berths that the node is offered or holds, with their states.
    pub berths: Vec<BerthLine>,
    /// The node's updates, the newest first.
    pub updates: Vec<NodeUpdate>,
    /// The node's ended turns, the newest first.
    pub turns: Vec<TurnRecord>,
    /// Pods that block the node's drain.
    pub blockers: Vec<DrainBlocker>,
    /// Conditions that explain why the node makes no progress.
    pub conditions: Vec<Warning>,
    /// Time of the next try after a failure, by the node's clock.
    pub next_try: Option<Timestamp>,
    /// Advice for the admin.
    pub advice: Vec<String>,
}

/// A berth of a node.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BerthLine {
    /// Name of the berth.
    pub name: String,
    /// State of the berth.
    pub state: &'static str,
}

/// Returns the story of a node.
pub fn story(snapshot: &Snapshot, node: &str, now: Timestamp) -> Result<Story, String> {
    let found = snapshot.bootc_nodes.iter().find(|n| n.name_any() == node);
    let found = found.ok_or_else(|| format!("there is no BootcNode {node:?}: no pool has a node with that name"))?;
    let status = found.status.clone().unwrap_or_default();
    let blocking = status.conditions.iter().filter(|c| {
        let matters = BLOCKING.contains(&c.type_.as_str()) && c.status == "True";
        let lacks_proof = c.type_ == types::RESUMED && !c.message.is_empty();
        matters || (c.status == "False" && (c.type_ == types::IMAGE_PULLED || lacks_proof))
    });
    let failure = status.failure.as_ref().map(|f| &f.next_try_time);
    let turn = status.last_turn.as_ref().map(|t| &t.next_try_time);
    Ok(Story {
        row: nodes::row(found, now),
        pool: clean(pool_of(found)),
        joined: status.timeline.joined.as_ref().map(|joined| joined.start_time.0),
        firstboot: status.firstboot.clone(),
        first_chapter: status.timeline.firstboot.clone(),
        backend: status.backend.clone(),
        boot_safeguards: status.boot_safeguards.clone(),
        rollback_guard: condition::is_true(&status.conditions, types::ROLLBACK_GUARD),
        berths: berths(snapshot, node),
        blockers: status.drain_blockers.clone(),
        conditions: blocking.map(Warning::from).collect(),
        next_try: failure.or(turn).map(|time| time.0).filter(|time| *time > now),
        advice: advice(found, status.phase, now),
        updates: status.timeline.updates,
        turns: status.turns,
    })
}

fn berths(snapshot: &Snapshot, node: &str) -> Vec<BerthLine> {
    let lines = snapshot.leases.iter().filter_map(|lease| berth_line(lease, node));
    lines.collect()
}

/// Returns the line for a berth. `None` if the node neither holds the berth nor is offered it.
fn berth_line(lease: &Decoded<Lease>, node: &str) -> Option<BerthLine> {
    let berth = lease.berth().ok()?;
    let (of, _) = berth.node()?;
    let state = match &berth.state {
        BerthState::Closed(_) => return None,
        BerthState::Offered(_) => "offered",
        BerthState::Held(holding) => match holding.phase {
            HoldPhase::Taken => "taken: the node may be cordoned and drained",
            HoldPhase::Committed => "committed: the node may be rebooted",
            HoldPhase::Releasing(_) => "being given back",
        },
    };
    (of.as_str() == node).then(|| BerthLine {
        name: berth.name(),
        state,
    })
}

/// Returns advice about a node: the remedy of each problem. Without a problem, returns advice for the node's phase.
fn advice(node: &Decoded<BootcNode>, phase: Option<Phase>, now: Timestamp) -> Vec<String> {
    let troubles = troubles(node, now);
    if troubles.is_empty() {
        let phase = phase.map_or(CommonReason::CannotDetermine.as_str(), Phase::as_str);
        return vec![subject(node).remedy(phase)];
    }
    troubles.iter().map(Finding::remedy).collect()
}

/// Returns the story as text, in lines of at most `width` columns; 0 means unlimited.
pub fn render_story(snapshot: &Snapshot, node: &str, now: Timestamp, width: usize) -> Result<String, String> {
    let story = story(snapshot, node, now)?;
    let mut out = String::new();
    for note in &snapshot.notes {
        out += &(cut(&format!("! {}", clean(note)), width) + "\n");
    }
    for line in head(&story, now) {
        out += &wrapped(&line, width, 4);
    }
    if let Some(first) = &story.first_chapter {
        out += "\nBefore its first update\n";
        let mut rows = vec![chapter_row(first, now)];
        rows.extend(
            story
                .joined
                .map(|joined| vec!["Joined".to_owned(), format!("{joined:.0}"), String::new()]),
        );
        out += &columns(&["CHAPTER", "BEGAN", "TOOK"], &rows, width);
    }
    for update in &story.updates {
        let title = format!("\nUpdate {}", from_to(update));
        out += &(title + "\n");
        out += &columns(&["CHAPTER", "BEGAN", "TOOK"], &chapters(update, now), width);
        out += &proof(&update.proof, width);
        if update.clock_set {
            out += &(cut(
                "  the node's clock was set back; times before that are not shown",
                width,
            ) + "\n");
        }
    }
    if !story.turns.is_empty() {
        out += "\nEnded turns\n";
        let rows: Vec<_> = story.turns.iter().map(|turn| turn_row(turn, now)).collect();
        out += &columns(
            &["OUTCOME", "ENDED", "BERTH", "DRAIN", "FROM", "TO", "REBOOTED"],
            &rows,
            width,
        );
    }
    out += "\nWhat to do\n";
    for line in &story.advice {
        out += &wrapped(&format!("  - {line}"), width, 4);
    }
    Ok(out)
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

fn head(story: &Story, now: Timestamp) -> Vec<String> {
    let row = &story.row;
    let of = if story.pool.is_empty() {
        "in no pool".to_owned()
    } else {
        format!("of pool {}", story.pool)
    };
    let since = story
        .joined
        .map_or_else(String::new, |since| format!(" for {}", age(since, now)));
    let phase = row.phase.map_or("no phase yet", Phase::as_str);
    let age_of = row
        .since
        .map_or_else(String::new, |since| format!(" for {}", age(since, now)));
    let mut lines = vec![
        format!("Node {}, {of}{since}", row.name),
        format!("  {phase}{age_of}"),
        format!("  runs {}, should run {}", or_dash(&row.version), or_dash(&row.target)),
    ];
    lines.extend(story.backend.as_ref().map(backend));
    lines.extend(safeguards(story));
    lines.extend(story.firstboot.as_ref().map(first_boot));
    lines.extend(story.berths.iter().map(|b| format!("  berth {}: {}", b.name, b.state)));
    // Leave out the node's message if it contains the text of a condition or blocker that is shown below.
    let conditions = story.conditions.iter().map(|c| c.message.as_str());
    let blockers = story.blockers.iter().map(|b| b.pod.as_str());
    let mut shown_below = conditions.chain(blockers).filter(|text| !text.is_empty());
    let is_shown_below = shown_below.any(|text| row.message.contains(text));
    if !row.message.is_empty() && !is_shown_below {
        lines.push(format!("  {}", row.message));
    }
    if let Some(next) = story.next_try {
        lines.push(format!("  next try in {}", age(now, next)));
    }
    for condition in &story.conditions {
        let since = condition
            .since
            .map_or_else(String::new, |since| format!(" for {}", age(since, now)));
        let mut line = format!("  ! {}{since}: {}", condition.type_, condition.reason);
        if !condition.message.is_empty() {
            let _ = write!(line, ": {}", condition.message);
        }
        lines.push(line);
    }
    for blocker in &story.blockers {
        let since = age(blocker.since.0, now);
        lines.push(format!(
            "  ! pod {}: {}, for {since}",
            clean(&blocker.pod),
            clean(&blocker.reason)
        ));
    }
    lines
}

/// Returns, for example, `updated by rpm-ostree: packages are layered on the host's image (layered: htop, strace)`.
fn backend(backend: &NodeBackend) -> String {
    let why = backend::CommonReason::from_word(&backend.reason)
        .map_or_else(|| clean(&backend.reason), |why| why.words().to_owned());
    let mut line = format!("  updated by {}: {why}", backend.name.tool());
    if !backend.layered_packages.is_empty() {
        let packages: Vec<String> = backend.layered_packages.iter().map(|name| clean(name)).collect();
        let _ = write!(line, " (layered: {})", packages.join(", "));
    }
    line
}

/// Returns, for example, `boots are guarded by greenboot, Berth's rollback guard`. `None` if no agent has read the
/// safeguards.
fn safeguards(story: &Story) -> Option<String> {
    let found = story.boot_safeguards.as_ref()?;
    let mut words: Vec<_> = found.iter().map(|safeguard| safeguard.words()).collect();
    if story.rollback_guard {
        words.push("Berth's rollback guard");
    }
    if words.is_empty() {
        return Some(
            "  boots are not guarded: no boot counting, greenboot, hardware watchdog or rollback guard".to_owned(),
        );
    }
    Some(format!("  boots are guarded by {}", words.join(", ")))
}

fn first_boot(first: &NodeFirstboot) -> String {
    let mut line = if first.outcome.is_trouble() || first.held {
        "  ! first boot: ".to_owned()
    } else {
        "  first boot: ".to_owned()
    };
    line.push_str(first.outcome.as_str());
    if first.held {
        line.push_str(", the kubelet was held back");
    }
    if !first.message.is_empty() {
        let _ = write!(line, ": {}", clean(&first.message));
    }
    line
}

/// Returns the versions of an update, such as `from 1.0 to 2.0`.
pub(crate) fn from_to(update: &NodeUpdate) -> String {
    let to = version_or_digest(&update.to);
    match &update.from {
        Some(from) => format!("from {} to {to}", version_or_digest(from)),
        None => format!("to {to}"),
    }
}

fn version_or_digest(image: &ImageVersion) -> String {
    image.version.as_deref().map_or_else(|| short(&image.digest), clean)
}

fn chapters(update: &NodeUpdate, now: Timestamp) -> Vec<Vec<String>> {
    update
        .chapters
        .iter()
        .map(|chapter| chapter_row(chapter, now))
        .collect()
}

/// Returns the completed parts of the proof, each with its time: `  proof: Booted 0s, Started 4s, …`. Times count from
/// the agent's first start in the new boot.
fn proof(steps: &[ProofStep], width: usize) -> String {
    if steps.is_empty() {
        return String::new();
    }
    let parts: Vec<_> = steps
        .iter()
        .map(|step| format!("{} {}", step.name.as_str(), seconds(step.seconds.into())))
        .collect();
    wrapped(&format!("  proof: {}", parts.join(", ")), width, 4)
}

fn chapter_row(chapter: &Chapter, now: Timestamp) -> Vec<String> {
    let began = chapter.start_time.as_ref().map(|time| time.0);
    let took = match (chapter.seconds(), began) {
        (Some(took), _) => seconds(took.into()),
        (None, Some(began)) => format!("{} so far", age(began, now)),
        (None, None) => String::new(),
    };
    vec![
        chapter.name.as_str().to_owned(),
        began.map_or_else(String::new, |began| format!("{began:.0}")),
        took,
    ]
}

fn turn_row(turn: &TurnRecord, now: Timestamp) -> Vec<String> {
    let proof = turn.proof.as_ref();
    let words = proof.map_or_else(
        || "nothing recorded".to_owned(),
        |proof| {
            let boot = if proof.boot_id == turn.boot_id_before {
                "no reboot"
            } else {
                "rebooted"
            };
            let ready = if proof.node_ready { "Ready" } else { "not Ready" };
            let booted = proof.booted.as_ref().map_or_else(|| "?".to_owned(), short);
            format!("{boot}, runs {booted}, {ready}")
        },
    );
    let words = match &turn.reason {
        Some(reason) => format!("{}: {words}", clean(reason)),
        None => words,
    };
    vec![
        turn.outcome
            .map_or_else(String::new, |outcome| outcome.as_str().to_owned()),
        turn.end_time
            .as_ref()
            .map_or_else(String::new, |end| format!("{} ago", age(end.0, now))),
        clean(&turn.berth),
        turn.drain_seconds.map_or_else(String::new, |s| seconds(s.into())),
        turn.from.as_ref().map_or_else(String::new, short),
        short(&turn.to),
        words,
    ]
}
