use berth_api::BootId;
use berth_api::berth::ClosedReason;
use proptest::prelude::*;

use super::*;
use crate::controller::gate::Gate;
use crate::controller::plan::tests::{
    asked_back, at, closed, committed, digest, facts, gate, member, offered, seen, taken, uid, wave,
};
use crate::controller::plan::{AgentState, FleetUse, NodeState, Place};
use crate::floors::check;

/// Returns a pool of members without a zone, each ready for an offer.
fn pool(capacity: usize, members: &[&str]) -> PoolFacts {
    facts(capacity, members.iter().map(|name| member(name)).collect(), vec![])
}

fn with(mut facts: PoolFacts, name: &str, change: impl FnOnce(&mut Member)) -> PoolFacts {
    let found = facts.members.iter_mut().find(|m| m.name.as_str() == name);
    change(found.unwrap());
    facts
}

/// Returns the names in the order of the forecast, with `|` before the first member that needs a person's help.
fn order(facts: &PoolFacts) -> String {
    let turns = forecast(facts, at(50)).turns;
    let (comes, helped): (Vec<_>, Vec<_>) = turns.iter().partition(|turn| turn.comes);
    let [comes, helped] = [comes, helped].map(|turns| {
        turns
            .iter()
            .map(|turn| turn.node.as_str())
            .collect::<Vec<_>>()
            .join(" ")
    });
    if helped.is_empty() {
        comes
    } else {
        format!("{comes} | {helped}").trim().to_owned()
    }
}

#[test]
fn passing_obstacles_do_not_change_the_order() {
    let mut facts = pool(1, &["n2", "n1", "n3"]);
    facts.waves = vec![wave("canary", 3600, 0), wave("rest", 0, 0)];
    facts.gate = Some(Gate {
        reason: GateReason::Paused,
        message: String::new(),
    });
    facts.closes = Some(at(51));
    facts.published = 0;
    let facts = with(facts, "n1", |m| {
        (
            m.published.digest,
            m.agent.staged,
            m.published.observed,
            m.agent.prepared,
            m.agent.heard,
        ) = (None, None, false, false, false);
        m.agent.clock_synchronized = false;
    });
    let facts = with(facts, "n2", |m| m.place.wave = 1);
    assert_eq!(order(&facts), "n1 n3 n2");
}

fn two_zones(capacity: usize) -> PoolFacts {
    let facts = pool(capacity, &["n1", "n2", "n3"]);
    with(facts, "n3", |m| m.place.zone = "b".into())
}

#[test]
fn passing_obstacles_block_no_turn() {
    type Change = fn(&mut PoolFacts);
    let changes: [(&str, Change); 9] = [
        ("a window closes", |f| f.closes = Some(at(50))),
        ("the image is being resolved", |f| f.unresolved = true),
        ("the watches are late", |f| f.outdated = true),
        ("a Node was read as gone", |f| {
            f.confirmed_gone.insert(uid("n1"));
        }),
        ("the fleet's limit is used up", |f| {
            f.fleet = Some(FleetUse {
                limit: 1,
                held_or_offered: 1,
                all: 1,
                ..FleetUse::default()
            });
        }),
        ("an earlier pool goes first", |f| {
            f.order = gate(GateReason::EarlierPool);
        }),
        ("the spec was for a former Node", |f| {
            f.members[0].published.uid = uid("old");
        }),
        ("another server is down", |f| {
            f.members[0].place.control_plane = Some(asked_back());
        }),
        ("few failures are allowed", |f| {
            f.failures = [(digest(2), ["gone".into()].into())].into();
            f.max_failures = 1;
        }),
    ];
    for (what, change) in changes {
        let mut facts = pool(1, &["n1", "n2", "n3"]);
        change(&mut facts);
        assert_eq!(order(&facts), "n1 n2 n3", "{what}");
    }
    for reason in [GateReason::OrderCycle, GateReason::UnknownPool] {
        let mut facts = pool(1, &["n1", "n2"]);
        facts.order = gate(reason);
        assert_eq!(order(&facts), "| n1 n2", "{reason:?} does not pass");
    }
}

