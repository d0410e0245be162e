//! A status as text, in the layout of `oc adm upgrade status`: a line for each pool, its nodes, and health findings.

use std::fmt::Write as _;

use berth_api::condition::CommonReason;
use berth_api::pool::{DigestFailures, ImageMetadata, WaveState};
use berth_api::text::names;
use berth_core::finding::kind::Level;
use jiff::Timestamp;

use crate::health::HealthInsight;
use crate::insights::{Counts, NodeLine, PoolAssessment, counts};
use crate::nodes::ProgressView;
use crate::snapshot::Snapshot;
use crate::status::{Report, report};
use crate::table::{Look, Tint, tinted};
use crate::text::{after_text, age, bar, clean, cut, seconds, short, size, wrapped};
use crate::view::{Berths, PoolView, Warning, WaveView};

/// Number of nodes shown per pool without `--details=nodes`. Other nodes are shown too if they need attention.
const SHOWN: usize = 10;
/// Maximum number of berth holders that a pool's line names. The node table shows the holders near its top.
const NAMED: usize = 5;
/// Minimum length of a node name that is replaced by `<node>` in the node's own message.
const LONG_NAME: usize = 8;

/// Amount of detail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Detail {
    /// Shows all nodes, even in completed pools. If false, shows ten nodes per pool and the nodes that need attention.
    pub nodes: bool,
    /// Shows each finding in full instead of in one line.
    pub health: bool,
}

/// Returns the status as text, in lines of at most the look's width; 0 means unlimited.
pub fn render(snapshot: &Snapshot, now: Timestamp, look: Look, detail: Detail) -> String {
    render_report(&report(snapshot, now), now, look, detail)
}

/// Returns an existing report as text, like [`render`].
pub(crate) fn render_report(report: &Report, now: Timestamp, look: Look, detail: Detail) -> String {
    let width = look.width;
    let mut out = String::new();
    for note in &report.notes {
        out += &wrapped(&format!("! {note}"), width, 2);
    }
    if report.fleet.paused {
        out += &(cut("Fleet  paused: no node pulls an image or is offered a berth", width) + "\n\n");
    }
    if let Some(most) = report.fleet.max_unavailable {
        let line = format!("Fleet  maxUnavailable {most}, for the nodes of all pools together");
        out += &(cut(&line, width) + "\n\n");
    }
    if report.pools.is_empty() && report.nodes_of_no_pool.is_empty() {
        if !report.is_gone {
            out += "There are no pools, so Berth updates no nodes. Create a BootcNodePool to begin.\n";
        }
        return if report.health.is_empty() {
            out
        } else {
            out + &health(report, now, look, detail)
        };
    }
    let rows: Vec<_> = report.pools.iter().map(summary).collect();
    if !rows.is_empty() {
        out += &tinted(&["POOL", "ASSESSMENT", "COMPLETION", "STATUS"], &rows, look, tint);
    }
    let alone = report.pools.len() == 1;
    for view in report
        .pools
        .iter()
        .filter(|view| alone || detail.nodes || needs_details(view))
    {
        out.push('\n');
        out += &head(view, now, width);
        out += &nodes(&view.nodes, now, look, detail.nodes);
    }
    if !report.nodes_of_no_pool.is_empty() {
        out += "\nNodes without a pool\n";
        out += &nodes(&report.nodes_of_no_pool, now, look, detail.nodes);
    }
    out + &health(report, now, look, detail)
}

/// True if the status of a pool needs more than the pool's summary line.
fn needs_details(view: &PoolView) -> bool {
    let done = matches!(view.assessment, PoolAssessment::Completed | PoolAssessment::Empty);
    !done || view.nodes.iter().any(NodeLine::needs_attention) || !view.warnings.is_empty() || !view.failures.is_empty()
}

