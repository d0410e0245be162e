//! Unit tests of two pools in one fleet: the offers of one pass, and why the other nodes wait.

use std::net::SocketAddr;
use std::sync::Arc;

use berth_api::berth::{Berth, Offer};
use berth_api::{BootId, NodeName};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::*;
use crate::Moment;
use crate::controller::ledger::Ledger;
use crate::controller::membership::MembershipCache;
use crate::controller::occupied::Occupied;
use crate::controller::offers::Offers;
use crate::controller::plan::tests::digest;
use crate::controller::plan::{BerthWrite, BlockReason, Origin, Plan, WriteReason};
use crate::controller::round::Rereads;
use crate::controller::servers::{Answers, Asked};
use crate::controller::snapshot::{Entry, Snapshot};
use crate::controller::soaks::Soaks;
use crate::controller::view::{BadTurn, BootcNodeView, FleetView, LeaseView, NodeView, PoolView};

const EPOCH: u64 = 7;

/// Returns a BootcNode of this pool that runs image `booted` and is prepared for image 2.
pub(crate) fn prepared_host(name: &str, pool: &str, booted: u8) -> BootcNodeView {
    let [booted, staged] =
        [booted, 2].map(|n| json!({ "image": "i", "digest": digest(n), "architecture": "amd64", "locked": true }));
    let prepared = json!({ "type": "UpdatePrepared", "status": "True", "reason": "Staged", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let host = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode",
        "metadata": { "name": name, "generation": 1, "labels": { "berth.dev/pool": pool } },
        "spec": {
            "poolName": pool, "nodeUID": name, "staging": "Allowed",
            "image": { "ref": "r.io/os", "digest": digest(2), "indexDigest": digest(2) },
        },
        "status": {
            "observedGeneration": 1, "nodeUID": name, "booted": booted, "staged": staged, "conditions": [prepared],
        },
    });
    BootcNodeView::of(serde_json::from_value(host).unwrap())
}

/// A cluster whose nodes run image 1. Image 2 is the target, and is staged.
#[derive(Default)]
struct Site {
    snapshot: Snapshot,
    leases: Vec<LeaseView>,
    offers: Offers,
    ledger: Ledger,
    refused: BTreeSet<String>,
    /// Nodes with an API server.
    servers: BTreeSet<&'static str>,
    servers_listed: bool,
}

impl Site {
    /// Creates pools `a` and `b` with these nodes. Each pool has capacity for all of its nodes. `limit` is the fleet's
    /// limit.
    fn new(limit: Value, a: &[&str], b: &[&str]) -> Self {
        let mut this = Self {
            servers_listed: true,
            ..Self::default()
        };
        this.fleet(limit);
        for (pool, nodes) in [("a", a), ("b", b)] {
            this.pool(pool, nodes.len(), &[]);
            for node in nodes {
                this.node(node, pool, 1);
                this.ready(node, true);
            }
        }
        this
    }

    fn fleet(&mut self, limit: Value) {
        let fleet = json!({ "apiVersion": "berth.dev/v1alpha1", "kind": "BootcFleet", "metadata": { "name": "cluster" },
            "spec": { "maxUnavailable": limit } });
        self.snapshot.fleet = Some(Entry::new(FleetView::of(serde_json::from_value(fleet).unwrap())));
    }

