//! The preview as a table.

use jiff::Timestamp;

use super::pool::{PoolPreview, previews};
use crate::snapshot::Snapshot;
use crate::table::columns;
use crate::text::{after_text, clean, count, cut, wrapped};

/// Returns the previews as text, in lines of at most `width` columns; 0 means unlimited.
pub fn render_preview(snapshot: &Snapshot, now: Timestamp, width: usize) -> String {
    let mut out = String::new();
    for note in &snapshot.notes {
        out += &(cut(&format!("! {}", clean(note)), width) + "\n");
    }
    let previews = previews(snapshot, now);
    if previews.is_empty() {
        out += "There are no pools, so Berth updates no nodes. Create a BootcNodePool to begin.\n";
    }
    for (i, preview) in previews.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        out += &text(preview, width);
    }
    out
}

fn text(preview: &PoolPreview, width: usize) -> String {
    let target = preview
        .target
        .as_ref()
        .map_or_else(String::new, |target| format!(" = {target}"));
    let mut lines = vec![format!("Pool {}  {}{target}", preview.name, preview.image)];
    let going = preview.members - preview.up_to_date;
    let of_fleet = preview
        .fleet_limit
        .map_or_else(String::new, |limit| format!(" ({limit} across all pools)"));
    lines.push(format!(
        "  {}, {} up to date, {going} to update, capacity {}{of_fleet}, {} free now",
        count(preview.members, "node"),
        preview.up_to_date,
        preview.capacity,
        preview.free
    ));
    lines.extend(after_text(&preview.after).map(|text| format!("  {text}")));
    lines.extend(preview.blocks.iter().map(|block| format!("  ! {block}")));
    lines.extend(preview.notes.iter().map(|note| format!("  Note: {note}")));
    let mut out: String = lines.iter().map(|line| wrapped(line, width, 4)).collect();
    if !preview.nodes.is_empty() {
        let rows: Vec<Vec<String>> = preview
            .nodes
            .iter()
            .map(|n| {
                let wave = n.wave.clone().unwrap_or_default();
                vec![
                    n.name.clone(),
                    wave,
                    n.from.clone(),
                    n.to.clone(),
                    n.state.clone(),
                    n.blocks.join("; "),
                ]
            })
            .collect();
        out += &columns(&["NAME", "WAVE", "FROM", "TO", "STATE", "BLOCKED BY"], &rows, width);
    }
    out
}
