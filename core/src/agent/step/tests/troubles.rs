//! Hosts with troubles of their own.

use super::*;

/// bootc stages first, and pulls the images that are bound to it afterwards.
#[test]
fn what_a_failed_pull_has_staged_is_removed_and_pulled_again() {
    let failed = |mut facts: Facts| {
        facts.past.incomplete = Some(digest(2));
        facts
    };
    let mut f = failed(facts());
    for locked in [false, true] {
        os(&mut f, 1, Some(deployment(2, locked)));
        assert_eq!(step(&f), Step::Unstage(deployment(2, locked)), "locked: {locked}");
    }
    os(&mut f, 1, None);
    assert_eq!(step(&f), pull(2), "once its backoff is over");
    let mut turn = failed(with(&taken()));
    turn.drain.done = true;
    assert!(
        matches!(step(&turn), Step::Release(_, Outcome::NotStaged, _)),
        "{:?}",
        step(&turn)
    );
    let mut going = failed(with(&committed()));
    going.drain.done = true;
    assert_eq!(step(&going), Step::Uncommit(committed()));
    let mut stuck = stuck(&committed(), 2);
    stuck.past.incomplete = Some(digest(3));
    assert_eq!(step(&stuck), Step::Unstage(deployment(3, true)));
}

/// Somebody queued a rollback, or an image was finalized and not booted.
#[test]
fn a_host_whose_next_boot_takes_something_else_is_neither_rebooted_nor_updated() {
    let queued = |mut facts: Facts| {
        if let Os::Bootc(deployments) = &mut facts.host.os {
            deployments.rollback_queued = true;
        }
        facts
    };
    let mut updated = facts();
    os(&mut updated, 2, None);
    let mut updated = queued(updated);
    let waits = Step::Wait(WaitReason::RollbackQueued, Some(LOOK_HOST_AGAIN));
    assert_eq!(step(&updated), waits);
    updated.host.fresh = false;
    assert_eq!(step(&updated), Step::LookAtHost);
    let mut offer = queued(facts());
    offer.berths = Some(vec![offered(2, "u1")]);
    assert_eq!(step(&offer), Step::Wait(WaitReason::Inhibited, Some(LOOK_HOST_AGAIN)));
    offer.host.fresh = false;
    assert_eq!(step(&offer), Step::LookAtHost);
    let mut turn = queued(with(&taken()));
    turn.drain.done = true;
    match step(&turn) {
        Step::Release(_, Outcome::RebootBlocked, why) => assert!(why.contains("bootc rollback"), "{why}"),
        other => panic!("{other:?}"),
    }
    turn.berths = Some(vec![committed()]);
    assert_eq!(step(&turn), Step::Uncommit(committed()));
    assert_eq!(step(&queued(rebooted(&committed(), 2))), waits, "not proven");
}

/// The link survives the update in `/etc`, and the unit that it requires does not.
#[test]
fn a_kubelet_that_would_never_start_keeps_its_image() {
    let stranded = |mut facts: Facts| {
        if let Os::Bootc(deployments) = &mut facts.host.os {
            deployments.link_without_unit = Some("/etc/kubelet.service.requires/berth-firstboot.service".to_owned());
        }
        facts
    };
    let mut offer = stranded(facts());
    offer.berths = Some(vec![offered(2, "u1")]);
    assert_eq!(step(&offer), Step::Wait(WaitReason::Inhibited, Some(LOOK_HOST_AGAIN)));
    offer.host.fresh = false;
    assert_eq!(step(&offer), Step::LookAtHost, "somebody may have removed the link");
    let mut turn = stranded(with(&taken()));
    turn.drain.done = true;
    match step(&turn) {
        Step::Release(_, Outcome::RebootBlocked, why) => assert!(why.contains("rm /etc/kubelet"), "{why}"),
        other => panic!("{other:?}"),
    }
    turn.berths = Some(vec![committed()]);
    assert_eq!(step(&turn), Step::Uncommit(committed()));
}

