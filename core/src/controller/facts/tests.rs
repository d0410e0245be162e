//! Facts by example.

use std::sync::Arc;

use berth_api::Digest;
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
