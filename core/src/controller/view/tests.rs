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
