use super::reports::shown;
use super::*;
use crate::agent::past::MAX_NOT_APPLIED;

#[test]
fn a_boot_is_proven_before_the_give_back() {
    let mut stale = rebooted(&committed(), 2);
    node_of(&mut stale, |node| node.boot_id = Some(BootId::from("b1")));
    // A Ready report from before the reboot proves nothing. The longer the boot takes, the less often the agent reads
    // the Node.
    for (seconds, millis) in [(0, 100), (4, 500), (60, 1000)] {
        stale.proving_for = Duration::from_secs(seconds);
        let again = Some(Duration::from_millis(millis));
        assert_eq!(step(&stale), Step::Wait(WaitReason::NotReady, again));
    }
    let third = rebooted(&committed(), 7);
    assert!(matches!(step(&third), Step::Wait(WaitReason::Unproven, _)));
    let old = rebooted(&committed(), 1);
    assert!(matches!(step(&old), Step::Release(_, Outcome::NotApplied, _)));
    let mut unseen = rebooted(&committed(), 2);
    unseen.host.os = unusable();
    assert_eq!(step(&unseen), Step::Wait(WaitReason::HostUnusable, None));
    let unplanned = rebooted(&taken(), 1);
    assert!(matches!(step(&unplanned), Step::Release(_, Outcome::NotStaged, _)));
    let mut unread = rebooted(&committed(), 2);
    unread.host.fresh = false;
    assert_eq!(step(&unread), Step::LookAtHost);
}

#[test]
fn a_release_is_proven_after_a_reboot() {
    let releasing = taken().releasing(Outcome::DrainTimeout, BootId::from("b1")).unwrap();
    let mut facts = rebooted(&releasing, 7);
    assert!(
        matches!(step(&facts), Step::Wait(WaitReason::Unproven, _)),
        "a third image is not given back"
    );
    os(&mut facts, 1, None);
    assert_eq!(step(&facts), Step::Restore(releasing));
}

#[test]
fn a_bad_image_is_replaced_under_its_berth() {
    let mut f = stuck(&committed(), 2);
    os(&mut f, 2, None);
    assert_eq!(step(&f), pull(3));
    f.host.os = Os::Unknown;
    f.host.fresh = false;
    f.host.pull = Some(PullFacts {
        digest: digest(3),
        progress: None,
    });
    assert_eq!(step(&f), Step::Wait(WaitReason::Pulling, None));
    f.host.pull = None;
    assert_eq!(step(&f), Step::LookAtHost);
    f.host.fresh = true;
    os(&mut f, 2, Some(deployment(3, false)));
    assert_eq!(step(&f), lock(), "as early as possible");
    os(&mut f, 2, Some(deployment(3, true)));
    f.drain.done = false;
    f.cluster_node = ClusterNode::Is(NodeFacts {
        ready: false,
        boot_id: Some("b2".into()),
        ..node()
    });
    assert_eq!(step(&f), Step::Cordon(committed()), "an admin has uncordoned it");
    f = AgentFacts {
        cluster_node: stuck(&committed(), 2).cluster_node,
        ..f
    };
    f.drain.elapsed = HOUR * 2;
    assert_eq!(step(&f), Step::Drain, "for as long as it takes");
    f.drain.done = true;
    assert_eq!(step(&f), Step::Relicense(committed(), digest(3)));
    f.berths = Some(vec![relicensed()]);
    assert_eq!(step(&f), Step::Unlock);
    f.drain.done = false;
    assert_eq!(step(&f), Step::Drain, "a licence may be old");
    f.drain.done = true;
    os(&mut f, 2, Some(deployment(3, false)));
    assert_eq!(step(&f), Step::Reboot);
    f.host.reboot = Reboot::Asked(Duration::from_secs(3));
    assert!(matches!(step(&f), Step::Wait(WaitReason::Rebooting, _)));
    f.host.reboot = Reboot::NotAsked;
    f.host.boot_id = BootId::from("b3");
    os(&mut f, 3, None);
    assert!(matches!(step(&f), Step::Wait(WaitReason::NotReady, _)));
    node_of(&mut f, |node| (node.ready, node.boot_id) = (true, Some("b3".into())));
    assert!(matches!(step(&f), Step::Release(_, Outcome::Updated, _)));
}

