use berth_api::berth::Offer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::json;

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

#[test]
fn decisions_read_the_conditions_of_a_report_and_not_its_phase() {
    let report = |phase: &str, conditions: serde_json::Value, failure: serde_json::Value| {
        let object = json!({
            "metadata": { "name": "n1", "generation": 3 }, "spec": {},
            "status": { "observedGeneration": 3, "phase": phase, "conditions": conditions, "failure": failure },
        });
        let view = BootcNodeView::of(DeserializeGuard(Ok(serde_json::from_value(object).unwrap())));
        let report = view.report().unwrap().clone();
        (report.pulling, report.blocked, view.released())
    };
    let condition = |type_: &str, status: &str, reason: &str| {
        json!([{
            "type": type_, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }])
    };
    let pulled = |status: &str, reason: &str| condition("ImagePulledFromRegistry", status, reason);
    let of = |phase: &str, conditions: serde_json::Value| report(phase, conditions, json!(null));
    assert_eq!(of("Staging", json!([])), (false, false, false));
    assert_eq!(of("Degraded", json!([])), (false, false, false));
    assert_eq!(of("Proving", pulled("Unknown", "Pulling")), (true, false, false));
    assert_eq!(of("Pending", pulled("Unknown", "Blocked")), (false, true, false));
    assert_eq!(
        of("Pending", pulled("False", "RegistryNotAllowed")),
        (false, true, false)
    );
    let failure = json!({
        "reason": "ImageNotFound", "message": "", "attempts": 2, "nextTryTime": "2026-01-01T00:00:00Z",
    });
    let failing = report("Pending", pulled("False", "ImageNotFound"), failure);
    assert_eq!(failing, (false, false, false), "it is tried again");
    assert_eq!(
        of("Idle", condition("Released", "True", "Released")),
        (false, false, true)
    );
    assert_eq!(
        of("Released", condition("Released", "False", "NotYet")),
        (false, false, false)
    );
    assert_eq!(
        of("Released", json!([])),
        (false, false, true),
        "an agent of an earlier version"
    );
}