/// The image failed at once, lest the rollout goes on to the next node; and it stands in the way of no better one.
#[test]
fn an_image_that_the_boot_loader_fell_back_from_has_failed() {
    let fallen_back = |mut facts: Facts| {
        if let Os::Bootc(deployments) = &mut facts.host.os {
            (deployments.rollback_queued, deployments.rollback) = (true, Some(deployment(2, false)));
        }
        facts
    };
    match step(&fallen_back(rebooted(&committed(), 1))) {
        Step::Release(_, Outcome::Failed, why) => assert!(why.contains("was finalized"), "{why}"),
        other => panic!("{other:?}"),
    }
    let mut better = facts();
    os(&mut better, 1, Some(deployment(3, true)));
    let mut better = fallen_back(better);
    better.desired = Desired::Member(Box::new(member(3)));
    better.berths = Some(vec![offered(3, "u1")]);
    assert!(
        matches!(step(&better), Step::Wait(WaitReason::Inhibited, _)),
        "somebody may want it"
    );
    better.past.failed_digests = vec![digest(2)];
    assert!(matches!(step(&better), Step::Take(_)), "{:?}", step(&better));
    better.host.inhibitors = vec!["backup: running".into()];
    assert!(
        inhibited(&better).ends_with("backup: running"),
        "{}",
        inhibited(&better)
    );
}

