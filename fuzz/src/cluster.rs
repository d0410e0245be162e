//! Fuzzes the controller's reading of Nodes, BootcNodes, Leases and pools, and the pool status that it computes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use berth_api::decode::Decoded;
use berth_api::foreign::is_printable;
use berth_api::node::BootcNode;
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus};
use berth_core::Moment;
use berth_core::controller::aggregate::Polled;
use berth_core::controller::gates::gates;
use berth_core::controller::image::Answers;
use berth_core::controller::ledger::Ledger;
use berth_core::controller::membership::MembershipCache;
use berth_core::controller::occupied::Occupied;
use berth_core::controller::offers::Offers;
use berth_core::controller::plan::Plan;
use berth_core::controller::pool::Pool;
use berth_core::controller::quorum::ControlPlane;
use berth_core::controller::round::Round;
use berth_core::controller::snapshot::{Entry, Objects, Snapshot};
use berth_core::controller::soaks::Soaks;
use berth_core::controller::statuses::{PassResults, holdings};
use berth_core::controller::view::{BootcNodeView, LeaseView, NodeView, PoolView};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::edits::edited;
use crate::schema::Schema;
use crate::text;

static NODES: LazyLock<Schema> = LazyLock::new(Schema::of::<BootcNode>);
static POOLS: LazyLock<Schema> = LazyLock::new(Schema::of::<BootcNodePool>);

/// Time of each pass: after all times in the cluster.
pub const NOW: i64 = 1_772_366_400;

/// Changes a cluster as the input says, and makes a pass of the controller over it. Panics if a pool's new status is one
/// that the API server would refuse, or has a text that is not one printable line. Objects that the API server would
/// refuse are left out.
pub fn cluster(data: &[u8]) {
    let Some(cluster) = edited(data) else { return };
    let now = Timestamp::from_second(NOW).unwrap_or_default();
    let snapshot = snapshot(&cluster);
    for (pool, status) in statuses(&snapshot, now) {
        let json = serde_json::to_value(&status).unwrap_or_default();
        text::is_printable(&json);
        let mut object = serde_json::to_value(&pool).unwrap_or_default();
        object["status"] = json;
        if let Some(why) = POOLS.refuses(&object) {
            panic!("the API server would refuse the status: {why}");
        }
    }
}

/// Returns the objects of a cluster that the API server would store.
pub fn snapshot(cluster: &Value) -> Snapshot {
    let pools = items(cluster, "pools").filter(|pool| is_stored(pool, &POOLS));
    // An admin writes the pool's spec, and the controller its status: neither is hostile.
    let pools = pools.filter(|pool| is_clean(&pool["status"]) && is_clean(&pool["spec"]));
    let bootc_nodes = items(cluster, "bootcNodes").filter(|node| is_stored(node, &NODES));
    let nodes = items(cluster, "nodes").filter(|node| is_named(node));
    let leases = items(cluster, "leases").filter(|lease| is_named(lease));
    Snapshot {
        pools: objects(pools, |object| read(object).map(PoolView::of)),
        bootc_nodes: objects(bootc_nodes, |object| read(object).map(BootcNodeView::of)),
        nodes: objects(nodes, |object| read(object).map(|node| NodeView::of(&node))),
        leases: objects(leases, |object| read::<Decoded<Lease>>(object).map(LeaseView::of)),
        ..Snapshot::default()
    }
}

fn items<'a>(cluster: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    cluster[kind].as_array().into_iter().flatten()
}

fn read<K: DeserializeOwned>(object: &Value) -> Option<K> {
    serde_json::from_value(object.clone()).ok()
}

fn objects<'a, V>(all: impl Iterator<Item = &'a Value>, view: impl Fn(&Value) -> Option<V>) -> Arc<Objects<V>> {
    let views = all.filter_map(|object| Some((name(object).to_owned(), Entry::new(view(object)?))));
    Arc::new(views.collect())
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// True if the API server accepts the object's name and labels.
fn is_named(object: &Value) -> bool {
    let name = name(object);
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    (1..=253).contains(&name.len()) && name.bytes().all(is_name) && are_labels(&object["metadata"]["labels"])
}

/// True if the API server accepts these labels.
fn are_labels(labels: &Value) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    let is_value = |value: &Value| value.as_str().is_some_and(|v| v.len() <= 63 && v.bytes().all(is_word));
    let mut labels = labels.as_object().into_iter().flatten();
    labels.all(|(key, value)| key.bytes().all(is_word) && is_value(value))
}

/// True if the API server stores the object.
fn is_stored(object: &Value, schema: &Schema) -> bool {
    is_named(object) && name(object).len() <= 63 && schema.refuses(object).is_none()
}

fn is_clean(json: &Value) -> bool {
    match json {
        Value::String(text) => is_printable(text),
        Value::Array(items) => items.iter().all(is_clean),
        Value::Object(fields) => fields.iter().all(|(key, value)| is_printable(key) && is_clean(value)),
        _ => true,
    }
}

/// Makes one pass of a controller that has just become the leader. Returns the new status of each pool.
fn statuses(snapshot: &Snapshot, now: Timestamp) -> Vec<(BootcNodePool, BootcNodePoolStatus)> {
    let leases = snapshot.lease_views();
    let pools = Pool::readable(&snapshot.pools);
    let membership = MembershipCache::default().of(snapshot);
    let gates = pools
        .iter()
        .filter_map(|pool| Some((pool.name.clone(), gates(pool.gate_inputs(None, true, now)?))));
    let gates: BTreeMap<_, _> = gates.collect();
    let heard = snapshot.bootc_nodes.keys().map(|name| name.as_str().into()).collect();
    let epochs = leases.iter().filter_map(|lease| Some(lease.berth.as_ref().ok()?.epoch));
    let round = Round {
        snapshot,
        membership: &membership,
        leases: &leases,
        occupied: &Occupied::of(&leases),
        in_doubt: &BTreeSet::new(),
        refused: &BTreeSet::new(),
        confirmed_gone: &BTreeSet::new(),
        heard: &heard,
        overdue: &BTreeSet::new(),
        outdated: &BTreeSet::new(),
        offers: &Offers::default(),
        ledger: &Ledger::default(),
        soaks: &Soaks::default(),
        gates: &gates,
        now: Moment::default(),
        epoch: epochs.max().unwrap_or_default(),
    };
    let plans: BTreeMap<_, Plan> = round.plans(&pools, ControlPlane::default(), now);
    let results = PassResults {
        snapshot,
        membership: &membership,
        leases: &leases,
        gates: &gates,
        plans: &plans,
        heard: &heard,
        timed_out: &BTreeSet::new(),
        implausible: &BTreeMap::new(),
        holdings: holdings(&leases),
    };
    results.unreadable().iter().for_each(|why| text::is_line(why, 1500));
    let mut all = vec![];
    for pool in &pools {
        let Some(object) = &pool.object else { continue };
        let old = object.status.clone().unwrap_or_default();
        let polled = Polled {
            answers: &Answers::default(),
            polled: true,
            available_seen: Duration::ZERO,
            poll_request: None,
        };
        let status = results.pool_status((pool, object), &old, polled, vec![], now);
        all.extend(status.map(|status| (object.clone(), status)));
    }
    all
}

/// Returns why the API server would not store objects of the cluster.
#[cfg(test)]
pub fn refusals(cluster: &Value) -> String {
    let nodes = items(cluster, "bootcNodes").filter_map(|node| NODES.refuses(node));
    let pools = items(cluster, "pools").filter_map(|pool| POOLS.refuses(pool));
    nodes.chain(pools).collect::<Vec<_>>().join("; ")
}
