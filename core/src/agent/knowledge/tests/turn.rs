use berth_api::node::DrainBlocker;
use berth_api::node::timeline::ProofPart;

use super::*;
use crate::agent::facts::Guard;

/// Returns a berth whose window closes after 60 s: as offered, and as taken.
fn with_window() -> [Berth; 2] {
    let offer = Offer {
        node: "n1".into(),
        uid: "u1".into(),
        target: digest(2),
        open_until: Some(at(60).wall),
    };
    let offered = Berth::new(PoolName::from("p"), 0, 1).offered(offer).unwrap();
    let (node, uid) = ("n1".into(), "u1".into());
    let taken = offered.taken(&node, &uid, Some(digest(1)), "b1".into()).unwrap();
    [offered, taken]
}

#[test]
fn a_drain_pass_is_known_until_the_next() {
    let [web, db] = ["web/a", "db/0"].map(|name| DrainBlocker {
        pod: name.to_owned(),
        reason: "its budget".to_owned(),
        since: at(0).wall.into(),
    });
    let mut knowledge = knowing(&taken());
    let waiting = DrainProgress::Waiting {
        blockers: vec![web.clone()],
        next: Duration::from_secs(5),
    };
    let done = DrainProgress::Done {
        left_behind: vec![db.clone()],
    };
    for (seconds, progress, is_done, next_pass, blockers, left_behind) in [
        (10, waiting, false, Some(Duration::from_secs(3)), vec![web], vec![]),
        (20, done, true, None, vec![], vec![db]),
    ] {
        super::done(&mut knowledge, &Step::Drain, Ending::Drain(progress), seconds);
        let drain = knowledge.facts(&at(seconds + 2)).drain;
        assert_eq!(drain.elapsed, Duration::from_secs(seconds + 2));
        assert_eq!((drain.done, drain.next_pass), (is_done, next_pass));
        assert_eq!((drain.blockers, drain.left_behind), (blockers, left_behind));
    }
}

#[test]
fn each_turn_drains_without_a_memory_of_pods() {
    let mut knowledge = knowing(&offered());
    let mut numbers = vec![knowledge.turn.drain.number];
    for _ in 0..2 {
        done(&mut knowledge, &Step::Take(offered()), Ending::Done, 1);
        numbers.push(knowledge.turn.drain.number);
        done(&mut knowledge, &Step::GiveBack(releasing()), Ending::Done, 2);
        numbers.push(knowledge.turn.drain.number);
    }
    assert!(numbers.is_sorted_by(|before, after| before < after), "{numbers:?}");
}

/// If the berth still has the phase that this agent process last wrote, all readings stay valid.
#[test]
fn its_own_write_keeps_the_look_valid() {
    let relicensed = committed().relicensed(digest(3), "b1".into()).unwrap();
    let release = Step::Release(taken(), Outcome::DrainTimeout, String::new());
    for (before, step, after) in [
        (taken(), Step::Commit(taken()), committed()),
        (committed(), Step::Uncommit(committed()), taken()),
        (committed(), Step::Relicense(committed(), digest(3)), relicensed),
        (taken(), release, releasing()),
    ] {
        let mut knowledge = knowing(&before);
        done(&mut knowledge, &step, Ending::Done, 1);
        knowledge.after(Event::Berths(vec![after]), &at(1));
        assert!(knowledge.host.fresh && knowledge.cluster.fenced, "{step:?}");
    }
}

#[test]
fn only_an_answered_write_of_the_berth_fences_it() {
    for (step, ending, fenced) in [
        (Step::Fence(committed()), Ending::Done, true),
        (Step::Fence(committed()), Ending::NotNeeded, false),
        (Step::Fence(committed()), failed(Reason::StepFailed, "no answer"), false),
        (lock(), Ending::Done, false),
        (Step::Restore(releasing()), Ending::Done, false),
    ] {
        let mut knowledge = knowing(&committed());
        knowledge.cluster.fenced = false;
        done(&mut knowledge, &step, ending.clone(), 1);
        assert_eq!(knowledge.cluster.fenced, fenced, "{step:?} {ending:?}");
    }
}

#[test]
fn a_commit_that_is_taken_back_says_why() {
    let vain = Some("logind accepted the reboot, but no shutdown began");
    for (asked, blocked, expected) in [
        (false, None, None),
        (true, None, vain),
        (false, Some("busy"), Some("busy")),
        (true, Some("busy"), Some("busy")),
    ] {
        let mut knowledge = knowing(&committed());
        knowledge.turn.reboot.asked = asked.then_some(at(1).clock);
        knowledge.turn.reboot.blocked = blocked.map(|why| (why.to_owned(), at(1).clock));
        done(&mut knowledge, &Step::Uncommit(committed()), Ending::Done, 2);
        let why = knowledge.turn.reboot.blocked.map(|(why, _)| why);
        assert_eq!(why.as_deref(), expected, "asked: {asked}, blocked: {blocked:?}");
    }
}

