//! Tests of the effect of each change on a case, and of the smallest numbers that are enough.

use berth_api::BootId;
use berth_api::berth::Outcome;
use berth_api::pool::Exclusion;
use berth_api::quantity::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::controller::plan::tests::{asked_back, committed, gate, offered};
use crate::controller::plan::{MAX_NAMED, SeenBerth};
use crate::controller::quorum::Cause;
use crate::controller::usage::{CapacityUse, UseKind};

/// Returns a case about n1, the first of three members. `change` edits the facts and the rules.
pub(super) fn first(change: impl FnOnce(&mut PoolFacts, &mut Rules)) -> Case {
    let (mut facts, mut rules) = (pool(|_, _| ()), rules(Rollout::default()));
    change(&mut facts, &mut rules);
    Case::new("n1".into(), facts, rules, at(50))
}

fn windows(rules: &mut Rules, windows: Vec<Window>) {
    rules.spec.rollout.get_or_insert_default().windows = windows;
}

/// A window that is open at the time of these tests.
fn open() -> Vec<Window> {
    vec![Window {
        schedule: "0 0 * * 4".into(),
        duration: "8h".into(),
        ..Window::default()
    }]
}

fn exclusion() -> Exclusion {
    Exclusion {
        from: Time(at(0)),
        to: Time(at(100)),
    }
}

fn in_waves(facts: &mut PoolFacts, soaked: u64) {
    facts.waves = vec![wave("canary", 60, soaked), wave("more", 60, soaked), wave(REST, 0, 0)];
    for (member, wave) in facts.members.iter_mut().zip([2, 0, 1]) {
        member.place.wave = wave;
    }
}

/// Returns the use of a fleet's limit of 1. One node of another pool uses up this limit.
pub(super) fn used_up_by(node: &str, how: UseKind) -> FleetUse {
    FleetUse {
        limit: 1,
        held_or_offered: usize::from(how == UseKind::Holds),
        unavailable: usize::from(how == UseKind::NotReady),
        all: 1,
        used_by: vec![used(node, how)],
        ..FleetUse::default()
    }
}

fn used(node: &str, how: UseKind) -> CapacityUse {
    CapacityUse { who: node.into(), how }
}

fn failed(index: u32, node: &str) -> SeenBerth {
    let berth = committed(index, node).releasing(Outcome::Failed, BootId::from("b1"));
    seen(berth.unwrap().given_back().unwrap())
}

fn holders(case: &Case) -> Vec<Option<&str>> {
    let berths = case.facts.berths.iter().map(|seen| seen.berth.as_ref().unwrap());
    berths.map(|berth| Some(berth.node()?.0.as_str())).collect()
}

fn member_of<'a>(case: &'a Case, name: &str) -> &'a Member {
    let mut members = case.facts.members.iter();
    members.find(|member| member.name.as_str() == name).unwrap()
}

type Obstacle = fn(&mut PoolFacts, &mut Rules);

fn check_obstacles(rows: &[(Change, Obstacle)]) {
    for (change, obstacle) in rows {
        let case = first(obstacle);
        assert!(case.offered().is_err(), "{change:?} is not needed");
        let after = change.applied(&case).unwrap();
        assert_eq!(after.offered(), Ok(()), "{change:?}");
    }
}

#[test]
fn changes_of_node_and_gates_remove_their_obstacles() {
    check_obstacles(&[
        (Change::Prepared, |f, _| f.members[0].published.digest = None),
        (Change::Prepared, |f, _| f.members[0].published.uid = uid("old")),
        (Change::Prepared, |f, _| f.members[0].published.observed = false),
        (Change::Prepared, |f, _| f.members[0].agent.staged = None),
        (Change::Prepared, |f, _| f.members[0].agent.prepared = false),
        (Change::Heard, |f, _| f.members[0].agent.heard = false),
        (Change::Clock, |f, r| {
            windows(r, open());
            f.members[0].agent.clock_synchronized = false;
        }),
        (Change::ControllerClock, |_, r| {
            windows(r, open());
            r.clock_synchronized = false;
        }),
        (Change::Window, |_, r| windows(r, friday())),
        (Change::Window, |_, r| {
            r.spec.rollout.get_or_insert_default().exclusions = vec![exclusion()];
        }),
        (Change::Unhold, |f, _| f.members[0].node.held_back = true),
        (Change::Resume, |_, r| {
            r.spec.rollout.get_or_insert_default().paused = true
        }),
        (Change::ResumeFleet, |_, r| r.fleet = Some(FleetGate::Paused)),
        (Change::FleetReadable, |_, r| r.fleet = Some(FleetGate::Unreadable)),
        (Change::EarlierPools, |f, _| f.order = gate(GateReason::EarlierPool)),
        (Change::ControlPlane(Cause::NoOtherServer), |f, _| {
            f.members[0].place.control_plane = Some(asked_back());
        }),
        (Change::Soaked(Duration::from_secs(40)), |f, _| {
            in_waves(f, 20);
            f.members.iter_mut().skip(1).for_each(updated);
        }),
        (Change::WavesProven(vec![]), |f, _| in_waves(f, 20)),
    ]);
}

