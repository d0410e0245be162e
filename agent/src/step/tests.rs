use berth_api::berth::Offer;
use berth_api::names::{BootId, NodeName, NodeUid, PoolName};
use berth_api::node::{Deployment, DrainBlocker, Turn};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::facts::{Deployments, DrainFacts, HostFacts, Past, PullFacts};
use crate::node::cordon::CordonRecord;

const HOUR: Duration = Duration::from_secs(3600);

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn deployment(n: u8, locked: bool) -> Deployment {
    Deployment { digest: Some(digest(n)), locked, ..Deployment::default() }
}

fn image(n: u8) -> DesiredImage {
    let reference = format!("registry.example/os@{}", digest(n));
    DesiredImage { reference, digest: digest(n), index_digest: digest(n), version: None }
}

fn member(n: u8) -> Member {
    Member {
        pool: PoolName::from("workers"),
        node_uid: NodeUid::from("u1"),
        image: Some(image(n)),
        staging: Staging::Allowed,
        hold: None,
        drain: berth_api::pool::Drain { timeout: Some("1h".into()), ..berth_api::pool::Drain::default() },
        retry_token: None,
        reboot_timeout: HOUR,
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn later(seconds: i64) -> Time {
    Time::from(now() + SignedDuration::from_secs(seconds))
}

/// A node that runs 1, should run 2, has 2 staged and locked, and was never in trouble.
fn facts() -> Facts {
    let deployments = Deployments { booted: deployment(1, false), staged: Some(deployment(2, true)), rollback: None };
    Facts {
        node: NodeName::from("n1"),
        now: now(),
        desired: Desired::Member(Box::new(member(2))),
        host: HostFacts {
            boot_id: BootId::from("b1"),
            os: Os::Bootc(Box::new(deployments)),
            fresh: true,
            pull: None,
            inhibitors: vec![],
            shutting_down: false,
            shutdown_scheduled: false,
            rivals: vec![],
            finalization_failed: false,
            reboot: Reboot::NotAsked,
        },
        cluster_node: ClusterNode::Is(node()),
        berths: Some(vec![]),
        restored: false,
        drain: DrainFacts::default(),
        proving_for: Duration::ZERO,
        past: Past::default(),
        trouble: None,
    }
}

fn node() -> NodeFacts {
    NodeFacts {
        uid: NodeUid::from("u1"),
        resource_version: "1".into(),
        unschedulable: false,
        ready: true,
        boot_id: Some(BootId::from("b1")),
        cordon: None,
    }
}

fn cordoned() -> ClusterNode {
    let cordon = Some(CordonRecord { berth: "workers-0".into(), unschedulable: false });
    ClusterNode::Is(NodeFacts { unschedulable: true, cordon, ..node() })
}

fn os(facts: &mut Facts, booted: u8, staged: Option<Deployment>) {
    facts.host.os = Os::Bootc(Box::new(Deployments { booted: deployment(booted, false), staged, rollback: None }));
}

fn offered(target: u8, uid: &str) -> Berth {
    let open_until = now() + SignedDuration::from_secs(60);
    let offer = Offer {
        node: NodeName::from("n1"),
        uid: NodeUid::from(uid),
        target: digest(target),
        open_until: Some(open_until),
    };
    Berth::new(PoolName::from("workers"), 0, 1).offered(offer).unwrap()
}

fn taken() -> Berth {
    let (node, uid) = (NodeName::from("n1"), NodeUid::from("u1"));
    offered(2, "u1").taken(&node, &uid, Some(digest(1)), BootId::from("b1")).unwrap()
}

fn committed() -> Berth {
    taken().committed(BootId::from("b1")).unwrap()
}

fn with(berth: &Berth) -> Facts {
    Facts { berths: Some(vec![berth.clone()]), cluster_node: cordoned(), ..facts() }
}

/// Back from the reboot, under b2, running `booted`.
fn rebooted(berth: &Berth, booted: u8) -> Facts {
    let mut facts = with(berth);
    facts.host.boot_id = BootId::from("b2");
    os(&mut facts, booted, None);
    if let ClusterNode::Is(node) = &mut facts.cluster_node {
        node.boot_id = Some(BootId::from("b2"));
    }
    facts
}

#[test]
fn a_whole_turn_is_the_only_way_to_a_reboot() {
    let mut facts = facts();
    assert_eq!(step(&facts), Step::Wait(Why::NoBerth, None));
    facts.berths = Some(vec![offered(2, "u1")]);
    assert_eq!(step(&facts), Step::Take(offered(2, "u1")));
    facts.berths = Some(vec![taken()]);
    assert_eq!(step(&facts), Step::Cordon(taken()));
    facts.cluster_node = cordoned();
    assert_eq!(step(&facts), Step::Drain);
    facts.drain.done = true;
    facts.host.fresh = false;
    assert_eq!(step(&facts), Step::LookAtHost);
    facts.host.fresh = true;
    assert_eq!(step(&facts), Step::Commit(taken()));
    facts.berths = Some(vec![committed()]);
    assert_eq!(step(&facts), Step::Unlock);
    os(&mut facts, 1, Some(deployment(2, false)));
    assert_eq!(step(&facts), Step::Reboot);
    facts.host.reboot = Reboot::Asked(Duration::from_secs(3));
    assert!(matches!(step(&facts), Step::Wait(Why::Rebooting, Some(_))));
    let mut facts = rebooted(&committed(), 2);
    assert!(matches!(step(&facts), Step::Release(_, Outcome::Updated, _)));
    let releasing = committed().releasing(Outcome::Updated, BootId::from("b2")).unwrap();
    facts.berths = Some(vec![releasing.clone()]);
    assert_eq!(step(&facts), Step::Restore(releasing.clone()));
    facts.restored = true;
    facts.cluster_node = ClusterNode::Is(node());
    assert_eq!(step(&facts), Step::GiveBack(releasing));
    facts.berths = Some(vec![]);
    assert_eq!(step(&facts), Step::Wait(Why::Updated, None));
}

#[test]
fn what_is_staged_is_locked_or_removed() {
    let mut f = facts();
    os(&mut f, 1, Some(deployment(2, false)));
    assert_eq!(step(&f), Step::Lock, "the desired image, unlocked");
    os(&mut f, 1, Some(deployment(3, false)));
    assert_eq!(step(&f), Step::Unstage, "another image");
    os(&mut f, 2, Some(deployment(3, true)));
    assert_eq!(step(&f), Step::Unstage, "reverted while staged");
    let mut f = with(&taken());
    os(&mut f, 1, Some(deployment(2, false)));
    assert_eq!(step(&f), Step::Lock, "taken is not committed");
    f.desired = Desired::Member(Box::new(Member { image: None, ..member(2) }));
    f.berths = Some(vec![]);
    f.cluster_node = ClusterNode::Is(node());
    assert_eq!(step(&f), Step::Lock, "not resolved any more");
}

#[test]
fn an_offer_for_another_digest_uid_or_time_is_left_alone() {
    for offer in [offered(3, "u1"), offered(2, "u0")] {
        let mut f = facts();
        f.berths = Some(vec![offer]);
        assert!(matches!(step(&f), Step::Wait(..)), "{:?}", step(&f));
    }
    let mut late = facts();
    late.berths = Some(vec![offered(2, "u1")]);
    late.now = now() + SignedDuration::from_secs(61);
    assert_eq!(step(&late), Step::Wait(Why::NoBerth, None));
}

#[test]
fn before_the_commit_every_reason_gives_back() {
    let release = |f: &Facts| match step(f) {
        Step::Release(_, outcome, message) => (outcome, message),
        other => panic!("{other:?}"),
    };
    let revoked = with(&taken().revoked(Some("Paused".into())).unwrap());
    assert_eq!(release(&revoked), (Outcome::Revoked, "Paused".into()));
    let mut f = with(&taken());
    f.desired = Desired::Member(Box::new(member(3)));
    assert_eq!(release(&f).0, Outcome::Withdrawn);
    f.desired = Desired::Unknown;
    assert_eq!(release(&f).0, Outcome::Withdrawn, "nothing that is not desired goes on");
    let mut f = with(&taken());
    os(&mut f, 1, None);
    assert_eq!(release(&f).0, Outcome::NotStaged);
    let mut f = with(&taken());
    f.drain.elapsed = HOUR;
    f.drain.blockers = vec![DrainBlocker { pod: "web/a".into(), reason: "budget web".into(), since: later(0) }];
    let (outcome, message) = release(&f);
    assert_eq!(outcome, Outcome::DrainTimeout);
    assert!(message.contains("web/a: budget web"), "{message}");
    let mut f = with(&taken());
    f.drain.done = true;
    f.host.inhibitors = vec!["backup: running".into()];
    assert_eq!(release(&f), (Outcome::RebootBlocked, "shutdown is inhibited by backup: running".into()));
}

#[test]
fn a_commit_is_taken_back_only_when_locked_and_no_reboot_is_on_its_way() {
    let mut f = with(&committed());
    f.desired = Desired::Member(Box::new(member(3)));
    os(&mut f, 1, Some(deployment(2, false)));
    f.host.reboot = Reboot::Asked(Duration::from_secs(59));
    assert!(matches!(step(&f), Step::Wait(Why::Rebooting, _)));
    f.host.reboot = Reboot::Asked(REBOOT_GRACE);
    assert_eq!(step(&f), Step::Lock);
    os(&mut f, 1, Some(deployment(2, true)));
    assert_eq!(step(&f), Step::Uncommit(committed()));
    f.host.shutting_down = true;
    assert!(matches!(step(&f), Step::Wait(Why::ShuttingDown, _)));
}

#[test]
fn no_reboot_for_another_node_of_this_name() {
    let mut f = with(&committed());
    os(&mut f, 1, Some(deployment(2, false)));
    f.cluster_node = ClusterNode::Gone;
    assert_eq!(step(&f), Step::Lock, "and nothing stays armed");
    os(&mut f, 1, Some(deployment(2, true)));
    assert_eq!(step(&f), Step::Wait(Why::ForeignBerth, None));
    f.cluster_node = ClusterNode::Is(NodeFacts { uid: NodeUid::from("u9"), ..node() });
    assert_eq!(step(&f), Step::Wait(Why::ForeignBerth, None));
    f.cluster_node = ClusterNode::Unread;
    assert_eq!(step(&f), Step::ReadNode);
}

#[test]
fn a_new_boot_is_proven_before_the_berth_is_given_back() {
    let mut stale = rebooted(&committed(), 2);
    if let ClusterNode::Is(node) = &mut stale.cluster_node {
        node.boot_id = Some(BootId::from("b1"));
    }
    let again = |proving_for| match step(&Facts { proving_for, ..stale.clone() }) {
        Step::Wait(Why::NotReady, Some(again)) => again.as_millis(),
        other => panic!("Ready from before the reboot proves nothing: {other:?}"),
    };
    // Looked at often after a quick boot, and rarely after a slow one.
    assert_eq!([0, 4, 60].map(Duration::from_secs).map(again), [100, 500, 1000]);
    let third = rebooted(&committed(), 7);
    assert!(matches!(step(&third), Step::Wait(Why::Unproven, _)));
    let old = rebooted(&committed(), 1);
    assert!(matches!(step(&old), Step::Release(_, Outcome::NotApplied, _)));
    let mut unseen = rebooted(&committed(), 2);
    unseen.host.os = Os::Unusable { reason: "StatusFailed", message: String::new() };
    assert_eq!(step(&unseen), Step::Wait(Why::HostUnusable, None));
    let unplanned = rebooted(&taken(), 1);
    assert!(matches!(step(&unplanned), Step::Release(_, Outcome::NotStaged, _)));
    let mut unread = rebooted(&committed(), 2);
    unread.host.fresh = false;
    assert_eq!(step(&unread), Step::LookAtHost);
}

#[test]
fn a_cordon_without_a_berth_is_undone_and_an_admins_is_not() {
    let mut f = facts();
    f.cluster_node = cordoned();
    assert_eq!(step(&f), Step::Uncordon);
    f.cluster_node = ClusterNode::Is(NodeFacts { unschedulable: true, ..node() });
    assert_eq!(step(&f), Step::Wait(Why::NoBerth, None));
}

#[test]
fn one_pull_at_a_time_and_the_right_one_is_adopted() {
    let mut f = facts();
    f.host.os = Os::Unknown;
    f.host.pull = Some(PullFacts { digest: digest(2), progress: None });
    assert_eq!(step(&f), Step::Wait(Why::Pulling, None));
    f.host.pull = Some(PullFacts { digest: digest(3), progress: None });
    assert_eq!(step(&f), Step::CancelPull(digest(3)));
    f.desired = Desired::Release;
    assert_eq!(step(&f), Step::CancelPull(digest(3)));
}

#[test]
fn pulls_wait_for_leave_and_for_their_backoff_and_never_repeat_a_failed_digest() {
    let mut f = facts();
    os(&mut f, 1, None);
    assert_eq!(step(&f), Step::StartPull(image(2)));
    let mut held = f.clone();
    held.desired = Desired::Member(Box::new(Member { staging: Staging::Held, ..member(2) }));
    assert_eq!(step(&held), Step::Wait(Why::StagingHeld, None));
    let mut failed = f.clone();
    failed.past.host_failed("RegistryUnavailable", "no route", &digest(2), true, now(), 0.0);
    assert_eq!(step(&failed), Step::Wait(Why::BackingOff, Some(Duration::from_secs(5))));
    failed.past.host_failed("NotBootable", "no label", &digest(2), false, now(), 0.0);
    assert_eq!(step(&failed), Step::Wait(Why::FailedDigest, None));
}

#[test]
fn a_node_that_runs_the_content_is_left_alone() {
    let mut f = facts();
    os(&mut f, 2, None);
    assert_eq!(step(&f), Step::Wait(Why::Updated, None));
}

#[test]
fn a_node_that_leaves_is_undone_and_keeps_what_others_staged() {
    let mut f = facts();
    f.desired = Desired::Release;
    f.past.staged_by_us = Some(digest(2));
    assert_eq!(step(&f), Step::Unstage);
    f.past.staged_by_us = Some(digest(9));
    assert_eq!(step(&f), Step::Wait(Why::Released, None));
    let mut f = with(&taken());
    f.desired = Desired::Release;
    assert!(matches!(step(&f), Step::Release(_, Outcome::Withdrawn, _)), "first the berth");
}

#[test]
fn a_turn_that_ended_badly_waits_before_the_next() {
    let mut f = facts();
    f.berths = Some(vec![offered(2, "u1")]);
    f.past.last_turn = Some(Turn {
        outcome: "DrainTimeout".into(),
        message: String::new(),
        digest: digest(2),
        attempts: 1,
        next_try_time: later(30),
    });
    assert_eq!(step(&f), Step::Wait(Why::BackingOff, Some(Duration::from_secs(30))));
}

#[test]
fn a_release_begun_before_a_reboot_is_proven_after_it() {
    let releasing = taken().releasing(Outcome::DrainTimeout, BootId::from("b1")).unwrap();
    let mut facts = rebooted(&releasing, 7);
    assert!(matches!(step(&facts), Step::Wait(Why::Unproven, _)), "a third image is not given back");
    os(&mut facts, 1, None);
    assert_eq!(step(&facts), Step::Restore(releasing));
}

#[test]
fn a_host_that_does_not_answer_keeps_its_licence() {
    let unusable = || Os::Unusable { reason: "StatusFailed", message: "timeout".into() };
    for berth in [taken(), committed(), taken().releasing(Outcome::Revoked, BootId::from("b1")).unwrap()] {
        for (os, expected) in [(Os::Unknown, Step::LookAtHost), (unusable(), Step::Wait(Why::HostUnusable, None))] {
            let mut facts = with(&berth);
            facts.host.fresh = os != Os::Unknown;
            facts.host.os = os;
            facts.desired = Desired::Unknown;
            assert_eq!(step(&facts), expected, "{berth:?}");
        }
    }
}

#[test]
fn a_shutdown_scheduled_by_others_holds_back_but_does_not_freeze() {
    let mut facts = with(&taken());
    facts.drain.done = true;
    facts.host.shutdown_scheduled = true;
    assert!(matches!(step(&facts), Step::Release(_, Outcome::RebootBlocked, _)));
    let mut facts = with(&committed());
    facts.host.shutdown_scheduled = true;
    os(&mut facts, 1, Some(deployment(2, false)));
    assert_eq!(step(&facts), Step::Lock);
    os(&mut facts, 1, Some(deployment(2, true)));
    assert!(matches!(step(&facts), Step::Wait(Why::Rebooting, _)), "a commit is not taken back while one is queued");
}

#[test]
fn what_is_published_for_another_node_is_not_obeyed() {
    let mut facts = facts();
    facts.berths = Some(vec![offered(2, "u1")]);
    facts.desired = Desired::Member(Box::new(Member { node_uid: NodeUid::from("u0"), ..member(2) }));
    assert_eq!(step(&facts), Step::Wait(Why::OtherNode, None));
}

mod any_facts {
    use proptest::prelude::*;

    use super::*;

    fn any_deployment() -> impl Strategy<Value = Option<Deployment>> {
        prop::option::of((1u8..4, any::<bool>()).prop_map(|(n, locked)| deployment(n, locked)))
    }

    fn any_os() -> impl Strategy<Value = Os> {
        let known = (1u8..4, any_deployment()).prop_map(|(booted, staged)| {
            Os::Bootc(Box::new(Deployments { booted: deployment(booted, false), staged, rollback: None }))
        });
        prop_oneof![
            6 => known,
            1 => Just(Os::Unknown),
            1 => Just(Os::Unusable { reason: "StatusFailed", message: String::new() }),
        ]
    }

    fn any_berth() -> impl Strategy<Value = Option<Berth>> {
        let releasing = |boot| taken().releasing(Outcome::DrainTimeout, BootId::from(boot)).unwrap();
        prop_oneof![
            Just(None),
            Just(Some(offered(2, "u1"))),
            Just(Some(offered(3, "u1"))),
            Just(Some(taken())),
            Just(Some(taken().revoked(Some("Paused".into())).unwrap())),
            Just(Some(committed())),
            Just(Some(releasing("b1"))),
            Just(Some(releasing("b2"))),
        ]
    }

    fn any_node() -> impl Strategy<Value = ClusterNode> {
        let bits = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
        let node = bits.prop_map(|(same_uid, unschedulable, ready, new_boot, ours)| {
            ClusterNode::Is(NodeFacts {
                uid: NodeUid::from(if same_uid { "u1" } else { "u9" }),
                unschedulable,
                ready,
                boot_id: Some(BootId::from(if new_boot { "b2" } else { "b1" })),
                cordon: ours.then(|| CordonRecord { berth: "workers-0".into(), unschedulable: false }),
                ..node()
            })
        });
        prop_oneof![8 => node, 1 => Just(ClusterNode::Unread), 1 => Just(ClusterNode::Gone)]
    }

    fn any_desired() -> impl Strategy<Value = Desired> {
        prop_oneof![
            6 => (2u8..4).prop_map(|n| Desired::Member(Box::new(member(n)))),
            1 => Just(Desired::Unknown),
            1 => Just(Desired::Release),
        ]
    }

    prop_compose! {
        fn any_facts()(
            os in any_os(), berth in any_berth(), cluster_node in any_node(), desired in any_desired(),
            fresh: bool, new_boot: bool, done: bool, restored: bool, shutting_down in prop::bool::weighted(0.1),
            inhibited in prop::bool::weighted(0.2), asked in prop::option::weighted(0.3, 0u64..120),
        ) -> Facts {
            let mut facts = Facts { desired, cluster_node, restored, berths: Some(berth.into_iter().collect()), ..facts() };
            facts.host.os = os;
            facts.host.fresh = fresh;
            facts.host.boot_id = BootId::from(if new_boot { "b2" } else { "b1" });
            facts.host.shutting_down = shutting_down;
            facts.host.inhibitors = if inhibited { vec!["backup".into()] } else { vec![] };
            facts.host.reboot = asked.map_or(Reboot::NotAsked, |s| Reboot::Asked(Duration::from_secs(s)));
            facts.drain.done = done;
            facts
        }
    }

    /// Whether it is known that a shutdown now would apply nothing.
    fn is_disarmed(facts: &Facts) -> bool {
        facts.host.os.deployments().is_some_and(|d| d.staged.as_ref().is_none_or(|s| s.locked))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// I2: who unlocks or reboots holds a committed berth for this UID, digest and boot, all of it seen live.
        #[test]
        fn only_a_commit_licenses(facts in any_facts()) {
            let next = step(&facts);
            if matches!(next, Step::Unlock | Step::Reboot) {
                let held = facts.berths.as_ref().and_then(|b| b[0].holding().cloned()).unwrap();
                prop_assert_eq!(&held.phase, &HoldPhase::Committed);
                prop_assert_eq!(&held.boot_id, &facts.host.boot_id);
                prop_assert_eq!(facts.cluster_node.get().map(|n| &n.uid), Some(&held.uid));
                prop_assert_eq!(facts.desired.digest(), Some(&held.target));
                let staged = facts.host.os.staged().unwrap();
                prop_assert_eq!(staged.digest.as_ref(), Some(&held.target));
                prop_assert_eq!(staged.locked, next == Step::Unlock);
                prop_assert!(facts.host.fresh && !facts.host.shutting_down && facts.host.inhibitors.is_empty());
            }
        }

        /// I3: no berth is let go, and no rest is taken without a licence, while something may be armed.
        #[test]
        fn nothing_is_left_armed(facts in any_facts()) {
            let next = step(&facts);
            if matches!(next, Step::Uncommit(_) | Step::GiveBack(_) | Step::Take(_) | Step::Commit(_)) {
                prop_assert!(is_disarmed(&facts), "{next:?}");
            }
            // What others stage on a node that has left its pool is theirs.
            let free = [Why::ShuttingDown, Why::HostUnusable, Why::Released];
            let rests = matches!(next, Step::Wait(why, _) if !free.contains(&why));
            let committed = facts.berths.iter().flatten().any(|b| b.holding().is_some_and(|h| h.phase == HoldPhase::Committed));
            if rests && !committed {
                prop_assert!(is_disarmed(&facts), "{next:?}");
            }
        }

        /// I5: a boot is let go only when it is known and the Node is Ready under it.
        #[test]
        fn only_a_proven_boot_is_given_back(facts in any_facts()) {
            let Some(held) = facts.berths.as_ref().and_then(|b| b.first()).and_then(Berth::holding) else { return Ok(()) };
            let next = step(&facts);
            let lets_go = matches!(next, Step::Release(..) | Step::Restore(_) | Step::GiveBack(_));
            if lets_go && held.boot_id != facts.host.boot_id {
                let booted = facts.host.os.booted();
                prop_assert!(booted == Some(&held.target) || booted == held.from.as_ref());
                let node = facts.cluster_node.get().unwrap();
                prop_assert!(node.ready && node.boot_id.as_ref() == Some(&facts.host.boot_id));
            }
            if lets_go && held.boot_id == facts.host.boot_id {
                prop_assert!(held.phase != HoldPhase::Committed, "a commit under this boot is taken back first");
            }
        }
    }
}