fn tint(column: usize, word: &str) -> Option<Tint> {
    match word {
        _ if column != 1 => None,
        "Degraded" | "Error" => Some(Tint::Red),
        "Unavailable" | "Excluded" | "Unknown" | "Warning" => Some(Tint::Yellow),
        "Progressing" => Some(Tint::Cyan),
        "Completed" => Some(Tint::Green),
        _ => None,
    }
}

fn summary(view: &PoolView) -> Vec<String> {
    vec![
        view.name.clone(),
        view.assessment.as_str().to_owned(),
        completion(&view.counts),
        numbers(&view.counts),
    ]
}

/// Returns the completion, such as `33% (1/3)`.
pub(crate) fn completion(counts: &Counts) -> String {
    format!("{}% ({}/{})", counts.percent(), counts.updated, counts.total)
}

/// Returns the node counts, such as `2 Available, 1 Progressing, 0 Draining, 1 Degraded`.
pub(crate) fn numbers(counts: &Counts) -> String {
    let mut text = format!(
        "{} Available, {} Progressing, {} Draining",
        counts.available, counts.progressing, counts.draining
    );
    for (number, word) in [(counts.excluded, "Excluded"), (counts.degraded, "Degraded")] {
        if number > 0 {
            let _ = write!(text, ", {number} {word}");
        }
    }
    text
}

fn head(view: &PoolView, now: Timestamp, width: usize) -> String {
    let counts = &view.counts;
    let mut lines = vec![
        format!("Pool {}  {}", view.name, image_text(view)),
        format!(
            "  {} {}%, {}",
            bar(counts.updated as u64, counts.total.max(1) as u64),
            counts.percent(),
            berths_text(&view.berths)
        ),
    ];
    lines.extend(facts(view, Some(now)).into_iter().map(|fact| format!("  {fact}")));
    lines.iter().map(|line| wrapped(line, width, 4)).collect()
}

/// Returns the lines about a pool, without its name and its progress.
pub(crate) fn summary_lines(view: &PoolView) -> Vec<String> {
    let mut lines = vec![image_text(view), berths_text(&view.berths)];
    lines.extend(facts(view, None));
    lines
}

fn image_text(view: &PoolView) -> String {
    format!("{}{}", view.image, resolved(view))
}

/// Returns what else is worth a line about a pool: its image's build, order, waves, state, window, nodes and failures.
/// Without `now`, the lines have no ages.
fn facts(view: &PoolView, now: Option<Timestamp>) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    let built = view.metadata.as_ref().map(built_text);
    lines.extend(
        built
            .filter(|text| !text.is_empty())
            .map(|text| format!("image: {text}")),
    );
    lines.extend(after_text(&view.after));
    if !view.waves.is_empty() {
        let waves: Vec<_> = view.waves.iter().map(wave_text).collect();
        lines.push(format!("waves: {}", waves.join(", ")));
    }
    let progressing = view.progressing.as_ref().filter(|p| is_worth_a_line(p));
    lines.extend(progressing.map(|p| condition_text(p, now)));
    lines.extend(view.window.iter().map(|w| condition_text(w, now)));
    lines.extend(excluded_text(view));
    lines.extend(view.failures.iter().map(|f| failure_text(f, view)));
    lines
}

/// True if the condition `Progressing` adds information to the lines about the pool's nodes.
fn is_worth_a_line(progressing: &Warning) -> bool {
    let is_shown = [CommonReason::Updated, CommonReason::NoNodes]
        .iter()
        .any(|why| why.as_str() == progressing.reason);
    progressing.status == "True" || !progressing.message.is_empty() && !is_shown
}

