//! Tests of nodes that are in no pool (I12), and of images and packages that Berth did not stage.

use super::reports::shown;
use super::*;

/// Returns one case for each cause that keeps a node in no pool: the facts of the node, and the expected reason to
/// wait.
fn in_no_pool() -> [(AgentFacts, WaitReason); 5] {
    let ways: [(Change, WaitReason); 5] = [
        (|f| f.desired = Desired::Unknown, WaitReason::NothingAsked),
        (|f| f.desired = Desired::Release, WaitReason::Released),
        (
            |f| publish(f, |member| member.node_uid = "u0".into()),
            WaitReason::OtherNode,
        ),
        (|f| f.cluster_node = ClusterNode::Gone, WaitReason::OtherNode),
        (|f| node_of(f, |node| node.excluded = true), WaitReason::Excluded),
    ];
    ways.map(|(way, reason)| (change(facts(), way), reason))
}

#[test]
fn a_node_leaves_its_pool_by_either_sign() {
    for (pool, is_deleted, expected) in [
        ("workers", false, "member"),
        ("workers", true, "release"),
        ("", false, "release"),
        ("", true, "release"),
    ] {
        let mut object = berth_api::node::BootcNode::default();
        object.spec.pool_name = pool.into();
        object.metadata.deletion_timestamp = is_deleted.then(|| later(0));
        let asked = match Desired::of(Some(&object)) {
            Desired::Unknown => "nothing",
            Desired::Release => "release",
            Desired::Member(_) => "member",
        };
        assert_eq!(asked, expected, "{pool:?} deleted: {is_deleted}");
    }
    assert_eq!(Desired::of(None), Desired::Unknown);
}

/// A member with invalid texts in its spec stays in its pool. The agent pulls nothing from an invalid reference: see
/// `berth_agent::host::driver::target`.
#[test]
fn a_member_with_invalid_texts_stays_a_member() {
    let mut object = berth_api::node::BootcNode::default();
    object.spec.pool_name = "workers".into();
    object.spec.reboot_timeout = "soon".into();
    object.spec.image = Some(DesiredImage {
        reference: "no such thing".into(),
        ..image(2)
    });
    let desired = Desired::of(Some(&object));
    assert_eq!(desired.image(), object.spec.image.as_ref());
    let Desired::Member(member) = desired else {
        panic!("{desired:?}")
    };
    assert_eq!(member.reboot_timeout, berth_api::pool::DEFAULT_REBOOT_TIMEOUT);
}

fn rests(facts: &AgentFacts, expected: WaitReason) {
    assert!(
        matches!(step(facts), Step::Wait(why, _) if why == expected),
        "{expected:?}: {:?}",
        step(facts)
    );
}

#[test]
fn a_host_without_a_pool_is_not_read() {
    for (mut f, expected) in in_no_pool() {
        for unread in [
            Os::Unknown,
            Os::Unusable {
                reason: Reason::BootcMissing,
                message: String::new(),
            },
        ] {
            (f.host.os, f.host.fresh) = (unread, false);
            rests(&f, expected);
        }
    }
}

#[test]
fn what_others_staged_there_is_theirs() {
    for (mut f, expected) in in_no_pool() {
        for ours in [None, Some(digest(9))] {
            f.past.staged_by_us = ours;
            os(&mut f, 1, Some(deployment(2, false)));
            rests(&f, expected);
        }
    }
}

#[test]
fn berths_staged_image_is_locked_or_removed() {
    for (mut f, expected) in in_no_pool() {
        f.past.staged_by_us = Some(digest(2));
        os(&mut f, 1, Some(deployment(2, false)));
        let undone = if expected == WaitReason::Released {
            Step::Unstage(deployment(2, false))
        } else {
            lock()
        };
        assert_eq!(step(&f), undone, "{expected:?}");
        (f.host.os, f.host.fresh) = (Os::Unknown, false);
        assert_eq!(step(&f), Step::LookAtHost, "{expected:?}");
    }
}

