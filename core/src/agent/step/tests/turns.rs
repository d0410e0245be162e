use super::*;

#[test]
fn only_a_whole_turn_leads_to_a_reboot() {
    let mut facts = facts();
    assert_eq!(step(&facts), Step::Wait(WaitReason::NoBerth, None));
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
    facts.fenced = false;
    assert_eq!(
        step(&facts),
        Step::Fence(committed()),
        "another agent's Uncommit may be on its way"
    );
    facts.fenced = true;
    assert_eq!(step(&facts), Step::Unlock);
    os(&mut facts, 1, Some(deployment(2, false)));
    facts.fenced = false;
    assert_eq!(
        step(&facts),
        Step::Fence(committed()),
        "an unlocked image is fenced first too"
    );
    facts.fenced = true;
    assert_eq!(step(&facts), Step::Reboot);
    facts.host.reboot = Reboot::Asked(Duration::from_secs(3));
    assert!(matches!(step(&facts), Step::Wait(WaitReason::Rebooting, Some(_))));
    let mut facts = rebooted(&committed(), 2);
    assert!(matches!(step(&facts), Step::Release(_, Outcome::Updated, _)));
    let releasing = committed().releasing(Outcome::Updated, BootId::from("b2")).unwrap();
    facts.berths = Some(vec![releasing.clone()]);
    assert_eq!(step(&facts), Step::Restore(releasing.clone()));
    facts.restored = true;
    facts.cluster_node = ClusterNode::Is(node());
    assert_eq!(step(&facts), Step::GiveBack(releasing));
    facts.berths = Some(vec![]);
    assert_eq!(step(&facts), Step::Wait(WaitReason::Updated, None));
}

#[test]
fn what_is_staged_is_locked_or_removed() {
    let mut f = facts();
    os(&mut f, 1, Some(deployment(2, false)));
    assert_eq!(step(&f), lock(), "the desired image, unlocked");
    os(&mut f, 1, Some(deployment(3, false)));
    assert_eq!(step(&f), Step::Unstage(deployment(3, false)), "another image");
    os(&mut f, 2, Some(deployment(3, true)));
    assert_eq!(step(&f), Step::Unstage(deployment(3, true)), "reverted while staged");
    let mut f = with(&taken());
    os(&mut f, 1, Some(deployment(2, false)));
    assert_eq!(step(&f), lock(), "taken is not committed");
    publish(&mut f, |member| member.image = None);
    f.berths = Some(vec![]);
    f.cluster_node = ClusterNode::Is(node());
    assert_eq!(step(&f), lock(), "not resolved any more");
}

#[test]
fn what_cannot_be_locked_is_removed() {
    let idle = facts();
    let mut nobodys = facts();
    nobodys.desired = Desired::Unknown;
    nobodys.past.staged_by_us = Some(digest(2));
    let mut asked = with(&committed());
    asked.host.reboot = Reboot::Asked(REBOOT_START_TIMEOUT);
    for mut f in [idle, nobodys, with(&taken()), asked] {
        os(&mut f, 1, Some(deployment(2, false)));
        deployments_of(&mut f, |deployments| deployments.storage = Storage::Composefs);
        assert_eq!(step(&f), Step::Unstage(deployment(2, false)), "never on composefs");
        f.host.lock_failure = Some(LockFailure::default());
        os(&mut f, 1, Some(deployment(2, false)));
        assert_eq!(step(&f), Step::Unstage(deployment(2, false)), "or not any more");
        os(&mut f, 1, Some(deployment(2, true)));
        assert!(!matches!(step(&f), Step::Unstage(_)), "a locked image stays");
    }
    // Outside of a pool, images that Berth did not stage are not touched.
    let mut theirs = facts();
    theirs.desired = Desired::Unknown;
    theirs.host.lock_failure = Some(LockFailure::default());
    os(&mut theirs, 1, Some(deployment(2, false)));
    assert!(matches!(step(&theirs), Step::Wait(..)));
}

#[test]
fn an_offer_for_another_target_is_left_alone() {
    for offer in [offered(3, "u1"), offered(2, "u0")] {
        let mut f = facts();
        f.berths = Some(vec![offer]);
        assert!(matches!(step(&f), Step::Wait(..)), "{:?}", step(&f));
    }
}

