//! Unit tests of the plan: its writes for small pools.

use std::time::Duration;

use berth_api::berth::{ClosedReason, Outcome};
use berth_api::{BootId, NodeName};

use super::*;
use crate::controller::gate::{Gate, GateReason};
use crate::controller::quorum::Verdict;
use crate::controller::usage::{CapacityUse, UseKind};

mod counts;
mod gates;

pub(crate) fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

pub(crate) fn uid(name: &str) -> NodeUid {
    NodeUid::new(format!("uid-{name}"))
}

/// A member that is ready for an offer of digest 2.
pub(crate) fn member(name: &str) -> Member {
    Member {
        name: name.into(),
        uid: uid(name),
        node: NodeState {
            ready: true,
            unschedulable: false,
            our_cordon: false,
            held_back: false,
        },
        place: Place {
            wave: 0,
            zone: String::new(),
            control_plane: None,
        },
        desired: Some(digest(2)),
        published: Published {
            digest: Some(digest(2)),
            uid: uid(name),
            observed: true,
        },
        agent: AgentState {
            heard: true,
            prepared: true,
            staged: Some(digest(2)),
            booted: Some(digest(1)),
            failed: vec![],
            last_turn: None,
            clock_synchronized: true,
        },
        leaving: false,
        abandoned: false,
        offers: 0,
        turns: 0,
        estimate: Estimate::default(),
    }
}

pub(crate) fn changed(mut member: Member, change: impl FnOnce(&mut Member)) -> Member {
    change(&mut member);
    member
}

/// Verdict that makes a control plane node stop its turn, because no other API server answers.
pub(crate) fn asked_back() -> Verdict {
    let cause = Some(Cause::NoOtherServer);
    Verdict {
        withhold: cause,
        ask_back: cause,
        stay: cause,
    }
}

pub(crate) fn wave(name: &str, soak: u64, soaked: u64) -> Wave {
    Wave {
        name: name.into(),
        soak: Duration::from_secs(soak),
        soaked: Duration::from_secs(soaked),
    }
}

pub(crate) fn gate(reason: GateReason) -> Option<Gate> {
    Some(Gate {
        reason,
        message: String::new(),
    })
}

pub(crate) fn closed(index: u32) -> Berth {
    Berth::new("p".into(), index, 7)
}

pub(crate) fn offered(index: u32, node: &str) -> Berth {
    let offer = Offer {
        node: node.into(),
        uid: uid(node),
        target: digest(2),
        open_until: None,
    };
    closed(index).offered(offer).unwrap()
}

pub(crate) fn taken(index: u32, node: &str) -> Berth {
    let boot = BootId::from("b");
    offered(index, node)
        .taken(&node.into(), &uid(node), Some(digest(1)), boot)
        .unwrap()
}

pub(crate) fn committed(index: u32, node: &str) -> Berth {
    taken(index, node).committed(BootId::from("b")).unwrap()
}

pub(crate) fn seen(berth: Berth) -> SeenBerth {
    SeenBerth::new(berth.name(), Ok(berth))
}

fn unreadable(index: u32) -> SeenBerth {
    SeenBerth::new(closed(index).name(), Err("edited".into()))
}

fn refused(berth: Berth) -> SeenBerth {
    SeenBerth {
        refused: true,
        ..seen(berth)
    }
}

pub(crate) fn facts(k: usize, members: Vec<Member>, berths: Vec<SeenBerth>) -> PoolFacts {
    PoolFacts {
        pool: "p".into(),
        epoch: 7,
        capacity: k,
        published: k,
        gate: None,
        closes: None,
        waves: vec![wave(REST, 0, 0), wave(CONTROL_PLANE, 0, 0)],
        failures: Failures::new(),
        excluded: BTreeSet::new(),
        // High enough not to matter, unless a test sets it.
        max_failures: 100,
        unresolved: false,
        outdated: false,
        members,
        berths,
        elsewhere: BTreeSet::new(),
        confirmed_gone: BTreeSet::new(),
        lost: BTreeSet::new(),
        fleet: None,
        order: None,
    }
}

fn now(facts: &PoolFacts) -> Plan {
    plan(facts, at(50))
}