/// If another program has layered packages on Berth's staged image, the packages stay when the node leaves its pool.
#[test]
fn a_leaving_node_keeps_packages_layered_over_berths_image() {
    let mut left = facts();
    left.desired = Desired::Release;
    left.past.staged_by_us = Some(digest(2));
    for (staged_layers, locked, expected) in [
        (false, true, Step::Unstage(deployment(2, true))),
        (true, false, lock()),
        (true, true, Step::Wait(WaitReason::Released, None)),
    ] {
        left.host.os = Os::Bootc(Box::new(Deployments {
            booted: deployment(1, false),
            staged: Some(deployment(2, locked)),
            staged_layers,
            ..Deployments::default()
        }));
        assert_eq!(step(&left), expected);
    }
}

fn layered(booted: u8, staged: Deployment) -> AgentFacts {
    let mut facts = facts();
    os(&mut facts, booted, Some(staged));
    deployments_of(&mut facts, |deployments| deployments.staged_layers = true);
    facts
}

/// Berth locks a deployment with packages that Berth did not request, and keeps these packages.
#[test]
fn packages_of_others_are_locked_and_kept() {
    let mut plain = layered(1, deployment(1, true));
    deployments_of(&mut plain, |deployments| deployments.staged_layers = false);
    for (facts, next, is_shown) in [
        // The desired image runs: the packages wait for the next image.
        (layered(2, deployment(2, false)), lock(), true),
        (
            layered(2, deployment(2, true)),
            Step::Wait(WaitReason::Updated, None),
            true,
        ),
        // The next image is pulled and staged over the packages.
        (layered(1, deployment(1, false)), lock(), true),
        (layered(1, deployment(1, true)), pull(2), true),
        // The desired image is staged with the packages: a turn applies both.
        (
            layered(1, deployment(2, true)),
            Step::Wait(WaitReason::NoBerth, None),
            false,
        ),
        (plain, Step::Unstage(deployment(1, true)), false),
    ] {
        assert_eq!(step(&facts), next);
        let shown = shown(&facts, "NodeDegraded");
        let expected = "True ForeignStaged a deployment with other packages was staged";
        assert_eq!(shown.starts_with(expected), is_shown, "{shown}");
        assert_eq!(set_aside(&facts).is_some(), is_shown, "{shown}");
    }
}

/// The agent retries the lock instead of removing the deployment, because a removal would lose the packages.
#[test]
fn a_failing_lock_of_packages_is_retried() {
    for n in [1, 2] {
        let mut stubborn = layered(n, deployment(n, false));
        stubborn.host.lock_failure = Some(LockFailure::default());
        assert_eq!(step(&stubborn), lock());
    }
    let mut stubborn = layered(2, deployment(2, false));
    assert!(
        set_aside(&stubborn).is_some_and(|shown| {
            shown.contains("a reboot before that discards the deployment")
                && shown.contains("rpm-ostree finalize-deployment")
        }),
        "who staged it must know what a reboot does"
    );
    let pause = Duration::from_secs(30);
    stubborn.host.lock_failure = Some(LockFailure {
        why: "error: no".into(),
        pause,
    });
    let mut in_turn = with(&taken());
    (in_turn.host.os, in_turn.host.lock_failure) = (stubborn.host.os.clone(), stubborn.host.lock_failure.clone());
    for facts in [&stubborn, &in_turn] {
        let next = step(facts);
        assert_eq!(next, Step::Wait(WaitReason::Unlockable, Some(pause)));
        let shown = shown(facts, "NodeDegraded");
        assert!(
            shown.contains("LockFailed") && shown.contains("any reboot applies it") && shown.contains("(error: no)"),
            "{shown}"
        );
    }
}

/// The agent reports the removal of a deployment only if Berth did not stage this deployment.
#[test]
fn removing_an_image_of_others_is_reported() {
    for (booted, staged, ours, expected) in [
        (
            2,
            2,
            None,
            "the booted image again, perhaps with other kernel arguments. Otherwise",
        ),
        (
            1,
            1,
            None,
            "the booted image again, perhaps with other kernel arguments. Otherwise",
        ),
        (
            1,
            1,
            Some(digest(1)),
            "the booted image again, perhaps with other kernel arguments. Otherwise",
        ),
        (1, 3, None, "an image that the pool does not want. Otherwise"),
        (2, 3, Some(digest(2)), "an image that the pool does not want. Otherwise"),
        (1, 3, Some(digest(3)), ""),
        (2, 3, Some(digest(3)), ""),
    ] {
        let mut facts = facts();
        facts.past.staged_by_us = ours;
        os(&mut facts, booted, Some(deployment(staged, true)));
        assert_eq!(step(&facts), Step::Unstage(deployment(staged, true)));
        let shown = super::reports::shown(&facts, "NodeDegraded");
        assert_eq!(
            shown.starts_with("True ForeignStaged removing a staged deployment that Berth did not stage"),
            !expected.is_empty(),
            "{shown}"
        );
        assert!(shown.contains(expected), "{shown}");
    }
}

