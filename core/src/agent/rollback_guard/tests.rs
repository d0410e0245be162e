use std::time::Duration;

use berth_api::berth::{Berth, Offer, Outcome};
use berth_api::digest::Digest;
use berth_api::names::{BootId, NodeName, NodeUid, PoolName};
use berth_api::node::{BootcNode, BootcNodeSpec, Deployment};
use berth_api::pool::Health;

use super::*;
use crate::agent::facts::{Fired, Past, Undone};
use crate::agent::knowledge::{Event, Knowledge, Look, Services};
use crate::{Moment, Now};

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn deployment(n: u8) -> Deployment {
    Deployment {
        digest: Some(digest(n)),
        ..Deployment::default()
    }
}

fn now() -> Now {
    Now {
        wall: jiff::Timestamp::UNIX_EPOCH,
        clock: Moment::after(Duration::from_secs(600)),
        chance: 0.5,
    }
}

fn committed() -> Berth {
    let (node, uid, boot) = (NodeName::from("n1"), NodeUid::from("u1"), BootId::from("b1"));
    let offer = Offer {
        node: node.clone(),
        uid: uid.clone(),
        target: digest(2),
        open_until: None,
    };
    let offered = Berth::new(PoolName::from("workers"), 0, 1).offered(offer).unwrap();
    let taken = offered.taken(&node, &uid, Some(digest(1)), boot.clone()).unwrap();
    taken.committed(boot).unwrap()
}

/// Returns the knowledge of a node that runs image 1 in boot b1. Image 2 is staged, and the node has committed a berth
/// for it.
fn knowledge() -> Knowledge {
    let mut knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &now());
    let spec = BootcNodeSpec {
        pool_name: "workers".to_owned(),
        node_uid: "u1".to_owned(),
        ..BootcNodeSpec::default()
    };
    knowledge.desired = Desired::of(Some(&BootcNode::new("n1", spec)));
    learn(&mut knowledge, Event::Services(Services::under("b1".into())));
    learn(&mut knowledge, Event::Looked(look(1, Some(2))));
    learn(&mut knowledge, Event::Berths(vec![committed()]));
    knowledge
}

fn learn(knowledge: &mut Knowledge, event: Event<'_>) {
    knowledge.after(event, &now());
}

fn look(booted: u8, staged: Option<u8>) -> Look {
    let deployments = Deployments {
        booted: deployment(booted),
        booted_commit: Some("aa".to_owned()),
        staged: staged.map(deployment),
        staged_commit: Some("bb".to_owned()),
        ..Deployments::default()
    };
    Look {
        os: Os::Bootc(Box::new(deployments)),
        rivals: vec![],
        finalization_failed: false,
    }
}

fn facts() -> AgentFacts {
    knowledge().facts(&now())
}

fn health(facts: &mut AgentFacts, change: impl FnOnce(&mut Health)) {
    if let Desired::Member(member) = &mut facts.desired {
        change(&mut member.health);
    }
}

#[test]
fn the_guard_is_armed_before_the_unlock_and_the_reboot() {
    let mut facts = facts();
    health(&mut facts, |health| health.soak_time = Some("5m".into()));
    let Duty::Arm(order) = duty(&facts, &Step::Unlock) else {
        panic!("not armed");
    };
    assert_eq!(duty(&facts, &Step::Reboot), Duty::Arm(order.clone()));
    let text = order.text(Some(("192.0.2.1", 6443)));
    let expected = format!(
        "backend=bootc\ntarget={}\nprevious={}\nboot=b1\nlimit=960\ntarget_commit=bb\nprevious_commit=aa\n\
         api_host=192.0.2.1\napi_port=6443\n",
        digest(2),
        digest(1)
    );
    assert_eq!(text, expected, "10 min, 5 min of soak, and a minute for the agent");
    assert_eq!(duty(&facts, &Step::LookAtHost), Duty::None);
}

#[test]
fn only_a_boot_from_a_proven_image_is_guarded() {
    let mut hold = facts();
    health(&mut hold, |health| health.on_failure = Some(OnFailure::Hold));
    let mut another = facts();
    another.host.os = look(7, Some(2)).os;
    let mut not_staged = facts();
    not_staged.host.os = look(1, Some(7)).os;
    let mut undoes = facts();
    undoes.past.undone = Some(Undone {
        digest: digest(2),
        boot_id: "b1".into(),
        reason: String::new(),
        why: String::new(),
    });
    let mut refused = facts();
    if let Os::Bootc(known) = &mut refused.host.os {
        known.refusal = Some("composefs".to_owned());
    }
    let mut left = facts();
    left.desired = Desired::Release;
    for facts in [hold, another, not_staged, undoes, refused, left] {
        assert_eq!(duty(&facts, &Step::Reboot), Duty::Disarm, "{facts:?}");
    }
}

