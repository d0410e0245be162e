use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use proptest::prelude::*;

use super::*;
use crate::digest::Digest;
use crate::names::{BootId, NodeName, NodeUid, PoolName};

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn new() -> Berth {
    Berth::new(PoolName::from("workers"), 2, 7)
}

fn offer(node: &str) -> Offer {
    Offer {
        node: NodeName::from(node),
        uid: NodeUid::from("uid-1"),
        target: digest(2),
        open_until: Some(Timestamp::from_second(1_000).unwrap()),
    }
}

fn taken() -> Berth {
    let (node, uid) = (NodeName::from("n1"), NodeUid::from("uid-1"));
    new()
        .offered(offer("n1"))
        .unwrap()
        .taken(&node, &uid, Some(digest(1)), BootId::from("b1"))
        .unwrap()
}

fn there_and_back(berth: &Berth) -> Berth {
    let lease = lease::create(berth, "berth-system", Duration::from_secs(900), Timestamp::UNIX_EPOCH);
    lease::read(&lease).unwrap()
}

#[test]
fn a_whole_turn() {
    let committed = taken().committed(BootId::from("b1")).unwrap();
    let back = committed
        .releasing(Outcome::Updated, BootId::from("b1"))
        .unwrap()
        .given_back()
        .unwrap();
    let BerthState::Closed(closed) = &back.state else {
        panic!("{back:?}")
    };
    assert_eq!(closed.reason, ClosedReason::Released);
    assert_eq!(closed.outcome, Some(Outcome::Updated));
    assert_eq!(closed.last_node, Some(NodeName::from("n1")));
}

#[test]
fn every_state_survives_its_lease() {
    let taken = taken();
    let revoked = taken.revoked(Some("Paused".into())).unwrap();
    let committed = taken.committed(BootId::from("b2")).unwrap();
    let releasing = committed.releasing(Outcome::NotApplied, BootId::from("b1")).unwrap();
    let closed = releasing.given_back().unwrap();
    let lapsed = new()
        .offered(offer("n1"))
        .unwrap()
        .closed(ClosedReason::Lapsed)
        .unwrap();
    for berth in [
        new(),
        new().offered(offer("n1")).unwrap(),
        taken,
        revoked,
        committed,
        releasing,
        closed,
        lapsed,
    ] {
        assert_eq!(there_and_back(&berth), berth);
    }
}

#[test]
fn a_long_node_name_survives_its_lease() {
    let name = format!("n1.{}.example.com", "a".repeat(230));
    let offered = new().offered(offer(&name)).unwrap();
    let taken = offered
        .taken(
            &NodeName::from(name.as_str()),
            &NodeUid::from("uid-1"),
            None,
            BootId::from("b1"),
        )
        .unwrap();
    for berth in [offered, taken] {
        let lease = lease::create(&berth, "berth-system", Duration::from_secs(900), Timestamp::UNIX_EPOCH);
        assert_eq!(lease::read(&lease).unwrap(), berth);
        let label = &lease.metadata.labels.unwrap()[crate::keys::LABEL_NODE];
        assert_eq!(*label, NodeName::from(name.as_str()).label());
        assert!(label.len() <= 63 && label.starts_with("n1.a"), "{label}");
    }
}

#[test]
fn a_holder_that_is_no_node_is_refused() {
    let berth = taken();
    let mut lease = lease::create(&berth, "berth-system", Duration::from_secs(900), Timestamp::UNIX_EPOCH);
    for name in ["a b", "a\u{202e}", "N1", "n1\nn2", &"a".repeat(254)] {
        for holder in [name.to_owned(), format!("offered:{name}")] {
            lease.spec.get_or_insert_default().holder_identity = Some(holder);
            let error = lease::read(&lease).unwrap_err();
            assert!(error.what.contains("is not the name of a Node"), "{name}: {error}");
        }
    }
}

