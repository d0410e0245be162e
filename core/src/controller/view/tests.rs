use berth_api::BootId;
use berth_api::berth::Offer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::*;

#[test]
fn only_the_holder_speaks_for_itself_on_its_berth() {
    let at = |seconds| Timestamp::from_second(seconds).unwrap();
    let target = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    let offer = Offer {
        node: "n1".into(),
        uid: "u".into(),
        target,
        open_until: Some(at(9)),
    };
    let boot = || BootId::from("b");
    let offered = Berth::new("p".into(), 0, 1).offered(offer).unwrap();
    let taken = offered.taken(&"n1".into(), &"u".into(), None, boot()).unwrap();
    let view = |berth: &Berth, renewed: i64, version: &str| {
        let mut lease = berth::lease::create(berth, "ns", Duration::from_secs(1), at(1));
        lease.metadata.resource_version = Some(version.into());
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime::from(at(renewed)));
        LeaseView::of(lease)
    };
    let before = view(&taken, 1, "1");
    let ours = [
        taken.clone(),
        taken.stamped(2),
        taken.revoked(Some("Paused".into())).unwrap(),
    ];
    for berth in ours {
        assert!(!view(&berth, 1, "2").spoken(&before), "{berth:?}");
    }
    assert!(view(&taken, 2, "2").spoken(&before), "a renewal");
    assert!(view(&taken.committed(boot()).unwrap(), 1, "2").spoken(&before));
    assert!(before.spoken(&view(&offered, 1, "0")));
}

#[test]
fn a_server_without_guard_shows_beside_a_graver_trouble() {
    let unguarded = |conditions: &[(&str, &str, &str)]| {
        let mut node = BootcNode::new("n1", BootcNodeSpec::default());
        let mut status = berth_api::node::BootcNodeStatus::default();
        for (type_, is, reason) in conditions {
            let reason = condition::Word::stored(reason);
            let verdict = match *is {
                "True" => condition::Verdict::yes(reason, ""),
                _ => condition::Verdict::no(reason, ""),
            };
            condition::set(&mut status.conditions, type_, verdict, None, Timestamp::UNIX_EPOCH);
        }
        node.status = Some(status);
        let view = BootcNodeView::of(DeserializeGuard(Ok(node)));
        view.content.unwrap().report.unguarded
    };
    let (degraded, guarded) = (condition::node::NODE_DEGRADED, condition::node::GUARDED);
    let disk = (degraded, "True", "DiskFull");
    assert!(unguarded(&[disk, (guarded, "False", "Unguarded")]));
    assert!(!unguarded(&[disk, (guarded, "True", "AsExpected")]));
    assert!(!unguarded(&[disk]));
    assert!(
        unguarded(&[(degraded, "True", "Unguarded")]),
        "as an agent of an earlier version says it"
    );
}