/// Each write as text, such as `p-0 Offer n1`.
fn words(plan: &Plan) -> Vec<String> {
    plan.writes
        .iter()
        .map(|write| match write {
            BerthWrite::Create(berth) => format!("{} Create", berth.name()),
            BerthWrite::Delete { lease } => format!("{lease} Delete"),
            BerthWrite::Update { lease, berth, why } => {
                let node = berth.node().map_or("", |(n, _)| n.as_str());
                format!("{lease} {why:?} {node}").trim_end().to_owned()
            }
        })
        .collect()
}

fn names(names: &[&str]) -> Vec<Member> {
    names.iter().map(|n| member(n)).collect()
}

#[test]
fn berths_are_created_closed_and_offered_later() {
    let plan = now(&facts(2, names(&["n1", "n2"]), vec![]));
    assert_eq!(words(&plan), ["p-0 Create", "p-1 Create"]);
    assert_eq!(plan.waiting[&"n1".into()], BlockReason::NoBerth);
}

#[test]
fn a_large_capacity_creates_few_berths() {
    let closed_berths = [0, 1].map(|index| seen(closed(index)));
    let plan = now(&facts(1_000_000, names(&["n1", "n2"]), closed_berths.into()));
    assert_eq!(words(&plan), ["p-0 Offer n1", "p-1 Offer n2"]);
    // None of these berths can be offered to a member: held by another node, unreadable, or with an unrecorded failure.
    let failed = committed(2, "n9").ended(ClosedReason::Gone).unwrap();
    let theirs = vec![seen(taken(0, "n8")), unreadable(1), seen(failed)];
    let and_refused = [theirs.clone(), vec![refused(closed(3))]].concat();
    for (berths, expected) in [
        (vec![], ["p-0 Create", "p-1 Create"]),
        (theirs, ["p-3 Create", "p-4 Create"]),
        (and_refused, ["p-4 Create", "p-5 Create"]),
    ] {
        let plan = now(&facts(1_000_000, names(&["n1", "n2"]), berths));
        let mut created = words(&plan);
        created.retain(|write| write.ends_with("Create"));
        assert_eq!(
            (created.as_slice(), plan.counts.total),
            (&expected.map(str::to_owned)[..], 1_000_000)
        );
    }
    let without_members = words(&now(&facts(3, vec![], vec![])));
    assert!(!without_members.iter().any(|write| write.ends_with("Create")));
}

#[test]
fn one_at_a_time_and_two_at_a_time() {
    let three = names(&["n1", "n2", "n3"]);
    let plan = now(&facts(1, three.clone(), vec![seen(closed(0))]));
    assert_eq!(words(&plan), ["p-0 Offer n1"]);
    assert_eq!(plan.waiting[&"n2".into()], BlockReason::Capacity);
    let two = now(&facts(2, three, vec![seen(closed(1)), seen(closed(0))]));
    assert_eq!(words(&two), ["p-0 Offer n1", "p-1 Offer n2"]);
    let BerthWrite::Update { berth, .. } = &two.writes[0] else {
        panic!()
    };
    let offer = berth.offer().unwrap();
    assert_eq!((&offer.uid, &offer.target), (&uid("n1"), &digest(2)));
    assert_eq!(offer.open_until, None);
}

#[test]
fn holders_and_open_offers_use_up_capacity() {
    for berth in [taken(0, "n1"), committed(0, "n1"), offered(0, "n1")] {
        let plan = now(&facts(1, names(&["n1", "n2"]), vec![seen(berth), seen(closed(1))]));
        assert!(!words(&plan).iter().any(|w| w.contains("Offer")), "{plan:?}");
    }
}

#[test]
fn a_broken_node_can_always_be_repaired() {
    let mut members = names(&["n1", "n2", "n3"]);
    members[2].node.ready = false;
    let mut f = facts(1, members, vec![seen(closed(0))]);
    f.members[2].agent.prepared = false;
    let plan = now(&f);
    assert!(plan.writes.is_empty(), "{plan:?}");
    assert_eq!(plan.waiting[&"n1".into()], BlockReason::Capacity);
    assert_eq!(plan.used_by.len(), 1);
    assert_eq!(plan.used_by[0].how, UseKind::NotReady);
    f.members[2].agent.prepared = true;
    assert_eq!(
        words(&now(&f)),
        ["p-0 Offer n3"],
        "the unavailable node itself goes first"
    );
    f.members[2].node.ready = true;
    f.members[2].node.unschedulable = true;
    assert_eq!(words(&now(&f)), ["p-0 Offer n3"]);
    f.members[2].agent.prepared = false;
    assert_eq!(now(&f).used_by[0].how, UseKind::CordonedByOthers);
}

