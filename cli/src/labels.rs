//! `status --labels`: the labels of each pool's image.

use jiff::Timestamp;

use crate::render::{built_text, resolved};
use crate::snapshot::Snapshot;
use crate::status::report;
use crate::table::columns;
use crate::text::{clean, cut};
use crate::view::PoolView;

/// Returns each pool with its image's build information and labels.
pub fn render_labels(snapshot: &Snapshot, now: Timestamp, width: usize) -> String {
    let report = report(snapshot, now);
    let pools: Vec<String> = report.pools.iter().map(|view| pool(view, width)).collect();
    if pools.is_empty() {
        "There are no pools.\n".to_owned()
    } else {
        pools.join("\n")
    }
}

fn pool(view: &PoolView, width: usize) -> String {
    let mut lines = vec![format!("Pool {}  {}{}", view.name, view.image, resolved(view))];
    let metadata = view.metadata.as_ref();
    let built = metadata.map(built_text).filter(|text| !text.is_empty());
    lines.extend(built.map(|text| format!("  image: {text}")));
    let labels: Vec<Vec<String>> = metadata
        .into_iter()
        .flat_map(|image| &image.labels)
        .map(|(name, value)| vec![clean(name), clean(value)])
        .collect();
    let table = if labels.is_empty() {
        lines.push("  no labels known".to_owned());
        String::new()
    } else {
        columns(&["LABEL", "VALUE"], &labels, width)
    };
    let left_out = metadata.map_or(0, |image| image.labels_left_out);
    let rest = match left_out {
        0 => String::new(),
        n => {
            cut(
                &format!("  labels left out (too long, too many, or not plain text): {n}"),
                width,
            ) + "\n"
        }
    };
    let head: String = lines.iter().map(|line| cut(line, width) + "\n").collect();
    head + &table + &rest
}
