//! Each `examples/NAME.yaml` (a snapshot, a time and a width) must print `examples/NAME.txt`. To add a case, write
//! the first and run `BERTH_BLESS=1 cargo test -p kubectl-berth`, which writes the second; then read it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail like the test")]

use std::fs;
use std::path::PathBuf;

use jiff::Timestamp;
use kubectl_berth::admin::{self, Change, NoPlan, Plan};
use kubectl_berth::{
    Snapshot, insights, node_history, picture, pool_history, previews, render, render_insights, render_preview,
    render_story, story, views,
};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    now: Timestamp,
    /// Columns of the terminal; 0 is a file.
    #[serde(default)]
    width: usize,
    show: Show,
    snapshot: Snapshot,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Show {
    Status,
    Preview,
    /// All nodes, or ten of each pool.
    Insights(bool),
    #[serde(rename = "insights-json")]
    InsightsJson,
    Json,
    PreviewJson,
    /// The pool of that name.
    History(String),
    /// The node of that name.
    #[serde(rename = "node-history")]
    NodeHistory(String),
    /// The node of that name.
    Node(String),
    /// The node of that name.
    #[serde(rename = "node-json")]
    NodeJson(String),
    /// The pool of that name.
    Timeline(String),
    /// The pool of that name.
    Svg(String),
    /// The node of that name.
    Exclude(String),
    /// The node of that name.
    Include(String),
    /// The node of that name.
    Release(String),
    /// The pool of that name.
    Retry(String),
    /// The pool of that name.
    Approve(String),
    /// The pool of that name, after a poll.
    Polled(String),
}

impl Example {
    fn print(&self) -> String {
        let (snapshot, now) = (&self.snapshot, self.now);
        match &self.show {
            Show::Status => render(snapshot, now, self.width),
            Show::Insights(all) => render_insights(snapshot, now, self.width, *all),
            Show::InsightsJson => serde_json::to_string_pretty(&insights(snapshot, now)).unwrap() + "\n",
            Show::Preview => render_preview(snapshot, now, self.width),
            Show::Json => serde_json::to_string_pretty(&views(snapshot, now)).unwrap() + "\n",
            Show::History(pool) => shown(pool_history(snapshot, pool, now, self.width)),
            Show::NodeHistory(node) => shown(node_history(snapshot, node, now, self.width)),
            Show::Node(node) => shown(render_story(snapshot, node, now, self.width)),
            Show::NodeJson(node) => serde_json::to_string_pretty(&story(snapshot, node, now).unwrap()).unwrap() + "\n",
            Show::Timeline(pool) => shown(picture(snapshot, pool, now).map(|p| p.render(self.width))),
            Show::Svg(pool) => shown(picture(snapshot, pool, now).map(|p| p.svg())),
            Show::Exclude(node) => planned(admin::exclude(snapshot, node, now), now),
            Show::Include(node) => planned(admin::include(snapshot, node, now), now),
            Show::Release(node) => planned(admin::release(snapshot, node, now), now),
            Show::Retry(pool) => planned(admin::retry(snapshot, pool, now), now),
            Show::Approve(pool) => {
                let plan = admin::approve(snapshot, pool, now);
                let printed = plan.as_ref().ok().map(|plan| shown(admin::print(plan)));
                format!("{}---\n{}", planned(plan, now), printed.unwrap_or_default())
            }
            Show::Polled(pool) => {
                let found = snapshot.pools.iter().find(|p| p.metadata.name.as_ref() == Some(pool));
                shown(admin::found_words(found.unwrap()))
            }
            Show::PreviewJson => serde_json::to_string_pretty(&previews(snapshot, now)).unwrap() + "\n",
        }
    }
}

fn shown(text: Result<String, String>) -> String {
    text.unwrap_or_else(|error| format!("error: {error}\n"))
}

/// Text of a plan and, below a line, its changes.
fn planned(plan: Result<Plan, NoPlan>, now: Timestamp) -> String {
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => return format!("error: {error}\n"),
    };
    let changes = plan.changes.iter().map(|change| match change {
        Change::Label { node, uid, excluded } => format!("Node {node} {uid}: excluded {excluded}\n"),
        Change::Approve {
            pool, uid, from, to, ..
        } => format!("BootcNodePool {pool} {uid}: {from} becomes {to}\n"),
        Change::Retry { pool, uid, token } => format!("BootcNodePool {pool} {uid}: retryToken {token}\n"),
        Change::Close {
            lease, closed, note, ..
        } => {
            let mut lease = lease.clone();
            berth_api::berth::lease::write(closed, &mut lease, now);
            format!("{}event: {note}\n", serde_saphyr::to_string(&lease).unwrap())
        }
    });
    let changes: String = changes.collect();
    format!("{}---\n{changes}", plan.render())
}

fn examples() -> Vec<PathBuf> {
    // Cargo runs a test in its package's directory.
    let files = fs::read_dir("tests/examples").unwrap().map(|f| f.unwrap().path());
    let mut inputs: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "yaml")).collect();
    inputs.sort();
    inputs
}

#[test]
fn every_example_prints_what_it_should() {
    let mut wrong = Vec::new();
    let inputs = examples();
    assert!(!inputs.is_empty());
    for input in inputs {
        let text = fs::read_to_string(&input).unwrap();
        let example: Example =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", input.display()));
        let printed = example.print();
        if example.width > 0 {
            let widest = printed.lines().map(|l| l.chars().count()).max();
            assert!(widest <= Some(example.width), "{}", input.display());
        }
        let output = input.with_extension("txt");
        if std::env::var_os("BERTH_BLESS").is_some() {
            fs::write(&output, &printed).unwrap();
        }
        let expected = fs::read_to_string(&output).unwrap_or_default();
        if printed != expected {
            wrong.push(format!(
                "--- {} should print\n{expected}\n--- but prints\n{printed}",
                input.display()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