#[test]
fn changes_of_others_remove_their_obstacles() {
    check_obstacles(&[
        (Change::TurnEnds("n2".into()), |f, _| {
            f.berths = vec![seen(taken(0, "n2"))]
        }),
        (Change::TurnEnds("b1".into()), |f, _| {
            f.fleet = Some(used_up_by("b1", UseKind::Holds))
        }),
        (Change::Recovers("n2".into()), |f, _| {
            updated(&mut f.members[1]);
            f.members[1].node.ready = false;
        }),
        (Change::Recovers("b1".into()), |f, _| {
            f.fleet = Some(used_up_by("b1", UseKind::NotReady))
        }),
        (Change::Excluded("n2".into()), |f, _| {
            updated(&mut f.members[1]);
            f.members[1].node.ready = false;
        }),
        (Change::Retry, |f, _| f.members[0].agent.failed = vec![digest(2)]),
        (Change::Retry, |f, _| {
            f.failures = [(digest(2), ["n1".into()].into())].into();
        }),
        (Change::Retry, |f, _| f.berths = vec![failed(0, "n1")]),
        (Change::MaxFailures(2), |f, _| {
            f.failures = [(digest(2), ["n2".into()].into())].into();
            f.max_failures = 1;
        }),
        (Change::MaxUnavailable(2), |f, _| f.berths = vec![seen(taken(0, "n2"))]),
        (Change::FleetLimit(2), |f, _| {
            f.fleet = Some(used_up_by("b1", UseKind::Holds))
        }),
    ]);
}

#[test]
fn a_change_without_effect_is_left_out() {
    let case = first(|facts, _| {
        in_waves(facts, 60);
        facts.members.iter_mut().skip(1).for_each(updated);
        facts.fleet = Some(FleetUse {
            limit: 2,
            ..FleetUse::default()
        });
    });
    assert_eq!(case.offered(), Ok(()));
    let (n2, n9) = (|| NodeName::from("n2"), || NodeName::from("n9"));
    let changes = [
        Change::TurnEnds(n2()),
        Change::TurnEnds(n9()),
        Change::Prepared,
        Change::Soaked(Duration::ZERO),
        Change::WavesProven(vec![]),
        Change::EarlierPools,
        Change::ControlPlane(Cause::NoMajority),
        Change::Heard,
        Change::Clock,
        Change::ControllerClock,
        Change::Unhold,
        Change::Resume,
        Change::ResumeFleet,
        Change::FleetReadable,
        Change::Recovers(n2()),
        Change::Recovers(n9()),
        Change::Excluded(n9()),
        Change::Retry,
        Change::Window,
        Change::MaxFailures(case.facts.max_failures),
        Change::MaxUnavailable(1),
        Change::FleetLimit(2),
    ];
    for change in changes {
        assert!(change.applied(&case).is_none(), "{change:?}");
    }
    for other in [FleetGate::Paused, FleetGate::Unreadable] {
        let case = first(|_, rules| rules.fleet = Some(other));
        let resumes = Change::ResumeFleet.applied(&case).is_some();
        assert_eq!(resumes, other == FleetGate::Paused);
        let is_readable = Change::FleetReadable.applied(&case).is_some();
        assert_eq!(is_readable, other == FleetGate::Unreadable);
    }
    let blind = first(|_, rules| {
        windows(rules, friday());
        rules.clock_synchronized = false;
    });
    assert!(
        Change::Window.applied(&blind).is_none(),
        "without a clock no window can be judged"
    );
}

