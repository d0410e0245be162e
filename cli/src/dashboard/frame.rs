//! State of the page at one moment, made from the status report. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use berth_api::decode::Decoded;
use berth_api::node::BootcNode;
use berth_api::pool::BootcNodePool;
use berth_api::waves::{Waves, is_control_plane};
use berth_core::controller::view::NodeView;
use berth_core::insight::Assessment;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::about::About;
use super::commands;
use super::estimate::{MemberFacts, estimate};
use super::gate::PoolGates;
use super::runbook::runbook;
use crate::health::HealthInsight;
use crate::insights::{NodeLine, PoolAssessment};
use crate::members::is_held_back;
use crate::nodes::ProgressView;
use crate::render::{completion, numbers, summary_lines};
use crate::snapshot::Snapshot;
use crate::status::{FleetView, report};
use crate::text::{clean, size};
use crate::view::PoolView;
use crate::watch::Stale;

/// State of the page at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Frame {
    pub(super) now: Timestamp,
    /// Kinds whose objects may be outdated.
    pub(super) stale: Option<Stale>,
    pub(super) fleet: FleetView,
    pub(super) notes: Vec<String>,
    pub(super) pools: Vec<Value>,
    /// Nodes, sorted by name.
    pub(super) nodes: Vec<NodeState>,
    pub(super) health: Vec<Value>,
}

/// A node on the page.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeState {
    pub(super) name: String,
    /// Name of the pool; empty if the node has none.
    pub(super) pool: String,
    /// Name of the wave; empty if the pool has no waves.
    wave: String,
    zone: String,
    role: &'static str,
    assessment: Option<&'static str>,
    phase: String,
    version: String,
    target: String,
    since: Option<Timestamp>,
    estimate: String,
    percent: Option<u64>,
    progress: String,
    message: String,
    /// `held`, `offered`, or empty.
    pub(super) berth: &'static str,
}

impl NodeState {
    pub(super) fn is(&self, assessment: Assessment) -> bool {
        self.assessment == Some(assessment.as_str())
    }
}

/// Returns the state of the page.
pub(super) fn frame(snapshot: &Snapshot, about: &About, stale: Option<Stale>, now: Timestamp) -> Frame {
    let report = report(snapshot, now);
    let objects = Objects::of(snapshot);
    let mut nodes = vec![];
    let mut pools = vec![];
    for mut view in report.pools {
        // The names of objects need no cleaning, so the view has the pool's own name.
        let Some(pool) = snapshot.pool(&view.name) else {
            continue;
        };
        let of_pool = OfPool::of(pool, &view, &objects);
        let state = pool_state(&of_pool, about, &view, snapshot, now);
        // Each line is freed before the next state is made.
        nodes.extend(mem::take(&mut view.nodes).into_iter().map(|line| of_pool.node(&line)));
        let mut state = merged(&view, state);
        if let Some(fields) = state.as_object_mut() {
            fields.remove("nodes");
        }
        pools.push(state);
    }
    let zone_key = berth_api::pool::DEFAULT_ZONE_KEY;
    let of_no_pool = report.nodes_of_no_pool.iter();
    nodes.extend(of_no_pool.map(|line| node_state(line, objects.nodes.get(line.row.name.as_str()), zone_key)));
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    Frame {
        now,
        stale,
        fleet: report.fleet,
        notes: report.notes,
        pools,
        nodes,
        health: report.health.iter().map(|found| health_state(found, about)).collect(),
    }
}

/// Objects by name.
struct Objects<'a> {
    nodes: BTreeMap<&'a str, &'a NodeView>,
    bootc_nodes: BTreeMap<&'a str, &'a Decoded<BootcNode>>,
}

impl<'a> Objects<'a> {
    fn of(snapshot: &'a Snapshot) -> Self {
        let mut this = Self {
            nodes: BTreeMap::new(),
            bootc_nodes: BTreeMap::new(),
        };
        for node in &snapshot.nodes {
            this.nodes.insert(node.name(), &node.view);
        }
        for bootc in &snapshot.bootc_nodes {
            let name = bootc.metadata.name.as_deref().unwrap_or_default();
            this.bootc_nodes.insert(name, bootc);
        }
        this
    }
}

/// Facts about a pool that the states of its nodes need.
struct OfPool<'a> {
    objects: &'a Objects<'a>,
    pool: &'a BootcNodePool,
    name: String,
    waves: Waves,
    shows_waves: bool,
    held: BTreeSet<String>,
    offered: BTreeSet<String>,
}