/// Returns copies of these facts where the window has closed or cannot be checked. Each copy comes with a part of the
/// expected message.
fn out_of_window(facts: &AgentFacts) -> [(AgentFacts, &'static str); 3] {
    let mut late = facts.clone();
    late.now = now() + SignedDuration::from_secs(60);
    let [wrong, unknown] =
        [Some(false), None].map(|clock| change(facts.clone(), |f| f.host.clock_synchronized = clock));
    [
        (late, "the maintenance window has closed"),
        (wrong, "not synchronized"),
        (unknown, "not synchronized"),
    ]
}

#[test]
fn a_closed_window_ends_an_uncommitted_turn() {
    let mut offer = facts();
    offer.berths = Some(vec![offered(2, "u1")]);
    for (facts, _) in out_of_window(&offer) {
        assert_eq!(step(&facts), Step::Wait(WaitReason::NoBerth, Some(LOOK_INTERVAL_MAX)));
    }
    let mut ready = with(&taken());
    for drained in [false, true] {
        ready.drain.done = drained;
        for (facts, why) in out_of_window(&ready) {
            let (outcome, message) = release(&facts);
            assert!(outcome == Outcome::Revoked && message.contains(why), "{message}");
        }
    }
}

/// The commit may be hours old if the agent was not running. So the agent uses it only if the node is still cordoned
/// and drained, and the window is open.
#[test]
fn an_old_commit_is_taken_back_unless_drained() {
    let mut clear = with(&committed());
    clear.drain.done = true;
    assert_eq!(step(&clear), Step::Unlock);
    let mut uncordoned = clear.clone();
    uncordoned.cluster_node = ClusterNode::Is(node());
    let mut undrained = clear.clone();
    undrained.drain.done = false;
    let late = out_of_window(&clear).map(|(facts, _)| facts);
    for mut facts in [uncordoned, undrained].into_iter().chain(late) {
        assert_eq!(step(&facts), Step::Uncommit(committed()));
        os(&mut facts, 1, Some(deployment(2, false)));
        assert_eq!(step(&facts), lock(), "and nothing stays armed");
        facts.host.reboot = Reboot::Asked(Duration::from_secs(3));
        assert!(
            matches!(step(&facts), Step::Wait(WaitReason::Rebooting, _)),
            "it may be on its way"
        );
    }
}

#[test]
fn without_a_window_the_clock_is_not_checked() {
    let mut open = taken();
    if let BerthState::Held(holding) = &mut open.state {
        holding.open_until = None;
    }
    let mut ready = with(&open);
    ready.drain.done = true;
    for (facts, _) in out_of_window(&ready) {
        assert_eq!(step(&facts), Step::Commit(open.clone()));
    }
}

fn excluded(mut facts: AgentFacts) -> AgentFacts {
    node_of(&mut facts, |node| node.excluded = true);
    facts
}

#[test]
fn an_excluded_node_takes_nothing_and_gives_back() {
    let mut offer = facts();
    offer.berths = Some(vec![offered(2, "u1")]);
    assert!(matches!(step(&excluded(offer)), Step::Wait(WaitReason::Excluded, _)));
    assert!(matches!(
        step(&excluded(with(&taken()))),
        Step::Release(_, Outcome::Withdrawn, _)
    ));
    let mut armed = excluded(with(&committed()));
    assert_eq!(step(&armed), Step::Uncommit(committed()));
    os(&mut armed, 1, Some(deployment(2, false)));
    assert_eq!(step(&armed), lock());
    armed.host.reboot = Reboot::Asked(Duration::from_secs(3));
    assert!(matches!(step(&armed), Step::Wait(WaitReason::Rebooting, _)));
}

fn drain_by(drain: Drain) -> AgentFacts {
    let mut facts = with(&taken());
    facts.desired = Desired::Member(Box::new(Member { drain, ..member(2) }));
    facts
}

#[test]
fn an_overdue_drain_ends_as_the_pool_says() {
    for (on_timeout, seconds, stops) in [
        (None, 59, false),
        (None, 60, true),
        (Some(OnTimeout::Release), 60, true),
        (Some(OnTimeout::Hold), 60, false),
        (Some(OnTimeout::Hold), 6000, false),
        (Some(OnTimeout::Force), 60, false),
        (Some(OnTimeout::Force), 119, false),
        (Some(OnTimeout::Force), 120, true),
    ] {
        let mut facts = drain_by(Drain {
            timeout: Some("60s".into()),
            on_timeout,
            ..Drain::default()
        });
        facts.drain.elapsed = Duration::from_secs(seconds);
        match step(&facts) {
            Step::Release(_, Outcome::DrainTimeout, _) => assert!(stops, "{on_timeout:?} after {seconds} s"),
            other => assert_eq!((other, stops), (Step::Drain, false), "{on_timeout:?} after {seconds} s"),
        }
    }
}

#[test]
fn a_turn_without_a_drain_still_cordons() {
    let mut facts = drain_by(Drain {
        enabled: Some(false),
        timeout: Some("1s".into()),
        ..Drain::default()
    });
    facts.drain.elapsed = HOUR;
    facts.cluster_node = ClusterNode::Is(node());
    assert_eq!(step(&facts), Step::Cordon(taken()));
    facts.cluster_node = cordoned();
    facts.host.fresh = false;
    assert_eq!(step(&facts), Step::LookAtHost);
    facts.host.fresh = true;
    assert_eq!(step(&facts), Step::Commit(taken()));
    facts.host.inhibitors = vec!["backup".into()];
    assert!(matches!(step(&facts), Step::Release(_, Outcome::RebootBlocked, _)));
}

#[test]
fn before_the_commit_every_reason_gives_back() {
    let revoked = with(&taken().revoked(Some("Paused".into())).unwrap());
    assert_eq!(release(&revoked), (Outcome::Revoked, "Paused".into()));
    let mut f = with(&taken());
    f.desired = Desired::Member(Box::new(member(3)));
    assert_eq!(release(&f).0, Outcome::Withdrawn);
    f.desired = Desired::Unknown;
    assert_eq!(
        release(&f).0,
        Outcome::Withdrawn,
        "an undesired image does not continue"
    );
    let mut f = with(&taken());
    os(&mut f, 1, None);
    assert_eq!(release(&f).0, Outcome::NotStaged);
    let mut f = with(&taken());
    f.drain.elapsed = HOUR;
    f.drain.blockers = vec![DrainBlocker {
        pod: "web/a".into(),
        reason: "budget web".into(),
        since: later(0),
    }];
    let (outcome, message) = release(&f);
    assert_eq!(outcome, Outcome::DrainTimeout);
    assert!(message.contains("web/a: budget web"), "{message}");
    let mut f = with(&taken());
    f.drain.done = true;
    f.host.inhibitors = vec!["backup: running".into()];
    assert_eq!(
        release(&f),
        (
            Outcome::RebootBlocked,
            "the reboot is blocked by backup: running".into()
        )
    );
}

#[test]
fn a_commit_is_taken_back_only_when_locked() {
    let mut f = with(&committed());
    f.desired = Desired::Member(Box::new(member(3)));
    os(&mut f, 1, Some(deployment(2, false)));
    f.host.reboot = Reboot::Asked(Duration::from_secs(59));
    assert!(matches!(step(&f), Step::Wait(WaitReason::Rebooting, _)));
    f.host.reboot = Reboot::Asked(REBOOT_START_TIMEOUT);
    assert_eq!(step(&f), lock());
    os(&mut f, 1, Some(deployment(2, true)));
    assert_eq!(step(&f), Step::Uncommit(committed()));
    f.host.shutting_down = true;
    assert!(matches!(step(&f), Step::Wait(WaitReason::ShuttingDown, _)));
}

#[test]
fn no_reboot_for_another_node_of_this_name() {
    let mut f = with(&committed());
    os(&mut f, 1, Some(deployment(2, false)));
    f.cluster_node = ClusterNode::Gone;
    assert_eq!(step(&f), lock(), "and nothing stays armed");
    os(&mut f, 1, Some(deployment(2, true)));
    assert_eq!(step(&f), Step::Wait(WaitReason::ForeignBerth, None));
    f.cluster_node = ClusterNode::Is(NodeFacts {
        uid: NodeUid::from("u9"),
        ..node()
    });
    assert_eq!(step(&f), Step::Wait(WaitReason::ForeignBerth, None));
    f.cluster_node = ClusterNode::Unread;
    assert_eq!(step(&f), Step::ReadNode);
}

#[test]
fn only_berths_own_stray_cordon_is_undone() {
    let mut f = facts();
    f.cluster_node = cordoned();
    assert_eq!(step(&f), Step::Uncordon);
    f.cluster_node = ClusterNode::Is(NodeFacts {
        unschedulable: true,
        ..node()
    });
    assert_eq!(step(&f), Step::Wait(WaitReason::NoBerth, None));
}

#[test]
fn one_pull_runs_at_a_time() {
    let mut f = facts();
    f.host.os = Os::Unknown;
    f.host.pull = Some(PullFacts {
        digest: digest(2),
        progress: None,
    });
    assert_eq!(step(&f), Step::Wait(WaitReason::Pulling, None));
    f.host.pull = Some(PullFacts {
        digest: digest(3),
        progress: None,
    });
    assert_eq!(step(&f), Step::CancelPull(digest(3)));
    f.desired = Desired::Release;
    assert_eq!(step(&f), Step::CancelPull(digest(3)));
}

#[test]
fn pulls_wait_for_permission_and_backoff() {
    let mut f = facts();
    os(&mut f, 1, None);
    assert_eq!(step(&f), pull(2));
    let mut held = f.clone();
    publish(&mut held, |member| member.staging = Staging::Held);
    assert_eq!(step(&held), Step::Wait(WaitReason::StagingHeld, None));
    let mut failed = f.clone();
    failed
        .past
        .pull_failed("RegistryUnavailable", "no route", &digest(2), now(), 0.0);
    assert_eq!(
        step(&failed),
        Step::Wait(WaitReason::BackingOff, Some(Duration::from_secs(5)))
    );
    // The tool's message does not make a failure final: a registry may have written it.
    failed
        .past
        .pull_failed("NotBootable", "no label", &digest(2), now(), 0.0);
    assert!(matches!(step(&failed), Step::Wait(WaitReason::BackingOff, Some(_))));
    failed.past.failed_digests.push(digest(2));
    assert_eq!(step(&failed), Step::Wait(WaitReason::FailedDigest, None));
}

#[test]
fn a_node_that_runs_the_content_is_left_alone() {
    let mut f = facts();
    os(&mut f, 2, None);
    assert_eq!(step(&f), Step::Wait(WaitReason::Updated, None));
}

#[test]
fn a_leaving_node_keeps_images_of_others() {
    let mut f = facts();
    f.desired = Desired::Release;
    f.past.staged_by_us = Some(digest(2));
    assert_eq!(step(&f), Step::Unstage(deployment(2, true)));
    f.past.staged_by_us = Some(digest(9));
    assert_eq!(step(&f), Step::Wait(WaitReason::Released, None));
    let mut f = with(&taken());
    f.desired = Desired::Release;
    assert!(
        matches!(step(&f), Step::Release(_, Outcome::Withdrawn, _)),
        "first the berth"
    );
}

#[test]
fn a_failed_turn_delays_the_next() {
    let mut f = facts();
    f.berths = Some(vec![offered(2, "u1")]);
    f.past.last_turn = Some(Turn {
        outcome: "DrainTimeout".into(),
        message: String::new(),
        digest: digest(2),
        attempts: 1,
        next_try_time: later(30),
    });
    assert_eq!(
        step(&f),
        Step::Wait(WaitReason::BackingOff, Some(Duration::from_secs(30)))
    );
}

#[test]
fn a_silent_host_keeps_its_licence() {
    for berth in [
        taken(),
        committed(),
        taken().releasing(Outcome::Revoked, BootId::from("b1")).unwrap(),
    ] {
        for (os, expected) in [
            (Os::Unknown, Step::LookAtHost),
            (unusable(), Step::Wait(WaitReason::HostUnusable, None)),
        ] {
            let mut facts = with(&berth);
            facts.host.fresh = os != Os::Unknown;
            facts.host.os = os;
            facts.desired = Desired::Unknown;
            assert_eq!(step(&facts), expected, "{berth:?}");
        }
    }
}

#[test]
fn a_scheduled_shutdown_delays_but_does_not_block() {
    let mut facts = with(&taken());
    facts.drain.done = true;
    facts.host.shutdown_scheduled = true;
    assert!(matches!(step(&facts), Step::Release(_, Outcome::RebootBlocked, _)));
    let mut facts = with(&committed());
    facts.host.shutdown_scheduled = true;
    os(&mut facts, 1, Some(deployment(2, false)));
    assert_eq!(step(&facts), lock());
    os(&mut facts, 1, Some(deployment(2, true)));
    assert!(
        matches!(step(&facts), Step::Wait(WaitReason::Rebooting, _)),
        "a commit is not taken back while one is queued"
    );
}

#[test]
fn a_spec_for_another_node_is_ignored() {
    let mut facts = facts();
    facts.berths = Some(vec![offered(2, "u1")]);
    publish(&mut facts, |member| member.node_uid = NodeUid::from("u0"));
    assert_eq!(step(&facts), Step::Wait(WaitReason::OtherNode, None));
}
