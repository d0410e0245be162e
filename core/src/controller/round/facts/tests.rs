//! Unit tests of the plans' input.

use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::{self, Berth, Offer};
use jiff::Timestamp;

use super::*;

use crate::controller::membership::MembershipCache;
use crate::controller::snapshot::Entry;
use crate::controller::view::PoolView;

/// Returns whether the only member of pool a is leaving, and whether it is abandoned. `None` if the pool has no member.
fn member_of_a(labels: &serde_json::Value, deleted: Option<&str>, phase: &str, overdue: &str) -> Option<(bool, bool)> {
    let mut snapshot = Snapshot::default();
    let node = serde_json::json!({ "metadata": { "name": "n1", "uid": "u1", "labels": labels } });
    let metadata = serde_json::json!({
        "name": "n1", "uid": "h1", "generation": 1, "labels": { (keys::LABEL_POOL): "a" }, "deletionTimestamp": deleted,
    });
    let host = serde_json::json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode", "metadata": metadata,
        "spec": { "nodeUID": "u1" }, "status": { "phase": phase, "observedGeneration": 1, "nodeUID": "u1" },
    });
    let pool = serde_json::json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": "a" },
        "spec": { "nodeSelector": { "matchLabels": { "role": "worker" } }, "image": { "ref": "r.io/os:1" } },
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
        ledger: &Ledger::default(),
        soaks: &Soaks::default(),
        gates: &BTreeMap::new(),
        now: Moment::default(),
        epoch: 1,
    };
    let facts = shared.of(&Pool::readable(&snapshot.pools)[0]);
    assert!(facts.members.len() <= 1);
    facts.members.first().map(|member| (member.leaving, member.abandoned))
}

#[test]
fn a_node_counts_until_it_is_released() {
    let worker = serde_json::json!({ "role": "worker" });
    let infra = serde_json::json!({ "role": "infra" });
    let excluded = serde_json::json!({ "role": "infra", (keys::LABEL_EXCLUDE): "" });
    let deleted = Some("2026-01-01T00:00:00Z");
    for (what, labels, deleted, phase, overdue, expected) in [
        ("a member", &worker, None, "Waiting", "", Some((false, false))),
        (
            "its BootcNode goes",
            &worker,
            deleted,
            "Waiting",
            "",
            Some((true, false)),
        ),
        ("the node goes", &infra, None, "Waiting", "", Some((true, false))),
        ("the node is released", &infra, None, "Released", "", None),
        // An abandoned node still counts, until its BootcNode is deleted.
        ("the node is lost", &infra, None, "Waiting", "h1", Some((true, true))),
        ("the node is excluded", &excluded, None, "Waiting", "", None),
    ] {
        let member = member_of_a(labels, deleted, phase, overdue);
        assert_eq!(member, expected, "{what}");
    }
}

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

/// Returns the plan's input for pool `a`, which selects nodes with `role: worker`.
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
        ledger: &Ledger::default(),
        soaks: &Soaks::default(),
        gates: &BTreeMap::new(),
        now: Moment::default(),
        epoch: 1,
    };
    shared.of(&Pool::readable(&snapshot.pools)[0])
}

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
    for (uid, ready, label, is_lost) in [
        ("u1", false, keys::LABEL_EXCLUDE, true),
        // The node is Ready, so its agent gives the berth back.
        ("u1", true, keys::LABEL_EXCLUDE, false),
        ("u1", false, "x", false),
        // The UID has changed: a live read must first show that the holder is gone.
        ("u2", false, keys::LABEL_EXCLUDE, false),
    ] {
        let node = worker("n1", uid, ready, label);
        let facts = facts_of(&[node], &[lease("a", 0, ("n1", "u1"), true)]);
        assert_eq!(facts.lost.contains(&"u1".into()), is_lost, "{uid} {ready} {label}");
    }
}

#[test]
fn an_excluded_node_with_a_failure_is_known() {
    for (label, is_excluded) in [(keys::LABEL_EXCLUDE, true), ("x", false)] {
        let held = lease("a", 0, ("n1", "u1"), true).berth.unwrap();
        let failed = held.releasing(berth::Outcome::Failed, "boot".into()).unwrap();
        let failed = failed.given_back().unwrap();
        let failed = berth::lease::create(&failed, "ns", Duration::from_secs(1), Timestamp::UNIX_EPOCH);
        let nodes = [
            worker("n1", "u1", true, label),
            worker("n2", "u2", true, keys::LABEL_EXCLUDE),
        ];
        let facts = facts_of(&nodes, &[LeaseView::of(failed)]);
        let expected = is_excluded.then(|| "n1".into()).into_iter().collect();
        assert_eq!(facts.excluded, expected, "n2 has not failed");
    }
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
        .map(|member| (member.name.as_str(), member.node.held_back))
        .collect();
    assert_eq!(held, [("n1", true), ("n2", false)]);
}
