use std::time::Duration;

use berth_api::NodeName;
use berth_api::pool::{BootcNodePoolSpec, Rollout, Window};
use proptest::prelude::*;

use super::case::MAX_PASSES;
use super::*;
use crate::controller::gate::{FleetGate, GateReason};
use crate::controller::plan::properties::{NODES, any_facts, offered_by};
use crate::controller::plan::tests::{at, closed, digest, facts, member, seen, taken, uid, wave};
use crate::controller::plan::{FleetUse, Member, PoolFacts, REST};
use crate::floors::check;

mod changes;
mod words;

fn rules(rollout: Rollout) -> Rules {
    Rules {
        spec: BootcNodePoolSpec {
            rollout: Some(rollout),
            ..BootcNodePoolSpec::default()
        },
        fleet: None,
        clock_synchronized: true,
        needed: Duration::ZERO,
    }
}

fn case(node: &str, facts: PoolFacts, rollout: Rollout) -> Case {
    Case::new(node.into(), facts, rules(rollout), at(50))
}

fn explained(node: &str, facts: PoolFacts) -> Explanation {
    explain(&case(node, facts, Rollout::default())).unwrap()
}

/// Returns a pool with three members and one closed berth. `change` edits the first two members.
fn pool(change: impl FnOnce(&mut Member, &mut Member)) -> PoolFacts {
    let mut facts = facts(1, ["n1", "n2", "n3"].map(member).into(), vec![seen(closed(0))]);
    let [first, second, _] = facts.members.as_mut_slice() else {
        unreachable!()
    };
    change(first, second);
    facts
}

fn updated(member: &mut Member) {
    member.agent.booted = member.desired.clone();
}

/// Returns a window on Friday from 22:00 to 06:00. The time of these tests is a Thursday.
fn friday() -> Vec<Window> {
    vec![Window {
        schedule: "0 22 * * 5".into(),
        duration: "8h".into(),
        ..Window::default()
    }]
}

#[test]
fn a_node_waits_for_a_turn_or_capacity() {
    let mut busy = pool(|_, _| ());
    busy.berths = vec![seen(taken(0, "n1"))];
    let next = explained("n2", busy.clone());
    assert_eq!(next.wait, Some(BlockReason::Capacity));
    assert_eq!(next.alone, [Change::TurnEnds("n1".into()), Change::MaxUnavailable(2)]);
    assert_eq!((next.ahead, next.together), (Some(1), vec![]));
    let last = explained("n3", busy.clone());
    assert_eq!(last.alone, [Change::MaxUnavailable(3)], "n2 goes before n3");
    assert_eq!(last.ahead, Some(2));
    let holder = explained("n1", busy.clone());
    assert_eq!((holder.wait, holder.alone), (Some(BlockReason::HasBerth), vec![]));
    assert_eq!(explained("n1", pool(|_, _| ())).wait, None, "n1 is offered a berth now");
    assert_eq!(explain(&case("n9", busy, Rollout::default())), None);
}

#[test]
fn a_node_that_is_down_uses_up_room() {
    let down = explained(
        "n2",
        pool(|n1, _| {
            updated(n1);
            n1.node.ready = false;
        }),
    );
    let n1 = NodeName::from("n1");
    let excluded = Change::Excluded(n1.clone());
    assert_eq!(
        down.alone,
        [Change::Recovers(n1.clone()), excluded, Change::MaxUnavailable(2)]
    );
    let cordoned = explained(
        "n2",
        pool(|n1, _| {
            updated(n1);
            n1.node.unschedulable = true;
        }),
    );
    assert_eq!(cordoned.alone, [Change::Recovers(n1), Change::MaxUnavailable(2)]);
}

#[test]
fn each_thing_in_the_way_has_its_change() {
    type Obstacle = fn(&mut Member);
    let obstacles: [(Obstacle, Change); 4] = [
        (|m| m.node.held_back = true, Change::Unhold),
        (|m| m.agent.staged = None, Change::Prepared),
        (|m| m.published.observed = false, Change::Prepared),
        (|m| m.agent.heard = false, Change::Heard),
    ];
    for (obstacle, expected) in obstacles {
        assert_eq!(explained("n1", pool(|n1, _| obstacle(n1))).alone, [expected]);
    }
    // A single failure halts the rollout too.
    let mut halted = pool(|_, _| ());
    halted.failures = [(digest(2), ["n1".into()].into())].into();
    halted.max_failures = 1;
    assert_eq!(explained("n1", halted.clone()).alone, [Change::Retry]);
    let other = explained("n2", halted);
    assert_eq!(other.wait, Some(BlockReason::Halted));
    assert_eq!(other.alone, [Change::MaxFailures(2)], "a retry lets n1 go first");
    let mut ordered = pool(|_, _| ());
    ordered.order = crate::controller::plan::tests::gate(GateReason::EarlierPool);
    assert_eq!(explained("n1", ordered).alone, [Change::EarlierPools]);
    let mut limited = pool(|_, _| ());
    limited.fleet = Some(FleetUse {
        limit: 1,
        held_or_offered: 1,
        all: 1,
        ..FleetUse::default()
    });
    assert_eq!(explained("n1", limited).alone, [Change::FleetLimit(2)]);
}

