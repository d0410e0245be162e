use berth_api::condition::CommonReason;
use berth_api::node::timeline::{Chapter, ChapterName, TurnOutcome};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::agent::timeline::ended;

fn second(time: &Time) -> i64 {
    time.0.as_second() - at(0).wall.as_second()
}

/// Formats a chapter as `Prepared 0-5`, in seconds since the test began.
fn line(chapter: &Chapter) -> String {
    let [start, end] = [&chapter.start_time, &chapter.end_time]
        .map(|time| time.as_ref().map_or("?".to_owned(), |time| second(time).to_string()));
    format!("{} {start}-{end}", chapter.name.as_str())
}

fn joined(knowledge: &Knowledge) -> Option<(&str, i64)> {
    let joined = knowledge.past.timeline.joined.as_ref()?;
    Some((&joined.pool, second(&joined.start_time)))
}

fn chapters(knowledge: &Knowledge, update: usize) -> String {
    let update = &knowledge.past.timeline.updates[update];
    update.chapters.iter().map(line).collect::<Vec<_>>().join(", ")
}

fn pulling(knowledge: &mut Knowledge, seconds: u64) {
    let pull = PullFacts {
        digest: digest(2),
        progress: None,
    };
    knowledge.after(Event::Pull(PullReading::Running(pull)), &at(seconds));
}

fn looked(knowledge: &mut Knowledge, booted: u8, staged: Option<u8>, seconds: u64) {
    let os = Os::Bootc(Box::new(Deployments {
        booted: deployment(booted, false),
        staged: staged.map(|n| deployment(n, true)),
        ..Deployments::default()
    }));
    knowledge.after(Event::Pull(PullReading::None), &at(seconds));
    knowledge.after(look(os), &at(seconds));
}

fn next_process(former: &Knowledge, boot: &str, seconds: u64) -> Knowledge {
    let mut next = Knowledge::new("n1".into(), boot.into(), former.past.clone(), &at(seconds));
    ask_for(&mut next, image());
    next
}

/// Returns the knowledge of a node with a staged image. The node took its berth at second 20 and committed at second
/// 30.
fn rebooting() -> Knowledge {
    let mut knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &at(0));
    ask_for(&mut knowledge, image());
    knowledge.after(Event::Berths(vec![]), &at(1));
    pulling(&mut knowledge, 2);
    looked(&mut knowledge, 1, Some(2), 9);
    knowledge.after(Event::Berths(vec![offered()]), &at(15));
    knowledge.after(Event::Berths(vec![taken()]), &at(20));
    knowledge.after(Event::Berths(vec![committed()]), &at(30));
    knowledge
}

#[test]
fn an_update_keeps_its_chapters_over_a_reboot() {
    let mut before = rebooting();
    assert_eq!(before.past.timeline.joined.as_ref().unwrap().pool, "p");
    before.after(Event::Berths(vec![committed()]), &at(31));
    let mut after = next_process(&before, "b2", 70);
    after.after(Event::Berths(vec![committed()]), &at(75));
    looked(&mut after, 2, None, 76);
    let ClusterNode::Is(mut ready) = node() else {
        unreachable!()
    };
    ready.boot_id = Some("b2".into());
    after.after(Event::NodeRead(ClusterNode::Is(ready)), &at(80));
    let updated = committed().releasing(Outcome::Updated, "b2".into()).unwrap();
    after.after(Event::Berths(vec![updated.clone()]), &at(80));
    let give_back = Step::GiveBack(updated.clone());
    after.after(Event::Begins(&give_back), &at(82));
    // The agent process dies before it has closed the berth. The next process closes the berth.
    let mut last = next_process(&after, "b2", 90);
    last.after(Event::Berths(vec![updated]), &at(91));
    looked(&mut last, 2, None, 91);
    done(&mut last, &give_back, Ending::Done, 92);
    last.after(Event::Berths(vec![]), &at(92));
    last.after(Event::Berths(vec![]), &at(200));
    assert_eq!(
        chapters(&last, 0),
        "Prepared 2-9, Waited 9-20, Drained 20-30, Rebooted 30-75, Proven 75-80, Completed 80-92"
    );
    let update = &last.past.timeline.updates[0];
    assert_eq!(update.from.as_ref().map(|i| &i.digest), Some(&digest(1)));
    let measured = update.measured();
    assert_eq!(
        (measured.staging, measured.drain, measured.reboot),
        (Some(7), Some(10), Some(50))
    );
    let [turn] = last.past.turns.as_slice() else {
        panic!("one turn: {:?}", last.past.turns)
    };
    let proof = turn.proof.as_ref().unwrap();
    assert_eq!(
        (turn.outcome, turn.drain_seconds, &turn.from, &turn.to),
        (Some(TurnOutcome::Proven), Some(10), &Some(digest(1)), &digest(2))
    );
    assert_eq!(
        (&*turn.boot_id_before, &*proof.boot_id, &proof.booted, proof.node_ready),
        ("b1", "b2", &Some(digest(2)), true)
    );
    let zero = at(0).wall.as_second();
    let seconds = (&turn.start_time, turn.end_time.as_ref().unwrap());
    assert_eq!(
        (seconds.0.0.as_second() - zero, seconds.1.0.as_second() - zero),
        (20, 82),
        "the end that was written first"
    );
}