/// Before a berth is committed again, the agent repeats every check of a commit, including the check of the gates.
#[test]
fn a_stuck_holder_needs_every_check_of_a_commit() {
    let cases: [(&str, Change, Step); 9] = [
        (
            "revoked",
            |f| revoke(f),
            Step::Wait(WaitReason::Revoked, Some(LOOK_INTERVAL_MAX)),
        ),
        (
            "window",
            |f| f.now = now() + HOUR,
            Step::Wait(WaitReason::WindowClosed, Some(LOOK_INTERVAL_MAX)),
        ),
        (
            "clock",
            |f| f.host.clock_synchronized = None,
            Step::Wait(WaitReason::WindowClosed, Some(LOOK_INTERVAL_MAX)),
        ),
        (
            "inhibited",
            |f| f.host.inhibitors = vec!["x".into()],
            Step::Wait(WaitReason::Inhibited, Some(LOOK_INTERVAL_MAX)),
        ),
        ("looked", |f| f.host.fresh = false, Step::LookAtHost),
        ("failed here", |f| f.past.failed_digests = vec![digest(3)], not_ready()),
        ("other Node", |f| publish(f, |m| m.node_uid = "u0".into()), not_ready()),
        ("unresolved", |f| publish(f, |m| m.image = None), not_ready()),
        ("no pool", |f| f.desired = Desired::Release, not_ready()),
    ];
    for (name, spoil, expected) in cases {
        let mut facts = stuck(&committed(), 2);
        spoil(&mut facts);
        assert_eq!(step(&facts), expected, "{name}");
    }
    let mut facts = stuck(&committed(), 2);
    publish(&mut facts, |m| {
        m.drain = Drain {
            enabled: Some(false),
            ..Drain::default()
        }
    });
    facts.drain.done = false;
    assert_eq!(
        step(&facts),
        Step::Relicense(committed(), digest(3)),
        "where nothing is drained"
    );
}

fn not_ready() -> Step {
    Step::Wait(WaitReason::NotReady, Some(READY_LOOK_INTERVAL))
}

fn revoke(facts: &mut AgentFacts) {
    let berths = facts
        .berths
        .iter()
        .flatten()
        .map(|b| b.revoked(Some("Paused".into())).unwrap())
        .collect();
    facts.berths = Some(berths);
}

#[test]
fn a_proven_boot_gives_back_instead_of_continuing() {
    for (booted, expected) in [(2, Outcome::Updated), (1, Outcome::NotApplied)] {
        let proven = change(stuck(&committed(), booted), |f| ready(f, true));
        assert_eq!(release(&proven).0, expected);
    }
    let third = change(stuck(&committed(), 7), |f| ready(f, true));
    assert!(
        matches!(step(&third), Step::Relicense(_, target) if target == digest(3)),
        "a third image has no other way"
    );
    // The previous image runs again, unproven. The holder continues to image 3 in this case too, even if the host had
    // rebooted before the commit.
    for berth in [committed(), taken()] {
        assert_eq!(step(&stuck(&berth, 1)), Step::Relicense(berth, digest(3)));
    }
    let mut origin_unknown = committed();
    if let BerthState::Held(holding) = &mut origin_unknown.state {
        holding.from = None;
    }
    assert_eq!(
        step(&stuck(&origin_unknown, 2)),
        not_ready(),
        "later the boot would look proven"
    );
}

#[test]
fn a_useless_pull_does_not_delay_the_proof() {
    for (wanted, pulled) in [(2, 3), (3, 4)] {
        let mut facts = stuck(&committed(), 2);
        facts.desired = Desired::Member(Box::new(member(wanted)));
        facts.host.os = Os::Unknown;
        facts.host.pull = Some(PullFacts {
            digest: digest(pulled),
            progress: None,
        });
        assert_eq!(step(&facts), Step::CancelPull(digest(pulled)));
    }
}