/// Explains why n2 waits for n1, the canary. `canary` edits n1. `soaked` is the elapsed soak time in seconds.
fn waves(canary: fn(&mut Member), soaked: u64) -> Explanation {
    let mut facts = pool(|n1, n2| {
        canary(n1);
        n2.place.wave = 1;
    });
    facts.members.truncate(2);
    facts.waves = vec![wave("canary", 60, soaked), wave(REST, 0, 0)];
    explained("n2", facts)
}

#[test]
fn a_later_wave_waits_for_proof_and_soak() {
    let soaking = waves(updated, 20);
    assert_eq!(soaking.wait, Some(BlockReason::Soaking));
    assert_eq!(soaking.alone, [Change::Soaked(Duration::from_secs(40))]);
    let active = waves(|_| (), 0);
    assert_eq!(active.alone, [Change::WavesProven(vec!["canary".into()])]);
    let held = waves(|m| m.node.held_back = true, 60);
    assert_eq!(
        held.alone,
        [
            Change::WavesProven(vec!["canary".into()]),
            Change::Excluded("n1".into())
        ]
    );
    assert_eq!(held.ahead, None, "a held canary gets no turn without help");
    let lost = waves(|m| (m.desired, m.node.ready) = (None, false), 60);
    assert_eq!(
        lost.alone,
        [Change::Excluded("n1".into())],
        "the canary has no image, so only its exclusion helps"
    );
}

#[test]
fn only_a_window_opens_with_time() {
    let mut rollout = Rollout {
        windows: friday(),
        ..Rollout::default()
    };
    let closed = explain(&case("n1", pool(|_, _| ()), rollout.clone())).unwrap();
    assert_eq!(closed.alone, [Change::Window]);
    assert_eq!(closed.opens, Some("1970-01-02T22:00:00Z".parse().unwrap()));
    let facts = pool(|n1, _| n1.agent.clock_synchronized = false);
    let clock = explain(&case("n1", facts, rollout.clone())).unwrap();
    assert_eq!(
        (clock.alone, clock.opens),
        (vec![], None),
        "the agent cannot judge a window without a clock"
    );
    assert_eq!(clock.together, [Change::Clock, Change::Window]);
    rollout.paused = true;
    let paused = explain(&case("n1", pool(|_, _| ()), rollout)).unwrap();
    assert_eq!((paused.alone, paused.opens), (vec![], None));
    assert_eq!(paused.together, [Change::Resume, Change::Window]);
}

#[test]
fn a_window_that_is_too_short_is_passed_over() {
    let window = |schedule: &str, duration: &str| Window {
        schedule: schedule.into(),
        duration: duration.into(),
        ..Window::default()
    };
    let rollout = Rollout {
        windows: vec![window("0 22 * * *", "1h"), window("0 22 * * 6", "8h")],
        ..Rollout::default()
    };
    let facts = pool(|n1, _| n1.estimate.reboot = Duration::from_secs(2 * 3600));
    let found = explain(&case("n1", facts, rollout)).unwrap();
    assert_eq!(
        found.opens,
        Some("1970-01-03T22:00:00Z".parse().unwrap()),
        "the first Saturday"
    );
}

#[test]
fn changes_are_combined_if_needed() {
    let two = explained("n1", pool(|n1, _| (n1.agent.heard, n1.node.held_back) = (false, true)));
    assert_eq!((two.alone, two.together), (vec![], vec![Change::Heard, Change::Unhold]));
    let facts = pool(|n1, _| (n1.agent.heard, n1.node.held_back, n1.agent.staged) = (false, true, None));
    let three = explained("n1", facts);
    assert_eq!(three.alone, []);
    assert_eq!(
        three.together,
        [Change::Unhold, Change::Prepared, Change::Heard],
        "changes follow the order of the obstacles"
    );
    let none = explained("n1", pool(|n1, _| n1.desired = None));
    assert_eq!(
        (none.wait, none.alone, none.together),
        (Some(BlockReason::NoImage), vec![], vec![])
    );
}

