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
            Step::Lock
        };
        assert_eq!(step(&f), undone, "{expected:?}");
        (f.host.os, f.host.fresh) = (Os::Unknown, false);
        assert_eq!(step(&f), Step::LookAtHost, "{expected:?}");
    }
}