#[test]
fn a_change_leaves_other_nodes_alone() {
    let case = first(|facts, _| {
        facts.berths = vec![seen(taken(0, "n2")), seen(taken(1, "n3"))];
        facts.members[1].node.ready = false;
        facts.members[2].node.ready = false;
    });
    for change in [Change::TurnEnds("n3".into()), Change::Excluded("n3".into())] {
        let after = change.applied(&case).unwrap();
        assert_eq!(holders(&after), [Some("n2"), None], "{change:?}");
    }
    let recovered = Change::Recovers("n3".into()).applied(&case).unwrap();
    assert_eq!(holders(&recovered), [Some("n2"), Some("n3")]);
    let are_ready = ["n2", "n3"].map(|name| member_of(&recovered, name).node.ready);
    assert_eq!(are_ready, [false, true]);
    let waves = first(|facts, _| {
        facts.waves = vec![wave("canary", 60, 0), wave(REST, 0, 0)];
        (facts.members[0].place.wave, facts.members[2].place.wave) = (1, 1);
        facts.berths = vec![seen(taken(0, "n2")), seen(taken(1, "n3"))];
    });
    let proven = Change::WavesProven(vec![]).applied(&waves).unwrap();
    assert_eq!(holders(&proven), [None, Some("n3")]);
    let booted = ["n2", "n3"].map(|name| member_of(&proven, name).agent.booted.clone());
    assert_eq!(booted, [2, 1].map(|n| Some(digest(n))));
}

#[test]
fn a_turn_for_an_older_image_updates_no_node() {
    let case = first(|facts, _| {
        facts.members[1].desired = Some(digest(3));
        facts.berths = vec![seen(taken(0, "n2"))];
    });
    let after = Change::TurnEnds("n2".into()).applied(&case).unwrap();
    assert_eq!(holders(&after), [None]);
    assert_eq!(member_of(&after, "n2").agent.booted, Some(digest(1)));
}

#[test]
fn fewer_members_are_a_smaller_share() {
    let case = first(|facts, rules| {
        facts.members = ["n1", "n2", "n3", "n4", "n5", "n6"].map(member).into();
        facts.members[5].leaving = true;
        facts.members[1].node.ready = false;
        (facts.capacity, facts.published) = (3, 3);
        rules.spec.rollout.get_or_insert_default().max_unavailable = Some(Quantity::Percent(50));
    });
    let after = Change::Excluded("n2".into()).applied(&case).unwrap();
    assert_eq!(after.facts.capacity, 2, "half of the four remaining members");
}

/// Nodes n1 to n3 belong to this pool. Nodes b1 and b2 belong to other pools.
#[test]
fn a_change_counts_once_in_the_fleet() {
    for berth in [taken(0, "n2"), offered(0, "n2")] {
        let case = first(|facts, _| {
            facts.berths = vec![seen(berth)];
            facts.members[2].node.ready = false;
            facts.fleet = Some(FleetUse {
                limit: 5,
                held_or_offered: 2,
                unavailable: 2,
                all: 4,
                used_by: vec![
                    used("b1", UseKind::Holds),
                    used("b2", UseKind::NotReady),
                    used("n2", UseKind::Holds),
                    used("n3", UseKind::NotReady),
                ],
                ..FleetUse::default()
            });
        });
        let rows = [
            (Change::TurnEnds("n2".into()), (1, 2, 3)),
            (Change::TurnEnds("b1".into()), (1, 2, 3)),
            (Change::Recovers("n3".into()), (2, 1, 3)),
            (Change::Recovers("b2".into()), (2, 1, 3)),
        ];
        for (change, expected) in rows {
            let fleet = change.applied(&case).unwrap().facts.fleet.unwrap();
            let counts = (fleet.held_or_offered, fleet.unavailable, fleet.all);
            assert_eq!(counts, expected, "{change:?}");
        }
    }
}

#[test]
fn a_node_of_another_pool_has_one_way_out() {
    for (how, change) in [
        (UseKind::Holds, Change::TurnEnds("b1".into())),
        (UseKind::NotReady, Change::Recovers("b1".into())),
    ] {
        let case = first(|facts, _| facts.fleet = Some(used_up_by("b1", how)));
        assert_eq!(explain(&case).unwrap().alone, [change, Change::FleetLimit(2)]);
    }
}

fn numbers(node: &str, change: fn(&mut PoolFacts)) -> Vec<Change> {
    let mut facts = pool(|_, _| ());
    change(&mut facts);
    Change::numbers(&case(node, facts, Rollout::default()))
}