#[test]
fn more_unavailable_than_capacity_still_repairs_k_of_them() {
    let mut members = names(&["n1", "n2", "n3"]);
    members.iter_mut().for_each(|m| m.node.ready = false);
    let plan = now(&facts(2, members, vec![seen(closed(0)), seen(closed(1))]));
    assert_eq!(words(&plan), ["p-0 Offer n1", "p-1 Offer n2"]);
}

#[test]
fn a_node_counts_once() {
    let mut members = names(&["n1", "n2"]);
    members[0].node.unschedulable = true;
    members[0].node.our_cordon = true;
    let plan = now(&facts(2, members, vec![seen(taken(0, "n1")), seen(closed(1))]));
    assert_eq!(words(&plan), ["p-1 Offer n2"]);
}

#[test]
fn a_member_that_finishes_elsewhere_counts_here() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(closed(0))]);
    f.elsewhere.insert(uid("n1"));
    let plan = now(&f);
    assert!(plan.writes.is_empty());
    assert_eq!(plan.waiting[&"n1".into()], BlockReason::HasBerth);
    f.elsewhere = [uid("a-stranger")].into();
    assert_eq!(words(&now(&f)), ["p-0 Offer n1"]);
    // All nodes are down, and n1 holds a berth of another pool. The capacity of 2 allows one more offer.
    let mut broken = names(&["n1", "n2", "n3"]);
    broken.iter_mut().for_each(|m| m.node.ready = false);
    let mut f = facts(2, broken, vec![seen(closed(0)), seen(closed(1))]);
    f.elsewhere.insert(uid("n1"));
    assert_eq!(words(&now(&f)), ["p-0 Offer n2"]);
}

#[test]
fn only_the_fit_are_offered_a_berth() {
    type Change = fn(&mut Member);
    let changes: [(BlockReason, Change); 10] = [
        (BlockReason::NoImage, |m| m.desired = None),
        (BlockReason::UpToDate, |m| m.agent.booted = Some(digest(2))),
        (BlockReason::NotPublished, |m| m.published.digest = Some(digest(1))),
        (BlockReason::OtherNode, |m| m.published.uid = uid("old")),
        (BlockReason::NotObserved, |m| m.published.observed = false),
        (BlockReason::FailedBefore, |m| m.agent.failed = vec![digest(2)]),
        (BlockReason::NotStaged, |m| m.agent.staged = Some(digest(3))),
        (BlockReason::NotStaged, |m| m.agent.staged = None),
        (BlockReason::NotPrepared, |m| m.agent.prepared = false),
        (BlockReason::Silent, |m| m.agent.heard = false),
    ];
    for (wait, change) in changes {
        let mut n1 = member("n1");
        change(&mut n1);
        let plan = now(&facts(1, vec![n1, member("n2")], vec![seen(closed(0))]));
        assert_eq!(words(&plan), ["p-0 Offer n2"], "{wait:?}");
        assert_eq!(plan.waiting[&"n1".into()], wait);
    }
}

fn order(f: &PoolFacts) -> Vec<&str> {
    let occupancy = Occupancy::of(f, &f.berths);
    let mut queue = candidates::Queue::of(f, &occupancy);
    std::iter::from_fn(|| queue.next()).map(|m| m.name.as_str()).collect()
}

#[test]
fn a_node_with_a_bad_turn_goes_behind_the_others() {
    let mut members = names(&["n1", "n2", "n3"]);
    members[0].agent.last_turn = Some(digest(2));
    members[1].agent.last_turn = Some(digest(2));
    let mut f = facts(1, members, vec![]);
    assert_eq!(order(&f), ["n3", "n1", "n2"], "the node's number does not matter");
    f.members[0].node.ready = false;
    assert_eq!(order(&f), ["n3", "n1", "n2"], "although it is unavailable");
    f.members[0].agent.last_turn = Some(digest(9));
    assert_eq!(order(&f), ["n1", "n3", "n2"], "a bad turn with another digest");
}