#[test]
fn the_guard_is_disarmed_when_the_agent_takes_over() {
    let berth = committed();
    for step in [
        Step::Release(berth.clone(), Outcome::Updated, String::new()),
        Step::GiveBack(berth.clone()),
        Step::Relicense(berth, digest(3)),
        Step::Rollback(
            digest(1),
            berth_api::condition::CommonReason::UnitsFailed,
            String::new(),
        ),
    ] {
        assert_eq!(duty(&facts(), &step), Duty::Disarm);
    }
    let mut without_berth = facts();
    without_berth.host.rollback_guard = RollbackGuard::Armed;
    assert_eq!(duty(&without_berth, &Step::LookAtHost), Duty::None);
    without_berth.berths = Some(vec![]);
    assert_eq!(
        duty(&without_berth, &Step::LookAtHost),
        Duty::Disarm,
        "the Lease is gone"
    );
    without_berth.berths = None;
    assert_eq!(duty(&without_berth, &Step::LookAtHost), Duty::None, "not read yet");
}

#[test]
fn an_armed_guard_is_disarmed_where_the_admin_wants_no_rollback() {
    let mut facts = facts();
    facts.host.rollback_guard = RollbackGuard::Armed;
    let look = Step::LookAtHost;
    assert_eq!(duty(&facts, &look), Duty::None);
    health(&mut facts, |health| health.on_failure = Some(OnFailure::Hold));
    assert_eq!(duty(&facts, &look), Duty::Disarm);
    facts.desired = Desired::Release;
    assert_eq!(duty(&facts, &look), Duty::Disarm, "the node left its pool");
    facts.desired = Desired::Unknown;
    assert_eq!(duty(&facts, &look), Duty::None, "not read yet");
}

#[test]
fn a_rollback_by_the_guard_is_recorded_before_anything_else() {
    let mut knowledge = knowledge();
    let mut services = Services::under("b3".into());
    services.rollback_guard = RollbackGuard::Fired(Fired {
        digest: digest(2),
        boot_id: "b2".into(),
    });
    learn(&mut knowledge, Event::Services(services));
    let undone = knowledge.past.undone.clone().unwrap();
    assert_eq!(
        (undone.digest, undone.boot_id, undone.reason.as_str()),
        (digest(2), "b2".into(), "RollbackGuardFired")
    );
    assert_eq!(
        knowledge.past.failed_digests,
        [digest(2)],
        "no agent may have seen it run"
    );
    assert!(knowledge.may_forget_fired_guard());
    learn(&mut knowledge, Event::Memory(Some("read-only".to_owned())));
    assert!(!knowledge.may_forget_fired_guard(), "the record is not on disk");
    learn(&mut knowledge, Event::Memory(None));

    let fired = Fired {
        digest: digest(2),
        boot_id: "b3".into(),
    };
    let mut services = Services::under("b3".into());
    services.rollback_guard = RollbackGuard::Fired(fired);
    learn(&mut knowledge, Event::Services(services));
    assert!(!knowledge.may_forget_fired_guard(), "the host has not rebooted yet");
}

#[test]
fn the_files_of_the_guard_are_parsed_strictly() {
    let (target, boot) = (format!("target={}\n", digest(2)), "fired=b2\n");
    let fired = Fired {
        digest: digest(2),
        boot_id: "b2".into(),
    };
    assert_eq!(Fired::parse(&format!("limit=3\n{target}{boot}")), Some(fired));
    for text in ["", boot, &target, "target=2\nfired=b2\n"] {
        assert_eq!(Fired::parse(text), None, "{text:?}");
    }
}

#[test]
fn the_guard_acts_only_on_its_target() {
    for (booted, next, deployed, fire) in [
        (2, 2, true, Fire::Queue),
        (2, 1, true, Fire::Reboot),
        (2, 2, false, Fire::No),
        (1, 1, true, Fire::No),
        (3, 3, true, Fire::No),
    ] {
        assert_eq!(fires(&2, &1, &booted, &next, deployed), fire, "{booted} {next}");
    }
}
