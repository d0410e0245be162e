//! Input for plans, by example.

use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::{self, Berth, Offer};
use jiff::Timestamp;

use super::*;
use crate::controller::membership::MembershipCache;
use crate::controller::snapshot::Entry;
use crate::controller::view::PoolView;

#[test]
fn a_node_counts_until_what_was_done_there_is_undone() {
    let members_of = |role: &str, labels: &[&str], metadata: serde_json::Value, phase: &str, overdue: &str| {
        let mut snapshot = Snapshot::default();
        let mut node = serde_json::json!({ "metadata": { "name": "n1", "uid": "u1", "labels": { "role": role } } });
        labels
            .iter()
            .for_each(|key| node["metadata"]["labels"][key] = "".into());
        let mut host = serde_json::json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode", "metadata": metadata,
            "spec": { "nodeUID": "u1" }, "status": { "phase": phase, "observedGeneration": 1, "nodeUID": "u1" },
        });
        host["metadata"]["name"] = "n1".into();
        host["metadata"]["uid"] = "h1".into();
        host["metadata"]["generation"] = 1.into();
        host["metadata"]["labels"] = serde_json::json!({ (keys::LABEL_POOL): "a" });
        let pool = serde_json::json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": "a" },
            "spec": { "nodeSelector": { "matchLabels": { "role": "worker" } }, "image": { "ref": "r/os:1" } },
        });
        let (node, host, pool) = (
            NodeView::of(&serde_json::from_value(node).unwrap()),
            BootcNodeView::of(serde_json::from_value(host).unwrap()),
            PoolView::of(serde_json::from_value(pool).unwrap()),
        );
        Arc::make_mut(&mut snapshot.nodes).insert("n1".to_owned(), Entry::new(node));
        Arc::make_mut(&mut snapshot.bootc_nodes).insert("n1".to_owned(), Entry::new(host));
        Arc::make_mut(&mut snapshot.pools).insert("a".to_owned(), Entry::new(pool));
        let (occupied, none) = (Occupied::default(), BTreeSet::new());
        let shared = Round {
            snapshot: &snapshot,
            membership: &MembershipCache::default().of(&snapshot),
            leases: &[],
            occupied: &occupied,
            in_doubt: &none,
            refused: &none,
            confirmed_gone: &BTreeSet::new(),
            outdated: &BTreeSet::new(),
            heard: &BTreeSet::new(),
            overdue: &BTreeSet::from([overdue.to_owned()]),
            offers: &Offers::default(),
            soaks: &Soaks::default(),
            gates: &BTreeMap::new(),
            now: Moment::default(),
            epoch: 1,
        };
        let facts = shared.of(&Pool::readable(&snapshot.pools)[0]);
        let members = facts.members.iter().map(|m| (m.leaving, m.abandoned));
        members.collect::<Vec<_>>()
    };
    let members = |role: &str, labels: &[&str], metadata: serde_json::Value, phase: &str| {
        let members = members_of(role, labels, metadata, phase, "");
        assert!(members.iter().all(|(_, abandoned)| !abandoned));
        members.into_iter().map(|(leaving, _)| leaving).collect::<Vec<_>>()
    };
    let (as_is, deleted) = (
        || serde_json::json!({}),
        serde_json::json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }),
    );
    assert_eq!(members("worker", &[], as_is(), "Waiting"), [false]);
    assert_eq!(members("worker", &[], deleted, "Waiting"), [true], "its BootcNode goes");
    assert_eq!(members("infra", &[], as_is(), "Waiting"), [true], "the node goes");
    assert!(members("infra", &[], as_is(), "Released").is_empty());
    let late = members_of("infra", &[], as_is(), "Waiting", "h1");
    assert_eq!(late, [(true, true)], "it counts for as long as its BootcNode is there");
    assert!(members("infra", &[keys::LABEL_EXCLUDE], as_is(), "Waiting").is_empty());
}

