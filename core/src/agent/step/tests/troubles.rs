use super::*;

/// bootc first stages an image and then pulls its logically bound images. So a staged image may be incomplete.
#[test]
fn an_incomplete_image_is_removed_and_pulled_again() {
    let mut f = facts();
    f.past.incomplete = Some(digest(2));
    for locked in [false, true] {
        os(&mut f, 1, Some(deployment(2, locked)));
        assert_eq!(step(&f), Step::Unstage(deployment(2, locked)), "locked: {locked}");
    }
    os(&mut f, 1, None);
    assert_eq!(step(&f), pull(2), "once its backoff is over");
    let mut turn = with(&taken());
    turn.past.incomplete = Some(digest(2));
    turn.drain.done = true;
    assert_eq!(release(&turn).0, Outcome::NotStaged);
    turn.berths = Some(vec![committed()]);
    assert_eq!(step(&turn), Step::Uncommit(committed()));
    let mut stuck = stuck(&committed(), 2);
    stuck.past.incomplete = Some(digest(3));
    assert_eq!(step(&stuck), Step::Unstage(deployment(3, true)));
}

fn queued(mut facts: AgentFacts) -> AgentFacts {
    deployments_of(&mut facts, |deployments| deployments.rollback_queued = true);
    facts
}

/// The next boot takes another deployment: a rollback was queued, or an image was finalized but has not booted.
#[test]
fn a_queued_rollback_blocks_updates() {
    let mut updated = facts();
    os(&mut updated, 2, None);
    let mut updated = queued(updated);
    let waits = Step::Wait(WaitReason::RollbackQueued, Some(HOST_LOOK_INTERVAL));
    assert_eq!(step(&updated), waits);
    updated.host.fresh = false;
    assert_eq!(step(&updated), Step::LookAtHost);
    let mut offer = queued(facts());
    offer.berths = Some(vec![offered(2, "u1")]);
    assert_eq!(
        step(&offer),
        Step::Wait(WaitReason::Inhibited, Some(HOST_LOOK_INTERVAL))
    );
    offer.host.fresh = false;
    assert_eq!(step(&offer), Step::LookAtHost);
    let mut turn = queued(with(&taken()));
    turn.drain.done = true;
    let (outcome, why) = release(&turn);
    assert!(
        outcome == Outcome::RebootBlocked && why.contains("bootc rollback"),
        "{outcome:?}: {why}"
    );
    turn.berths = Some(vec![committed()]);
    assert_eq!(step(&turn), Step::Uncommit(committed()));
    assert_eq!(step(&queued(rebooted(&committed(), 2))), waits, "not proven");
}

fn stranded(mut facts: AgentFacts) -> AgentFacts {
    deployments_of(&mut facts, |deployments| {
        deployments.link_without_unit = Some("/etc/kubelet.service.requires/berth-firstboot.service".to_owned());
    });
    facts
}

/// A link in `/etc` requires a unit that the new image lacks. The update keeps the link but removes the unit.
#[test]
fn a_kubelet_that_would_never_start_keeps_its_image() {
    let mut offer = stranded(facts());
    offer.berths = Some(vec![offered(2, "u1")]);
    assert_eq!(
        step(&offer),
        Step::Wait(WaitReason::Inhibited, Some(HOST_LOOK_INTERVAL))
    );
    offer.host.fresh = false;
    assert_eq!(step(&offer), Step::LookAtHost, "the link may have been removed");
    let mut turn = stranded(with(&taken()));
    turn.drain.done = true;
    let (outcome, why) = release(&turn);
    assert!(
        outcome == Outcome::RebootBlocked && why.contains("rm /etc/kubelet"),
        "{outcome:?}: {why}"
    );
    turn.berths = Some(vec![committed()]);
    assert_eq!(step(&turn), Step::Uncommit(committed()));
}

fn fallen_back(mut facts: AgentFacts) -> AgentFacts {
    deployments_of(&mut facts, |deployments| {
        (deployments.rollback_queued, deployments.rollback) = (true, Some(deployment(2, false)));
    });
    if let Some(holding) = facts.holding().cloned() {
        let (boot_id, os) = (&facts.host.boot_id, &facts.host.os);
        facts
            .past
            .falls_back(&holding, boot_id, os, facts.host.finalization_failed);
    }
    facts
}