    fn pool(&mut self, name: &str, k: usize, after: &[&str]) {
        let platforms = json!([{ "architecture": "amd64", "digest": digest(2) }]);
        let pool = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": name },
            "spec": {
                "nodeSelector": { "matchLabels": { "pool": name } }, "image": { "ref": "r.io/os:2" },
                "rollout": { "maxUnavailable": k.max(1), "after": after },
            },
            "status": {
                "target": { "image": "r.io/os:2", "digest": digest(2), "platforms": platforms },
                "berths": { "total": k.max(1) },
            },
        });
        let pool = PoolView::of(serde_json::from_value(pool).unwrap());
        Arc::make_mut(&mut self.snapshot.pools).insert(name.to_owned(), Entry::new(pool));
        self.leases.retain(|lease| lease.pool.as_str() != name);
        (0..k.max(1)).for_each(|index| self.lease(Berth::new(name.into(), u32::try_from(index).unwrap(), EPOCH)));
    }

    fn lease(&mut self, berth: Berth) {
        self.leases.retain(|lease| lease.name() != berth.name());
        let metadata = ObjectMeta {
            name: Some(berth.name()),
            ..ObjectMeta::default()
        };
        self.leases.push(LeaseView {
            lease: Lease { metadata, spec: None },
            pool: berth.pool.clone(),
            berth: Ok(berth),
        });
    }

    fn offer(&mut self, pool: &str, index: u32, node: &str) {
        let offer = Offer {
            node: node.into(),
            uid: node.into(),
            target: digest(2),
            open_until: None,
        };
        self.lease(Berth::new(pool.into(), index, EPOCH).offered(offer).unwrap());
    }

    /// Counts an offer of image 2 to the node.
    fn was_offered(&mut self, node: &str) {
        let offer = Offer {
            node: node.into(),
            uid: "an earlier UID".into(),
            target: digest(2),
            open_until: None,
        };
        let berth = Berth::new("p".into(), 0, EPOCH).offered(offer).unwrap();
        let (lease, why) = (berth.name(), WriteReason::Offer);
        self.ledger.wrote(&BerthWrite::Update { lease, berth, why });
    }

    fn hold(&mut self, pool: &str, index: u32, node: &str) {
        self.offer(pool, index, node);
        let name = Berth::new(pool.into(), index, EPOCH).name();
        let lease = self.leases.iter().find(|lease| lease.name() == name).unwrap();
        let offered = lease.berth.clone().unwrap();
        let boot = BootId::from("boot");
        self.lease(offered.taken(&node.into(), &node.into(), None, boot).unwrap());
    }

    fn node(&mut self, name: &str, pool: &str, booted: u8) {
        let host = prepared_host(name, pool, booted);
        Arc::make_mut(&mut self.snapshot.bootc_nodes).insert(name.to_owned(), Entry::new(host));
    }

    /// Records that the node's last turn ended because its drain timed out.
    fn bad_turn(&mut self, name: &str) {
        let bootc_nodes = Arc::make_mut(&mut self.snapshot.bootc_nodes);
        let mut host = BootcNodeView::clone(&bootc_nodes[name].view);
        host.content.as_mut().unwrap().report.last_turn = Some(BadTurn {
            outcome: "DrainTimeout".to_owned(),
            message: String::new(),
            digest: digest(2),
            attempts: 1,
        });
        bootc_nodes.insert(name.to_owned(), Entry::new(host));
    }

    fn ready(&mut self, name: &str, ready: bool) {
        let pool = if name.starts_with('a') { "a" } else { "b" };
        let node = json!({
            "metadata": { "name": name, "uid": name, "labels": { "pool": pool } },
            "status": {
                "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
                "addresses": [{ "type": "InternalIP", "address": address(name) }],
                "nodeInfo": { "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                    "systemUUID": "" },
            },
        });
        let node = NodeView::of(&serde_json::from_value(node).unwrap());
        Arc::make_mut(&mut self.snapshot.nodes).insert(name.to_owned(), Entry::new(node));
    }

    fn plans(&self) -> BTreeMap<PoolName, Plan> {
        self.plans_without(&BTreeSet::new())
    }

    fn fleet_use(&self, pool: &str) -> FleetUse {
        self.plans()[&pool.into()].fleet.clone().unwrap()
    }

    /// Returns the plans of a pass that treats these pools as outdated.
    fn plans_without(&self, outdated: &BTreeSet<PoolName>) -> BTreeMap<PoolName, Plan> {
        let membership = MembershipCache::default().of(&self.snapshot);
        let heard: BTreeSet<NodeName> = self.snapshot.nodes.keys().map(|name| name.as_str().into()).collect();
        let shared = Round {
            snapshot: &self.snapshot,
            membership: &membership,
            leases: &self.leases,
            occupied: &Occupied::default(),
            in_doubt: &BTreeSet::new(),
            refused: &self.refused,
            confirmed_gone: &BTreeSet::new(),
            heard: &heard,
            overdue: &BTreeSet::new(),
            outdated,
            offers: &self.offers,
            ledger: &self.ledger,
            soaks: &Soaks::default(),
            gates: &BTreeMap::new(),
            now: Moment::default(),
            epoch: EPOCH,
        };
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let pools = Pool::readable(&self.snapshot.pools);
        let answers = Answers {
            listed: self.servers_listed,
            servers: self.servers.iter().map(|node| (server(node), ready())).collect(),
        };
        let is_wanted = shared.needs_servers(&pools);
        let control_plane = shared.control_plane(is_wanted.then_some(&answers));
        shared.plans(&pools, control_plane, now)
    }

    fn offered(&self) -> Vec<String> {
        offered(&self.plans())
    }

    /// Plans again after live reads that show changes: of the pools in `changed` and, if `fleet_changed`, of the
    /// BootcFleet. Returns the nodes that the new plans offer a berth, and the pools that were read.
    fn offered_after(&self, changed: &[&str], fleet_changed: bool) -> (Vec<String>, Vec<String>) {
        let pools = Pool::readable(&self.snapshot.pools);
        let plans = self.plans();
        let rereads = Rereads::of(&pools, &plans).unwrap();
        let read = rereads.pools().into_iter().map(|pool| pool.name.to_string()).collect();
        let changed = changed.iter().map(|name| PoolName::from(*name)).collect();
        let outdated = rereads.closed(&changed, fleet_changed);
        (offered(&self.plans_without(&outdated)), read)
    }

    fn wait(&self, node: &str) -> Option<BlockReason> {
        let plans = self.plans();
        plans.values().find_map(|plan| plan.waiting.get(&node.into()).copied())
    }

    fn order(&self, pool: &str) -> Option<(&'static str, String)> {
        let order = self.plans().remove(&pool.into()).unwrap().order?;
        Some((order.reason.as_str(), order.message))
    }
}