#[test]
fn a_target_desired_again_is_proven_without_a_reboot() {
    // The berth licenses a reboot into image 3. Now the pool wants image 2 again, which still runs.
    let mut f = stuck(&relicensed(), 2);
    f.desired = Desired::Member(Box::new(member(2)));
    assert_eq!(step(&f), Step::Relicense(relicensed(), digest(2)));
    os(&mut f, 2, Some(deployment(3, false)));
    assert_eq!(step(&f), lock());
    let back = relicensed().relicensed(digest(2), BootId::from("b2")).unwrap();
    let mut f = stuck(&back, 2);
    f.desired = Desired::Member(Box::new(member(2)));
    assert_eq!(step(&f), not_ready());
    ready(&mut f, true);
    assert!(matches!(step(&f), Step::Release(_, Outcome::Updated, _)));
    // The pool wants the previous image again, so the node must reboot into it.
    let mut f = stuck(&committed(), 2);
    f.desired = Desired::Member(Box::new(member(1)));
    assert_eq!(step(&f), Step::Unstage(deployment(3, true)));
    os(&mut f, 2, Some(deployment(1, true)));
    assert_eq!(step(&f), Step::Relicense(committed(), digest(1)));
    // The previous image already runs again, so only its proof is missing.
    let mut f = stuck(&committed(), 1);
    f.desired = Desired::Member(Box::new(member(1)));
    os(&mut f, 1, None);
    assert_eq!(step(&f), not_ready());
}

#[test]
fn there_is_no_way_back_from_a_new_licence() {
    let mut f = stuck(&relicensed(), 2);
    os(&mut f, 2, Some(deployment(3, false)));
    for (name, block) in blocks() {
        let mut f = f.clone();
        block(&mut f);
        assert_eq!(step(&f), lock(), "{name}");
        os(&mut f, 2, Some(deployment(3, true)));
        assert_eq!(
            step(&f),
            Step::Wait(WaitReason::Inhibited, Some(LOOK_INTERVAL_MAX)),
            "{name}"
        );
        ready(&mut f, true);
        assert_eq!(
            step(&f),
            Step::Wait(WaitReason::Inhibited, Some(LOOK_INTERVAL_MAX)),
            "{name}: not licensed for 2"
        );
    }
    for again in [
        Reboot::Asked(REBOOT_START_TIMEOUT + REBOOT_RETRY_INTERVAL),
        Reboot::Blocked {
            why: "refused".into(),
            ago: REBOOT_RETRY_INTERVAL,
        },
    ] {
        f.host.reboot = again;
        assert_eq!(step(&f), Step::Reboot);
    }
    // The node has no desired image any more, so the agent locks the staged image and keeps it.
    f.desired = Desired::Unknown;
    f.host.reboot = Reboot::NotAsked;
    assert_eq!(step(&f), lock());
    os(&mut f, 2, Some(deployment(3, true)));
    assert_eq!(step(&f), Step::Wait(WaitReason::Unproven, None));
    f.desired = Desired::Member(Box::new(member(4)));
    assert_eq!(step(&f), Step::Unstage(deployment(3, true)));
    os(&mut f, 2, Some(deployment(4, true)));
    assert_eq!(step(&f), Step::Relicense(relicensed(), digest(4)));
    let mut f = stuck(&relicensed(), 2);
    os(&mut f, 2, None);
    assert_eq!(step(&f), pull(3));
}

