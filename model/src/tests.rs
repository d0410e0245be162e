use std::time::Duration;

use berth_api::berth::{ClosedReason, Outcome};

use crate::controller::see;
use crate::explore::{Limits, explore};
use crate::fair::{Fair, I10, round};
use crate::judge;
use crate::moves::{Memo, successors};
use crate::set::Set;
use crate::state::{
    Berth, BootImages, Closed, Cordon, Held, Lease, NO_NUMBER, NONE, Node, Number, Phase, PlanInputs, Request, Spec,
    State, Status, Until, Work, Write,
};
use crate::world::{Broken, World};
use crate::{hash, worlds};

const LIMITS: Limits = Limits {
    states: usize::MAX,
    time: Duration::from_secs(60),
    threads: 2,
};

fn world(name: &str) -> World {
    worlds::all(false).into_iter().find(|w| w.name == name).unwrap()
}

fn held(node: Number, phase: Phase) -> Lease {
    let held = Held {
        node,
        uid: 0,
        target: 2,
        from: 1,
        boot: 0,
        phase,
        revoke: 0,
        until: Until::Ever,
    };
    Lease {
        epoch: 1,
        is: Berth::Held(held),
    }
}

/// Returns some states that are a few moves from the start.
fn some(world: &World, moves: usize) -> Vec<State> {
    let mut memo = Memo::default();
    let mut states = vec![world.start()];
    for _ in 0..moves {
        let next = states
            .iter()
            .flat_map(|s| successors(world, s, &mut memo))
            .map(|w| w.to);
        states = next.step_by(3).take(40).collect();
    }
    states
}

#[test]
fn a_world_without_faults_breaks_no_rule() {
    let outcome = explore(&world("calm"), LIMITS);
    assert!(outcome.found.is_none() && outcome.complete, "{:?}", outcome.found);
    assert!(
        outcome.states > 100 && outcome.depth > 30,
        "three turns of about twelve moves each"
    );
}

#[test]
fn renumbered_states_have_one_canonical_form() {
    for world in [world("crash"), world("capacity"), world("gate")] {
        for state in some(&world, 4) {
            let mut one = state.clone();
            one.canonical();
            for to in [[1, 2, 0], [2, 1, 0], [0, 2, 1]] {
                let mut other = state.clone();
                other.rename(&to);
                other.canonical();
                assert_eq!(hash::of(&one), hash::of(&other), "{}: {to:?}", world.name);
            }
        }
    }
}

/// Returns the start state of a world, with a change applied.
fn changed(world: &World, change: impl FnOnce(&mut State)) -> State {
    let mut state = world.start();
    change(&mut state);
    state
}

fn cordon(state: &mut State) {
    (state.nodes[1].object.cordon, state.nodes[1].object.unschedulable) = (Cordon::OverSchedulable, true);
}

/// Gives node 0 a berth in this phase, and unlocks its staged image.
fn arm(state: &mut State, phase: Phase) {
    (state.nodes[0].host.locked, state.nodes[0].ghost.armed) = (false, 1);
    state.slots[0] = held(0, phase);
}

fn broken(change: impl FnOnce(&mut State)) -> Option<Broken> {
    let calm = world("calm");
    judge::state(&calm, &changed(&calm, change))
}

#[test]
fn the_judge_sees_rules_broken_in_one_state() {
    assert_eq!(broken(|_| {}), None);
    assert_eq!(broken(cordon), Some(judge::I1A_CORDON));
    let is_held = broken(|s| {
        cordon(s);
        s.slots[0] = held(1, Phase::Taken);
    });
    assert_eq!(is_held, None);
    assert_eq!(broken(|s| s.nodes[0].ghost.unproven = true), Some(judge::I1A_UNPROVEN));
    assert_eq!(broken(|s| arm(s, Phase::Taken)), Some(judge::I3_ARMED));
    assert_eq!(broken(|s| arm(s, Phase::Committed)), None);
    assert_eq!(broken(|s| s.nodes[0].ghost.admin = true), Some(judge::I4_CORDON));
}

#[test]
fn outdated_requests_are_dropped() {
    let calm = world("calm");
    let mut state = calm.start();
    let late = Request::Berth {
        slot: 0,
        lease: held(0, Phase::Taken),
        node: 0,
    };
    state.air = vec![
        late,
        Request::Node {
            node: 1,
            unschedulable: true,
            cordon: Cordon::OverSchedulable,
        },
    ];
    state.touch_slot(1);
    state.touch_node(0);
    assert_eq!(state.air.len(), 2);
    state.touch_slot(0);
    assert_eq!(state.air.len(), 1);
    state.touch_node(1);
    assert!(state.air.is_empty());
}

#[test]
fn the_fair_schedule_finds_dead_ends() {
    let (calm, mut memo) = (world("calm"), Memo::default());
    assert!(Fair::default().ends(&calm, &calm.start(), &mut memo).is_ok());
    // No controller creates the berth of a pool without capacity.
    let mut none = calm.start();
    (none.pools[0].capacity, none.pools[0].published) = (0, 0);
    assert!(Fair::default().ends(&calm, &none, &mut memo).is_err());
    let hopeless = World { bad: 1 << 2, ..calm };
    assert_eq!(explore(&hopeless, LIMITS).found.map(|f| f.broken), Some(I10));
}

/// Returns a plan's inputs in the world `calm` after a change.
fn inputs(change: impl FnOnce(&mut State)) -> PlanInputs {
    let calm = world("calm");
    judge::inputs(&calm, &see(&changed(&calm, change)), 0)
}

fn unavailable(change: impl FnOnce(&mut State)) -> Vec<Number> {
    inputs(change).unavailable.iter().collect()
}