#[test]
fn a_number_is_found_wherever_it_lies() {
    let last = numbers("n3", |facts| facts.berths.clear());
    assert_eq!(last, [Change::MaxUnavailable(3)], "before any berth exists");
    let unreadable = numbers("n3", |facts| facts.berths[0].berth = Err("edited".into()));
    assert_eq!(unreadable, [Change::MaxUnavailable(4)]);
    let shared = numbers("n2", |facts| {
        (facts.capacity, facts.published) = (2, 2);
        facts.fleet = Some(FleetUse {
            limit: 1,
            ..FleetUse::default()
        });
    });
    assert_eq!(shared, [Change::FleetLimit(2)], "only n1 goes before this node");
    let many = numbers("n1", |facts| {
        let nodes = (1..MAX_NAMED).map(|n| NodeName::new(format!("old{n}")));
        facts.failures = [(digest(2), nodes.collect())].into();
        facts.max_failures = MAX_NAMED - 1;
    });
    assert_eq!(many, [Change::MaxFailures(MAX_NAMED)], "the largest possible number");
    let zero = numbers("n1", |facts| {
        facts.failures = [(digest(2), ["n2".into()].into())].into();
        facts.max_failures = 0;
    });
    assert_eq!(zero, [Change::MaxFailures(2)], "a maxFailures of 0 counts as 1");
}

/// Before an offer, the controller may have to publish a capacity, record a failure or create a berth. These writes are
/// not reasons to wait.
#[test]
fn pending_controller_writes_are_not_obstacles() {
    for (what, capacity, berths) in [
        (
            "a larger capacity is published first",
            2,
            vec![seen(taken(0, "n1")), seen(closed(1))],
        ),
        ("a failure is recorded before its berth opens", 1, vec![failed(0, "n1")]),
        ("berths are created", 2, vec![]),
    ] {
        let mut facts = pool(|_, _| ());
        (facts.capacity, facts.berths) = (capacity, berths);
        assert_eq!(explained("n2", facts).wait, None, "{what}");
    }
}

#[test]
fn two_changes_begin_with_the_first_obstacle() {
    let case = first(|facts, _| {
        in_waves(facts, 20);
        let lost = &mut facts.members[1];
        (lost.desired, lost.node.ready) = (None, false);
        updated(&mut facts.members[2]);
        (facts.capacity, facts.published) = (2, 2);
    });
    let answer = explain(&case).unwrap();
    assert_eq!(answer.wait, Some(BlockReason::Wave));
    assert_eq!(answer.alone, []);
    assert_eq!(
        answer.together,
        [Change::Soaked(Duration::from_secs(40)), Change::Excluded("n2".into())],
        "nothing is left to prove in the earlier waves"
    );
}

#[test]
fn no_more_than_eight_changes_are_named_together() {
    let mut eight = vec![
        Change::Unhold,
        Change::Resume,
        Change::ResumeFleet,
        Change::Window,
        Change::EarlierPools,
        Change::Clock,
        Change::Prepared,
        Change::FleetLimit(2),
    ];
    let with_fleet = eight.clone();
    eight[7] = Change::Heard;
    for (heard, limit, expected) in [
        (true, 1, with_fleet),
        // Nine changes would be needed.
        (false, 1, vec![]),
        (false, 2, eight),
    ] {
        let case = first(|facts, rules| {
            let own = &mut facts.members[0];
            (own.node.held_back, own.agent.prepared, own.agent.heard) = (true, false, heard);
            own.agent.clock_synchronized = false;
            facts.order = gate(GateReason::EarlierPool);
            facts.fleet = Some(FleetUse {
                limit,
                held_or_offered: 1,
                all: 1,
                ..FleetUse::default()
            });
            windows(rules, friday());
            rules.spec.rollout.get_or_insert_default().paused = true;
            rules.fleet = Some(FleetGate::Paused);
        });
        assert_eq!(explain(&case).unwrap().together, expected);
    }
}

#[test]
fn canaries_with_berths_are_proven_together() {
    let case = first(|facts, _| {
        facts.waves = vec![wave("canary", 0, 0), wave(REST, 0, 0)];
        facts.members[0].place.wave = 1;
        (facts.capacity, facts.published) = (2, 2);
        facts.berths = vec![seen(taken(0, "n2")), seen(taken(1, "n3"))];
    });
    let answer = explain(&case).unwrap();
    assert_eq!(answer.alone, [Change::WavesProven(vec!["canary".into()])]);
}