impl<'a> OfPool<'a> {
    fn of(pool: &'a BootcNodePool, view: &PoolView, objects: &'a Objects<'a>) -> Self {
        Self {
            objects,
            pool,
            name: view.name.clone(),
            waves: Waves::of(&pool.spec.rollout().waves),
            shows_waves: !view.waves.is_empty(),
            held: view.berths.held.iter().cloned().collect(),
            offered: view.berths.offered.iter().cloned().collect(),
        }
    }

    fn wave(&self, name: &str) -> Option<usize> {
        Some(self.waves.number(&self.objects.nodes.get(name)?.labels))
    }

    fn facts(&self, line: &NodeLine) -> MemberFacts {
        let name = line.row.name.as_str();
        MemberFacts {
            wave: self.wave(name).unwrap_or_default(),
            is_staged: self.objects.bootc_nodes.get(name).is_some_and(|bootc| is_staged(bootc)),
            is_held_back: self.objects.nodes.get(name).is_some_and(|node| is_held_back(node)),
        }
    }

    fn node(&self, line: &NodeLine) -> NodeState {
        let name = line.row.name.as_str();
        let mut state = node_state(line, self.objects.nodes.get(name), self.pool.spec.zone_key());
        state.pool.clone_from(&self.name);
        if let Some(wave) = self.wave(name).filter(|_| self.shows_waves) {
            state.wave = clean(self.waves.name(wave));
        }
        state.berth = if self.held.contains(name) {
            "held"
        } else if self.offered.contains(name) {
            "offered"
        } else {
            ""
        };
        state
    }
}

/// True if the image that the node should run is staged and locked.
fn is_staged(bootc: &BootcNode) -> bool {
    let desired = bootc.spec.image.as_ref().map(|image| &image.digest);
    let staged = bootc.status.as_ref().and_then(|status| status.staged.as_ref());
    staged.is_some_and(|staged| staged.locked && staged.digest.is_some() && staged.digest.as_ref() == desired)
}

fn node_state(line: &NodeLine, node: Option<&&NodeView>, zone_key: &str) -> NodeState {
    let labels = node.map(|node| &node.labels);
    let is_control_plane = labels.is_some_and(is_control_plane);
    let zone = labels.and_then(|labels| labels.get(zone_key));
    let row = &line.row;
    NodeState {
        name: clean(&row.name),
        zone: zone.map(|zone| clean(zone)).unwrap_or_default(),
        role: if is_control_plane { "control-plane" } else { "worker" },
        assessment: line.assessment,
        phase: line.phase().to_owned(),
        version: row.version.clone(),
        target: row.target.clone(),
        since: row.since,
        estimate: line.estimate.clone(),
        percent: row.progress.as_ref().and_then(|progress| progress.percent),
        progress: row.progress.as_ref().map(pulled).unwrap_or_default(),
        message: row.message.clone(),
        ..NodeState::default()
    }
}

/// Returns the progress of a pull, such as `1.2 GB of 3.0 GB, 31 MB/s`.
fn pulled(progress: &ProgressView) -> String {
    let mut text = size(progress.bytes);
    if progress.bytes_total > 0 {
        text += &format!(" of {}", size(progress.bytes_total));
    }
    if progress.bytes_per_second > 0 {
        text += &format!(", {}/s", size(progress.bytes_per_second));
    }
    text
}

/// Returns the fields of a pool on the page that the view does not have.
fn pool_state(of_pool: &OfPool<'_>, about: &About, view: &PoolView, snapshot: &Snapshot, now: Timestamp) -> Value {
    let fleet = snapshot.fleet.as_ref();
    let gates = PoolGates::of(of_pool.pool, fleet);
    let limit = fleet.and_then(|fleet| fleet.spec.limit(snapshot.bootc_nodes.len()));
    let is_completed = view.assessment == PoolAssessment::Completed;
    json!({
        "estimate": estimate(of_pool.pool, view, &gates, limit, |line| of_pool.facts(line), now),
        "completion": completion(&view.counts),
        "percent": view.counts.percent(),
        "numbers": numbers(&view.counts),
        "summary": summary_lines(view),
        "gate": gates.view(is_completed, now),
        "commands": commands::of_pool(about, of_pool.pool, view, fleet.is_some_and(|fleet| fleet.spec.paused)),
    })
}

pub(super) fn health_state(found: &HealthInsight, about: &About) -> Value {
    let commands: Vec<String> = found.commands.iter().map(|c| about.command_here(c)).collect();
    let more = json!({ "runbook": runbook(found.kind, &found.reason), "commands": commands });
    merged(found, more)
}