#[test]
fn a_node_that_had_an_offer_goes_behind_the_others() {
    let mut f = facts(1, names(&["n1", "n2", "n3"]), vec![]);
    (f.members[0].node.ready, f.members[1].node.ready) = (false, false);
    assert_eq!(order(&f), ["n1", "n2", "n3"], "unavailable nodes first");
    // The node's report says nothing of its turn.
    f.members[0].offers = 1;
    assert_eq!(order(&f), ["n2", "n3", "n1"]);
    f.members[1].offers = 2;
    assert_eq!(order(&f), ["n3", "n1", "n2"], "fewest first");
    // The report can raise the number to 1, and cannot lower it.
    f.members[0].agent.last_turn = Some(digest(2));
    f.members[1].agent.last_turn = Some(digest(2));
    assert_eq!(order(&f), ["n3", "n1", "n2"]);
    f.members[2].place.wave = 1;
    assert_eq!(order(&f), ["n1", "n2", "n3"], "of its wave");
}

#[test]
fn a_node_with_many_offers_is_named() {
    for (turns, booted, is_named) in [(3, 1, false), (4, 1, true), (4, 2, false)] {
        let n1 = changed(member("n1"), |m| {
            (m.offers, m.turns, m.agent.booted) = (9, turns, Some(digest(booted)));
        });
        let plan = now(&facts(1, vec![n1, member("n2")], vec![]));
        assert_eq!(plan.vain.contains_key(&"n1".into()), is_named, "{turns} {booted}");
    }
}

#[test]
fn after_a_lapsed_offer_the_next_node_goes() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(offered(0, "n1"))]);
    f.members[0].offers = 1;
    f.berths[0].age = OPEN_FOR - Duration::from_secs(1);
    assert!(plan(&f, at(9000)).writes.is_empty(), "the wall clock does not count");
    f.berths[0].age = OPEN_FOR;
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Lapsed", "p-0 Offer n2"]);
    let BerthWrite::Update { berth, .. } = &plan.writes[0] else {
        panic!()
    };
    let BerthState::Closed(closed) = &berth.state else {
        panic!()
    };
    assert_eq!(closed.outcome, Some(Outcome::Lapsed));
}

#[test]
fn offers_are_withdrawn_when_their_reason_is_gone() {
    type Change = fn(&mut PoolFacts);
    let changes: [(&str, Change); 10] = [
        ("paused", |f| f.gate = gate(GateReason::Paused)),
        ("wave", |f| {
            f.members[0].place.wave = 1;
            f.members.push(changed(member("n2"), |n2| n2.agent.staged = None));
        }),
        ("alone", |f| f.members[0].place.control_plane = Some(asked_back())),
        ("unresolved", |f| f.unresolved = true),
        ("member", |f| drop(f.members.remove(0))),
        ("target", |f| f.members[0].desired = Some(digest(3))),
        ("failed", |f| f.members[0].agent.failed = vec![digest(2)]),
        ("updated", |f| f.members[0].agent.booted = Some(digest(2))),
        ("prepared", |f| f.members[0].agent.prepared = false),
        ("uid", |f| f.members[0].uid = uid("new")),
    ];
    for (what, change) in changes {
        let mut f = facts(1, names(&["n1"]), vec![seen(offered(0, "n1"))]);
        assert!(now(&f).writes.is_empty());
        change(&mut f);
        let words = words(&now(&f));
        assert!(words[0].starts_with("p-0 Withdrawn"), "{what}: {words:?}");
    }
    let mut f = facts(1, names(&["n1"]), vec![seen(offered(0, "n1"))]);
    f.members[0].agent.heard = false;
    f.members[0].published.observed = false;
    assert!(now(&f).writes.is_empty(), "a late report is not a reason");
}

#[test]
fn a_pause_asks_uncommitted_holders_back() {
    let berths = vec![seen(taken(0, "n1")), seen(committed(1, "n2")), seen(closed(2))];
    let mut f = facts(3, names(&["n1", "n2", "n3"]), berths);
    f.gate = gate(GateReason::Paused);
    let plan = now(&f);
    // A committed holder may still reboot into its target, but not change to another image.
    assert_eq!(
        words(&plan),
        ["p-0 Revoke(\"Paused\", Pool) n1", "p-1 Revoke(\"Paused\", Pool) n2"]
    );
    assert_eq!(plan.waiting[&"n3".into()], BlockReason::Gate);
}