fn any_case() -> impl Strategy<Value = Case> {
    (any_facts(), 0..NODES.len(), prop::bool::weighted(0.2)).prop_map(|(mut facts, node, paused)| {
        // Outside of the controller, refused writes of Leases are not visible, so these cases have none.
        facts.berths.iter_mut().for_each(|seen| seen.refused = false);
        let rollout = Rollout {
            paused,
            ..Rollout::default()
        };
        case(NODES[node], facts, rollout)
    })
}

fn config() -> ProptestConfig {
    ProptestConfig::with_cases(1500)
}

fn goes(case: &Case) -> bool {
    offered_by(case.facts.clone(), MAX_PASSES).contains(&case.node)
}

/// The test finds the expected result by planning repeatedly and carrying out the writes of each plan one by one.
#[test]
fn the_named_changes_get_the_node_a_berth() {
    let floors = [("goes", 10), ("one change", 25), ("several changes", 60)];
    check(config(), any_case(), &floors, |case, reached| {
        let Some(answer) = explain(&case) else {
            prop_assert!(case.own().is_none());
            return Ok(());
        };
        let kinds = [
            ("goes", answer.wait.is_none()),
            ("one change", !answer.alone.is_empty()),
            ("several changes", !answer.together.is_empty()),
        ];
        for (name, is_reached) in kinds {
            if is_reached {
                reached.note(name);
            }
        }
        prop_assert_eq!(answer.wait.is_none(), goes(&case));
        for change in &answer.alone {
            let after = change.applied(&case);
            prop_assert!(after.is_some_and(|case| goes(&case)), "{:?}", change);
        }
        let all = answer
            .together
            .iter()
            .try_fold(case.clone(), |case, change| change.applied(&case));
        let is_enough = answer.together.is_empty() || all.is_some_and(|case| goes(&case));
        prop_assert!(is_enough, "{:?}", answer.together);
        prop_assert!(answer.alone.is_empty() || answer.together.is_empty());
        Ok(())
    });
}

#[test]
fn a_changed_case_has_the_gates_of_its_rules() {
    check(config(), any_case(), &[("changed", 90)], |mut case, reached| {
        case.rules.spec.rollout.get_or_insert_default().windows = friday();
        (case.rules.fleet, case.rules.clock_synchronized) = (Some(FleetGate::Paused), false);
        case.judge();
        let numbers = [Change::MaxFailures(9), Change::MaxUnavailable(9), Change::FleetLimit(9)];
        for change in Change::all(&case).into_iter().chain(numbers) {
            let Some(after) = change.applied(&case) else { continue };
            reached.note("changed");
            let mut judged = after.clone();
            judged.judge();
            prop_assert_eq!(&after.facts.gate, &judged.facts.gate, "{:?}", change);
            prop_assert_eq!(after.facts.closes, judged.facts.closes, "{:?}", change);
        }
        Ok(())
    });
}

#[test]
fn a_number_is_the_smallest_that_is_enough() {
    check(config(), any_case(), &[("a smaller one", 5)], |case, reached| {
        for change in explain(&case).into_iter().flat_map(|answer| answer.alone) {
            let (smaller, now) = match change {
                Change::MaxUnavailable(n) => (Change::MaxUnavailable(n - 1), case.facts.capacity),
                Change::FleetLimit(n) => (Change::FleetLimit(n - 1), case.facts.fleet.as_ref().unwrap().limit),
                Change::MaxFailures(n) => (Change::MaxFailures(n - 1), case.facts.max_failures),
                _ => continue,
            };
            let is_more = smaller
                > match smaller {
                    Change::MaxUnavailable(_) => Change::MaxUnavailable(now),
                    Change::FleetLimit(_) => Change::FleetLimit(now),
                    _ => Change::MaxFailures(now),
                };
            if is_more {
                reached.note("a smaller one");
            }
            let is_enough = smaller.applied(&case).is_some_and(|case| case.offered().is_ok());
            prop_assert!(!is_more || !is_enough, "{:?}", smaller);
        }
        Ok(())
    });
}

#[test]
fn a_turns_end_leaves_an_admins_cordon() {
    let mut facts = pool(|n1, _| n1.node.unschedulable = true);
    facts.berths = vec![seen(taken(0, "n1"))];
    let after = Change::TurnEnds("n1".into())
        .applied(&case("n2", facts, Rollout::default()))
        .unwrap();
    let n1 = after.facts.members.first().unwrap();
    assert_eq!((n1.uid.clone(), n1.node.unschedulable), (uid("n1"), true));
    assert_eq!(n1.agent.booted, Some(digest(2)));
}