/// Returns the object with more fields. Without the fields if the object cannot be serialized, which never happens.
fn merged(object: &impl Serialize, more: Value) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    value
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::NodeUid;
    use berth_api::berth::{Berth, Offer, lease};
    use k8s_openapi::api::coordination::v1::Lease;

    use super::*;

    const DIGESTS: [&str; 2] = [
        "sha256:1111111111111111111111111111111111111111111111111111111111111111",
        "sha256:2222222222222222222222222222222222222222222222222222222222222222",
    ];

    fn node(name: &str, labels: Value) -> Value {
        let ready = json!({ "type": "Ready", "status": "True" });
        json!({ "metadata": { "name": name, "labels": labels }, "status": { "conditions": [ready] } })
    }

    fn bootc(name: &str, pool: &str, phase: &str, more: Value) -> Value {
        let image = json!({ "ref": "r", "digest": DIGESTS[1], "indexDigest": DIGESTS[1], "version": "v2" });
        let mut status = json!({
            "phase": phase, "booted": { "digest": DIGESTS[0], "version": "v1", "image": "i", "architecture": "amd64" },
        });
        status
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({
            "metadata": { "name": name }, "spec": { "poolName": pool, "nodeUID": "u", "image": image }, "status": status,
        })
    }

    /// Returns a berth that node `a` is offered.
    fn offered() -> Lease {
        let berth = Berth::new("workers".into(), 0, 1).offered(Offer {
            node: "a".into(),
            uid: NodeUid::new("u"),
            target: DIGESTS[1].parse().unwrap(),
            open_until: None,
        });
        let hour = Duration::from_secs(3_600);
        lease::create(&berth.unwrap(), "berth-system", hour, Timestamp::UNIX_EPOCH)
    }

    fn shown() -> Frame {
        let pulls = json!({ "progress": { "bytes": 1_000_000, "bytesTotal": 2_000_000, "bytesPerSecond": 500_000 } });
        let blocked = json!([{ "pod": "shop/db-0", "reason": "its budget", "since": "2026-03-01T11:00:00Z" }]);
        let snapshot = json!({
            "pools": [{
                "metadata": { "name": "workers" },
                "spec": {
                    "nodeSelector": {}, "image": { "ref": "quay.io/example/os:2" },
                    "rollout": {
                        "zoneKey": "rack", "waves": [{ "name": "canary", "nodeSelector": { "matchLabels": { "wave": "1" } } }],
                    },
                },
                "status": { "waves": [{ "name": "canary", "total": 1, "updated": 0, "state": "Active" }] },
            }],
            "nodes": [
                node("a", json!({ "wave": "1", "rack": "r7" })),
                node("b", json!({ "node-role.kubernetes.io/control-plane": "" })),
            ],
            "bootcNodes": [
                bootc("b", "workers", "Staging", pulls),
                bootc("a", "workers", "Draining", json!({ "drainBlockers": blocked })),
                bootc("z", "", "Idle", json!({})),
            ],
            "leases": [offered()],
        });
        let snapshot: Snapshot = serde_json::from_value(snapshot).unwrap();
        let about = About::of("c".to_owned(), None, Some("c"), None);
        frame(&snapshot, &about, None, "2026-03-01T12:00:00Z".parse().unwrap())
    }

    #[test]
    fn nodes_have_their_place_and_progress() {
        let frame = shown();
        let names: Vec<&str> = frame.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "z"]);
        let [a, b, z] = frame.nodes.as_slice() else {
            panic!("{:?}", frame.nodes);
        };
        assert_eq!((&*a.wave, &*a.zone, a.role), ("canary", "r7", "worker"));
        assert_eq!((&*b.wave, &*b.zone, b.role), ("control-plane", "", "control-plane"));
        assert_eq!((b.percent, &*b.progress), (Some(50), "1.0 MB of 2.0 MB, 500 kB/s"));
        assert_eq!((&*a.pool, &*z.pool, z.assessment), ("workers", "", None));
        assert_eq!((a.berth, b.berth, z.berth), ("offered", "", ""));
    }

    #[test]
    fn findings_have_a_runbook_and_commands() {
        let frame = shown();
        let blocked = frame
            .health
            .iter()
            .find(|found| found["message"].as_str().unwrap().contains("drained"));
        let blocked = blocked.unwrap();
        assert_eq!(blocked["runbook"]["text"], "docs/runbooks/BerthDrainBlocked.md");
        let commands = blocked["commands"].as_array().unwrap();
        assert!(
            commands.contains(&json!("kubectl berth --context c node a")),
            "{blocked}"
        );
    }

    #[test]
    fn pools_have_no_nodes_of_their_own() {
        let pools = shown().pools;
        assert!(pools.len() == 1 && pools[0].get("nodes").is_none(), "{pools:?}");
        for field in [
            "name",
            "assessment",
            "total",
            "estimate",
            "completion",
            "percent",
            "numbers",
            "summary",
            "gate",
        ] {
            assert!(pools[0].get(field).is_some(), "{field}");
        }
    }
}
