use super::*;
use crate::agent::facts::Guard;

fn allows() -> Guard {
    Guard::Allows("this one may forge Lease p-0".to_owned())
}

#[test]
fn a_rejection_is_valid_for_about_an_hour() {
    let mut knowledge = knowing(&offered());
    assert_eq!(
        knowledge.facts(&at(0)).guard.next_try,
        Duration::ZERO,
        "it is asked first of all"
    );
    let mut waits = vec![];
    for (answer, seconds) in [
        (Ok(allows()), 10),
        (Err("no answer".to_owned()), 20),
        (Ok(allows()), 30),
        (Ok(Guard::Refuses), 40),
        (Ok(allows()), 50),
    ] {
        knowledge.after(
            Event::Guard(answer),
            &Now {
                chance: 0.5,
                ..at(seconds)
            },
        );
        waits.push(knowledge.facts(&at(seconds)).guard.next_try.as_secs());
    }
    assert_eq!(waits, [2, 4, 8, 3600, 2], "a rejection resets the count");
    for _ in 0..40 {
        knowledge.after(Event::Guard(Ok(allows())), &Now { chance: 1.0, ..at(60) });
    }
    assert_eq!(
        knowledge.facts(&at(60)).guard.next_try,
        Duration::from_secs(750),
        "ten minutes, and its jitter"
    );
    assert_eq!(
        knowledge.facts(&at(60 + 750)).guard.next_try,
        Duration::ZERO,
        "it is due"
    );
}

#[test]
fn a_missing_answer_keeps_the_last_one() {
    for answer in [Guard::Refuses, allows()] {
        let mut knowledge = knowing(&offered());
        knowledge.after(Event::Guard(Ok(answer.clone())), &at(1));
        knowledge.after(Event::Guard(Err("no answer".to_owned())), &at(2));
        assert_eq!(knowledge.facts(&at(2)).guard.answer, answer);
    }
}

/// The agent probes as soon as it has read its BootcNode, even if the node has no berth and no offer.
#[test]
fn an_offer_is_probed_before_it_is_taken() {
    let closed = Berth::new(PoolName::from("p"), 0, 1);
    for (berth, answer, then) in [
        (closed.clone(), Guard::NothingToTry, Guard::NothingToTry),
        (closed, Guard::Refuses, Guard::Refuses),
        // In a cluster with one node, the API server rejected the write to the berth, and the agent found no other node
        // to try.
        (offered(), Guard::NothingToTry, Guard::Refuses),
        (offered(), allows(), allows()),
    ] {
        let mut knowledge = knowing(&berth);
        knowledge.after(Event::Guard(Ok(answer)), &at(1));
        let guard = knowledge.facts(&at(1)).guard;
        assert_eq!(guard.answer, then, "{berth:?}");
        assert_eq!(guard.unguarded().is_some(), then == allows());
    }
}

#[test]
fn repeated_missing_answers_are_reported() {
    let mut knowledge = knowing(&offered());
    let why = "webhook w: connection refused";
    for is_reported in [false, false, true, true] {
        knowledge.after(Event::Guard(Err(why.to_owned())), &at(1));
        let guard = knowledge.facts(&at(1)).guard;
        assert_eq!(guard.is_reportable(), is_reported);
        assert_eq!(guard.unguarded().unwrap_or_default().ends_with(why), is_reported);
    }
    knowledge.after(Event::Guard(Ok(Guard::Refuses)), &at(1));
    let guard = knowledge.facts(&at(1)).guard;
    assert_eq!((guard.is_reportable(), guard.unguarded()), (false, None));
    for _ in 0..4 {
        knowledge.after(Event::Guard(Err(why.to_owned())), &at(1));
        let guard = knowledge.facts(&at(1)).guard;
        assert!(!guard.is_reportable(), "the last answer counts");
    }
}