/// Describes a condition, such as `Degraded for 3m: NodeDegraded: …`. Omits a reason that equals the type.
fn condition_text(c: &Warning, now: Option<Timestamp>) -> String {
    let mut text = match c.status.as_str() {
        "True" => c.type_.clone(),
        "False" => format!("not {}", c.type_),
        _ => format!("{} unknown", c.type_),
    };
    if let (Some(since), Some(now)) = (c.since, now) {
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

/// Describes a wave, such as `canary 2 of 2 soaking (3m of 30m)`.
fn wave_text(wave: &WaveView) -> String {
    let state = match wave.state {
        WaveState::Waiting => "waiting",
        WaveState::Active => "active",
        WaveState::Soaking => "soaking",
        WaveState::Done => "done",
    };
    let soak = match (wave.state, wave.soak_seconds) {
        (WaveState::Soaking, soak) => format!(" ({} of {})", seconds(wave.soaked_seconds), seconds(soak)),
        _ => String::new(),
    };
    format!("{} {} of {} {state}{soak}", wave.name, wave.updated, wave.total)
}

fn excluded_text(view: &PoolView) -> Option<String> {
    match (view.excluded.as_slice(), view.excluded_count) {
        ([], 0) => None,
        ([], count) => Some(format!("{count} excluded")),
        (names, _) => Some(format!("excluded: {}", names.join(", "))),
    }
}

fn failure_text(failures: &DigestFailures, view: &PoolView) -> String {
    let count = failures.count as usize;
    let nodes = names(&failures.nodes, count);
    let excluded = failures.nodes.iter().filter(|node| view.excluded.contains(node));
    let outvoted = match excluded.count() {
        0 => String::new(),
        excluded => format!(", {excluded} not counted because excluded"),
    };
    format!(
        "{} failed on {nodes} (failures: {count}{outvoted}; the rollout halts at {})",
        short(&failures.digest),
        view.max_failures
    )
}

pub(crate) fn resolved(view: &PoolView) -> String {
    match (&view.version, &view.digest) {
        (Some(version), Some(digest)) => format!(" = {version} ({})", short(digest)),
        (None, Some(digest)) => format!(" = {}", short(digest)),
        _ => " (not resolved yet)".to_owned(),
    }
}

/// Returns `built 2026-11-20T10:00:00Z from https://example.com/os at 0a1b2c`, without the parts that are unknown.
pub(crate) fn built_text(image: &ImageMetadata) -> String {
    let parts = [
        image.created.as_ref().map(|time| format!("built {:.0}", time.0)),
        image.source.as_ref().map(|source| format!("from {}", clean(source))),
        image
            .revision
            .as_ref()
            .map(|revision| format!("at {}", clean(revision))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Returns the first names of the nodes in parentheses, at most [`NAMED`]; empty if all names are unknown (`?`).
fn holders(nodes: &[String]) -> String {
    if nodes.iter().all(|name| name == "?") {
        String::new()
    } else {
        format!(" ({})", names(nodes.iter().take(NAMED), nodes.len()))
    }
}

fn berths_text(berths: &Berths) -> String {
    let mut text = format!(
        "{} of {} berths held{}",
        berths.held.len(),
        berths.total,
        holders(&berths.held)
    );
    if !berths.offered.is_empty() {
        let _ = write!(text, ", {} offered{}", berths.offered.len(), holders(&berths.offered));
    }
    for closed in &berths.closed {
        let node = closed
            .last_node
            .as_ref()
            .map_or_else(String::new, |node| format!(" ({node})"));
        let _ = write!(text, ", {} closed:{}{node}", closed.berth, closed.reason);
    }
    text
}

fn nodes(nodes: &[NodeLine], now: Timestamp, look: Look, all: bool) -> String {
    if nodes.is_empty() {
        return "  no nodes\n".to_owned();
    }
    let (shown, omitted): (Vec<_>, Vec<_>) = nodes
        .iter()
        .enumerate()
        .partition(|(index, line)| all || *index < SHOWN || line.needs_attention());
    let rows: Vec<_> = shown.into_iter().map(|(_, line)| row(line, now)).collect();
    let heads = [
        "NAME",
        "ASSESSMENT",
        "PHASE",
        "VERSION",
        "EST",
        "SINCE",
        "PROGRESS",
        "MESSAGE",
    ];
    let mut out = tinted(&heads, &rows, look, tint);
    if !omitted.is_empty() {
        let number = omitted.len();
        let rest = counts(omitted.into_iter().map(|(_, line)| line));
        let line = format!(
            "  {number} more: {} updated, {} outdated, {} progressing, {} draining, {} excluded; --details=nodes shows them",
            rest.updated, rest.outdated, rest.progressing, rest.draining, rest.excluded
        );
        out += &wrapped(&line, look.width, 4);
    }
    out
}

fn row(line: &NodeLine, now: Timestamp) -> Vec<String> {
    let node = &line.row;
    let done = line.assessment == Some("Completed");
    // As in `oc`, the message does not repeat a long node name from the first column.
    let message = if node.name.len() >= LONG_NAME {
        node.message.replace(&node.name, "<node>")
    } else {
        node.message.clone()
    };
    vec![
        clean(&node.name),
        line.assessment.unwrap_or_default().to_owned(),
        line.phase().to_owned(),
        if node.version.is_empty() {
            "?".to_owned()
        } else {
            node.version.clone()
        },
        line.estimate.clone(),
        node.since
            .filter(|_| !done)
            .map_or_else(String::new, |since| age(since, now)),
        node.progress.as_ref().map_or_else(String::new, progress_text),
        message,
    ]
}

/// Returns the age of a finding; empty if its start is unknown.
fn since(finding: &HealthInsight, now: Timestamp) -> String {
    finding.since.map_or_else(String::new, |since| age(since, now))
}

/// Returns the findings, in one line each or in full.
fn health(report: &Report, now: Timestamp, look: Look, detail: Detail) -> String {
    let mut out = "\nHealth\n".to_owned();
    if report.health.is_empty() {
        let counts = report.pools.iter().map(|view| &view.counts);
        let is_behind = counts.clone().any(|c| c.updated < c.total);
        // A dead controller may cause no finding, so the last text says only that no problem is known.
        let words = if !is_behind {
            "Every node runs its target image"
        } else if counts.clone().any(|c| c.progressing > 0 || c.draining > 0) {
            "The update is proceeding well"
        } else {
            "No problem is known; outdated nodes wait for their turn"
        };
        let row = [String::new(), "Info".to_owned(), "None".to_owned(), words.to_owned()];
        return out + &tinted(&["SINCE", "LEVEL", "IMPACT", "MESSAGE"], &[row.into()], look, tint);
    }
    if detail.health {
        for (i, finding) in report.health.iter().enumerate() {
            if i > 0 {
                out.push('\n');
            }
            out += &whole(finding, &since(finding, now), look.width);
        }
        return out;
    }
    let rows = report.health.iter().map(|h| {
        let (level, impact) = (h.level.as_str().to_owned(), h.impact.as_str().to_owned());
        vec![since(h, now), level, impact, h.message.clone()]
    });
    let rows: Vec<_> = rows.collect();
    out += &tinted(&["SINCE", "LEVEL", "IMPACT", "MESSAGE"], &rows, look, tint);
    if report.health.iter().any(|h| h.level > Level::Info) {
        out += &wrapped("  --details=health explains each finding and what to do", look.width, 4);
    }
    out
}

/// Returns a finding in full, one line for each part.
fn whole(finding: &HealthInsight, since: &str, width: usize) -> String {
    let mut out = wrapped(&format!("  Message: {}", finding.message), width, 4);
    let since = if since.is_empty() { "-" } else { since };
    let level = finding.level.as_str().to_owned();
    let remedy = finding.remedy.join("; ");
    for (key, text) in [
        ("Since:", since.to_owned()),
        ("Level:", level),
        ("Impact:", finding.impact.as_str().to_owned()),
        ("Resources:", finding.resources.join(", ")),
        ("Description:", finding.description.clone()),
        ("Remedy:", remedy),
    ] {
        out += &wrapped(&format!("    {key:<12} {text}"), width, 17);
    }
    out
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
