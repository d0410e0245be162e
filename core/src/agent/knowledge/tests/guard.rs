//! Knowledge of whether the API server refuses what it must.

use super::*;
use crate::agent::facts::Guard;

fn allows() -> Guard {
    Guard::Allows("this one may forge Lease p-0".to_owned())
}

#[test]
fn a_refusal_counts_for_about_an_hour_and_anything_else_is_asked_again_soon() {
    let mut knowledge = knowing(&offered());
    assert_eq!(
        knowledge.facts(&at(0)).guard.next_try,
        Duration::ZERO,
        "it is asked first of all"
    );
    let mut waits = vec![];
    for (answer, seconds) in [
        (allows(), 10),
        (Guard::Unknown, 20),
        (allows(), 30),
        (Guard::Refuses, 40),
        (allows(), 50),
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
    assert_eq!(waits, [2, 4, 8, 3600, 2], "an answer of yes ends what is counted");
    for _ in 0..40 {
        knowledge.after(Event::Guard(allows()), &Now { chance: 1.0, ..at(60) });
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
fn no_answer_changes_nothing_of_the_last_one() {
    for answer in [Guard::Refuses, allows()] {
        let mut knowledge = knowing(&offered());
        knowledge.after(Event::Guard(answer.clone()), &at(1));
        knowledge.after(Event::Guard(Guard::Unknown), &at(2));
        assert_eq!(knowledge.facts(&at(2)).guard.answer, answer);
    }
}