fn address(node: &str) -> String {
    let (pool, number) = node.split_at(1);
    format!("10.0.{}.{number}", if pool == "a" { 1 } else { 2 })
}

fn server(node: &str) -> SocketAddr {
    format!("{}:6443", address(node)).parse().unwrap()
}

fn ready() -> Asked {
    Asked {
        since: Moment::default(),
        ready: Some(Moment::default()),
    }
}

fn offered(plans: &BTreeMap<PoolName, Plan>) -> Vec<String> {
    let writes = plans.values().flat_map(|plan| &plan.writes);
    let offers = writes.filter(|write| write.is_offer());
    let nodes = offers.filter_map(|write| match write {
        BerthWrite::Update { berth, .. } => Some(berth.offer()?.node.to_string()),
        _ => None,
    });
    nodes.collect()
}

fn two_and_two(limit: Value) -> Site {
    Site::new(limit, &["a1", "a2"], &["b1", "b2"])
}

/// Returns two pools with two nodes each. A late write by an earlier leader may still open a berth of `pool`.
fn unstamped(limit: Value, pool: &str) -> Site {
    let mut site = two_and_two(limit);
    site.lease(Berth::new(pool.into(), 0, EPOCH - 1));
    site
}

#[test]
fn the_pools_share_what_the_fleet_has_left() {
    for (limit, offered) in [
        (Value::Null, &["a1", "a2", "b1", "b2"][..]),
        (json!(1), &["a1"]),
        (json!(3), &["a1", "a2", "b1"]),
        (json!("75%"), &["a1", "a2", "b1"]),
        // A percentage is rounded down, but to at least one node.
        (json!("1%"), &["a1"]),
        (json!(100), &["a1", "a2", "b1", "b2"]),
    ] {
        assert_eq!(two_and_two(limit).offered(), offered);
    }
    assert_eq!(two_and_two(json!(1)).wait("b1"), Some(BlockReason::FleetCapacity));
}

#[test]
fn each_unavailable_node_counts_once() {
    let mut site = Site::new(json!(2), &["a1", "a2"], &["b1", "b2"]);
    site.offer("b", 0, "b1");
    assert_eq!(site.offered(), ["a1"], "an offer of the other pool counts");
    site.ready("b1", false);
    assert_eq!(
        site.offered(),
        ["a1"],
        "a node that is offered a berth and is down counts once"
    );
    site.ready("b2", false);
    assert_eq!(
        site.offered(),
        ["b2"],
        "a node that is down may be repaired, and no other goes"
    );
    site.offer("a", 0, "a1");
    assert!(site.offered().is_empty(), "a repair does not exceed the limit");
}

