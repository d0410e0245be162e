//! Fuzzes the output of `kubectl berth`.

use jiff::Timestamp;
use kubectl_berth::arguments::Output;
use kubectl_berth::{
    Detail, Look, Snapshot, explanation, export, node_history, picture, pool_history, previews, render,
    render_explanation, render_labels, render_preview, render_story, report, story,
};
use serde::Serialize;
use serde_json::Value;

use crate::cluster::NOW;
use crate::edits::edited;
use crate::text::are_lines;

/// Width of the terminal, in columns: 0 means unlimited, so that no text is cut.
const WIDTH: usize = 0;

/// Changes a cluster as the input says, and prints it as each command does. Panics if the output contains a control
/// character or an invisible one: a host or a registry must not control an admin's terminal.
pub fn kubectl(data: &[u8]) {
    let Some(snapshot) = snapshot(data) else { return };
    let now = Timestamp::from_second(NOW).unwrap_or_default();
    let look = Look {
        width: WIDTH,
        colours: false,
    };
    let detail = Detail {
        nodes: true,
        health: true,
    };
    are_lines(&render(&snapshot, now, look, detail));
    are_lines(&render_preview(&snapshot, now, WIDTH));
    are_lines(&render_labels(&snapshot, now, WIDTH));
    for node in ["n1", "n2"] {
        shown(render_story(&snapshot, node, now, WIDTH));
        shown(render_explanation(&snapshot, node, now, WIDTH));
        shown(node_history(&snapshot, node, now, WIDTH));
    }
    shown(pool_history(&snapshot, "p", now, WIDTH));
    shown(picture(&snapshot, "p", now).map(|picture| picture.render(WIDTH)));
    shown(picture(&snapshot, "p", now).map(|picture| picture.svg()));
    printed(&report(&snapshot, now));
    printed(&previews(&snapshot, now));
    printed(&story(&snapshot, "n1", now).ok());
    printed(&explanation(&snapshot, "n1", now).ok());
}

/// Returns the objects of the changed cluster. `None` if the input is not text.
pub fn snapshot(data: &[u8]) -> Option<Snapshot> {
    let mut cluster = edited(data)?;
    for kind in ["pools", "bootcNodes", "nodes", "leases"] {
        drop_unreadable(&mut cluster, kind);
    }
    let mut snapshot = serde_json::from_value::<Snapshot>(cluster).ok()?;
    // A preview looks a year ahead, which takes too long here.
    for rollout in snapshot.pools.iter_mut().filter_map(|pool| pool.spec.rollout.as_mut()) {
        rollout.windows.clear();
    }
    Some(snapshot)
}

/// Drops the objects that cannot be read, so that one of them does not hide the others.
fn drop_unreadable(cluster: &mut Value, kind: &str) {
    let Some(items) = cluster[kind].as_array_mut() else {
        return;
    };
    items.retain(|item| {
        let alone = serde_json::json!({ kind: [item] });
        serde_json::from_value::<Snapshot>(alone).is_ok()
    });
}

fn shown(text: Result<String, String>) {
    match text {
        Ok(text) | Err(text) => are_lines(&text),
    }
}

/// Checks an output in the formats for programs, which an admin may also print.
fn printed(output: &impl Serialize) {
    for form in [Output::Json, Output::Yaml] {
        are_lines(&export(form, output).unwrap_or_default());
    }
}