#[test]
fn a_withdrawn_image_reaches_no_further_node() {
    let berths = vec![
        seen(taken(0, "n1")),
        seen(committed(1, "n2")),
        seen(offered(2, "n3")),
        seen(closed(3)),
    ];
    let mut f = facts(4, names(&["n1", "n2", "n3", "n4"]), berths);
    assert_eq!(words(&now(&f)), ["p-3 Offer n4"]);
    f.unresolved = true;
    let plan = now(&f);
    let words = words(&plan);
    assert_eq!(words[0], "p-0 Revoke(\"TargetChanged\", Pool) n1");
    assert!(words[1].starts_with("p-2 Withdrawn") && words.len() == 2, "{words:?}");
    assert_eq!(plan.waiting[&"n4".into()], BlockReason::Unresolved);
}

#[test]
fn a_holder_is_revoked_once_for_a_change() {
    let mut f = facts(1, names(&["n1"]), vec![seen(taken(0, "n1"))]);
    assert!(now(&f).writes.is_empty());
    f.members[0].desired = Some(digest(3));
    assert_eq!(words(&now(&f)), ["p-0 Revoke(\"TargetChanged\", Node) n1"]);
    f.members[0].node.ready = false;
    assert!(now(&f).writes.is_empty(), "n1 may need another boot");
    f.members[0].node.ready = true;
    let revoked = taken(0, "n1").revoked(Some("TargetChanged".into())).unwrap();
    f.berths = vec![seen(revoked.clone())];
    assert!(now(&f).writes.is_empty());
    f.members.clear();
    assert!(now(&f).writes.is_empty());
    f.berths = vec![seen(taken(0, "n1"))];
    assert_eq!(words(&now(&f)), ["p-0 Revoke(\"LeftPool\", Node) n1"]);
    let f = facts(1, names(&["n1"]), vec![seen(revoked)]);
    assert_eq!(words(&now(&f)), ["p-0 Unrevoke n1"]);
}

#[test]
fn a_committed_or_releasing_holder_is_left_alone() {
    let releasing = committed(1, "n2")
        .releasing(Outcome::Updated, BootId::from("b1"))
        .unwrap();
    let f = facts(2, vec![], vec![seen(committed(0, "n1")), seen(releasing)]);
    assert!(now(&f).writes.is_empty());
}

#[test]
fn a_ghost_is_closed_only_after_a_live_read() {
    for berth in [taken(0, "n1"), offered(0, "n1")] {
        let mut f = facts(1, names(&["n2"]), vec![seen(berth)]);
        assert!(!words(&now(&f)).contains(&"p-0 Gone".to_owned()));
        f.confirmed_gone.insert(uid("n1"));
        assert_eq!(words(&now(&f)), ["p-0 Gone", "p-0 Offer n2"]);
    }
}

#[test]
fn a_new_leader_stamps_berths_before_it_offers() {
    let mut f = facts(2, names(&["n1", "n2"]), vec![seen(committed(0, "n1")), seen(closed(1))]);
    f.epoch = 8;
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Stamp n1", "p-1 Stamp"]);
    assert_eq!(plan.waiting[&"n2".into()], BlockReason::Fencing);
    for write in &plan.writes {
        let BerthWrite::Update { berth, .. } = write else {
            panic!()
        };
        assert_eq!(berth.epoch, 8);
    }
    let mut held = committed(0, "n1");
    held.epoch = 8;
    f.berths[0] = seen(held);
    assert_eq!(words(&now(&f)), ["p-1 Stamp"], "one unfenced berth is enough");
}

#[test]
fn a_berth_in_doubt_is_fenced_first() {
    let mut f = facts(2, names(&["n1", "n2"]), vec![seen(closed(0)), seen(closed(1))]);
    f.berths[1].in_doubt = true;
    assert_eq!(words(&now(&f)), ["p-1 Stamp"]);
}

#[test]
fn an_unreadable_lease_counts_as_held() {
    let f = facts(1, names(&["n1"]), vec![unreadable(0)]);
    let plan = now(&f);
    assert!(plan.writes.is_empty(), "no second Lease is created");
    assert_eq!(plan.counts.held, 1);
    let f = facts(2, names(&["n1", "n2"]), vec![unreadable(0), seen(closed(1))]);
    assert_eq!(words(&now(&f)), ["p-1 Offer n1"]);
}

#[test]
fn a_pool_grows_only_to_its_published_capacity() {
    let mut f = facts(2, names(&["n1", "n2"]), vec![seen(closed(0)), seen(closed(1))]);
    f.published = 1;
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Offer n1"]);
    assert_eq!(plan.counts.total, 2, "the capacity is published now");
    f.published = 0;
    assert!(now(&f).writes.is_empty());
}