/// Returns the facts of a member whose host Berth does not update. Berth staged the image `ours`.
fn refused(booted: u8, staged: Option<Deployment>, ours: u8) -> AgentFacts {
    let mut facts = facts();
    facts.past.staged_by_us = Some(digest(ours));
    os(&mut facts, booted, staged);
    deployments_of(&mut facts, |deployments| {
        deployments.refusal = Some("its bootc cannot lock".to_owned());
    });
    facts
}

fn staged(n: u8, locked: bool) -> Option<Deployment> {
    Some(deployment(n, locked))
}

fn removed(n: u8, locked: bool) -> Step {
    Step::Unstage(deployment(n, locked))
}

/// On a host that Berth refuses to update, the agent begins no update. An image that Berth staged stays there only if
/// it is desired, locked, complete and not failed.
#[test]
fn a_refused_host_keeps_a_useful_image() {
    let rests = Step::Wait(WaitReason::HostUnusable, None);
    let updated = Step::Wait(WaitReason::Updated, None);
    for (what, booted, staged, ours, expected) in [
        ("desired and locked", 1, staged(2, true), 2, rests.clone()),
        ("desired and not locked", 1, staged(2, false), 2, removed(2, false)),
        ("not desired", 1, staged(3, true), 3, removed(3, true)),
        ("what runs already", 2, staged(2, true), 2, removed(2, true)),
        ("of another tool", 1, staged(3, false), 2, rests.clone()),
        ("of another tool, updated", 2, staged(3, false), 2, updated.clone()),
        ("nothing", 1, None, 2, rests.clone()),
        ("nothing, updated", 2, None, 2, updated),
    ] {
        let mut facts = refused(booted, staged, ours);
        assert_eq!(step(&facts), expected, "{what}");
        if !matches!(expected, Step::Unstage(_)) {
            facts.host.fresh = false;
            assert_eq!(step(&facts), Step::LookAtHost, "{what}, seen long ago");
        }
    }
    let useless: [(&str, Change); 3] = [
        ("it failed here", |f| f.past.failed_digests = vec![digest(2)]),
        ("its pull failed", |f| f.past.incomplete = Some(digest(2))),
        ("its registry is forbidden", |f| f.host.rules = forbidding()),
    ];
    for (what, spoil) in useless {
        let mut facts = refused(1, staged(2, true), 2);
        spoil(&mut facts);
        assert_eq!(step(&facts), removed(2, true), "{what}");
    }
    let queued = Step::Wait(WaitReason::RollbackQueued, Some(HOST_LOOK_INTERVAL));
    for (booted, expected) in [(2, queued), (1, rests)] {
        let mut facts = refused(booted, None, 2);
        deployments_of(&mut facts, |deployments| deployments.rollback_queued = true);
        assert_eq!(step(&facts), expected, "a rollback is queued, {booted} runs");
    }
}

/// A deployment with packages that Berth did not request is reported only if Berth should lock it and has not locked
/// it.
#[test]
fn only_packages_that_stay_armed_are_reported() {
    for (locked, desired, shown) in [
        (false, Desired::Member(Box::new(member(2))), true),
        (true, Desired::Member(Box::new(member(2))), false),
        (false, Desired::Unknown, false),
    ] {
        let mut facts = AgentFacts { desired, ..facts() };
        facts.host.lock_failure = Some(LockFailure::default());
        facts.host.os = Os::Bootc(Box::new(Deployments {
            booted: deployment(1, false),
            staged: Some(deployment(1, locked)),
            staged_layers: true,
            ..Deployments::default()
        }));
        let desired = &facts.desired;
        assert_eq!(
            crate::agent::step::unlockable(&facts).is_some(),
            shown,
            "{locked} {desired:?}"
        );
    }
}
