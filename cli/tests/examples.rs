//! Each `examples/NAME.yaml` (a snapshot, a time and a width) must print `examples/NAME.txt`. To add a case, write the YAML
//! file and run `BERTH_BLESS=1 cargo test -p kubectl-berth`, which writes the text file; then read it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail like the test")]

use std::fs;
use std::path::PathBuf;

use berth_judge::verdict::Terms;
use jiff::{SignedDuration, Timestamp};
use kubectl_berth::admin::{self, Change, NoPlan, Plan};
use kubectl_berth::{
    Detail, Look, Snapshot, WhatIf, explanation, node_history, picture, pool_history, previews, read_logs, render,
    render_explanation, render_labels, render_preview, render_report, render_story, report, story, what_if,
};
use serde::Deserialize;
use unicode_width::UnicodeWidthStr;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    now: Timestamp,
    /// Columns of the terminal; 0 is a file.
    #[serde(default)]
    width: usize,
    show: Show,
    /// Amount of detail in a status.
    #[serde(default)]
    details: Details,
    /// Colours of a status.
    #[serde(default)]
    colours: bool,
    snapshot: Snapshot,
}

#[derive(Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Details {
    #[default]
    None,
    Nodes,
    Health,
    All,
}

impl From<Details> for Detail {
    fn from(details: Details) -> Self {
        Self {
            nodes: matches!(details, Details::Nodes | Details::All),
            health: matches!(details, Details::Health | Details::All),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Show {
    Status,
    Preview,
    Labels,
    Json,
    Yaml,
    PreviewJson,
    /// Pool with this name.
    History(String),
    /// Node with this name.
    #[serde(rename = "node-history")]
    NodeHistory(String),
    /// Node with this name.
    Node(String),
    /// Node with this name.
    #[serde(rename = "node-json")]
    NodeJson(String),
    /// Node with this name.
    Explain(String),
    /// Node with this name.
    #[serde(rename = "explain-json")]
    ExplainJson(String),
    /// Pool with this name, and these settings.
    #[serde(rename = "what-if")]
    WhatIf(String, Vec<String>),
    /// Pool with this name.
    Timeline(String),
    /// Pool with this name.
    Svg(String),
    /// Node with this name.
    Exclude(String),
    /// Node with this name.
    Include(String),
    /// Node with this name.
    Hold(String),
    /// Node with this name.
    Unhold(String),
    /// Machine with this name.
    Dismiss(String),
    /// Pool with this name, or `--all`.
    Pause(String),
    /// Pool with this name, or `--all`.
    Resume(String),
    /// Node with this name.
    Release(String),
    /// Pool with this name, or `--all`.
    Retry(String),
    /// Pool with this name.
    Approve(String),
    /// Pool with this name, after a poll.
    Polled(String),
    /// Audit log with this file name beside the examples.
    Verify(String),
}

impl Example {
    fn print(&self) -> String {
        let (snapshot, now) = (&self.snapshot, self.now);
        match &self.show {
            Show::Status => {
                let look = Look {
                    width: self.width,
                    colours: self.colours,
                };
                render(snapshot, now, look, self.details.into())
            }
            Show::Preview => render_preview(snapshot, now, self.width),
            Show::Labels => render_labels(snapshot, now, self.width),
            Show::Json => serde_json::to_string_pretty(&report(snapshot, now)).unwrap() + "\n",
            Show::Yaml => serde_saphyr::to_string(&report(snapshot, now)).unwrap(),
            Show::History(pool) => shown(pool_history(snapshot, pool, now, self.width)),
            Show::NodeHistory(node) => shown(node_history(snapshot, node, now, self.width)),
            Show::Node(node) => shown(render_story(snapshot, node, now, self.width)),
            Show::NodeJson(node) => serde_json::to_string_pretty(&story(snapshot, node, now).unwrap()).unwrap() + "\n",
            Show::Explain(node) => shown(render_explanation(snapshot, node, now, self.width)),
            Show::ExplainJson(node) => {
                serde_json::to_string_pretty(&explanation(snapshot, node, now).unwrap()).unwrap() + "\n"
            }
            Show::WhatIf(pool, settings) => {
                let settings: Vec<WhatIf> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
                shown(what_if(snapshot, pool, &settings).map(|then| {
                    let then = Snapshot {
                        only: Some(pool.clone()),
                        ..then
                    };
                    render_preview(&then, now, self.width)
                }))
            }
            Show::Timeline(pool) => shown(picture(snapshot, pool, now).map(|p| p.render(self.width))),
            Show::Svg(pool) => shown(picture(snapshot, pool, now).map(|p| p.svg())),
            Show::Exclude(node) => planned(admin::exclude(snapshot, node, now), now),
            Show::Include(node) => planned(admin::include(snapshot, node, now), now),
            Show::Hold(node) => planned(admin::hold(snapshot, node, now), now),
            Show::Unhold(node) => planned(admin::unhold(snapshot, node, now), now),
            Show::Dismiss(machine) => planned(admin::dismiss(snapshot, machine), now),
            Show::Pause(which) => planned(admin::pause(snapshot, pause_target(which)), now),
            Show::Resume(which) => planned(admin::resume(snapshot, pause_target(which)), now),
            Show::Release(node) => planned(admin::release(snapshot, node, now), now),
            Show::Retry(pool) if pool == "--all" => {
                planned(admin::in_all_pools(snapshot, |s, pool| admin::retry(s, pool, now)), now)
            }
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
            Show::Verify(log) => {
                let terms = Terms {
                    namespace: "berth-system".to_owned(),
                    fleet: None,
                    lag: SignedDuration::from_secs(10),
                };
                let log = PathBuf::from("tests/examples").join(log);
                let judged = read_logs(&[log], &terms.namespace).unwrap().judge(&terms);
                shown(
                    judged
                        .map(|report| render_report(&report, self.width))
                        .map_err(|e| e.to_string()),
                )
            }
            Show::PreviewJson => serde_json::to_string_pretty(&previews(snapshot, now)).unwrap() + "\n",
        }
    }
}

fn pause_target(which: &str) -> admin::PauseTarget<'_> {
    match which {
        "--all" => admin::PauseTarget::Fleet,
        pool => admin::PauseTarget::Pool(pool),
    }
}

fn shown(text: Result<String, String>) -> String {
    text.unwrap_or_else(|error| format!("error: {error}\n"))
}

/// Returns the text of a plan and, below a line, its changes.
fn planned(plan: Result<Plan, NoPlan>, now: Timestamp) -> String {
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => return format!("error: {error}\n"),
    };
    let changes = plan.changes.iter().map(|change| match change {
        Change::Label { node, uid, mark, on } => format!("Node {node} {uid}: {} {on}\n", mark.words()),
        Change::Pause { pool, uid, paused } => format!("BootcNodePool {pool} {uid}: paused {paused}\n"),
        Change::PauseFleet { uid, paused } => format!("BootcFleet cluster {uid:?}: paused {paused}\n"),
        Change::Dismiss { uid, value, .. } => format!("BootcFleet cluster {uid}: dismissed {value}\n"),
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

/// Returns the width of a line on a terminal; colours take no columns.
fn visible(line: &str) -> usize {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().width();
    let rest = parts.map(|part| part.split_once('m').unwrap().1.width());
    first + rest.sum::<usize>()
}

fn examples() -> Vec<PathBuf> {
    // Cargo runs a test in the directory of its package.
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
            let widest = printed.lines().map(visible).max();
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

/// `explain` finds settings from the pool's facts alone; with each of them in the objects, the node must be offered a berth.
#[test]
fn each_named_setting_gets_the_node_a_berth() {
    let mut settings = 0;
    for input in examples() {
        let text = fs::read_to_string(&input).unwrap();
        let example: Example = serde_saphyr::from_str(&text).unwrap();
        let names = example
            .snapshot
            .nodes
            .iter()
            .filter_map(|node| node.metadata.name.clone());
        for node in names {
            let found = explanation(&example.snapshot, &node, example.now).unwrap();
            let Some(pool) = &found.pool else { continue };
            for setting in found.alone.iter().filter_map(|change| change.setting.clone()) {
                let then = what_if(&example.snapshot, pool, &[setting.parse().unwrap()]).unwrap();
                let then = explanation(&then, &node, example.now).unwrap();
                assert!(
                    then.offered,
                    "{}: {node} with {setting}: {:?}",
                    input.display(),
                    then.why
                );
                settings += 1;
            }
        }
    }
    assert!(settings > 3, "{settings}");
}