/// After a fallback by the boot loader, the image counts as failed on this node at once. The node can then take a berth
/// for a better image, even if the next boot would take the failed image again.
#[test]
fn an_image_fails_after_a_boot_loader_fallback() {
    let (outcome, why) = release(&fallen_back(rebooted(&committed(), 1)));
    assert!(
        outcome == Outcome::Failed && why.contains("was finalized"),
        "{outcome:?}: {why}"
    );
    let mut better = facts();
    os(&mut better, 1, Some(deployment(3, true)));
    let mut better = fallen_back(better);
    better.desired = Desired::Member(Box::new(member(3)));
    better.berths = Some(vec![offered(3, "u1")]);
    assert!(
        matches!(step(&better), Step::Wait(WaitReason::Inhibited, _)),
        "it may be intended"
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

#[test]
fn an_unwritable_memory_ends_a_turn() {
    let mut offer = facts();
    offer.host.memory_error = Some("cannot write /var/lib/berth/state.json: disk full".into());
    let mut turn = with(&taken());
    turn.host.memory_error = offer.host.memory_error.clone();
    offer.berths = Some(vec![offered(2, "u1")]);
    assert_eq!(step(&offer), Step::Wait(WaitReason::Forgetful, Some(LOOK_INTERVAL_MAX)));
    let (outcome, why) = release(&turn);
    assert!(
        outcome == Outcome::RebootBlocked && why.contains("disk full"),
        "{outcome:?}: {why}"
    );
}

fn unread(berth: &Berth, disarmed: bool) -> AgentFacts {
    let mut facts = with(berth);
    (facts.host.os, facts.host.disarmed) = (unusable(), disarmed);
    facts
}

/// A turn that armed no image can end although the agent cannot read the host's deployments, for example after a revoke
/// or a drain timeout.
#[test]
fn an_unarmed_turn_ends_without_a_host_status() {
    let revoked = taken().revoked(Some("Paused".into())).unwrap();
    let waits = Step::Wait(WaitReason::HostUnusable, None);
    let (outcome, why) = release(&unread(&revoked, true));
    assert!(
        outcome == Outcome::Revoked && why.contains("the staged image cannot be read now"),
        "{outcome:?}: {why}"
    );
    assert_eq!(step(&unread(&revoked, false)), waits, "it may be armed");
    assert_eq!(step(&unread(&taken(), true)), waits, "no reason to end the turn");
    let mut late = unread(&taken(), true);
    late.drain.elapsed = HOUR;
    assert!(matches!(step(&late), Step::Release(_, Outcome::DrainTimeout, _)));
    let mut drained = unread(&taken(), true);
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
    assert_eq!(step(&unread(&releasing, true)), Step::Restore(releasing.clone()));
    assert_eq!(step(&unread(&releasing, false)), waits);
    let revoked = committed().revoked(Some("Paused".into())).unwrap();
    assert_eq!(step(&unread(&revoked, true)), waits, "a licence is kept");
}

fn silent(berth: &Berth, disarmed: bool) -> AgentFacts {
    let mut facts = with(berth);
    facts.host.disarmed = disarmed;
    facts.host.unreachable = Some(Unreachable {
        why: "no answer from logind".into(),
        ago: Duration::from_secs(30),
    });
    facts
}

/// A turn that armed no image can also end while the host's bus does not answer, even if the last read of the
/// deployments succeeded.
#[test]
fn an_unarmed_turn_ends_while_the_bus_is_silent() {
    let waits = Step::Wait(WaitReason::HostUnreachable, Some(LOOK_INTERVAL_MAX));
    let revoked = taken().revoked(Some("Paused".into())).unwrap();
    let (outcome, why) = release(&silent(&revoked, true));
    assert_eq!(outcome, Outcome::Revoked);
    assert!(why.contains("the staged image cannot be read now"), "{why}");
    assert!(why.contains("no answer from logind"), "{why}");
    let mut short = silent(&revoked, true);
    short.host.unreachable.as_mut().unwrap().ago = Duration::from_secs(29);
    assert_eq!(
        step(&short),
        Step::Wait(WaitReason::HostUnreachable, Some(LOOK_INTERVAL)),
        "a service may be restarted"
    );
    let mut unread = silent(&revoked, true);
    unread.cluster_node = ClusterNode::Unread;
    assert_eq!(step(&unread), Step::ReadNode);
    assert_eq!(step(&silent(&revoked, false)), waits, "it may be armed");
    assert_eq!(step(&silent(&taken(), true)), waits, "no reason to end the turn");
    let mut late = silent(&taken(), true);
    late.drain.elapsed = HOUR;
    let why = "the host does not answer: no answer from logind";
    assert_eq!(release(&late), (Outcome::RebootBlocked, why.to_owned()));
    let mut excluded = silent(&taken(), true);
    node_of(&mut excluded, |node| node.excluded = true);
    assert!(matches!(step(&excluded), Step::Release(_, Outcome::Withdrawn, _)));
    let releasing = taken().releasing(Outcome::Revoked, BootId::from("b1")).unwrap();
    let mut restoring = silent(&releasing, true);
    assert_eq!(step(&restoring), Step::Restore(releasing.clone()));
    restoring.restored = true;
    node_of(&mut restoring, |node| node.cordon = None);
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

fn unguarded(mut facts: AgentFacts, answer: Guard) -> AgentFacts {
    facts.guard = GuardFacts {
        answer,
        next_try: Duration::from_secs(4),
        silence: None,
    };
    facts
}

/// I6: a node takes no berth while the agents of other nodes could write this berth. A turn that has already begun
/// continues.
#[test]
fn an_unguarded_node_takes_no_offer() {
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
            "staging disrupts no pod"
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
    assert_eq!(step(&offer), Step::TryGuard, "an old answer is checked again");
    let mut held = with(&taken());
    held.guard.next_try = Duration::ZERO;
    assert_ne!(step(&held), Step::TryGuard, "but not in a turn");
}

fn beside(rival: &str, staged: bool) -> AgentFacts {
    let mut facts = facts();
    facts.host.rivals = vec![rival.to_owned()];
    if !staged {
        os(&mut facts, 1, None);
    }
    facts
}

/// `bootc upgrade --apply` would unlock any staged image and reboot. While its timer is active, the agent stages no
/// image.
#[test]
fn nothing_is_staged_beside_an_applying_rival() {
    let applies = "bootc-fetch-apply-updates.timer";
    let waits = Step::Wait(WaitReason::RivalUpdater, Some(HOST_LOOK_INTERVAL));
    assert_eq!(step(&beside(applies, false)), waits);
    assert!(matches!(step(&beside(applies, true)), Step::Unstage(_)));
    for rival in ["zincati.service", "kured (pod kube-system/kured-x)"] {
        assert!(
            matches!(step(&beside(rival, false)), Step::StartPull(..)),
            "{rival} discards a locked image"
        );
    }
    for (staged, tolerates) in [(false, vec![]), (true, vec![]), (false, vec![applies.to_owned()])] {
        let mut tolerated = beside(applies, staged);
        let mut none = tolerated.clone();
        none.host.rivals.clear();
        publish(&mut tolerated, |member| {
            if tolerates.is_empty() {
                member.rivals = RivalUpdaters::Tolerate;
            }
            member.tolerated = tolerates;
        });
        assert_eq!(step(&tolerated), step(&none), "the pool says otherwise");
    }
    // A turn that has begun continues, because it ends soon.
    let mut held = with(&taken());
    held.host.rivals = vec![applies.to_owned()];
    assert_eq!(step(&held), step(&with(&taken())));
    let mut old = beside(applies, false);
    old.host.fresh = false;
    assert_eq!(step(&old), Step::LookAtHost, "it may be gone by now");
    // The controller gives no pull permit to a degraded node. So the node must report the rival with a permit and
    // without one.
    for (permit, next) in [(Staging::Held, waits.clone()), (Staging::Allowed, waits)] {
        let mut facts = beside(applies, false);
        publish(&mut facts, |member| member.staging = permit);
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

/// A rival does not stop a node with an unproven boot: the node is already down, and reboots under its berth (I10).
#[test]
fn a_rival_does_not_stop_a_stuck_holder() {
    let mut bad = stuck(&committed(), 2);
    let relicensing = step(&bad);
    assert!(matches!(relicensing, Step::Relicense(..)), "{relicensing:?}");
    bad.host.rivals = vec!["bootc-fetch-apply-updates.timer".to_owned()];
    assert_eq!(step(&bad), relicensing);
    for berth in [committed(), relicensed()] {
        bad.berths = Some(vec![berth]);
        os(&mut bad, 2, None);
        assert_eq!(step(&bad), pull(3));
    }
}

#[test]
fn an_unusable_host_is_read_again_first() {
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

/// I8: a host that forgets failed targets would reboot forever. Only steps toward a reboot need the memory file.
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

/// If a turn ends because the host does not answer, the turn's message gives this cause only once.
#[test]
fn the_silence_of_a_host_is_reported_once() {
    let mut facts = with(&taken());
    facts.host.disarmed = true;
    facts.host.unreachable = Some(Unreachable {
        why: "no answer from logind".into(),
        ago: Duration::from_secs(30),
    });
    for (memory_error, shown) in [("disk full", 1), ("no answer from logind", 1)] {
        facts.host.memory_error = Some(memory_error.to_owned());
        let (outcome, why) = release(&facts);
        assert_eq!(outcome, Outcome::RebootBlocked);
        assert!(why.starts_with(memory_error), "{why}");
        assert_eq!(why.matches("no answer from logind").count(), shown, "{why}");
    }
}
