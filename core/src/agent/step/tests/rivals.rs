//! Reports on other programs that update the host, and on their files.

use berth_api::condition::node as types;

use super::reports::shown;
use super::*;
use crate::agent::host_policy::Objection;
use crate::agent::rivals;

#[test]
fn every_rival_that_the_agent_knows_can_be_tolerated() {
    use kube::CustomResourceExt;
    let crd = serde_json::to_string(&berth_api::pool::BootcNodePool::crd()).unwrap();
    for name in rivals::UNITS.iter().chain(&rivals::PODS) {
        assert!(crd.contains(&format!("'{name}'")), "{name}");
    }
}

#[test]
fn rivals_are_reported_unless_tolerated() {
    let mut facts = facts();
    os(&mut facts, 1, None);
    facts.host.rivals = vec!["bootc-fetch-apply-updates.timer".into(), "zincati.service".into()];
    let degraded = shown(&facts, types::NODE_DEGRADED);
    assert!(
        degraded.starts_with("True RivalUpdater bootc-fetch-apply-updates.timer, zincati"),
        "{degraded}"
    );
    assert!(
        degraded.contains("systemctl disable --now bootc-fetch-apply-updates.timer")
            && !degraded.contains("toleratedUpdaters"),
        "no pool may tolerate reboots outside of turns: {degraded}"
    );
    assert!(shown(&facts, types::UPDATE_PREPARED).starts_with("False"));
    facts.host.rivals = vec!["bootc-fetch-apply-updates.service".into()];
    let degraded = shown(&facts, types::NODE_DEGRADED);
    assert!(
        degraded.contains("systemctl disable --now bootc-fetch-apply-updates.timer"),
        "what starts it is to be stopped: {degraded}"
    );
    facts.host.rivals = vec!["zincati.service".into()];
    let degraded = shown(&facts, types::NODE_DEGRADED);
    assert!(degraded.contains("may replace staged images"), "{degraded}");
    publish(&mut facts, |member| member.rivals = RivalUpdaters::Tolerate);
    assert_eq!(shown(&facts, types::NODE_DEGRADED), "False AsExpected ");
    let pods = [
        "machine-config-daemon (pod mcd/a)".to_owned(),
        "kured (pod k/b)".to_owned(),
    ];
    facts.host.rivals.extend(pods);
    publish(&mut facts, |member| {
        member.tolerated = ["zincati.service", "machine-config-daemon"].map(str::to_owned).into();
        member.rivals = RivalUpdaters::Wait;
    });
    let degraded = shown(&facts, types::NODE_DEGRADED);
    assert!(
        degraded.starts_with("True RivalUpdater kured (pod k/b) is active: ")
            && degraded.contains("add kured to toleratedUpdaters of the pool"),
        "{degraded}"
    );
}

#[test]
fn a_tolerated_timer_covers_its_service() {
    let mut facts = facts();
    facts.host.rivals = vec!["bootc-fetch-apply-updates.service".into()];
    let staged = matches!(step(&facts), Step::Unstage(_));
    assert!(staged, "{:?}", step(&facts));
    let Desired::Member(member) = &mut facts.desired else {
        unreachable!()
    };
    member.tolerated = vec!["bootc-fetch-apply-updates.timer".into()];
    assert!(matches!(step(&facts), Step::Wait(WaitReason::NoBerth, _)));
    assert_eq!(shown(&facts, types::NODE_DEGRADED), "False AsExpected ");
}

#[test]
fn a_foreign_auth_file_is_reported_after_real_failures() {
    let mut facts = facts();
    facts.host.rules.credentials = Some(Objection::new(
        Reason::ForeignAuthFile,
        "the host has /etc/ostree/auth.json",
    ));
    assert!(
        matches!(step(&facts), Step::Wait(WaitReason::NoBerth, _)),
        "the host may have the credentials"
    );
    let degraded = "True ForeignAuthFile the host has /etc/ostree/auth.json";
    assert_eq!(shown(&facts, types::NODE_DEGRADED), degraded);
    let (wall, digest) = (facts.now, digest(2));
    facts
        .past
        .pull_failed("Unauthorized", "the host pulled with it", &digest, wall, 0.0);
    assert!(shown(&facts, types::NODE_DEGRADED).starts_with("True Unauthorized the host pulled with it"));
}

#[test]
fn a_foreign_auth_file_hides_no_failed_turn() {
    let mut facts = facts();
    facts.host.rules.credentials = Some(Objection::new(Reason::ForeignAuthFile, "the host has one"));
    facts.past.last_turn = Some(Turn {
        outcome: "DrainTimeout".into(),
        message: "pod a/b".into(),
        digest: digest(2),
        attempts: 1,
        next_try_time: later(30),
    });
    let degraded = shown(&facts, types::NODE_DEGRADED);
    assert!(degraded.starts_with("True DrainTimeout pod a/b"), "{degraded}");
}
