//! Facts by example.

use std::sync::Arc;

use berth_api::Digest;
use berth_api::berth::{self, Berth, Offer};
use berth_api::fleet::BootcFleetSpec;
use berth_api::pool::{BootcNodePoolSpec, BootcNodePoolStatus, PoolImage, Target};

use super::*;
use crate::controller::belonging::Belonging;
use crate::controller::snapshot::Entry;
use crate::controller::view::{FleetView, View};

fn pool(reference: &str, resolved: Option<&str>) -> Pool {
    let image = PoolImage {
        reference: Some(reference.to_owned()),
        ..PoolImage::default()
    };
    let mut object = BootcNodePool::new(
        "a",
        BootcNodePoolSpec {
            image: Some(image),
            ..Default::default()
        },
    );
    let target = resolved.map(|image| Target {
        image: image.to_owned(),
        digest: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
        version: None,
        metadata: None,
        platforms: vec![],
        publish_time: None,
    });
    object.status = Some(BootcNodePoolStatus {
        target,
        ..Default::default()
    });
    Pool {
        name: "a".into(),
        object: Some(object),
        deleting: false,
        bad_selector: None,
        refused: None,
    }
}

#[test]
fn a_node_is_missing_when_no_node_has_its_uid() {
    let mut snapshot = Snapshot::default();
    let node = serde_json::from_value(serde_json::json!({ "metadata": { "name": "n1", "uid": "u1" } })).unwrap();
    Arc::make_mut(&mut snapshot.nodes).insert("n1".to_owned(), Entry::new(NodeView::of(&node)));
    let missing = |uid: &str, name: &str| {
        let names = [(NodeUid::from(uid), NodeName::from(name))].into();
        !missing_nodes(
            &snapshot,
            &Occupied {
                names,
                ..Occupied::default()
            },
        )
        .is_empty()
    };
    assert!(!missing("u1", "n1"));
    assert!(!missing("u1", "n2"), "somebody wrote the wrong name");
    assert!(missing("u2", "n1"), "another Node came under that name");
}

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
        Arc::make_mut(&mut snapshot.hosts).insert("n1".to_owned(), Entry::new(host));
        Arc::make_mut(&mut snapshot.pools).insert("a".to_owned(), Entry::new(pool));
        let (occupied, none) = (Occupied::default(), BTreeSet::new());
        let shared = Shared {
            snapshot: &snapshot,
            membership: &Belonging::default().of(&snapshot),
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

#[test]
fn a_retry_token_that_is_taken_away_forgets_nothing() {
    let mut pool = pool("r/os:1", Some("r/os:1"));
    let failed: Digest = format!("sha256:{}", "1".repeat(64)).parse().unwrap();
    let mut remembers = |asked: Option<&str>, obeyed: Option<&str>| {
        let object = pool.object.as_mut().unwrap();
        let rollout = berth_api::pool::Rollout {
            retry_token: asked.map(str::to_owned),
            ..Default::default()
        };
        object.spec.rollout = Some(rollout);
        let status = object.status.as_mut().unwrap();
        status.retry_token = obeyed.map(str::to_owned);
        status.failures = vec![DigestFailures {
            digest: failed.clone(),
            nodes: vec!["n1".into()],
            count: 1,
        }];
        pool.failures().contains_key(&failed)
    };
    assert!(remembers(None, None) && remembers(Some("a"), Some("a")) && remembers(None, Some("a")));
    assert!(!remembers(Some("b"), Some("a")) && !remembers(Some("a"), None));
}

#[test]
fn a_target_of_another_reference_is_withdrawn_and_stays_published() {
    assert!(!pool("r/os:2", Some("r/os:2")).unresolved());
    assert!(!pool("r/os:2", None).unresolved(), "there is nothing to withdraw");
    let reverted = pool("r/os:1", Some("r/os:2"));
    assert!(reverted.unresolved() && reverted.target().is_some());
    assert!(!Pool::orphaned("a".into()).unresolved());
    let terms = terms(&[reverted], &Membership::default(), &BTreeSet::new());
    let terms = &terms[&"a".into()];
    assert!(terms.unresolved && terms.target.is_some());
}

#[test]
fn a_registry_that_is_not_allowed_withdraws_the_target_and_leaves_it_published() {
    let fleet = |list: &[&str]| BootcFleetSpec {
        allowed_registries: list.iter().map(ToString::to_string).collect(),
        ..BootcFleetSpec::default()
    };
    let pool = || pool("r.io/a/os:1", Some("r.io/a/os:1"));
    for list in [&[][..], &["r.io"], &["q.io", "r.io/a"]] {
        let guarded = pool().guarded(Some(&fleet(list)));
        assert!(guarded.refused.is_none() && !guarded.unresolved(), "{list:?}");
    }
    let refused = pool().guarded(Some(&fleet(&["q.io", "r.io/b"])));
    let words = refused.refused.clone().unwrap();
    assert!(
        words.contains("r.io/a/os:1") && words.contains("q.io, r.io/b"),
        "{words}"
    );
    assert!(refused.unresolved() && refused.target().is_some());
    assert!(
        refused.guarded(Some(&fleet(&[]))).refused.is_none(),
        "the list has changed"
    );
    assert!(
        Pool::orphaned("a".into())
            .guarded(Some(&fleet(&["q.io"])))
            .refused
            .is_none()
    );
}

#[test]
fn a_node_is_expected_to_take_no_longer_than_its_pool_or_its_timeout() {
    let minutes = |m: u64| Duration::from_secs(m * 60);
    let estimate = |median: Option<u32>, own: Option<u64>| {
        let mut pool = pool("r/os:1", Some("r/os:1"));
        let status = pool.object.as_mut().unwrap().status.as_mut().unwrap();
        status.phase_durations.reboot_seconds = median;
        let report = Report {
            reboot: own.map(minutes),
            ..Report::default()
        };
        pool.estimate_of(&report).reboot
    };
    assert_eq!(estimate(None, Some(2)), minutes(2));
    assert_eq!(estimate(None, Some(24 * 60)), minutes(15), "it was repaired");
    assert_eq!(estimate(Some(180), Some(10)), minutes(3));
    assert_eq!(
        estimate(Some(180), Some(2)),
        minutes(2),
        "or nobody could bring the median down"
    );
    assert_eq!(estimate(Some(180), None), minutes(3));
    assert_eq!(
        estimate(Some(86_400), None),
        minutes(15),
        "as an older controller told it"
    );
}

#[test]
fn the_more_nodes_stage_the_less_often_each_reports() {
    let interval = |nodes: usize, asked: Option<&str>| {
        let mut pool = pool("r/os:1", Some("r/os:1"));
        let rollout = berth_api::pool::Rollout {
            max_staging: Some(berth_api::quantity::Quantity::Percent(50)),
            progress_interval: asked.map(str::to_owned),
            ..Default::default()
        };
        pool.object.as_mut().unwrap().spec.rollout = Some(rollout);
        let mut membership = Membership::default();
        (0..nodes).for_each(|n| membership.join(NodeName::new(format!("n{n}")), "a".into()));
        terms(&[pool], &membership, &BTreeSet::new())[&"a".into()]
            .progress_interval
            .as_secs()
    };
    assert_eq!(interval(100, Some("1s")), 1);
    assert_eq!(interval(102, Some("1s")), 2);
    assert_eq!(interval(1000, Some("1s")), 16, "500 at once, 50 a second, doubled up");
    assert_eq!(interval(1000, Some("60s")), 60);
    assert_eq!(interval(1000, Some("0")), 0, "none at all");
}

#[test]
fn a_fleet_that_cannot_be_read_is_a_closed_gate() {
    let gate = |spec: serde_json::Value| {
        let object = serde_json::json!({"metadata": {"name": "cluster"}, "spec": spec});
        let fleet = FleetView::of(serde_json::from_value(object).unwrap());
        let snapshot = Snapshot {
            fleet: Some(Entry::new(fleet)),
            ..Snapshot::default()
        };
        snapshot.fleet_gate()
    };
    assert_eq!(Snapshot::default().fleet_gate(), None);
    assert_eq!(gate(serde_json::json!({})), None);
    assert_eq!(gate(serde_json::json!({"paused": true})), Some(FleetGate::Paused));
    assert_eq!(
        gate(serde_json::json!({"paused": "perhaps"})),
        Some(FleetGate::Unreadable)
    );
}

#[test]
fn a_dismissed_machine_is_news_of_the_fleet_and_other_annotations_are_none() {
    let fleet = |annotations: serde_json::Value| {
        let object = serde_json::json!({ "metadata": { "name": "cluster", "annotations": annotations }, "spec": {} });
        FleetView::of(serde_json::from_value(object).unwrap())
    };
    let bare = fleet(serde_json::json!({}));
    let dismissed = fleet(serde_json::json!({ "berth.dev/dismissed-machines": "m7@2026-01-01T00:00:00Z" }));
    let kept = dismissed.object.as_ref().unwrap().metadata.annotations.clone().unwrap();
    assert_eq!(
        kept.get("berth.dev/dismissed-machines").unwrap(),
        "m7@2026-01-01T00:00:00Z"
    );
    assert!(dismissed.differs(&bare));
    assert!(!fleet(serde_json::json!({ "example.com/other": "x" })).differs(&bare));
}

#[test]
fn a_pool_is_as_shown_until_its_spec_changes() {
    let object = |uid: &str, generation: i64, deleted: Option<&str>| -> BootcNodePool {
        let metadata =
            serde_json::json!({ "name": "a", "uid": uid, "generation": generation, "deletionTimestamp": deleted });
        serde_json::from_value(serde_json::json!({ "metadata": metadata, "spec": {} })).unwrap()
    };
    let shown = Pool {
        object: Some(object("u", 1, None)),
        ..pool("r/os:1", None)
    };
    let mut reported = object("u", 1, None);
    reported.status = Some(BootcNodePoolStatus::default());
    assert!(is_as_shown(&shown, Some(&reported)), "a status is no change");
    assert!(!is_as_shown(&shown, Some(&object("other", 1, None))));
    assert!(!is_as_shown(&shown, Some(&object("u", 2, None))));
    assert!(!is_as_shown(
        &shown,
        Some(&object("u", 1, Some("2026-01-01T00:00:00Z")))
    ));
    assert!(!is_as_shown(&shown, None));
    assert!(is_as_shown(&Pool::orphaned("a".into()), None));
}

#[test]
fn a_poll_request_must_fit_into_the_status() {
    let request = |text: Option<&str>| {
        let mut pool = pool("r/os:1", None);
        let annotations = text.map(|text| [(keys::ANNOTATION_POLL_REQUESTED_AT.to_owned(), text.to_owned())].into());
        pool.object.as_mut().unwrap().metadata.annotations = annotations;
        pool.poll_request().map(str::to_owned)
    };
    let longest = "x".repeat(64);
    assert_eq!(request(None), None);
    assert_eq!(request(Some("")), None);
    assert_eq!(request(Some("now")).as_deref(), Some("now"));
    assert_eq!(request(Some(&longest)), Some(longest.clone()));
    assert_eq!(request(Some(&format!("{longest}x"))), None);
}

#[test]
fn a_pool_that_goes_has_no_capacity() {
    let mut pool = pool("r/os:1", None);
    assert_eq!(pool.capacity(5), 1);
    pool.deleting = true;
    assert_eq!(pool.capacity(5), 0);
    assert_eq!(Pool::orphaned("a".into()).capacity(5), 0);
}

#[test]
fn a_window_must_fit_drain_and_reboot() {
    let mut pool = pool("r/os:1", Some("r/os:1"));
    let object = pool.object.as_mut().unwrap();
    let spec = serde_json::json!({ "drain": { "timeout": "60s" }, "rollout": { "rebootTimeout": "300s" } });
    object.spec = serde_json::from_value(spec).unwrap();
    let mut needed = |drain: u32, reboot: u32| {
        let status = pool.object.as_mut().unwrap().status.as_mut().unwrap();
        status.phase_durations.drain_seconds = Some(drain);
        status.phase_durations.reboot_seconds = Some(reboot);
        let inputs = pool.gate_inputs(None, true, Timestamp::UNIX_EPOCH).unwrap();
        inputs.needed.as_secs()
    };
    assert_eq!(needed(20, 100), 120);
    assert_eq!(needed(600, 100), 160, "no longer than drain.timeout");
    assert_eq!(needed(20, 600), 320, "no longer than rollout.rebootTimeout");
    let gone = Pool::orphaned("a".into());
    assert!(gone.gate_inputs(None, true, Timestamp::UNIX_EPOCH).is_none());
}

#[test]
fn each_wave_soaks_for_its_own_time() {
    let mut pool = pool("r/os:1", Some("r/os:1"));
    let object = pool.object.as_mut().unwrap();
    let canary = serde_json::json!({ "name": "canary", "nodeSelector": {}, "soakTime": "60s" });
    let late = serde_json::json!({ "name": "late", "nodeSelector": {} });
    let rollout = serde_json::json!({ "soakTime": "10s", "waves": [canary, late] });
    object.spec = serde_json::from_value(serde_json::json!({ "rollout": rollout })).unwrap();
    let told =
        serde_json::json!({ "name": "canary", "total": 1, "updated": 1, "state": "Soaking", "soakedSeconds": 30 });
    object.status.as_mut().unwrap().waves = vec![serde_json::from_value(told).unwrap()];
    let found: Vec<_> = pool
        .waves(&Soaks::default())
        .into_iter()
        .map(|wave| (wave.name, wave.soak.as_secs(), wave.soaked.as_secs()))
        .collect();
    let expected = [
        ("canary", 60, 30),
        ("late", 10, 0),
        (waves::REST, 10, 0),
        (waves::CONTROL_PLANE, 10, 0),
    ]
    .map(|(name, soak, soaked)| (name.to_owned(), soak, soaked));
    assert_eq!(found, expected);
}

#[test]
fn members_get_the_pools_token_and_medians() {
    let mut pool = pool("r/os:1", Some("r/os:1"));
    let terms = |pool: &Pool| {
        let mut terms = terms(std::slice::from_ref(pool), &Membership::default(), &BTreeSet::new());
        terms.remove(&"a".into()).unwrap()
    };
    assert_eq!(terms(&pool).retry_token, None);
    let object = pool.object.as_mut().unwrap();
    let rollout = serde_json::json!({ "retryToken": "again" });
    object.spec.rollout = Some(serde_json::from_value(rollout).unwrap());
    let medians = PhaseDurations {
        drain_seconds: Some(30),
        ..PhaseDurations::default()
    };
    object.status.as_mut().unwrap().phase_durations = medians;
    assert_eq!(terms(&pool).retry_token.as_deref(), Some("again"));
    assert_eq!(terms(&pool).estimates, medians);
}

#[test]
fn a_pool_lasts_unless_it_is_deleted() {
    let mut pools = Objects::new();
    let broken = serde_json::json!({ "nodeSelector": 7 });
    for (name, deleted, spec) in [
        ("lasts", None, serde_json::json!({})),
        ("goes", Some("2026-01-01T00:00:00Z"), serde_json::json!({})),
        ("unreadable", None, broken),
    ] {
        let metadata = serde_json::json!({ "name": name, "deletionTimestamp": deleted });
        let object = serde_json::json!({ "metadata": metadata, "spec": spec });
        let view = PoolView::of(serde_json::from_value(object).unwrap());
        pools.insert(name.to_owned(), Entry::new(view));
    }
    assert_eq!(lasting(&pools), ["lasts".into(), "unreadable".into()].into());
}

/// A berth of that pool, offered to a node or held by it.
fn lease(pool: &str, index: u32, (node, uid): (&str, &str), is_held: bool) -> LeaseView {
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

#[test]
fn every_lease_says_who_is_occupied() {
    let offered = lease("a", 0, ("n1", "u1"), false);
    let held = lease("b", 0, ("n1", "u1"), true);
    let mut unreadable = lease("a", 1, ("n2", "u2"), true);
    unreadable.berth = Err("no phase".to_owned());
    let occupied = occupied(&[offered, held, unreadable]);
    assert_eq!(occupied.by_uid, [("u1".into(), ["a".into(), "b".into()].into())].into());
    assert_eq!(occupied.names, [("u1".into(), "n1".into())].into());
    assert!(occupied.holdings.keys().eq([&NodeUid::from("u1")]));
    assert_eq!(occupied.unclear, ["n2".to_owned()].into());
}

/// Facts for pool `a`, which selects these Nodes by `role: worker`.
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
    let shared = Shared {
        snapshot: &snapshot,
        membership: &Belonging::default().of(&snapshot),
        leases,
        occupied: &occupied(leases),
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

/// A worker, with one more label.
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