#[test]
fn a_leaving_holder_counts_for_one_round() {
    let mut facts = two_zones(2);
    assert_eq!(order(&facts), "n1 n3 n2");
    facts.berths = vec![seen(taken(0, "n9")), seen(closed(1))];
    facts.lost.insert(uid("n9"));
    assert_eq!(
        order(&facts),
        "n1 n2 n3",
        "only one node goes while n9 still holds a berth"
    );
}

fn limited(unavailable: usize) -> PoolFacts {
    let mut facts = two_zones(2);
    facts.fleet = Some(FleetUse {
        limit: 2,
        unavailable,
        all: unavailable,
        ..FleetUse::default()
    });
    facts
}

fn fail(member: &mut Member) {
    member.agent.failed = vec![digest(2)];
}

#[test]
fn the_fleets_limit_says_how_many_go_at_once() {
    assert_eq!(order(&limited(0)), "n1 n3 n2");
    assert_eq!(order(&limited(1)), "n1 n2 n3");
    assert_eq!(
        order(&with(limited(2), "n1", fail)),
        "| n2 n3 n1",
        "no node goes without help; nodes that can go come first"
    );
    assert_eq!(order(&with(pool(0, &["n1", "n2", "n3"]), "n1", fail)), "| n2 n3 n1");
}

#[test]
fn a_failure_of_a_closed_berth_counts() {
    let mut facts = pool(1, &["n1", "n2"]);
    let failed = committed(0, "n1").ended(ClosedReason::Excluded).unwrap();
    facts.berths = vec![seen(failed)];
    assert_eq!(order(&facts), "n2 | n1");
}

#[test]
fn only_members_that_matter_take_part_in_each_round() {
    let facts = pool(1, &["n1", "n2", "n3", "n4", "n5", "n6"]);
    let facts = with(facts, "n2", |m| m.node.ready = false);
    let facts = with(facts, "n3", |m| m.node.held_back = true);
    let facts = with(facts, "n4", |m| m.agent.failed = vec![digest(2)]);
    let facts = with(facts, "n5", |m| m.agent.booted = m.desired.clone());
    let future = Future::of(&facts);
    let names: Vec<&str> = future.facts.members.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["n2", "n3", "n4"]);
    let fit = future.fit.values().flat_map(BTreeMap::values).flatten();
    let names: Vec<&str> = fit.map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["n1", "n6"]);
}