#[test]
fn a_host_that_went_back_is_rolled_back() {
    let before = rebooting();
    let mut after = next_process(&before, "b2", 70);
    after.after(Event::Berths(vec![committed()]), &at(75));
    looked(&mut after, 2, None, 76);
    let rollback = Step::Rollback(digest(1), CommonReason::UnitsFailed, String::new());
    after.after(Event::Begins(&rollback), &at(80));
    let mut back = next_process(&after, "b3", 100);
    back.after(Event::Berths(vec![committed()]), &at(101));
    looked(&mut back, 1, None, 102);
    let failed = committed().releasing(Outcome::Failed, "b3".into()).unwrap();
    back.after(Event::Berths(vec![failed.clone()]), &at(110));
    done(&mut back, &Step::GiveBack(failed), Ending::Done, 111);
    back.after(Event::Berths(vec![]), &at(111));
    assert!(
        chapters(&back, 0).ends_with("Proven 75-110, RolledBack 110-111"),
        "{}",
        chapters(&back, 0)
    );
    assert_eq!(back.past.turns[0].outcome, Some(TurnOutcome::RolledBack));
    assert_eq!(back.past.turns[0].reason.as_deref(), Some("UnitsFailed"));
    assert_eq!(
        back.past.timeline.measured().reboot,
        None,
        "that does not measure a reboot"
    );
}

#[test]
fn a_failed_turn_ends_by_the_booted_image() {
    for (booted, from, chapter, outcome) in [
        (Some(1), Some(1), "RolledBack", TurnOutcome::RolledBack),
        (Some(2), Some(1), "Failed", TurnOutcome::Failed),
        (None, None, "Failed", TurnOutcome::Failed),
    ] {
        let (node, uid) = ("n1".into(), "u1".into());
        let taken = offered().taken(&node, &uid, from.map(digest), "b1".into()).unwrap();
        let committed = taken.committed("b1".into()).unwrap();
        let failed = committed.releasing(Outcome::Failed, "b1".into()).unwrap();
        let mut knowledge = rebooting();
        knowledge.after(Event::Berths(vec![committed]), &at(40));
        knowledge.host.os = Os::Unknown;
        if let Some(booted) = booted {
            looked(&mut knowledge, booted, None, 41);
        }
        knowledge.after(Event::Berths(vec![failed.clone()]), &at(50));
        let shown = chapters(&knowledge, 0);
        assert!(shown.ends_with(&format!("{chapter} 50-?")), "{shown}");
        knowledge.after(Event::Begins(&Step::GiveBack(failed)), &at(51));
        assert_eq!(knowledge.past.turns[0].outcome, Some(outcome));
    }
}

/// The agent reads the booted image only when it gives the berth back. The turn still gets the right outcome.
#[test]
fn a_late_look_still_tells_a_rollback() {
    for (booted, outcome) in [(1, TurnOutcome::RolledBack), (2, TurnOutcome::Failed)] {
        let failed = committed().releasing(Outcome::Failed, "b1".into()).unwrap();
        let mut knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &at(0));
        knowledge.after(Event::Berths(vec![failed.clone()]), &at(1));
        assert_eq!(knowledge.past.turns[0].outcome, None);
        knowledge.host.os = Os::Bootc(Box::new(Deployments {
            booted: deployment(booted, false),
            ..Deployments::default()
        }));
        knowledge.after(Event::Begins(&Step::GiveBack(failed)), &at(2));
        assert_eq!(knowledge.past.turns[0].outcome, Some(outcome));
    }
}

#[test]
fn a_turn_shows_a_node_ready_under_this_boot() {
    for (ready, boot, expected) in [(true, "b1", true), (true, "b0", false), (false, "b1", false)] {
        let mut knowledge = rebooting();
        let ClusterNode::Is(mut node) = node() else {
            unreachable!()
        };
        (node.ready, node.boot_id) = (ready, Some(boot.into()));
        knowledge.after(Event::NodeRead(ClusterNode::Is(node)), &at(40));
        let failed = committed().releasing(Outcome::Failed, "b1".into()).unwrap();
        knowledge.after(Event::Berths(vec![failed]), &at(50));
        let proof = knowledge.past.turns[0].proof.as_ref().unwrap();
        assert_eq!(proof.node_ready, expected, "{ready} under {boot}");
    }
}

