//! Each `examples/NAME.yaml` (facts of a cluster, a time and a width) must print `examples/NAME.txt`. To add a case,
//! write the YAML file and run `BERTH_BLESS=1 cargo test -p kubectl-berth`. This writes the text file; then review it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail like the test")]

mod cluster;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use berth_api::berth::Outcome;
use berth_api::condition::{CommonReason, Reason};
use berth_api::node::Phase;
use berth_core::agent::reason;
use berth_core::controller::gate::GateReason;
use berth_core::controller::image::ResolveReason;
use berth_core::controller::implausible::Contradiction;
use berth_core::controller::quorum::Cause;
use berth_core::insight::Unavailable;
use berth_judge::verdict::Terms;
use cluster::Cluster;
use cluster::doctor::DoctorFacts;
use jiff::{SignedDuration, Timestamp};
use kubectl_berth::admin::{self, Change, NoPlan, Plan};
use kubectl_berth::doctor::{self, diagnose, render_commands};
use kubectl_berth::{
    Detail, Look, Snapshot, WhatIf, explanation, node_history, picture, pool_history, previews, read_logs, render,
    render_explanation, render_labels, render_preview, render_report, render_story, report, story, what_if,
};
use serde::Deserialize;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    #[serde(default = "noon")]
    now: Timestamp,
    /// Columns of the terminal; 0 means that the output is a file.
    #[serde(default)]
    width: usize,
    show: Show,
    #[serde(default)]
    details: Details,
    #[serde(default)]
    colours: bool,
    #[serde(default)]
    cluster: Cluster,
    /// Facts for the doctor.
    #[serde(default)]
    doctor: DoctorFacts,
}

fn noon() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
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

/// The output to show, with the name of a pool, node or machine, or `--all`.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Show {
    Status,
    Preview,
    Labels,
    Json,
    Yaml,
    PreviewJson,
    History(String),
    #[serde(rename = "node-history")]
    NodeHistory(String),
    Node(String),
    #[serde(rename = "node-json")]
    NodeJson(String),
    Explain(String),
    #[serde(rename = "explain-json")]
    ExplainJson(String),
    /// A pool and its settings.
    #[serde(rename = "what-if")]
    WhatIf(String, Vec<String>),
    Timeline(String),
    Svg(String),
    Exclude(String),
    Include(String),
    Hold(String),
    Unhold(String),
    Dismiss(String),
    Pause(String),
    Resume(String),
    Release(String),
    Retry(String),
    Approve(String),
    /// A pool after a poll.
    Polled(String),
    /// Name of an audit log in the directory of the examples.
    Verify(String),
    Doctor,
    #[serde(rename = "doctor-json")]
    DoctorJson,
    #[serde(rename = "doctor-fix")]
    DoctorFix,
}

impl Example {
    /// Reads a file. `$2` stands for the digest of image 2's manifest, `$a2` for the digest of its index.
    fn read(file: &Path) -> Self {
        let mut text = fs::read_to_string(file).unwrap();
        for number in 0..10 {
            text = text.replace(
                &format!("$a{number}"),
                &format!("sha256:{}", format!("a{number}").repeat(32)),
            );
            text = text.replace(
                &format!("${number}"),
                &format!("sha256:{}", number.to_string().repeat(64)),
            );
        }
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }

    fn print(&self, snapshot: &Snapshot) -> String {
        let now = self.now;
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
            Show::Doctor | Show::DoctorJson | Show::DoctorFix => self.examine(snapshot),
            Show::PreviewJson => serde_json::to_string_pretty(&previews(snapshot, now)).unwrap() + "\n",
        }
    }
}

impl Example {
    /// Returns the doctor's output and exit status, with X.Y.Z for the version of this plugin.
    fn examine(&self, snapshot: &Snapshot) -> String {
        let diagnosis = diagnose(&self.doctor.facts(snapshot.clone()), self.now);
        let look = Look {
            width: self.width,
            colours: self.colours,
        };
        let text = match &self.show {
            Show::DoctorJson => serde_json::to_string_pretty(&diagnosis).unwrap() + "\n",
            Show::DoctorFix => render_commands(&diagnosis),
            _ => doctor::render(&diagnosis, look),
        };
        let text = format!("{text}---\nexit status {}\n", diagnosis.exit_status());
        text.replace(env!("CARGO_PKG_VERSION"), "X.Y.Z")
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

/// Returns the text of a plan, the line `---`, and the planned changes.
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

/// Returns the width of a line on a terminal; colors take no columns.
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
        let example = Example::read(&input);
        let printed = example.print(&example.cluster.snapshot(example.now));
        if example.width > 0 {
            // Commands are not cut, so that they can be copied.
            let lines = printed.lines().filter(|line| !line.trim_start().starts_with("$ "));
            let widest = lines.map(visible).max();
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

/// Returns the reasons that Berth's programs write into conditions.
fn reasons() -> BTreeSet<&'static str> {
    fn words<R: Reason>() -> impl Iterator<Item = &'static str> {
        R::ALL.iter().map(|reason| reason.word())
    }
    let of_both = words::<CommonReason>()
        .chain(words::<Outcome>())
        .chain(words::<Phase>());
    let of_agent = words::<reason::Reason>().chain(words::<Unavailable>());
    let of_controller = words::<GateReason>()
        .chain(words::<ResolveReason>())
        .chain(words::<Cause>())
        .chain(words::<Contradiction>());
    of_both.chain(of_agent).chain(of_controller).collect()
}

/// Collects the reasons of all conditions in an object.
fn collect_reasons(json: &Value, found: &mut BTreeSet<String>) {
    match json {
        Value::Array(items) => items.iter().for_each(|item| collect_reasons(item, found)),
        Value::Object(fields) => {
            let reason = fields
                .get("reason")
                .filter(|_| fields.contains_key("lastTransitionTime"));
            found.extend(reason.and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| collect_reasons(value, found));
        }
        _ => {}
    }
}

#[test]
fn every_reason_is_one_that_a_program_writes() {
    let known = reasons();
    let mut all = BTreeSet::new();
    for input in examples() {
        let example = Example::read(&input);
        let Snapshot {
            pools,
            bootc_nodes,
            fleet,
            ..
        } = example.cluster.snapshot(example.now);
        let objects = serde_json::to_value((pools, bootc_nodes, fleet)).unwrap();
        let mut found = BTreeSet::new();
        collect_reasons(&objects, &mut found);
        let unknown: Vec<_> = found.iter().filter(|reason| !known.contains(reason.as_str())).collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", input.display());
        all.extend(found);
    }
    assert!(all.len() > 50, "{all:?}");
}

/// For each setting that `explain` names, the node must get an offer after that setting is applied to the pool.
#[test]
fn each_named_setting_gets_the_node_a_berth() {
    let mut settings = 0;
    for input in examples() {
        let example = Example::read(&input);
        let snapshot = example.cluster.snapshot(example.now);
        let names = snapshot.nodes.iter().map(|node| node.name());
        for node in names {
            let found = explanation(&snapshot, node, example.now).unwrap();
            let Some(pool) = &found.pool else { continue };
            for setting in found.alone.iter().filter_map(|change| change.setting.clone()) {
                let then = what_if(&snapshot, pool, &[setting.parse().unwrap()]).unwrap();
                let then = explanation(&then, node, example.now).unwrap();
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
