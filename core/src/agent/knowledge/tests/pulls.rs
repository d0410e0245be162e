use super::*;

/// A holder may boot the image before the agent has processed the end of that image's pull.
#[test]
fn a_pull_of_the_booted_image_succeeded() {
    for (booted, fails) in [(2, false), (1, true)] {
        let mut knowledge = knowing(&committed());
        knowledge.after(Event::Pull(succeeded(2)), &at(1));
        let mut os = os(None);
        if let Os::Bootc(known) = &mut os {
            known.booted = deployment(booted, false);
        }
        knowledge.after(look(os), &at(2));
        assert_eq!(knowledge.past.failure.is_some(), fails, "{booted} runs");
    }
}

/// A successful pull clears the failures of its image even if the pool no longer desires that image.
#[test]
fn a_pull_that_succeeds_ends_the_failures_before() {
    for (locked, kept) in [(true, false), (false, true)] {
        let mut knowledge = knowing(&offered());
        knowledge.after(Event::Pull(pull_failed(Reason::PullFailed, "no route")), &at(1));
        knowledge.after(Event::Begins(&pull()), &at(2));
        knowledge.after(Event::Pull(succeeded(2)), &at(3));
        knowledge.after(look_at(Some(deployment(2, locked))), &at(4));
        assert_eq!(knowledge.past.failure.is_some(), kept, "locked: {locked}");
    }
}

#[test]
fn the_desired_image_ends_its_failures_once_locked() {
    for (staged, kept) in [
        (Some(deployment(2, true)), false),
        (Some(deployment(2, false)), true),
        (Some(deployment(3, true)), true),
        (None, true),
    ] {
        let mut knowledge = knowing(&offered());
        ask_for(&mut knowledge, image());
        let now = at(1);
        knowledge
            .past
            .pull_failed("ImageNotFound", "no such image", &digest(2), now.wall, 0.0);
        knowledge.after(look_at(staged.clone()), &at(2));
        assert_eq!(knowledge.past.failure.is_some(), kept, "{staged:?}");
    }
}

/// A pull may stage its image at any moment, so the agent must not forget that Berth staged it.
#[test]
fn what_is_being_pulled_is_not_forgotten() {
    let pull = PullFacts {
        digest: digest(2),
        progress: None,
    };
    for (pull, pulled, kept) in [
        (Some(pull), None, true),
        (None, Some(digest(2)), true),
        (None, None, false),
    ] {
        let mut knowledge = knowing(&offered());
        knowledge.past.staged_by_us = Some(digest(2));
        (knowledge.host.os, knowledge.pulls.running, knowledge.pulls.succeeded) = (os(None), pull, pulled);
        knowledge.after(Event::Rests(WaitReason::Released), &at(1));
        assert_eq!(
            knowledge.past.staged_by_us.is_some(),
            kept,
            "{:?}",
            knowledge.pulls.running
        );
    }
}

/// Only the desired image is pulled again. So a pause follows only if the desired image cannot be locked. The removal
/// of an incomplete image does not count as a failed lock.
#[test]
fn a_pause_is_for_the_desired_image_alone() {
    for (staged, incomplete, pauses) in [(2, None, true), (3, None, false), (2, Some(digest(2)), false)] {
        let mut knowledge = knowing(&offered());
        ask_for(&mut knowledge, image());
        let staged = deployment(staged, false);
        knowledge.host.os = os(Some(staged.clone()));
        knowledge.failures.lock = Some(LockRetry::default());
        knowledge.past.incomplete = incomplete;
        knowledge.after(Event::Begins(&Step::Unstage(staged.clone())), &at(1));
        assert_eq!(knowledge.past.failure.is_some(), pauses, "{staged:?}");
    }
}