#[test]
fn an_update_has_the_version_of_its_own_image() {
    for (desired, version) in [(2, Some("2.0")), (3, None)] {
        let mut knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &at(0));
        let image = DesiredImage {
            digest: digest(desired),
            version: Some("2.0".into()),
            ..image()
        };
        ask_for(&mut knowledge, image);
        knowledge.after(Event::Berths(vec![taken()]), &at(2));
        let to = &knowledge.past.timeline.updates[0].to;
        assert_eq!((&to.digest, to.version.as_deref()), (&digest(2), version));
    }
}

#[test]
fn a_repeated_turn_starts_its_chapters_again() {
    let mut knowledge = rebooting();
    knowledge.after(Event::Berths(vec![taken()]), &at(95));
    assert!(chapters(&knowledge, 0).ends_with("Waited 9-20, Drained 95-?"));
    knowledge.after(Event::Berths(vec![releasing()]), &at(100));
    done(&mut knowledge, &Step::GiveBack(releasing()), Ending::Done, 101);
    knowledge.after(Event::Berths(vec![]), &at(101));
    knowledge.after(Event::Berths(vec![]), &at(150));
    assert!(chapters(&knowledge, 0).ends_with("Drained 95-100, TimedOut 100-101"));
    knowledge.after(Event::Berths(vec![taken()]), &at(160));
    assert!(chapters(&knowledge, 0).ends_with("Waited 9-20, Drained 160-?"));
    knowledge.after(Event::Berths(vec![]), &at(170));
    assert!(chapters(&knowledge, 0).ends_with("Drained 160-170, TakenAway 170-170"));
    let outcomes: Vec<_> = knowledge.past.turns.iter().map(|t| t.outcome).collect();
    assert_eq!(outcomes, [Some(TurnOutcome::TakenAway), Some(TurnOutcome::TimedOut)]);
}

#[test]
fn another_image_ends_the_way_to_the_former_one() {
    let mut knowledge = rebooting();
    // The holder of a berth moves from an unproven boot to another image, under the same berth.
    let mut stuck = next_process(&knowledge, "b2", 70);
    stuck.after(Event::Berths(vec![committed()]), &at(75));
    looked(&mut stuck, 2, Some(3), 76);
    let relicensed = committed().relicensed(digest(3), "b2".into()).unwrap();
    stuck.after(Event::Berths(vec![relicensed]), &at(80));
    assert!(chapters(&stuck, 1).ends_with("Proven 75-80, Replaced 80-80"));
    assert_eq!(chapters(&stuck, 0), "Rebooted 80-?");
    assert_eq!(stuck.past.turns.len(), 1, "it is one turn");
    assert_eq!(stuck.past.turns[0].to, digest(3));
    // Without a berth, the update to a staged image ends as `Withdrawn` when the pool desires another image.
    knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &at(0));
    ask_for(&mut knowledge, image());
    knowledge.after(Event::Berths(vec![]), &at(1));
    pulling(&mut knowledge, 2);
    looked(&mut knowledge, 1, Some(2), 9);
    let other = DesiredImage {
        digest: digest(4),
        ..image()
    };
    ask_for(&mut knowledge, other);
    assert!(
        chapters(&knowledge, 0).ends_with("Withdrawn 1-1"),
        "{}",
        chapters(&knowledge, 0)
    );
}

/// An older agent version began the drain, without a record of the turn. Then this version replaced it.
#[test]
fn a_drain_before_the_record_keeps_its_start() {
    for (began, shown) in [(Some(3), 3), (None, 51), (Some(99), 51)] {
        let past = Past {
            drain_began: began.map(|second| at(second).wall),
            ..Past::default()
        };
        let mut knowledge = Knowledge::new("n1".into(), "b1".into(), past, &at(50));
        ask_for(&mut knowledge, image());
        knowledge.after(Event::Berths(vec![taken()]), &at(51));
        knowledge.after(Event::Berths(vec![committed()]), &at(60));
        assert!(
            chapters(&knowledge, 0).starts_with(&format!("Drained {shown}-60")),
            "{began:?}"
        );
        let turn = &knowledge.past.turns[0];
        assert_eq!(second(&turn.start_time), shown as i64, "{began:?}");
        assert_eq!(turn.drain_seconds, Some(60 - shown), "{began:?}");
    }
}

