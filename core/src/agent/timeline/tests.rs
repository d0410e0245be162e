use berth_api::berth::Offer;
use berth_api::names::PoolName;
use proptest::prelude::*;

use super::*;

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn version(n: u8) -> ImageVersion {
    ImageVersion {
        digest: digest(n),
        version: Some(format!("{n}.0")),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_millisecond(second * 1000 + 999).unwrap()
}

fn on(chapter: ChapterName, n: u8) -> UpdateState {
    UpdateState::On {
        chapter,
        to: version(n),
        began: None,
    }
}

/// Formats the chapters of an update with their start and end in seconds, such as `Prepared 0-5 Waited 5-?`.
fn words(update: &NodeUpdate) -> String {
    let mut words = vec![];
    for chapter in &update.chapters {
        let [start, end] = [&chapter.start_time, &chapter.end_time].map(|time| {
            time.as_ref()
                .map_or("?".to_owned(), |time| time.0.as_second().to_string())
        });
        words.push(format!("{} {start}-{end}", chapter.name.as_str()));
    }
    words.join(" ")
}

#[test]
fn a_clock_set_back_removes_the_times() {
    let mut now = Timeline::default();
    for (chapter, second) in [
        (ChapterName::Prepared, 100),
        (ChapterName::Waited, 150),
        (ChapterName::Drained, 20),
        (ChapterName::Rebooted, 30),
    ] {
        now = timeline(&now, &on(chapter, 2), Some(&version(1)), at(second));
    }
    let update = &now.updates[0];
    assert_eq!(words(update), "Prepared ?-? Waited ?-? Drained 20-30 Rebooted 30-?");
    assert!(update.clock_set);
    assert_eq!((update.measured().staging, update.measured().drain), (None, Some(10)));
}

#[test]
fn what_is_seen_again_changes_nothing() {
    let seen = on(ChapterName::Waited, 2);
    let first = timeline(&Timeline::default(), &seen, None, at(1));
    assert_eq!(timeline(&first, &seen, None, at(50)), first);
    assert_eq!(timeline(&first, &UpdateState::Nothing, None, at(60)), first);
    let filled = timeline(&first, &seen, Some(&version(1)), at(70));
    assert_eq!(filled.updates[0].from, Some(version(1)), "once it was seen");
    assert_eq!(filled.updates[0].chapters, first.updates[0].chapters);
    let text = serde_json::to_string(&filled).unwrap();
    assert_eq!(
        serde_json::from_str::<Timeline>(&text).unwrap(),
        filled,
        "whole seconds"
    );
}

#[test]
fn an_update_without_a_berth_can_end() {
    for (desired, booted, failed, ending) in [
        (2, 2, false, "Prepared 1-9 Completed 9-9"),
        (3, 1, false, "Prepared 1-9 Withdrawn 9-9"),
        (2, 1, true, "Prepared 1-9 Failed 9-9"),
        (2, 1, false, "Prepared 1-?"),
    ] {
        let pulls = timeline(&Timeline::default(), &on(ChapterName::Prepared, 2), None, at(1));
        let idle = UpdateState::Idle {
            desired: Some(digest(desired)),
            booted: Some(digest(booted)),
            failed,
        };
        let after = timeline(&pulls, &idle, None, at(9));
        assert_eq!(words(&after.updates[0]), ending);
        assert_eq!(after.measured().staging, None, "nothing was staged: {ending}");
    }
}

#[test]
fn an_unproven_boot_without_its_berth_is_not_completed() {
    let mut now = Timeline::default();
    for (chapter, second) in [(ChapterName::Rebooted, 1), (ChapterName::Proven, 5)] {
        now = timeline(&now, &on(chapter, 2), Some(&version(2)), at(second));
    }
    let seen = UpdateState::Idle {
        desired: Some(digest(2)),
        booted: Some(digest(2)),
        failed: false,
    };
    now = timeline(&now, &seen, Some(&version(2)), at(9));
    assert_eq!(words(&now.updates[0]), "Rebooted 1-5 Proven 5-9 TakenAway 9-9");
    assert_eq!(now.measured().reboot, None, "that does not measure a reboot");
}

#[test]
fn a_turn_that_is_proven_had_a_ready_node() {
    for (outcome, ready) in [(Outcome::Updated, true), (Outcome::Failed, false)] {
        let offer = Offer {
            node: "n1".into(),
            uid: "u1".into(),
            target: digest(2),
            open_until: None,
        };
        let berth = Berth::new(PoolName::from("p"), 0, 1).offered(offer).unwrap();
        let berth = berth.taken(&"n1".into(), &"u1".into(), Some(digest(1)), "b1".into());
        let berth = berth.unwrap().committed("b1".into()).unwrap();
        let berth = berth.releasing(outcome, "b2".into()).unwrap();
        let (boot_id, booted) = (BootId::from("b2"), digest(2));
        let sight = HostState {
            boot_id: &boot_id,
            booted: Some(&booted),
            node_ready: false,
            drain_began: None,
            rolled_back: None,
        };
        let turns = turns(&[], Some(&berth), &Timeline::default(), &sight, at(1));
        assert_eq!(
            turns[0].proof.as_ref().map(|p| p.node_ready),
            Some(ready),
            "{outcome:?}"
        );
    }
}

/// If the next chapter is a boot of another image, the bad image was replaced under its berth. Any other chapter shows
/// that the berth is gone.
#[test]
fn a_bad_image_is_replaced_only_under_its_berth() {
    use ChapterName::{Prepared, Proven, Rebooted, Waited};
    for (next, expected) in [
        (Rebooted, "Rebooted 1-5 Replaced 5-5"),
        (Proven, "Rebooted 1-5 Replaced 5-5"),
        (Prepared, "Rebooted 1-5 TakenAway 5-5"),
        (Waited, "Rebooted 1-5 TakenAway 5-5"),
    ] {
        let bad = timeline(&Timeline::default(), &on(Rebooted, 2), Some(&version(2)), at(1));
        let after = timeline(&bad, &on(next, 3), Some(&version(2)), at(5));
        assert_eq!(words(&after.updates[1]), expected, "{next:?}");
        assert_eq!(after.updates[0].to, version(3));
    }
}

/// An update keeps the image from before its reboot, although another image runs after the reboot.
#[test]
fn an_update_remembers_what_ran_before_its_reboot() {
    use ChapterName::{Drained, Prepared, Proven, Rebooted};
    for (seen, expected) in [
        (&[(Prepared, 1), (Drained, 1), (Rebooted, 3)][..], Some(1)),
        (&[(Prepared, 1), (Drained, 3)], Some(1)),
        (&[(Rebooted, 1), (Proven, 1)], None),
    ] {
        let mut now = Timeline::default();
        for (second, (chapter, booted)) in (1..).zip(seen) {
            now = timeline(&now, &on(*chapter, 2), Some(&version(*booted)), at(second));
        }
        assert_eq!(now.updates[0].from, expected.map(version), "{seen:?}");
    }
}

/// An earlier agent process may have begun the drain. Only the first reported start of the drain counts.
#[test]
fn a_drain_begins_when_it_is_first_seen() {
    let former = timeline(&Timeline::default(), &on(ChapterName::Rebooted, 1), None, at(1));
    for before in [Timeline::default(), former] {
        let mut seen = before;
        for (began, now) in [(5, 9), (3, 10)] {
            let drains = UpdateState::On {
                chapter: ChapterName::Drained,
                to: version(2),
                began: Some(at(began)),
            };
            seen = timeline(&seen, &drains, None, at(now));
            assert_eq!(words(&seen.updates[0]), "Drained 5-?");
        }
    }
}

#[test]
fn a_node_that_stays_in_its_pool_joined_once() {
    let mut timeline = Timeline::default();
    for (pool, second, joined) in [("p", 1, ("p", 1)), ("p", 5, ("p", 1)), ("q", 9, ("q", 9))] {
        join(&mut timeline, pool, at(second));
        let now = timeline.joined.as_ref().unwrap();
        assert_eq!((now.pool.as_str(), now.start_time.0.as_second()), joined);
    }
}

/// Returns berth `p-<index>`, which the Node with this UID has taken for image 2.
fn taken(index: u32, uid: &str) -> Berth {
    let offer = Offer {
        node: "n1".into(),
        uid: uid.into(),
        target: digest(2),
        open_until: None,
    };
    let offered = Berth::new(PoolName::from("p"), index, 1).offered(offer).unwrap();
    offered
        .taken(&"n1".into(), &uid.into(), Some(digest(1)), "b1".into())
        .unwrap()
}

fn turns_at(before: &[TurnRecord], berth: &Berth, timeline: &Timeline, second: i64) -> Vec<TurnRecord> {
    let (boot_id, booted) = (BootId::from("b1"), digest(1));
    let sight = HostState {
        boot_id: &boot_id,
        booted: Some(&booted),
        node_ready: true,
        drain_began: None,
        rolled_back: None,
    };
    turns(before, Some(berth), timeline, &sight, at(second))
}

#[test]
fn another_berth_or_another_node_begins_another_turn() {
    for (next, goes_on) in [
        (taken(0, "u1"), true),
        (taken(1, "u1"), false),
        (taken(0, "u2"), false),
        (taken(1, "u2"), false),
    ] {
        let first = turns_at(&[], &taken(0, "u1"), &Timeline::default(), 1);
        let after = turns_at(&first, &next, &Timeline::default(), 5);
        if goes_on {
            assert_eq!(after, first);
            continue;
        }
        let [runs, lost] = after.as_slice() else {
            panic!("two turns: {after:?}")
        };
        assert_eq!((&runs.berth, runs.end_time.as_ref()), (&next.name(), None));
        assert_eq!(lost.outcome, Some(TurnOutcome::TakenAway));
    }
}

/// A drain of an earlier turn for the same image does not count as the drain of this turn.
#[test]
fn a_turn_has_the_drain_before_its_commit() {
    fn drained(seconds: i64) -> Timeline {
        let drains = timeline(&Timeline::default(), &on(ChapterName::Drained, 2), None, at(0));
        timeline(&drains, &on(ChapterName::Rebooted, 2), None, at(seconds))
    }
    let draining = turns_at(&[], &taken(0, "u1"), &drained(10), 20);
    assert_eq!(draining[0].drain_seconds, None);
    let committed = taken(0, "u1").committed("b1".into()).unwrap();
    let first = turns_at(&draining, &committed, &drained(30), 60);
    assert_eq!(first[0].drain_seconds, Some(30));
    let again = turns_at(&first, &committed, &drained(50), 90);
    assert_eq!(again[0].drain_seconds, Some(30));
}

fn name(n: usize) -> ChapterName {
    [
        ChapterName::Prepared,
        ChapterName::Waited,
        ChapterName::Drained,
        ChapterName::Rebooted,
        ChapterName::Proven,
        ChapterName::Completed,
        ChapterName::RolledBack,
        ChapterName::TimedOut,
    ][n]
}

fn any_seen() -> impl Strategy<Value = UpdateState> {
    let on = (0..8_usize, 1..4_u8).prop_map(|(chapter, to)| on(name(chapter), to));
    let idle = (
        proptest::option::of(1..4_u8),
        proptest::option::of(1..4_u8),
        any::<bool>(),
    )
        .prop_map(|(desired, booted, failed)| UpdateState::Idle {
            desired: desired.map(digest),
            booted: booted.map(digest),
            failed,
        });
    prop_oneof![8 => on, 3 => idle, 1 => Just(UpdateState::Nothing)]
}

fn any_berth() -> impl Strategy<Value = Option<Berth>> {
    (0..6_usize, 0..2_u32, 1..3_u8).prop_map(|(state, index, target)| {
        let offer = Offer {
            node: "n1".into(),
            uid: "u1".into(),
            target: digest(target),
            open_until: None,
        };
        let offered = Berth::new(PoolName::from("p"), index, 1).offered(offer).unwrap();
        let taken = offered
            .taken(&"n1".into(), &"u1".into(), Some(digest(9)), "b1".into())
            .unwrap();
        match state {
            0 => None,
            1 => Some(taken),
            2 => Some(taken.committed("b1".into()).unwrap()),
            3 => Some(taken.releasing(Outcome::Revoked, "b1".into()).unwrap()),
            4 => Some(
                taken
                    .committed("b1".into())
                    .unwrap()
                    .releasing(Outcome::Failed, "b2".into())
                    .unwrap(),
            ),
            _ => Some(
                taken
                    .committed("b1".into())
                    .unwrap()
                    .releasing(Outcome::Updated, "b2".into())
                    .unwrap(),
            ),
        }
    })
}

proptest! {
    /// Adds random states in random order. The clock may be set back in between.
    #[test]
    fn a_timeline_is_bounded_and_ordered(
        all in proptest::collection::vec((any_seen(), proptest::option::of(1..4_u8), -50..200_i64), 1..60),
    ) {
        let (mut now, mut second) = (Timeline::default(), 1000);
        for (seen, booted, wait) in all {
            let set_back = wait < -40;
            second += if set_back { wait } else { wait.max(0) };
            let after = timeline(&now, &seen, booted.map(version).as_ref(), at(second));
            prop_assert!(after.updates.len() <= MAX_UPDATES);
            let again = timeline(&after, &seen, booted.map(version).as_ref(), at(second));
            prop_assert_eq!(&again, &after, "seen twice");
            for update in &after.updates {
                prop_assert!(!update.chapters.is_empty() && update.chapters.len() <= 6, "{}", words(update));
                prop_assert!(update.chapters.is_sorted_by_key(|c| c.name), "{}", words(update));
                let times: Vec<_> = update.chapters.iter().flat_map(|c| [&c.start_time, &c.end_time]).flatten().collect();
                prop_assert!(times.is_sorted(), "{}", words(update));
                let open = update.chapters.iter().rev().skip(1).filter(|c| c.end_time.is_none() && c.start_time.is_some());
                prop_assert_eq!(open.count(), 0, "{}", words(update));
            }
            let over = after.updates.iter().skip(1).all(NodeUpdate::is_over);
            prop_assert!(over, "what another update came after is over");
            now = after;
        }
    }

    #[test]
    fn turns_are_bounded_and_only_the_newest_runs(
        all in proptest::collection::vec((any_berth(), any::<bool>(), 0..100_i64), 1..60),
    ) {
        let (mut turns, mut second) = (vec![], 1000);
        let boot = BootId::from("b2");
        for (berth, gives_back, wait) in all {
            second += wait;
            let booted = digest(2);
            let sight = HostState { boot_id: &boot, booted: Some(&booted), node_ready: true, drain_began: None, rolled_back: None };
            turns = super::turns(&turns, berth.as_ref(), &Timeline::default(), &sight, at(second));
            if gives_back && berth.as_ref().is_some_and(|b| b.holding().is_some_and(|h| matches!(h.phase, HoldPhase::Releasing(_)))) {
                turn_ends(&mut turns, TurnOutcome::Revoked, at(second));
            }
            prop_assert!(turns.len() <= MAX_TURNS + 1 && ended(&turns).len() <= MAX_TURNS);
            for (n, turn) in turns.iter().enumerate() {
                prop_assert_eq!(turn.end_time.is_none(), n == 0 && turn.end_time.is_none());
                prop_assert!(turn.end_time.is_none() || turn.outcome.is_some());
                prop_assert!(turn.end_time.as_ref().is_none_or(|end| *end >= turn.start_time));
            }
            let runs = turns.first().is_some_and(|t: &TurnRecord| t.end_time.is_none());
            prop_assert!(!runs || berth.is_some());
        }
    }
}