#[test]
fn the_judge_counts_unavailable_nodes() {
    let calm = inputs(|_| {});
    assert_eq!((calm.unavailable, calm.limit, calm.closed), (Set::default(), 1, false));
    assert_eq!(unavailable(|s| s.nodes[1].object.ready = false), [1]);
    assert_eq!(unavailable(|s| s.nodes[2].object.unschedulable = true), [2]);
    assert_eq!(unavailable(|s| s.nodes[0].object.cordon = Cordon::OverCordoned), [0]);
    type Change = fn(&mut Node);
    let table: [(Change, &[Number]); 4] = [
        (|n| n.object.excluded = true, &[]),
        (|n| n.object.exists = false, &[]),
        (|n| n.labels.pool = NONE, &[]),
        // A node's BootcNode does not matter.
        (|n| (n.spec, n.status) = (None, Status::default()), &[1]),
    ];
    for (change, expected) in table {
        let down = unavailable(|s| {
            s.nodes[1].object.ready = false;
            change(&mut s.nodes[1]);
        });
        assert_eq!(down, expected);
    }
    assert_eq!(inputs(|s| s.pools[0].published = 0).limit, 0);
    assert_eq!(inputs(|s| s.pools[0].capacity = 0).limit, 0);
    assert!(inputs(|s| s.fleet.paused = true).closed && inputs(|s| s.pools[0].outside = true).closed);
}

fn permit(state: &mut State, node: usize) {
    state.nodes[node].spec.as_mut().unwrap().may_pull = true;
}

/// Returns the rule that one more permit to pull breaks, after a change.
fn one_more_permit(change: impl FnOnce(&mut State)) -> Option<Broken> {
    let permits = World {
        nodes: 3,
        ..world("permits")
    };
    let look = see(&changed(&permits, change));
    let spec = look.nodes[1].spec.map(|spec| Spec { may_pull: true, ..spec });
    judge::permits(&permits, &look, &[Write::Publish { node: 1, spec }])
}

#[test]
fn the_judge_counts_the_permits_to_pull() {
    assert_eq!(one_more_permit(|_| {}), None);
    assert_eq!(one_more_permit(|s| permit(s, 0)), Some(judge::PERMITS));
    let broken = one_more_permit(|s| {
        permit(s, 0);
        s.nodes[0].status.staged = 2;
    });
    assert_eq!(broken, None, "an unneeded permit does not count");
    let broken = one_more_permit(|s| {
        for node in 0..2 {
            permit(s, node);
            s.nodes[node].status.work = Work::Pulls;
        }
    });
    assert_eq!(broken, None, "a running pull keeps its permit");
}

fn final_target(world: &World, state: &State) -> u8 {
    let (mut state, mut memo) = (state.clone(), Memo::default());
    for _ in 0..12 {
        assert_eq!(round(world, &mut state, &mut memo), None);
    }
    assert!(state.nodes.iter().all(|n| n.host.booted == state.pools[0].target));
    state.pools[0].target
}

#[test]
fn a_forbidden_image_needs_the_admins_policy() {
    let world = world("boot-image");
    let mut moved = world.start();
    crate::nature::edit(&world, &mut moved, 3);
    assert_eq!(final_target(&world, &moved), 2, "the previous target stays");
    for rule in [BootImages::Recorded, BootImages::Warn, BootImages::Disabled] {
        let mut accepted = moved.clone();
        accepted.pools[0].boot_images = rule;
        assert_eq!(final_target(&world, &accepted), 3, "{rule:?}");
    }
    // Agents no longer report, but their earlier reports count.
    let mut silent = moved.clone();
    for node in &mut silent.nodes {
        (node.spec, node.status) = (None, Status::default());
    }
    assert_eq!(final_target(&world, &silent), 2);
    let mut young = moved;
    young.pools[0].tagged = 2;
    assert_eq!(final_target(&world, &young), 2);
}

#[test]
fn boot_numbers_are_normalized() {
    let crash = world("crash");
    let mut one = crash.start();
    one.slots[0] = held(0, Phase::Committed);
    let mut other = one.clone();
    (0..2).for_each(|_| one.next_boot(0));
    (0..7).for_each(|_| other.next_boot(0));
    one.canonical();
    other.canonical();
    assert_eq!(one, other);
    assert!(
        one.slots[0].held().is_some_and(|h| h.boot == 1),
        "an older boot than the running one"
    );
}

fn kept(reason: ClosedReason, outcome: Option<Outcome>) -> Closed {
    let (last, target) = (1, 2);
    let closed = Closed {
        reason,
        last,
        target,
        outcome,
    };
    closed.kept()
}

#[test]
fn a_closed_berth_keeps_the_fields_of_the_plan() {
    let nothing = kept(ClosedReason::Released, Some(Outcome::Updated));
    assert_eq!((nothing.last, nothing.target, nothing.outcome), (NO_NUMBER, 0, None));
    assert_eq!(kept(ClosedReason::Withdrawn, None), nothing);
    let failed = kept(ClosedReason::Failed, Some(Outcome::Failed));
    assert_eq!((failed.last, failed.target), (1, 2));
    assert_eq!(kept(ClosedReason::Lapsed, Some(Outcome::Lapsed)), nothing);
    assert_eq!(kept(ClosedReason::Shrunk, None).reason, ClosedReason::Shrunk);
}

#[cfg(feature = "seeded-bugs")]
#[test]
fn each_bug_has_a_world_and_names_are_unique() {
    let mut names: Vec<_> = worlds::all(true).iter().map(|w| w.name).collect();
    names.extend(crate::bugs::all().iter().map(|s| s.world.name));
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    assert_eq!(crate::bugs::all().len(), berth_api::seeded::Bug::ALL.len());
}