#[test]
fn a_running_turn_does_not_count_towards_the_limit() {
    let mut knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &at(0));
    ask_for(&mut knowledge, image());
    for turn in 0..7 {
        knowledge.after(Event::Berths(vec![taken()]), &at(10 * turn));
        knowledge.after(Event::Berths(vec![releasing()]), &at(10 * turn + 1));
        done(
            &mut knowledge,
            &Step::GiveBack(releasing()),
            Ending::Done,
            10 * turn + 2,
        );
        knowledge.after(Event::Berths(vec![]), &at(10 * turn + 3));
    }
    assert_eq!(ended(&knowledge.past.turns).len(), 5);
    knowledge.after(Event::Berths(vec![taken()]), &at(100));
    assert_eq!(ended(&knowledge.past.turns).len(), 5);
    assert_eq!(knowledge.past.turns.len(), 6);
}

#[test]
fn a_returning_node_joins_its_pool_again() {
    let member = next_process(&rebooting(), "b1", 0).desired;
    let mut knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &at(0));
    for (seconds, desired, expected) in [
        (5, &member, Some(("p", 5))),
        // While the agent cannot read the BootcNode, the node stays a member.
        (10, &Desired::Unknown, Some(("p", 5))),
        (15, &member, Some(("p", 5))),
        (20, &Desired::Release, None),
        (30, &Desired::Unknown, None),
        (40, &member, Some(("p", 40))),
    ] {
        let event = Event::Published {
            desired: desired.clone(),
            uid: (*desired != Desired::Unknown).then(|| "u1".into()),
            status: None,
            is_unread: false,
        };
        knowledge.after(event, &at(seconds));
        assert_eq!(joined(&knowledge), expected, "{seconds}");
    }
}

#[test]
fn an_unseen_start_of_membership_is_unknown() {
    let old = BootcNodeStatus {
        observed_generation: Some(1),
        ..BootcNodeStatus::default()
    };
    let known = BootcNodeStatus {
        observed_generation: Some(1),
        timeline: rebooting().past.timeline,
        ..BootcNodeStatus::default()
    };
    for (status, is_unread, expected) in [
        (None, false, Some(("p", 5))),
        (None, true, None),
        (Some(BootcNodeStatus::default()), false, Some(("p", 5))),
        (Some(old), false, None),
        (Some(known), false, Some(("p", 1))),
    ] {
        let mut knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &at(0));
        let event = Event::Published {
            desired: next_process(&rebooting(), "b1", 0).desired,
            uid: Some("u1".into()),
            status: status.as_ref(),
            is_unread,
        };
        knowledge.after(event, &at(5));
        assert_eq!(joined(&knowledge), expected, "{status:?} {is_unread}");
    }
}

#[test]
fn a_node_joins_each_pool_once() {
    let unknown = BootcNodeStatus {
        observed_generation: Some(1),
        ..BootcNodeStatus::default()
    };
    let mut known = BootcNodeStatus {
        timeline: rebooting().past.timeline,
        ..unknown.clone()
    };
    known.timeline.joined.as_mut().unwrap().pool = "x".to_owned();
    for (status, pools) in [
        (
            BootcNodeStatus::default(),
            [("p", Some(("p", 5))), ("q", Some(("q", 6)))],
        ),
        // The node moved from pool x to pool p while no agent ran.
        (known, [("p", Some(("p", 5))), ("p", Some(("p", 5)))]),
        // If the agent did not see the node join, the time stays unknown.
        (unknown, [("p", None), ("p", None)]),
    ] {
        let mut knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &at(0));
        for (second, (pool, expected)) in (5..).zip(pools) {
            let mut desired = next_process(&rebooting(), "b1", 0).desired;
            if let Desired::Member(member) = &mut desired {
                member.pool = pool.into();
            }
            let event = Event::Published {
                desired,
                uid: Some("u1".into()),
                status: Some(&status),
                is_unread: false,
            };
            knowledge.after(event, &at(second));
            assert_eq!(joined(&knowledge), expected, "{pool} at {second}");
        }
    }
}

#[test]
fn measurements_outlive_images_only_staged() {
    let mut knowledge = rebooting();
    let mut name = ChapterName::Prepared;
    for n in 3..9 {
        let image = DesiredImage {
            digest: digest(n),
            ..image()
        };
        knowledge.after(Event::Berths(vec![]), &at(100));
        ask_for(&mut knowledge, image);
        looked(&mut knowledge, 1, Some(n), 110);
        name = knowledge.past.timeline.updates[0].chapters.last().unwrap().name;
    }
    assert_eq!(name, ChapterName::Waited);
    assert_eq!(knowledge.past.timeline.updates.len(), 2);
    assert_eq!(knowledge.past.timeline.measured().drain, Some(10));
}