#[test]
fn an_unwritable_berth_affects_no_other_pool() {
    let mut site = unstamped(json!(2), "b");
    assert!(site.offered().is_empty(), "an earlier leader may still open the berth");
    site.refused.insert("b-0".to_owned());
    assert_eq!(site.offered(), ["a1"], "the unwritable berth uses up one of two places");
    let words = site.plans()[&"a".into()].fleet.as_ref().unwrap().words();
    assert!(
        words.ends_with("b-0 (a Lease that cannot be written), a1 (offered a berth)"),
        "{words}"
    );
    // A holder whose Lease cannot be written uses up the limit only once.
    let mut site = Site::new(json!(2), &["a1", "a2"], &["b1", "b2"]);
    site.hold("b", 0, "b1");
    site.refused.insert("b-0".to_owned());
    assert_eq!(site.offered(), ["a1"]);
}

#[test]
fn unlabelled_api_servers_go_one_at_a_time() {
    let mut site = Site::new(Value::Null, &["a1", "a2", "a3"], &["b1", "b2"]);
    assert_eq!(site.offered().len(), 5, "no node runs an API server");
    site.servers = ["a1", "a2", "a3"].into();
    assert_eq!(site.offered(), ["a1", "b1", "b2"]);
    site.servers_listed = false;
    assert!(site.offered().is_empty(), "any node may run an API server");
    site.servers_listed = true;
    site.hold("a", 0, "a1");
    let plans = site.plans();
    let plan = &plans[&"a".into()];
    let words = plan.wait_words(plan.waiting[&"a2".into()], &[&"a2".into()]);
    assert_eq!(words, "waits until another control plane node is updated (a1)");
}

#[test]
fn a_refused_stamp_affects_only_its_own_pool() {
    // Pool b has no control plane nodes, so a late offer in pool b cannot go to a control plane node.
    let mut site = unstamped(Value::Null, "b");
    site.servers = ["a1", "a2"].into();
    site.refused.insert("b-0".to_owned());
    assert_eq!(site.offered(), ["a1", "b1"]);
    let mut site = unstamped(Value::Null, "a");
    site.servers = ["a1", "a2", "b1"].into();
    site.refused.insert("a-0".to_owned());
    assert_eq!(
        site.offered(),
        ["b2"],
        "a control plane node of pool b would wait, b2 does not"
    );
}

#[test]
fn users_of_the_fleets_limit_are_named() {
    let mut site = Site::new(json!(3), &["a1", "a2", "a3"], &["b1", "b2"]);
    site.offer("b", 0, "b1");
    site.ready("b2", false);
    let up =
        "maxUnavailable of BootcFleet cluster is used up, 3 of 3 over all pools: b1 (offered a berth), b2 (not Ready)";
    let offered = format!("{up}, a1 (offered a berth)");
    assert_eq!(
        site.fleet_use("a").words(),
        offered,
        "offers of this pass count as well"
    );
    for node in ["a1", "a2", "a3", "b1"] {
        site.ready(node, false);
    }
    let words = site.fleet_use("b").words();
    assert!(
        words.contains("5 of 3 over all pools: a1 (") && words.contains("b1 (offered a berth)"),
        "{words}"
    );
}

#[test]
fn an_older_leader_may_still_offer_in_any_pool() {
    let mut site = Site::new(json!(2), &["a1"], &["b1"]);
    site.lease(Berth::new("b".into(), 0, EPOCH - 1));
    assert!(site.offered().is_empty());
    assert_eq!(site.wait("a1"), Some(BlockReason::Fencing));
    site.fleet(Value::Null);
    assert_eq!(site.offered(), ["a1"], "without a limit the pools are independent");
}