#[test]
fn a_lease_with_another_name_is_refused() {
    let berth = new();
    let mut lease = lease::create(&berth, "berth-system", Duration::from_secs(900), Timestamp::UNIX_EPOCH);
    for name in [
        "workers-02",
        "workers-+2",
        "workers-2 ",
        "workers-",
        "worker-2",
        "workers2",
    ] {
        lease.metadata.name = Some(name.to_owned());
        let error = lease::read(&lease).unwrap_err();
        assert!(error.what.contains("workers-NUMBER"), "{name}: {error}");
    }
    lease.metadata.name = Some("workers-2".to_owned());
    assert_eq!(lease::read(&lease), Ok(berth));
}

#[test]
fn an_offer_is_for_one_node_and_uid() {
    let offered = new().offered(offer("n1")).unwrap();
    for (node, uid) in [("n2", "uid-1"), ("n1", "uid-2")] {
        let taken = offered.taken(&node.into(), &uid.into(), None, "b".into());
        assert!(taken.is_err(), "{node} {uid}");
    }
    assert!(
        offered.offered(offer("n2")).is_err(),
        "an offer is not moved: it is closed first"
    );
}

#[test]
fn revoked_and_releasing_berths_cannot_be_committed() {
    let revoked = taken().revoked(Some("Paused".into())).unwrap();
    assert!(revoked.committed(BootId::from("b1")).is_err());
    let releasing = revoked.releasing(Outcome::Revoked, BootId::from("b1")).unwrap();
    assert!(releasing.committed(BootId::from("b1")).is_err());
    assert!(releasing.uncommitted().is_err());
    assert!(releasing.releasing(Outcome::Updated, BootId::from("b1")).is_err());
    assert!(taken().given_back().is_err(), "the Node is restored first");
    assert!(
        taken().closed(ClosedReason::Shrunk).is_err(),
        "the controller does not take a held berth away"
    );
}

#[test]
fn a_new_offer_forgets_the_last_turn() {
    let closed = taken()
        .releasing(Outcome::DrainTimeout, BootId::from("b1"))
        .unwrap()
        .given_back()
        .unwrap();
    let mut lease = lease::create(&closed, "berth-system", Duration::from_secs(900), Timestamp::UNIX_EPOCH);
    let offered = closed.offered(offer("n2")).unwrap();
    lease::write(&offered, &mut lease, Timestamp::UNIX_EPOCH);
    assert_eq!(lease::read(&lease).unwrap(), offered);
    assert!(
        !lease
            .metadata
            .annotations
            .unwrap()
            .contains_key(crate::keys::ANNOTATION_OUTCOME)
    );
}

#[test]
fn a_clean_lease_is_the_berth_and_nothing_else() {
    let create = || {
        lease::create(
            &taken(),
            "berth-system",
            Duration::from_secs(900),
            Timestamp::UNIX_EPOCH,
        )
    };
    let mut filled = create();
    let metadata = &mut filled.metadata;
    metadata.generate_name = Some("x".repeat(1000));
    metadata
        .annotations
        .get_or_insert_default()
        .insert("example.com/fill".into(), "x".repeat(200_000));
    metadata
        .labels
        .get_or_insert_default()
        .insert("example.com/mine".into(), "x".into());
    let spec = filled.spec.as_mut().unwrap();
    spec.acquire_time = spec.renew_time.clone();
    spec.lease_transitions = Some(7);
    spec.strategy = Some("x".repeat(1000));
    lease::clean(&mut filled);
    assert_eq!(
        filled.metadata.managed_fields.take().map(|entries| entries.len()),
        Some(1)
    );
    assert_eq!(filled, create());
}

proptest! {
    #[test]
    fn reading_an_edited_lease_never_panics(holder in "[a-z:0-9]{0,20}", key in 0usize..10, value in "\\PC{0,20}") {
        let mut lease: Lease = lease::create(&taken(), "n", Duration::from_secs(1), Timestamp::UNIX_EPOCH);
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(holder);
        }
        let annotations = lease.metadata.annotations.as_mut().unwrap();
        let name = annotations.keys().nth(key % annotations.len()).cloned().unwrap();
        annotations.insert(name, value);
        let _ = lease::read(&lease);
    }
}