/// A host that forgets what it tried would reboot for ever.
#[test]
fn without_a_memory_nothing_is_taken_and_a_turn_ends() {
    let forgetful = |mut facts: Facts| {
        facts.host.forgetful = Some("cannot write /var/lib/berth/state.json: disk full".into());
        facts
    };
    let mut offer = forgetful(facts());
    offer.berths = Some(vec![offered(2, "u1")]);
    assert_eq!(step(&offer), Step::Wait(WaitReason::Forgetful, Some(LOOK_SELDOM)));
    match step(&forgetful(with(&taken()))) {
        Step::Release(_, Outcome::RebootBlocked, why) => assert!(why.contains("disk full"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// Nobody waits with a drained node for a host that does not answer.
#[test]
fn a_turn_that_has_armed_nothing_ends_also_while_the_host_says_nothing() {
    let unusable = || Os::Unusable {
        reason: Reason::StatusFailed,
        message: "no answer".into(),
    };
    let silent = |berth: &Berth, disarmed| {
        let mut facts = with(berth);
        (facts.host.os, facts.host.disarmed) = (unusable(), disarmed);
        facts
    };
    let revoked = taken().revoked(Some("Paused".into())).unwrap();
    let waits = Step::Wait(WaitReason::HostUnusable, None);
    match step(&silent(&revoked, true)) {
        Step::Release(_, Outcome::Revoked, why) => assert!(why.contains("does not say what is staged"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(step(&silent(&revoked, false)), waits, "it may be armed");
    assert_eq!(step(&silent(&taken(), true)), waits, "nobody wants the turn to end");
    let mut late = silent(&taken(), true);
    late.drain.elapsed = HOUR;
    assert!(matches!(step(&late), Step::Release(_, Outcome::DrainTimeout, _)));
    let mut drained = silent(&taken(), true);
    for (elapsed, ends) in [(Duration::ZERO, true), (Duration::from_secs(60), false), (HOUR, true)] {
        (drained.drain.done, drained.drain.elapsed) = (true, elapsed);
        let next = step(&drained);
        assert_eq!(
            matches!(next, Step::Release(_, Outcome::RebootBlocked, _)),
            ends,
            "{next:?}"
        );
    }
    let releasing = taken().releasing(Outcome::Revoked, BootId::from("b1")).unwrap();
    assert_eq!(step(&silent(&releasing, true)), Step::Restore(releasing.clone()));
    assert_eq!(step(&silent(&releasing, false)), waits);
    let revoked = committed().revoked(Some("Paused".into())).unwrap();
    assert_eq!(step(&silent(&revoked, true)), waits, "a licence is kept");
}

/// The same while logind, systemd or the bus are silent, of which the deployments that were read before say nothing.
#[test]
fn a_turn_that_has_armed_nothing_ends_also_while_the_bus_is_silent() {
    let silent = |berth: &Berth, disarmed| {
        let mut facts = with(berth);
        facts.host.disarmed = disarmed;
        facts.host.unreachable = Some(Unreachable {
            why: "no answer from logind".into(),
            ago: Duration::from_secs(30),
        });
        facts
    };
    let waits = Step::Wait(WaitReason::HostUnreachable, Some(LOOK_SELDOM));
    let revoked = taken().revoked(Some("Paused".into())).unwrap();
    match step(&silent(&revoked, true)) {
        Step::Release(_, Outcome::Revoked, why) => {
            assert!(why.contains("does not say what is staged"), "{why}");
            assert!(why.contains("no answer from logind"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    let mut short = silent(&revoked, true);
    short.host.unreachable.as_mut().unwrap().ago = Duration::from_secs(29);
    assert_eq!(
        step(&short),
        Step::Wait(WaitReason::HostUnreachable, Some(LOOK_AGAIN)),
        "a service may be restarted"
    );
    let mut unread = silent(&revoked, true);
    unread.cluster_node = ClusterNode::Unread;
    assert_eq!(step(&unread), Step::ReadNode);
    assert_eq!(step(&silent(&revoked, false)), waits, "it may be armed");
    assert_eq!(step(&silent(&taken(), true)), waits, "nobody wants the turn to end");
    let mut late = silent(&taken(), true);
    late.drain.elapsed = HOUR;
    match step(&late) {
        Step::Release(_, Outcome::RebootBlocked, why) => {
            assert_eq!(why, "the host does not answer: no answer from logind");
        }
        other => panic!("{other:?}"),
    }
    let mut excluded = silent(&taken(), true);
    if let ClusterNode::Is(node) = &mut excluded.cluster_node {
        node.excluded = true;
    }
    assert!(matches!(step(&excluded), Step::Release(_, Outcome::Withdrawn, _)));
    let releasing = taken().releasing(Outcome::Revoked, BootId::from("b1")).unwrap();
    let mut restoring = silent(&releasing, true);
    assert_eq!(step(&restoring), Step::Restore(releasing.clone()));
    restoring.restored = true;
    if let ClusterNode::Is(node) = &mut restoring.cluster_node {
        node.cordon = None;
    }
    assert_eq!(step(&restoring), Step::GiveBack(releasing.clone()));
    assert_eq!(step(&silent(&releasing, false)), waits);
    let updated = committed().releasing(Outcome::Updated, BootId::from("b1")).unwrap();
    let mut proven = silent(&updated, true);
    os(&mut proven, 2, None);
    assert_eq!(step(&proven), Step::Restore(updated), "its end is decided");
    proven.host.boot_id = "b2".into();
    assert_eq!(step(&proven), waits, "another boot");
    let revoked = committed().revoked(Some("Paused".into())).unwrap();
    assert_eq!(step(&silent(&revoked, true)), waits, "a licence is kept");
    let mut rebooted = silent(&taken(), true);
    rebooted.host.boot_id = "b2".into();
    assert_eq!(step(&rebooted), waits, "a boot is proven before it is given back");
}

/// I6: as long as others may write its berth, a node does not take one. A turn that was taken is brought to its end.
#[test]
fn unguarded_no_offer_is_taken_and_a_turn_goes_on() {
    let unguarded = |mut facts: Facts, answer: Guard| {
        facts.guard = GuardFacts {
            answer,
            next_try: Duration::from_secs(4),
            silence: None,
        };
        facts
    };
    let mut offer = facts();
    offer.berths = Some(vec![offered(2, "u1")]);
    assert!(matches!(step(&offer), Step::Take(_)));
    for answer in [Guard::Allows("it may".into()), Guard::Unknown] {
        let wait = Step::Wait(WaitReason::Unguarded, Some(Duration::from_secs(4)));
        assert_eq!(step(&unguarded(offer.clone(), answer.clone())), wait);
        let mut to_stage = unguarded(facts(), answer.clone());
        os(&mut to_stage, 1, None);
        assert!(
            matches!(step(&to_stage), Step::StartPull(..)),
            "staging disrupts nobody"
        );
        for berth in [taken(), committed()] {
            let held = with(&berth);
            assert_eq!(step(&unguarded(held.clone(), answer.clone())), step(&held), "{berth:?}");
        }
    }
    let mut early = unguarded(offer.clone(), Guard::NothingToTry);
    assert_eq!(step(&early), Step::TryGuard, "there is a berth to try it on");
    early.berths = Some(vec![]);
    assert_eq!(
        step(&early),
        Step::Wait(WaitReason::NoBerth, None),
        "it may have an offer"
    );
    offer.guard.next_try = Duration::ZERO;
    assert_eq!(step(&offer), Step::TryGuard, "an old answer is asked for anew");
    let mut held = with(&taken());
    held.guard.next_try = Duration::ZERO;
    assert_ne!(step(&held), Step::TryGuard, "but not in a turn");
}

/// `bootc upgrade --apply` takes the lock off whatever is staged, and reboots.
#[test]
fn nothing_is_staged_beside_a_rival_that_would_apply_it() {
    let beside = |rival: &str, staged: bool| {
        let mut facts = facts();
        facts.host.rivals = vec![rival.to_owned()];
        if !staged {
            os(&mut facts, 1, None);
        }
        facts
    };
    let applies = "bootc-fetch-apply-updates.timer";
    let waits = Step::Wait(WaitReason::RivalUpdater, Some(LOOK_HOST_AGAIN));
    assert_eq!(step(&beside(applies, false)), waits);
    assert!(matches!(step(&beside(applies, true)), Step::Unstage(_)));
    for rival in ["zincati.service", "kured (pod kube-system/kured-x)"] {
        assert!(
            matches!(step(&beside(rival, false)), Step::StartPull(..)),
            "{rival} discards what is locked"
        );
    }
    for (staged, tolerates) in [(false, vec![]), (true, vec![]), (false, vec![applies.to_owned()])] {
        let mut tolerated = beside(applies, staged);
        let mut none = tolerated.clone();
        none.host.rivals.clear();
        let Desired::Member(member) = &mut tolerated.desired else {
            unreachable!()
        };
        if tolerates.is_empty() {
            member.rivals = RivalUpdaters::Tolerate;
        }
        member.tolerated = tolerates;
        assert_eq!(step(&tolerated), step(&none), "the pool says otherwise");
    }
    // A turn is nearly over: what would be gained by ending it?
    let mut held = with(&taken());
    held.host.rivals = vec![applies.to_owned()];
    assert_eq!(step(&held), step(&with(&taken())));
    let mut old = beside(applies, false);
    old.host.fresh = false;
    assert_eq!(step(&old), Step::LookAtHost, "it may be gone by now");
    // Degraded, the node gets no permit to pull: it must say the same without one.
    for (permit, next) in [(Staging::Held, waits.clone()), (Staging::Allowed, waits)] {
        let mut facts = beside(applies, false);
        permitted(&mut facts, permit);
        assert_eq!(step(&facts), next, "{permit:?}");
        facts.host.fresh = false;
        assert_eq!(step(&facts), Step::LookAtHost, "{permit:?}");
    }
    let mut failed = beside(applies, false);
    failed.past.failed_digests = vec![digest(2)];
    assert_eq!(
        step(&failed),
        Step::Wait(WaitReason::FailedDigest, None),
        "it is not staged anyway"
    );
}

fn permitted(facts: &mut Facts, permit: Staging) {
    if let Desired::Member(member) = &mut facts.desired {
        member.staging = permit;
    }
}

/// Its node is down already, and whatever boots next is under its berth (I10).
#[test]
fn a_holder_on_a_bad_image_goes_on_beside_a_rival() {
    let beside = |mut facts: Facts| {
        facts.host.rivals = vec!["bootc-fetch-apply-updates.timer".to_owned()];
        facts
    };
    let mut bad = stuck(&committed(), 2);
    assert!(matches!(step(&bad), Step::Relicense(..)), "{:?}", step(&bad));
    assert_eq!(step(&beside(bad.clone())), step(&bad));
    os(&mut bad, 2, None);
    assert_eq!(step(&beside(bad.clone())), pull(3));
    let mut licensed = stuck(&relicensed(), 2);
    os(&mut licensed, 2, None);
    assert_eq!(step(&beside(licensed)), pull(3));
}

#[test]
fn a_host_that_cannot_be_used_is_looked_at_first() {
    for mut facts in [facts(), with(&taken())] {
        facts.host.os = Os::Unusable {
            reason: Reason::StatusFailed,
            message: "no answer".into(),
        };
        assert_eq!(step(&facts), Step::Wait(WaitReason::HostUnusable, None));
        facts.host.fresh = false;
        assert_eq!(step(&facts), Step::LookAtHost, "it may have come back");
    }
}

/// I8: who forgets what was tried reboots for ever. Whatever else a host does without a memory leads to no reboot.
#[test]
fn only_steps_towards_a_reboot_need_the_memory() {
    let berth = taken();
    for (step, needs) in [
        (Step::Take(berth.clone()), true),
        (Step::Commit(berth.clone()), true),
        (Step::Relicense(berth.clone(), digest(3)), true),
        (Step::LookAtHost, false),
        (lock(), false),
        (Step::Unstage(deployment(2, true)), false),
        (Step::Drain, false),
        (Step::Uncommit(berth.clone()), false),
        (Step::Release(berth.clone(), Outcome::Revoked, String::new()), false),
        (Step::GiveBack(berth), false),
    ] {
        assert_eq!(step.needs_memory(), needs, "{step:?}");
    }
}

/// The silence of the host may be the reason itself.
#[test]
fn the_silence_of_a_host_is_told_once() {
    let mut facts = with(&taken());
    facts.host.disarmed = true;
    facts.host.unreachable = Some(Unreachable {
        why: "no answer from logind".into(),
        ago: Duration::from_secs(30),
    });
    for (forgetful, told) in [("disk full", 1), ("no answer from logind", 1)] {
        facts.host.forgetful = Some(forgetful.to_owned());
        match step(&facts) {
            Step::Release(_, Outcome::RebootBlocked, why) => {
                assert!(why.starts_with(forgetful), "{why}");
                assert_eq!(why.matches("no answer from logind").count(), told, "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
}