#[test]
fn unreadable_pools_with_unfenced_berths_are_named() {
    let mut site = Site::new(json!(2), &["a1"], &["b1"]);
    site.lease(Berth::new("b".into(), 0, EPOCH - 1));
    assert!(site.fleet_use("a").unreadable.is_empty(), "this pass fences it");
    let pools = Arc::make_mut(&mut site.snapshot.pools);
    let view = PoolView {
        name: "b".into(),
        object: Err("rollout.nonsense".to_owned()),
    };
    pools.insert("b".to_owned(), Entry::new(view));
    assert_eq!(site.wait("a1"), Some(BlockReason::Fencing));
    assert_eq!(site.fleet_use("a").unreadable, ["b".into()]);
    site.lease(Berth::new("b".into(), 0, EPOCH));
    assert!(site.fleet_use("a").unreadable.is_empty());
    assert_eq!(site.offered(), ["a1"]);
}

/// Returns the Leases whose offers are withdrawn because of the fleet's limit.
fn withdrawn(site: &Site) -> Vec<String> {
    let expected = WriteReason::Withdrawn("the limit of the fleet is used up", Origin::Pool);
    let mut withdrawn = vec![];
    for write in site.plans().values().flat_map(|plan| &plan.writes) {
        if matches!(write, BerthWrite::Update { why, .. } if *why == expected) {
            withdrawn.push(write.lease());
        }
    }
    withdrawn
}

#[test]
fn a_smaller_limit_withdraws_open_offers() {
    let mut site = Site::new(json!(3), &["a1", "a2"], &["b1", "b2"]);
    site.offer("a", 0, "a1");
    site.offer("b", 0, "b1");
    site.offer("b", 1, "b2");
    assert!(withdrawn(&site).is_empty());
    site.fleet(json!(2));
    assert_eq!(withdrawn(&site).len(), 1);
    assert!(site.offered().is_empty());
    site.hold("b", 1, "b2");
    site.fleet(json!(1));
    assert_eq!(
        withdrawn(&site),
        ["a-0", "b-0"],
        "the holder uses it up alone, and keeps its berth"
    );
    site.fleet(Value::Null);
    assert!(withdrawn(&site).is_empty());
}

#[test]
fn a_pool_that_takes_no_offer_starves_no_other() {
    let mut site = Site::new(json!(1), &["a1"], &["b1"]);
    assert_eq!(site.offered(), ["a1"]);
    site.was_offered("a1");
    assert_eq!(site.offered(), ["b1"]);
}

#[test]
fn a_pool_that_cannot_be_drained_starves_no_other() {
    let mut site = Site::new(json!(1), &["a1", "a2"], &["b1"]);
    for node in ["a1", "a2"] {
        site.bad_turn(node);
    }
    assert_eq!(site.offered(), ["b1"], "nodes with a bad turn come later, in any pool");
    // b1 had an offer and runs the target now. Its offer does not delay pool b.
    site.was_offered("b1");
    site.node("b1", "b", 2);
    site.node("b2", "b", 1);
    site.ready("b2", true);
    assert_eq!(site.offered(), ["b2"]);
}

#[test]
fn a_pool_waits_until_those_before_it_are_updated() {
    let mut site = Site::new(Value::Null, &["a1"], &["b1", "b2"]);
    site.pool("a", 1, &["b"]);
    assert_eq!(site.offered(), ["b1", "b2"]);
    assert_eq!(site.wait("a1"), Some(BlockReason::Order));
    let words = "waits until all nodes of b are updated and Ready (rollout.after); left: b1, b2";
    assert_eq!(site.order("a"), Some(("EarlierPool", words.to_owned())));
    assert_eq!(site.order("b"), None);
    site.node("b1", "b", 2);
    assert_eq!(site.offered(), ["b2"]);
    site.node("b2", "b", 2);
    assert_eq!(site.offered(), ["a1"]);
    site.ready("b2", false);
    assert!(site.offered().is_empty(), "b2 is no longer proven");
    site.ready("b2", true);
    // The open offer of pool a stays, although pool b now has a node to update again.
    site.offer("a", 0, "a1");
    site.node("b2", "b", 1);
    let plans = site.plans();
    assert!(plans[&"a".into()].writes.is_empty(), "{:?}", plans[&"a".into()].writes);
}