/// A berth of that pool, offered to the node or held by it.
pub(crate) fn lease(pool: &str, index: u32, (node, uid): (&str, &str), is_held: bool) -> LeaseView {
    let offer = Offer {
        node: node.into(),
        uid: uid.into(),
        target: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
        open_until: None,
    };
    let mut berth = Berth::new(pool.into(), index, 1).offered(offer).unwrap();
    if is_held {
        berth = berth.taken(&node.into(), &uid.into(), None, "boot".into()).unwrap();
    }
    let lease = berth::lease::create(&berth, "ns", Duration::from_secs(1), Timestamp::UNIX_EPOCH);
    LeaseView::of(lease)
}

/// Input for pool `a`, which selects these Nodes by `role: worker`.
fn facts_of(nodes: &[serde_json::Value], leases: &[LeaseView]) -> PoolFacts {
    let mut snapshot = Snapshot::default();
    for node in nodes {
        let node = NodeView::of(&serde_json::from_value(node.clone()).unwrap());
        Arc::make_mut(&mut snapshot.nodes).insert(node.name.to_string(), Entry::new(node));
    }
    let pool = serde_json::json!({
        "metadata": { "name": "a" }, "spec": { "nodeSelector": { "matchLabels": { "role": "worker" } } },
    });
    let pool = PoolView::of(serde_json::from_value(pool).unwrap());
    Arc::make_mut(&mut snapshot.pools).insert("a".to_owned(), Entry::new(pool));
    let none = BTreeSet::new();
    let shared = Round {
        snapshot: &snapshot,
        membership: &MembershipCache::default().of(&snapshot),
        leases,
        occupied: &Occupied::of(leases),
        in_doubt: &none,
        refused: &none,
        confirmed_gone: &BTreeSet::new(),
        outdated: &BTreeSet::new(),
        heard: &BTreeSet::new(),
        overdue: &none,
        offers: &Offers::default(),
        soaks: &Soaks::default(),
        gates: &BTreeMap::new(),
        now: Moment::default(),
        epoch: 1,
    };
    shared.of(&Pool::readable(&snapshot.pools)[0])
}

/// A worker with one extra label.
fn worker(name: &str, uid: &str, ready: bool, label: &str) -> serde_json::Value {
    let ready = if ready { "True" } else { "False" };
    serde_json::json!({
        "metadata": { "name": name, "uid": uid, "labels": { "role": "worker", label: "" } },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] },
    })
}

#[test]
fn berths_of_other_pools_are_seen() {
    let nodes = [worker("n1", "u1", true, "x"), worker("n2", "u2", true, "x")];
    let leases = [lease("a", 0, ("n1", "u1"), true), lease("b", 0, ("n2", "u2"), false)];
    let facts = facts_of(&nodes, &leases);
    assert_eq!(facts.elsewhere, ["u2".into()].into());
}

#[test]
fn only_an_excluded_node_that_is_down_is_lost() {
    let is_lost = |node: serde_json::Value| {
        let facts = facts_of(&[node], &[lease("a", 0, ("n1", "u1"), true)]);
        facts.lost.contains(&"u1".into())
    };
    let exclude = keys::LABEL_EXCLUDE;
    assert!(is_lost(worker("n1", "u1", false, exclude)));
    assert!(!is_lost(worker("n1", "u1", true, exclude)), "its agent gives back");
    assert!(!is_lost(worker("n1", "u1", false, "x")));
    assert!(
        !is_lost(worker("n1", "u2", false, exclude)),
        "a live read shows first whether the holder is gone"
    );
}

#[test]
fn an_admin_holds_a_member_back() {
    let nodes = [
        worker("n1", "u1", true, keys::LABEL_HOLD),
        worker("n2", "u2", true, "x"),
    ];
    let facts = facts_of(&nodes, &[]);
    let held: Vec<_> = facts
        .members
        .iter()
        .map(|member| (member.name.as_str(), member.held_back))
        .collect();
    assert_eq!(held, [("n1", true), ("n2", false)]);
}
