//! Nodes that no pool has (I12).

use super::*;

/// The ways in which a node can be in no pool, and what is waited for then.
fn in_no_pool() -> [(Facts, WaitReason); 5] {
    let desiring = |desired| Facts { desired, ..facts() };
    let mut other = facts();
    other.desired = Desired::Member(Box::new(Member {
        node_uid: NodeUid::from("u0"),
        ..member(2)
    }));
    let gone = Facts {
        cluster_node: ClusterNode::Gone,
        ..facts()
    };
    let excluded = Facts {
        cluster_node: ClusterNode::Is(NodeFacts {
            excluded: true,
            ..node()
        }),
        ..facts()
    };
    [
        (desiring(Desired::Unknown), WaitReason::NothingAsked),
        (desiring(Desired::Release), WaitReason::Released),
        (other, WaitReason::OtherNode),
        (gone, WaitReason::OtherNode),
        (excluded, WaitReason::Excluded),
    ]
}

fn rests(facts: &Facts, expected: WaitReason) {
    assert!(
        matches!(step(facts), Step::Wait(why, _) if why == expected),
        "{expected:?}: {:?}",
        step(facts)
    );
}

#[test]
fn a_host_that_is_nobodys_is_not_even_read() {
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
fn what_berth_staged_there_is_kept_locked_or_removed() {
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

/// Somebody has layered packages over what Berth staged: a node that leaves its pool must not lose them.
#[test]
fn what_others_layered_over_ours_is_theirs_once_the_node_has_left() {
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

/// Packages that somebody has asked for on the host are not lost, nor is the deployment with them applied by any reboot.
#[test]
fn a_staged_deployment_with_other_packages_is_locked_and_built_upon() {
    let layered = |booted: u8, staged: Deployment| {
        let mut facts = facts();
        facts.host.os = Os::Bootc(Box::new(Deployments {
            booted: deployment(booted, false),
            staged: Some(staged),
            staged_layers: true,
            ..Deployments::default()
        }));
        facts
    };
    let told = |facts: &Facts| {
        let told = super::reports::told(facts, "NodeDegraded");
        let is_told = told.starts_with("True ForeignStaged somebody has staged a deployment with other packages");
        assert_eq!(is_told, crate::agent::step::set_aside(facts).is_some(), "{told}");
        is_told
    };
    // What runs is desired: it waits for the next image.
    let armed = layered(2, deployment(2, false));
    assert_eq!((step(&armed), told(&armed)), (lock(), true));
    let locked = layered(2, deployment(2, true));
    assert_eq!(
        (step(&locked), told(&locked)),
        (Step::Wait(WaitReason::Updated, None), true)
    );
    // The next image is staged over it.
    let armed = layered(1, deployment(1, false));
    assert_eq!((step(&armed), told(&armed)), (lock(), true));
    let locked = layered(1, deployment(1, true));
    assert_eq!((step(&locked), told(&locked)), (pull(2), true));
    // A lock that failed again and again is tried once more: to remove it would lose the packages.
    let mut stubborn = layered(1, deployment(1, false));
    stubborn.host.lock_fails = Some(LockFails::default());
    assert_eq!(step(&stubborn), lock());
    stubborn.host.os = Os::Bootc(Box::new(Deployments {
        booted: deployment(2, false),
        staged: Some(deployment(2, false)),
        staged_layers: true,
        ..Deployments::default()
    }));
    assert_eq!(step(&stubborn), lock());
    assert!(
        crate::agent::step::set_aside(&stubborn).is_some_and(|told| {
            told.contains("any reboot before that discards it") && told.contains("rpm-ostree finalize-deployment")
        }),
        "who staged it must know what a reboot does"
    );
    // But not without a pause, and it is told: in a turn as well.
    let pause = Duration::from_secs(30);
    stubborn.host.lock_fails = Some(LockFails {
        why: "error: no".into(),
        pause,
    });
    let mut in_turn = with(&taken());
    (in_turn.host.os, in_turn.host.lock_fails) = (stubborn.host.os.clone(), stubborn.host.lock_fails.clone());
    for facts in [&stubborn, &in_turn] {
        let next = step(facts);
        assert_eq!(next, Step::Wait(WaitReason::Unlockable, Some(pause)));
        let told = super::reports::told(facts, "NodeDegraded");
        assert!(
            told.contains("LockFailed") && told.contains("any reboot applies it") && told.ends_with("error: no"),
            "{told}"
        );
    }
    // The desired image, with the packages: a turn applies it.
    let whole = layered(1, deployment(2, true));
    assert_eq!(
        (step(&whole), told(&whole)),
        (Step::Wait(WaitReason::NoBerth, None), false)
    );
    // The same without packages of anybody is removed.
    let mut plain = layered(1, deployment(1, true));
    if let Os::Bootc(known) = &mut plain.host.os {
        known.staged_layers = false;
    }
    assert_eq!(
        (step(&plain), told(&plain)),
        (Step::Unstage(deployment(1, true)), false)
    );
}

/// What somebody else has staged without packages is removed, and told before that. What Berth staged itself is nobody's news.
#[test]
fn what_others_staged_without_packages_is_told_before_it_is_removed() {
    for (booted, staged, ours, expected) in [
        (
            2,
            2,
            None,
            "the image that runs once more, such as with other kernel arguments: it is removed",
        ),
        (
            1,
            1,
            None,
            "the image that runs once more, such as with other kernel arguments: it is removed",
        ),
        (
            1,
            1,
            Some(digest(1)),
            "the image that runs once more, such as with other kernel arguments: it is removed",
        ),
        (1, 3, None, "which the pool does not want: it is removed"),
        (2, 3, Some(digest(2)), "which the pool does not want: it is removed"),
        (1, 3, Some(digest(3)), ""),
        (2, 3, Some(digest(3)), ""),
    ] {
        let mut facts = facts();
        facts.past.staged_by_us = ours;
        os(&mut facts, booted, Some(deployment(staged, true)));
        assert_eq!(step(&facts), Step::Unstage(deployment(staged, true)));
        let told = super::reports::told(&facts, "NodeDegraded");
        assert_eq!(
            told.starts_with("True ForeignStaged somebody has staged"),
            !expected.is_empty(),
            "{told}"
        );
        assert!(told.contains(expected), "{told}");
    }
}