fn blocks() -> [(&'static str, Change); 3] {
    [
        ("inhibited", |f| f.host.inhibitors = vec!["backup".into()]),
        ("refused", |f| {
            f.host.reboot = Reboot::Blocked {
                why: "no".into(),
                ago: Duration::from_secs(1),
            }
        }),
        ("nothing came of it", |f| {
            f.host.reboot = Reboot::Asked(REBOOT_START_TIMEOUT)
        }),
    ]
}

/// The berth names the current boot, and the host runs the last proven image. Only the host's record shows that the
/// boot is unproven.
#[test]
fn the_host_remembers_an_unproven_boot() {
    let mut f = stuck(&relicensed(), 1);
    f.past.unproven_boot = Some(BootId::from("b2"));
    f.host.inhibitors = vec!["backup".into()];
    assert_eq!(step(&f), Step::Wait(WaitReason::Inhibited, Some(LOOK_INTERVAL_MAX)));
    ready(&mut f, true);
    assert!(
        matches!(step(&f), Step::Release(_, Outcome::RebootBlocked, _)),
        "proven: {:?}",
        step(&f)
    );
    f.desired = Desired::Release;
    f.host.inhibitors = vec![];
    assert!(matches!(step(&f), Step::Release(_, Outcome::Withdrawn, _)));
    f.host.shutdown_scheduled = true;
    assert!(
        matches!(step(&f), Step::Wait(WaitReason::Rebooting, _)),
        "whatever it ends is under this licence"
    );
}

#[test]
fn a_licence_without_a_boot_is_repeated_and_limited() {
    let early = HOUR - Duration::from_secs(1);
    for (what, times, tried, proving_for, booted, repeats) in [
        ("not applied", 0, None, HOUR, 1, true),
        ("a third image runs", 1, None, HOUR, 7, true),
        ("giving back comes first", 0, None, early, 1, false),
        ("not for ever", MAX_NOT_APPLIED - 1, None, HOUR, 1, false),
        ("it ran, and went away", 0, Some(digest(2)), HOUR, 1, false),
        ("it runs", 0, None, HOUR, 2, false),
    ] {
        let mut facts = stuck(&committed(), booted);
        facts.desired = Desired::Member(Box::new(member(2)));
        os(&mut facts, booted, Some(deployment(2, true)));
        facts.proving_for = proving_for;
        facts.past.tried = tried;
        facts.past.not_applied = Some((digest(2), times));
        let relicensed = matches!(step(&facts), Step::Relicense(_, target) if target == digest(2));
        assert_eq!(relicensed, repeats, "{what}");
    }
}

/// On a composefs host, no unit of the next boot reports that the image was not finalized. So the message names the log
/// of the shutdown, and the release of bootc that an automounted `/boot` needs.
#[test]
fn a_turn_that_applied_nothing_says_where_to_look() {
    for (storage, failed, words) in [
        (Storage::Ostree, false, "the host rebooted into the previous image"),
        (Storage::Ostree, true, "ostree-finalize-staged.service failed"),
        (Storage::Composefs, false, "journalctl -b -1 -u bootc-finalize-staged"),
        (Storage::Composefs, false, "bootc 1.17.0 or newer"),
    ] {
        let mut facts = rebooted(&committed(), 1);
        deployments_of(&mut facts, |known| known.storage = storage);
        facts.host.finalization_failed = failed;
        let (outcome, message) = release(&facts);
        assert_eq!(outcome, Outcome::NotApplied);
        assert!(message.contains(words), "{storage:?} {failed}: {message}");
        assert_eq!(message.contains("1.17.0"), storage == Storage::Composefs, "{message}");
    }
}

#[test]
fn an_unproven_or_never_applied_digest_fails() {
    for (n, times, expected) in [
        (2, 0, Outcome::NotApplied),
        (2, MAX_NOT_APPLIED - 2, Outcome::NotApplied),
        (2, MAX_NOT_APPLIED - 1, Outcome::Failed),
        (9, 9, Outcome::NotApplied),
    ] {
        let mut facts = rebooted(&committed(), 1);
        facts.past.not_applied = Some((digest(n), times));
        assert_eq!(release(&facts).0, expected, "{n} {times}");
    }
    let tried = change(rebooted(&committed(), 1), |f| f.past.tried = Some(digest(2)));
    let (outcome, message) = release(&tried);
    assert_eq!(outcome, Outcome::Failed);
    assert!(message.contains("ran but was not proven"), "{message}");
    let failed = change(rebooted(&committed(), 1), |f| f.past.failed_digests = vec![digest(2)]);
    assert_eq!(release(&failed).0, Outcome::Failed);
}

#[test]
fn an_excluded_node_gives_back_an_unproven_boot() {
    for (berth, booted, is_ready, expected) in [
        (committed(), 2, true, Outcome::Updated),
        (committed(), 2, false, Outcome::Failed),
        (committed(), 1, false, Outcome::NotApplied),
        (committed(), 7, true, Outcome::Failed),
        (taken(), 1, false, Outcome::Withdrawn),
        // Image 3 was never booted.
        (relicensed(), 2, false, Outcome::Withdrawn),
    ] {
        let mut facts = stuck(&berth, booted);
        ready(&mut facts, is_ready);
        node_of(&mut facts, |node| node.excluded = true);
        assert_eq!(release(&facts).0, expected, "{berth:?} {booted} {is_ready}");
    }
    let releasing = committed().releasing(Outcome::Failed, BootId::from("b2")).unwrap();
    let mut facts = stuck(&releasing, 2);
    facts.host.boot_id = BootId::from("b3");
    assert!(matches!(step(&facts), Step::Wait(WaitReason::NotReady, _)));
    node_of(&mut facts, |node| node.excluded = true);
    assert_eq!(step(&facts), Step::Restore(releasing));
}

#[test]
fn a_pull_does_not_hide_a_releases_proof() {
    let releasing = taken().releasing(Outcome::Withdrawn, BootId::from("b1")).unwrap();
    let mut f = rebooted(&releasing, 1);
    f.host.os = Os::Unknown;
    f.host.pull = Some(PullFacts {
        digest: digest(2),
        progress: None,
    });
    assert_eq!(step(&f), Step::CancelPull(digest(2)));
    f.host.boot_id = BootId::from("b1");
    assert_eq!(
        step(&f),
        Step::Restore(releasing),
        "under the same boot there is nothing to prove"
    );
}

/// A holder that continues from an unproven boot does not remove packages that Berth did not request.
#[test]
fn a_bad_image_is_replaced_over_foreign_packages() {
    let mut f = stuck(&committed(), 2);
    for (staged_layers, locked, expected) in [
        (false, false, Step::Unstage(deployment(2, false))),
        (false, true, Step::Unstage(deployment(2, true))),
        (true, false, lock()),
        (true, true, pull(3)),
    ] {
        f.host.os = Os::Bootc(Box::new(Deployments {
            booted: deployment(2, false),
            staged: Some(deployment(2, locked)),
            staged_layers,
            ..Deployments::default()
        }));
        let next = step(&f);
        // An armed deployment may be locked before it is removed.
        let is_first_locked = !staged_layers && next == lock();
        assert!(
            next == expected || is_first_locked,
            "{staged_layers} {locked}: {next:?}"
        );
    }
}

#[test]
fn a_readiness_taint_delays_the_proof() {
    let proven = rebooted(&committed(), 2);
    assert_eq!(release(&proven).0, Outcome::Updated);
    assert!(shown(&proven, "Resumed").starts_with("True "));

    let mut tainted = rebooted(&committed(), 2);
    node_of(&mut tainted, |node| {
        node.not_ready_taint = Some("readiness.k8s.io/NetworkReady".into());
    });
    let waits = step(&tainted);
    assert!(matches!(waits, Step::Wait(WaitReason::NotReady, Some(_))), "{waits:?}");
    assert!(
        !shown(&tainted, "Resumed").starts_with("True "),
        "its boot is not proven"
    );
    tainted.proving_for = Duration::from_secs(86_400);
    assert!(shown(&tainted, "NodeDegraded").contains("readiness.k8s.io/NetworkReady"));
    node_of(&mut tainted, |node| node.ready = false);
    assert!(
        shown(&tainted, "NodeDegraded").contains("did not become Ready"),
        "the taint is not what to look at"
    );
}