#[test]
fn many_that_are_down_go_several_at_once() {
    let names: Vec<String> = (0..2000).map(|n| format!("n{n:04}")).collect();
    let mut facts = pool(1, &names.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(Future::of(&facts).facts.capacity, 1, "no member is down");
    facts.members.iter_mut().for_each(|m| m.node.ready = false);
    // A capacity of 1 is raised to 4, to stay below `MAX_LOOKS`. A capacity of 0 stays, because no member can be
    // updated without help.
    for (capacity, at_once) in [(1, 4), (10, 10), (0, 0)] {
        facts.capacity = capacity;
        assert_eq!(Future::of(&facts).facts.capacity, at_once);
    }
}

#[test]
fn holders_go_first_and_control_plane_nodes_last() {
    let mut facts = pool(1, &["cp", "n1", "n2", "n3", "n4", "n5", "n6"]);
    facts.berths = vec![seen(closed(0)), seen(taken(1, "n5"))];
    let facts = with(facts, "n2", |m| m.offers = 2);
    let facts = with(facts, "cp", |m| m.place.wave = 1);
    let facts = with(facts, "n1", |m| m.agent.last_turn = Some(digest(2)));
    let facts = with(facts, "n3", |m| m.node.ready = false);
    let facts = with(facts, "n4", |m| m.agent.last_turn = Some(digest(1)));
    // n5 holds berth 1, which exceeds the capacity of 1. Its turn comes first all the same, and its cordon is removed.
    let facts = with(facts, "n5", |m| {
        (m.node.our_cordon, m.node.unschedulable) = (true, true)
    });
    assert_eq!(order(&facts), "n5 n3 n4 n6 n1 n2 cp");
}

#[test]
fn zones_take_turns_if_several_nodes_go() {
    let mut zones = pool(1, &["n1", "n2", "n3", "n4", "n5", "n6"]);
    for name in ["n1", "n2", "n3"] {
        zones = with(zones, name, |m| m.place.zone = "a".into());
    }
    assert_eq!(order(&zones), "n1 n2 n3 n4 n5 n6");
    for capacity in [9, 2] {
        zones.capacity = capacity;
        assert_eq!(order(&zones), "n1 n4 n2 n5 n3 n6");
    }
    let down = with(zones, "n1", |m| {
        (m.agent.booted, m.node.unschedulable) = (m.desired.clone(), true)
    });
    assert_eq!(order(&down), "n4 n5 n6 n2 n3", "a node of its zone is down");
}

fn stuck(facts: &PoolFacts) -> Vec<NodeName> {
    forecast(facts, at(50)).stuck
}

#[test]
fn members_that_need_help_are_named() {
    let nobody: Vec<NodeName> = vec![];
    let cordoned = with(pool(1, &["n1", "n2", "n3"]), "n2", |m| m.node.unschedulable = true);
    assert_eq!(order(&cordoned), "n2 | n1 n3", "the cordon of an admin stays");
    assert_eq!(stuck(&cordoned), nobody);
    let room = with(pool(2, &["n1", "n2", "n3"]), "n2", |m| m.node.unschedulable = true);
    assert_eq!(order(&room), "n2 n1 n3");
    let failed = with(pool(1, &["n1", "n2", "n3"]), "n1", fail);
    assert_eq!(
        (order(&failed), stuck(&failed)),
        ("n2 n3 | n1".to_owned(), nobody.clone())
    );
    let mut waves = failed;
    waves.waves = vec![wave("canary", 0, 0), wave("rest", 0, 0)];
    let waves = with(waves, "n3", |m| m.place.wave = 1);
    assert_eq!(
        (order(&waves), stuck(&waves)),
        ("n2 | n3 n1".to_owned(), vec![NodeName::from("n1")])
    );
    let mut cordoned_later = with(waves, "n2", |m| (m.place.wave, m.node.unschedulable) = (1, true));
    assert_eq!(
        (order(&cordoned_later), stuck(&cordoned_later)),
        ("| n2 n3 n1".to_owned(), vec![NodeName::from("n1")]),
        "with help, a cordon blocks no member"
    );
    cordoned_later.members.iter_mut().for_each(|m| m.place.wave = 0);
    assert_eq!(
        (order(&cordoned_later), stuck(&cordoned_later)),
        ("n2 | n3 n1".to_owned(), nobody.clone()),
        "n1 keeps no wave waiting"
    );
    let held = with(pool(1, &["n1", "n2", "n3"]), "n1", |m| m.node.held_back = true);
    assert_eq!((order(&held), stuck(&held)), ("n2 n3 | n1".to_owned(), nobody.clone()));
    let mut held_canary = held;
    held_canary.waves = vec![wave("canary", 0, 0), wave("rest", 0, 0)];
    let held_canary = with(held_canary, "n3", |m| m.place.wave = 1);
    assert_eq!(
        (order(&held_canary), stuck(&held_canary)),
        ("n2 | n3 n1".to_owned(), vec![NodeName::from("n1")])
    );
    let mut unreadable = pool(1, &["n1", "n2"]);
    unreadable.berths = vec![SeenBerth {
        berth: Err("edited".into()),
        ..seen(closed(0))
    }];
    assert_eq!(order(&unreadable), "| n1 n2");
    assert_eq!(order(&pool(0, &["n1", "n2"])), "| n1 n2");
    let mut elsewhere = pool(1, &["n1", "n2"]);
    elsewhere.elsewhere.insert(uid("n1"));
    assert_eq!(order(&elsewhere), "n1 n2");
}

#[test]
fn no_member_runs_an_unknown_image() {
    let facts = with(pool(1, &["n1", "n2"]), "n1", |m| m.agent.booted = m.desired.clone());
    assert_eq!(order(&facts), "n2");
    assert_eq!(order(&facts.with_unknown_image()), "n1 n2");
}

#[test]
fn a_large_pool_goes_one_or_many_at_once() {
    let names: Vec<String> = (0..1000).map(|n| format!("n{n:04}")).collect();
    let mut facts = pool(1, &names.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(order(&facts), names.join(" "));
    for (n, member) in facts.members.iter_mut().enumerate() {
        member.place.zone = format!("z{n}");
        member.node.ready = n % 2 == 0;
    }
    facts.capacity = 30;
    let (down, up): (Vec<_>, Vec<_>) = names.into_iter().enumerate().partition(|(n, _)| n % 2 == 1);
    let expected: Vec<String> = down.into_iter().chain(up).map(|(_, name)| name).collect();
    assert_eq!(order(&facts), expected.join(" "));
}

const NODES: [&str; 9] = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"];

fn any_member(name: &'static str) -> impl Strategy<Value = Member> {
    let flags = proptest::array::uniform6(proptest::bool::weighted(0.85));
    (flags, 0usize..4, 0usize..2, 0u32..3, 0u32..2).prop_map(move |(f, zone, wave, turns, offers)| Member {
        offers,
        place: Place {
            wave,
            zone: ["a", "b", "c", "d"][zone].into(),
            control_plane: None,
        },
        node: NodeState {
            ready: f[0],
            unschedulable: !f[1],
            our_cordon: !f[2],
            held_back: !f[5],
        },
        agent: AgentState {
            failed: if f[3] { vec![] } else { vec![digest(2)] },
            booted: Some(digest(if f[4] { 1 } else { 2 })),
            last_turn: (turns > 0).then(|| digest(2)),
            ..member(name).agent
        },
        ..member(name)
    })
}

prop_compose! {
    fn any_facts()(
        members in NODES.map(any_member),
        capacity in 0usize..5,
        berths in proptest::array::uniform3(0usize..9),
    ) -> PoolFacts {
        let mut seen_berths = vec![];
        for (index, kind) in (0..).zip(berths) {
            seen_berths.push(seen(match kind {
                0..3 => offered(index, NODES[kind]),
                3..6 => taken(index, NODES[kind]).committed(BootId::from("b")).unwrap(),
                _ => closed(index),
            }));
        }
        let mut facts = facts(capacity, members.to_vec(), seen_berths);
        facts.waves = vec![wave("canary", 0, 0), wave("rest", 0, 0)];
        facts
    }
}

fn in_full(facts: &PoolFacts) -> Forecast {
    let mut future = Future::of(facts);
    let fit = std::mem::take(&mut future.fit);
    let fit = fit.into_values().flat_map(BTreeMap::into_values).flatten();
    future.facts.members.extend(fit);
    play(future, at(50))
}

proptest! {
    #[test]
    fn skipped_members_make_no_difference(facts in any_facts()) {
        prop_assert_eq!(forecast(&facts, at(50)), in_full(&facts));
    }

    #[test]
    fn everyone_who_should_go_is_named_once(facts in any_facts()) {
        let mut named: Vec<NodeName> = forecast(&facts, at(50)).turns.into_iter().map(|turn| turn.node).collect();
        named.sort();
        let outdated = facts.members.iter().filter(|m| m.agent.booted != m.desired).map(|m| m.name.clone());
        prop_assert_eq!(named, outdated.collect::<Vec<_>>());
    }
}

#[test]
fn the_forecast_begins_with_the_plans_offer() {
    check(
        ProptestConfig::default(),
        any_facts(),
        &[("offer", 50)],
        |facts, reached| {
            let offers = plan(&facts, at(50)).writes.into_iter().filter_map(|write| match write {
                BerthWrite::Update {
                    berth,
                    why: WriteReason::Offer,
                    ..
                } => berth.offer().map(|offer| offer.node.clone()),
                _ => None,
            });
            let busy = busy(&facts).len();
            let turns: Vec<NodeName> = forecast(&facts, at(50))
                .turns
                .into_iter()
                .map(|turn| turn.node)
                .collect();
            for offer in offers {
                reached.note("offer");
                let place = turns.iter().position(|node| *node == offer);
                let is_first = place.is_some_and(|place| place < busy + facts.capacity);
                prop_assert!(is_first, "{} in {:?}", offer, turns);
            }
            Ok(())
        },
    );
}