#[test]
fn a_node_that_uses_up_the_limit_goes_first() {
    let mut site = Site::new(json!(1), &["a1", "a2"], &["b1"]);
    site.pool("a", 2, &["b"]);
    site.ready("a2", false);
    assert_eq!(site.offered(), ["a2"], "b1 cannot be updated before a2 is available");
    site.fleet(Value::Null);
    assert_eq!(site.offered(), ["b1"]);
}

#[test]
fn a_pool_changed_since_the_watch_offers_nothing() {
    let mut site = Site::new(json!(1), &["a1"], &["b1"]);
    let (offered, read) = site.offered_after(&[], false);
    assert_eq!(offered, ["a1"]);
    assert_eq!(read, ["a"]);
    assert!(
        site.offered_after(&["a"], false).0.is_empty(),
        "b has room now but was not read"
    );
    assert!(site.offered_after(&[], true).0.is_empty());
    site.fleet(Value::Null);
    let (offered, read) = site.offered_after(&["a"], false);
    assert_eq!(offered, ["b1"]);
    assert_eq!(read, ["a", "b"]);
    assert!(site.offered_after(&[], true).0.is_empty());
    // Pool b goes first, so it is read too, although it offers nothing.
    site.pool("c", 1, &["b"]);
    site.node("b1", "b", 2);
    site.pool("a", 1, &["b"]);
    let (offered, read) = site.offered_after(&[], false);
    assert_eq!(offered, ["a1"]);
    assert_eq!(read, ["a", "b"]);
    assert!(
        site.offered_after(&["b"], false).0.is_empty(),
        "b may have another image"
    );
    site.node("a1", "a", 2);
    let (pools, plans) = (Pool::readable(&site.snapshot.pools), site.plans());
    assert!(Rereads::of(&pools, &plans).is_none(), "nothing is offered");
}

#[test]
fn an_invalid_order_offers_nothing() {
    let mut site = Site::new(Value::Null, &["a1"], &["b1"]);
    site.pool("a", 1, &["c", "b"]);
    let (reason, message) = site.order("a").unwrap();
    assert_eq!(
        (reason, message.contains("names c,")),
        ("UnknownPool", true),
        "{message}"
    );
    assert_eq!(site.offered(), ["b1"]);
    site.pool("a", 1, &["b"]);
    site.pool("b", 1, &["c"]);
    site.pool("c", 0, &["a"]);
    for (pool, circle) in [("a", "a after b after c after a"), ("c", "c after a after b after c")] {
        let (reason, message) = site.order(pool).unwrap();
        assert_eq!((reason, message.contains(circle)), ("OrderCycle", true), "{message}");
    }
    assert!(site.offered().is_empty());
    site.pool("c", 0, &["c"]);
    assert_eq!(site.order("c").unwrap().0, "OrderCycle");
    assert_eq!(site.order("b"), None, "a pool without nodes delays no other");
}

#[test]
fn so_many_users_are_named() {
    let mut fleet = FleetUse::default();
    let names: Vec<String> = (0..NAMED + 2).map(|n| format!("n{n}")).collect();
    for name in &names {
        fleet.offer(&name.as_str().into(), false);
    }
    let named: Vec<&str> = fleet.used_by.iter().map(|user| user.who.as_str()).collect();
    assert_eq!(named, names[..NAMED]);
    assert_eq!((fleet.held_or_offered, fleet.all), (NAMED + 2, NAMED + 2));
}

#[test]
fn a_pool_that_waits_names_the_last_nodes() {
    let mut site = Site::new(Value::Null, &["a1"], &["b1", "b2", "b3", "b4"]);
    site.pool("a", 1, &["b"]);
    let order = |site: &Site| site.order("a").map(|(_, words)| words);
    let words = "waits until all nodes of b are updated and Ready (rollout.after)";
    assert_eq!(order(&site).as_deref(), Some(words), "many nodes are left");
    for node in ["b1", "b2", "b3", "b4"] {
        site.node(node, "b", 2);
    }
    assert_eq!(order(&site), None);
    // b3 runs the image, so its pool calls it updated.
    site.ready("b3", false);
    let words = "waits until all nodes of b are updated and Ready (rollout.after); left: b3";
    assert_eq!(order(&site).as_deref(), Some(words));
}