/// If the agent locks again after a successful lock, and only reads happened in between, the first lock had no effect.
#[test]
fn a_change_repeats_over_looks_only() {
    for (step, repeats) in [
        (Step::LookAtHost, true),
        (Step::ReadNode, true),
        (lock(), true),
        (Step::Drain, false),
        (Step::Fence(committed()), false),
    ] {
        let mut knowledge = knowing(&committed());
        done(&mut knowledge, &lock(), Ending::Done, 1);
        knowledge.after(Event::Begins(&step), &at(2));
        assert_eq!(knowledge.turn.repeats(&lock()), repeats, "{step:?}");
    }
}

#[test]
fn an_unproven_boot_is_reread_after_a_while() {
    for (seconds, fresh) in [(29, true), (30, false)] {
        let mut knowledge = knowing(&committed());
        knowledge.after(Event::Rests(WaitReason::Unproven), &at(seconds));
        assert_eq!(knowledge.host.fresh, fresh, "{seconds}");
    }
}

#[test]
fn a_window_is_known_from_any_berth() {
    let [offer, held] = with_window();
    for (berths, expected) in [
        (vec![], false),
        (vec![offered()], false),
        (vec![taken()], false),
        (vec![offer.clone()], true),
        (vec![held], true),
        (vec![offered(), offer], true),
    ] {
        let mut knowledge = knowing(&offered());
        knowledge.cluster.berths = Some(berths);
        assert_eq!(
            knowledge.cluster.is_under_window(),
            expected,
            "{:?}",
            knowledge.cluster.berths
        );
    }
}

#[test]
fn a_staged_image_or_berth_means_a_reboot() {
    for (staged, berth, expected) in [
        (Some(deployment(2, true)), offered(), true),
        (None, taken(), true),
        (Some(deployment(2, true)), taken(), true),
        (None, offered(), false),
    ] {
        let mut knowledge = knowing(&berth);
        knowledge.host.os = os(staged.clone());
        assert_eq!(knowledge.is_reboot_ahead(), expected, "{staged:?} {berth:?}");
    }
}

#[test]
fn an_update_ends_the_failures_of_its_digest() {
    for (outcome, kept) in [(Outcome::Updated, false), (Outcome::Failed, true)] {
        let berth = committed().releasing(outcome, "b1".into()).unwrap();
        let mut knowledge = knowing(&berth);
        let now = at(1);
        knowledge
            .past
            .pull_failed("ImageNotFound", "no such image", &digest(2), now.wall, 0.0);
        knowledge.after(Event::Begins(&Step::GiveBack(berth)), &now);
        assert_eq!(knowledge.past.failure.is_some(), kept, "{outcome:?}");
    }
}

#[test]
fn a_held_berth_is_something_to_try() {
    let of_another = {
        let (node, uid) = ("n2".into(), "u2".into());
        let offer = Offer {
            node: "n2".into(),
            uid: "u2".into(),
            target: digest(2),
            open_until: None,
        };
        let offered = Berth::new(PoolName::from("p"), 1, 1).offered(offer).unwrap();
        offered.taken(&node, &uid, Some(digest(1)), "b7".into()).unwrap()
    };
    for (berth, expected) in [(taken(), Guard::Refuses), (of_another, Guard::NothingToTry)] {
        let mut knowledge = knowing(&berth);
        knowledge.after(Event::Guard(Ok(Guard::NothingToTry)), &at(1));
        assert_eq!(knowledge.cluster.guard.answer, expected, "{berth:?}");
    }
}

#[test]
fn the_parts_of_a_proof_are_recorded_when_it_ends() {
    let mut knowledge = knowing(&committed());
    knowledge.after(Event::Services(Services::under("b2".into())), &at(100));
    knowledge.host.os = Os::Bootc(Box::new(Deployments {
        booted: deployment(2, false),
        ..Deployments::default()
    }));
    knowledge.after(Event::Berths(vec![committed()]), &at(100));
    let parts = ProofPart::ALL;
    knowledge.after(Event::Proves(&parts[..2]), &at(103));
    knowledge.after(Event::Proves(&parts[..1]), &at(105));
    knowledge.after(Event::Proves(&parts[..4]), &at(110));
    let before = knowledge.past.timeline.updates[0].proof.clone();
    assert_eq!(before, [], "a running proof costs no write of the memory");
    let release = Step::Release(committed(), Outcome::Updated, String::new());
    knowledge.after(Event::Begins(&release), &at(111));
    let update = &knowledge.past.timeline.updates[0];
    let steps: Vec<_> = update.proof.iter().map(|step| (step.name, step.seconds)).collect();
    assert_eq!(steps, [(parts[0], 3), (parts[1], 3), (parts[2], 10), (parts[3], 10)]);
    let reported = crate::agent::timeline::reported(&knowledge.past.timeline, None);
    assert_eq!(reported.updates[0].proof, [], "the update is not over");
}