#[test]
fn a_pool_shrinks_step_by_step() {
    // The capacity is lowered from 2 to 1 with one holder and one open offer.
    let berths = vec![seen(taken(0, "n1")), seen(offered(1, "n2"))];
    let mut f = facts(1, names(&["n1", "n2"]), berths);
    f.published = 2;
    let plan = now(&f);
    assert!(words(&plan)[0].starts_with("p-1 Withdrawn"), "{plan:?}");
    assert_eq!(plan.counts.total, 2, "not lowered while an offer is open");
    f.berths[1] = seen(closed(1));
    let plan = now(&f);
    assert!(plan.writes.is_empty(), "{plan:?}");
    assert_eq!(plan.counts.total, 1);
    f.published = 1;
    assert_eq!(words(&now(&f)), ["p-1 Shrunk"]);
    f.berths[1] = seen(closed(1).closed(ClosedReason::Shrunk).unwrap());
    assert_eq!(words(&now(&f)), ["p-1 Delete"]);
}

#[test]
fn a_shrunk_pool_lets_its_holders_finish() {
    let f = facts(1, names(&["n1", "n2"]), vec![seen(closed(0)), seen(taken(1, "n2"))]);
    assert!(now(&f).writes.is_empty(), "|H| = k: no offer, no revocation");
}

#[test]
fn a_shrink_waits_for_late_writes() {
    let mut f = facts(1, vec![], vec![seen(closed(0)), seen(closed(1))]);
    f.published = 2;
    f.berths[1].in_doubt = true;
    assert_eq!(now(&f).counts.total, 2);
}

#[test]
fn a_pool_that_goes_gives_up_all_its_berths() {
    let berths = vec![seen(closed(0)), seen(taken(1, "n1")), seen(offered(2, "n2"))];
    let mut f = facts(0, vec![], berths);
    f.published = 3;
    let first = words(&now(&f));
    assert!(first[0].starts_with("p-1 Revoke") && first[1].starts_with("p-2 Withdrawn"));
    f.berths.truncate(1);
    f.published = 0;
    assert_eq!(words(&now(&f)), ["p-0 Shrunk"]);
}

#[test]
fn an_unwritable_berth_counts_as_used() {
    let members = names(&["n1", "n2", "n3"]);
    let mut old = closed(0);
    old.epoch = 6;
    for berth in [closed(0), old, offered(0, "n1"), taken(0, "n1"), committed(0, "n1")] {
        let berths = vec![refused(berth.clone()), seen(closed(1))];
        let plan = now(&facts(2, members.clone(), berths));
        let offers: Vec<String> = plan.writes.iter().map(BerthWrite::lease).collect();
        assert_eq!(offers, ["p-1"], "{berth:?}");
        assert!(plan.writes[0].is_offer());
        assert_eq!((plan.counts.total, plan.used_by.len()), (2, 2), "{berth:?}");
    }
    let one = now(&facts(1, members, vec![refused(closed(0))]));
    assert!(one.writes.is_empty(), "it takes the only place: {:?}", one.writes);
    assert_eq!(one.used_by[0].words(), "p-0 (a Lease that cannot be written)");
}

#[test]
fn an_unwritable_offer_stays_in_a_smaller_pool() {
    let mut f = facts(
        1,
        names(&["n1", "n2"]),
        vec![refused(offered(0, "n1")), seen(offered(1, "n2"))],
    );
    f.published = 2;
    let plan = now(&f);
    assert_eq!(plan.writes.len(), 1, "{:?}", plan.writes);
    assert_eq!(plan.writes[0].lease(), "p-1");
    assert!(matches!(
        plan.writes[0],
        BerthWrite::Update {
            why: WriteReason::Withdrawn(..),
            ..
        }
    ));
}

#[test]
fn an_offer_that_was_not_made_is_not_reported() {
    let mut plan = now(&facts(2, names(&["n1", "n2"]), vec![seen(closed(0)), seen(closed(1))]));
    let not_made = plan.writes.split_off(1);
    plan.not_made(&not_made);
    let words: Vec<String> = plan.used_by.iter().map(CapacityUse::words).collect();
    assert_eq!(words, ["n1 (offered a berth)"]);
    assert_eq!(plan.waiting.get(&"n2".into()), Some(&BlockReason::NoBerth));
}
