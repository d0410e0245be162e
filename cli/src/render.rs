//! A status as text.

use std::fmt::Write as _;

use berth_api::pool::{DigestFailures, ImageMetadata, WaveState};
use berth_api::text::names;
use jiff::Timestamp;

use crate::Snapshot;
use crate::nodes::ProgressView;
use crate::status::{Berths, PoolView, Warning, WaveView, views};
use crate::text::{after_text, age, bar, clean, columns, cut, seconds, short, size};

/// The table. No line is longer than `width`, unless that is 0.
pub fn render(snapshot: &Snapshot, now: Timestamp, width: usize) -> String {
    let mut out = String::new();
    for note in &snapshot.notes {
        out += &(cut(&format!("! {}", clean(note)), width) + "\n");
    }
    if let Some(most) = snapshot.fleet.as_ref().and_then(|fleet| fleet.spec.max_unavailable) {
        let line = format!("Fleet  maxUnavailable {most}, over the nodes of all pools");
        out += &(cut(&line, width) + "\n\n");
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
    lines.extend(
        view.metadata
            .as_ref()
            .map(|image| format!("  image: {}", built_text(image))),
    );
    lines.extend(after_text(&view.after).map(|text| format!("  {text}")));
    if !view.waves.is_empty() {
        let waves: Vec<_> = view.waves.iter().map(wave_text).collect();
        lines.push(format!("  waves: {}", waves.join(", ")));
    }
    let progressing = view.progressing.as_ref();
    if let Some(p) = progressing.filter(|p| p.status == "True" || !p.message.is_empty()) {
        lines.push(format!("  {}", condition_text(p, now)));
    }
    lines.extend(view.window.iter().map(|w| format!("  {}", condition_text(w, now))));
    lines.extend(excluded_text(view).map(|text| format!("  {text}")));
    lines.extend(view.failures.iter().map(|f| format!("  ! {}", failure_text(f, view))));
    lines.extend(view.warnings.iter().map(|w| format!("  ! {}", condition_text(w, now))));
    lines.extend(view.berths.unreadable.iter().map(|e| format!("  ! {e}")));
    lines.iter().map(|line| cut(line, width) + "\n").collect()
}

/// Describes a condition without repetition: `Degraded for 3m: NodeDegraded: …`.
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

/// `canary 2 of 2 soaking (3m of 30m)`.
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
    format!(
        "{} failed on {nodes} ({count}; the rollout halts at {})",
        short(&failures.digest),
        view.max_failures
    )
}

fn resolved(view: &PoolView) -> String {
    match (&view.version, &view.digest) {
        (Some(version), Some(digest)) => format!(" = {version} ({})", short(digest)),
        (None, Some(digest)) => format!(" = {}", short(digest)),
        _ => " (not resolved yet)".to_owned(),
    }
}

/// `built 2026-11-20T10:00:00Z from https://example.com/os at 0a1b2c`, as far as it is known.
fn built_text(image: &ImageMetadata) -> String {
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

fn berths_text(berths: &Berths) -> String {
    let named = |names: &[String]| match names.iter().all(|name| name == "?") {
        true => String::new(),
        false => format!(" ({})", names.join(", ")),
    };
    let mut text = format!(
        "{} of {} berths held{}",
        berths.held.len(),
        berths.total,
        named(&berths.held)
    );
    if !berths.offered.is_empty() {
        let _ = write!(text, ", {} offered{}", berths.offered.len(), named(&berths.offered));
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
