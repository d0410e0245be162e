use berth_api::backend::Backend;

use super::*;
use crate::agent::facts::Verified;

#[test]
fn disarmed_holds_until_this_process_may_arm() {
    fn seen(staged: Option<Deployment>) -> Knowledge {
        let mut knowledge = knowing(&taken());
        knowledge.after(look_at(staged), &at(1));
        knowledge
    }
    assert!(seen(None).host.disarmed && seen(Some(deployment(2, true))).host.disarmed);
    assert!(!seen(Some(deployment(2, false))).host.disarmed);
    for (step, disarmed) in [
        (lock(), true),
        (Step::Drain, true),
        (Step::Unlock, false),
        (pull(), false),
        (Step::CancelPull(digest(2)), false),
    ] {
        let mut knowledge = seen(Some(deployment(2, true)));
        knowledge.after(Event::Begins(&step), &at(2));
        assert_eq!(knowledge.host.disarmed, disarmed, "{step:?}");
    }
    let mut knowledge = seen(None);
    knowledge.after(Event::Pull(succeeded(2)), &at(2));
    assert!(!knowledge.host.disarmed);
    let mut knowledge = seen(None);
    let unusable = Os::Unusable {
        reason: Reason::StatusFailed,
        message: String::new(),
    };
    knowledge.after(look(unusable), &at(2));
    assert!(knowledge.host.disarmed, "not seen is not armed");
}

#[test]
fn three_failed_locks_remove_the_image() {
    let failed = failed(Reason::LockFailed, "error: no");
    for disarmed in [None, Some(deployment(2, true))] {
        let mut knowledge = knowing(&committed());
        for times in 1..=3 {
            assert!(knowledge.failures.lock.is_none(), "{times}");
            done(&mut knowledge, &lock(), failed.clone(), times);
        }
        knowledge.after(look_at(Some(deployment(2, false))), &at(4));
        assert!(knowledge.facts(&at(4)).host.lock_failure.is_some());
        // If the agent cannot remove the image either, it reports that failure and tries the removal again.
        done(&mut knowledge, &Step::Unstage(deployment(2, false)), failed.clone(), 4);
        knowledge.after(look_at(Some(deployment(2, false))), &at(4));
        assert!(knowledge.facts(&at(4)).host.lock_failure.is_some());
        knowledge.after(look_at(disarmed), &at(4));
        assert!(knowledge.facts(&at(4)).host.lock_failure.is_none());
    }
}

/// Another program's work on the host does not count as a failed lock, and the staged image must stay.
#[test]
fn a_host_that_is_busy_can_be_locked_later() {
    let mut knowledge = knowing(&committed());
    for times in 1..=9 {
        done(&mut knowledge, &lock(), failed(Reason::HostBusy, "error: no"), times);
        assert!(knowledge.failures.lock.is_none(), "{times}");
    }
    assert!(
        knowledge
            .failures
            .trouble()
            .is_some_and(|t| t.reason == Reason::HostBusy && t.attempts == 9)
    );
    for (times, gives_up) in [(10, false), (11, false), (12, true)] {
        done(&mut knowledge, &lock(), failed(Reason::LockFailed, "error: no"), times);
        assert_eq!(knowledge.failures.lock.is_some(), gives_up, "{times}");
    }
}

#[test]
fn the_backend_is_chosen_again_after_an_update() {
    let mut knowledge = knowing(&committed());
    knowledge.past.staged_with = Some(Backend::RpmOstree);
    let mut deployments = Deployments {
        booted: deployment(2, false),
        ..Deployments::default()
    };
    deployments.backend.reason = "Begun".to_owned();
    knowledge.after(look(Os::Bootc(Box::new(deployments))), &at(1));
    assert_ne!(knowledge.host.os, Os::Unknown, "the turn continues with it");
    knowledge.after(Event::Berths(vec![]), &at(2));
    assert_eq!((&knowledge.host.os, knowledge.past.staged_with), (&Os::Unknown, None));
}

#[test]
fn an_unlockable_image_is_staged_again_after_a_pause() {
    for (storage, lock_failure, locked, tries, failures) in [
        (Storage::Ostree, true, false, 2, Some(2)),
        (Storage::Composefs, false, false, 1, Some(1)),
        // The image was removed for another reason.
        (Storage::Ostree, true, true, 1, None),
        (Storage::Ostree, false, false, 1, None),
    ] {
        let mut knowledge = knowing(&offered());
        ask_for(&mut knowledge, image());
        let staged = deployment(2, locked);
        for n in 0..tries {
            let deployments = Deployments {
                storage,
                booted: deployment(1, false),
                staged: Some(staged.clone()),
                ..Deployments::default()
            };
            knowledge.host.os = Os::Bootc(Box::new(deployments));
            knowledge.failures.lock = lock_failure.then(LockRetry::default);
            done(&mut knowledge, &Step::Unstage(staged.clone()), Ending::Done, n + 1);
        }
        let failure = knowledge.past.failure.map(|f| (f.reason, f.attempts));
        let expected = failures.map(|attempts| ("LockFailed".to_owned(), attempts));
        assert_eq!(failure, expected, "{storage:?} {lock_failure} {locked}");
    }
}

/// Each lock reports success but has no effect. The agent then removes the image and pulls it again, with growing
/// pauses. An agent restart does not reset the count.
#[test]
fn locks_without_effect_add_up_over_restarts() {
    fn pulled(knowledge: &mut Knowledge, locked: bool) {
        done(knowledge, &pull(), Ending::Done, 0);
        knowledge.after(Event::Pull(succeeded(2)), &at(0));
        knowledge.after(look_at(Some(deployment(2, locked))), &at(0));
    }
    let no_effect = failed(
        Reason::StepFailed,
        "step Lock succeeded on the host but changed nothing",
    );
    let mut knowledge = knowing(&offered());
    ask_for(&mut knowledge, image());
    for (cycle, pause) in [(1, 5), (2, 10), (3, 20), (4, 40)] {
        pulled(&mut knowledge, false);
        for _ in 1..=3 {
            done(&mut knowledge, &lock(), no_effect.clone(), 0);
        }
        knowledge.host.os = os(Some(deployment(2, false)));
        done(&mut knowledge, &Step::Unstage(deployment(2, false)), Ending::Done, 0);
        let failure = knowledge.past.failure.clone().unwrap();
        assert_eq!((failure.reason.as_str(), failure.attempts), ("LockFailed", cycle));
        let left = knowledge.past.pull_backoff(&image().digest, at(0).wall);
        assert_eq!(left.map(|left| left.as_secs()), Some(pause), "{cycle}");
        // The next agent process takes the count from the BootcNode's status.
        let status = BootcNodeStatus {
            failure: Some(failure),
            ..BootcNodeStatus::default()
        };
        knowledge = knowing(&offered());
        knowledge.host.os = Os::Unknown;
        knowledge.past.adopt(&status);
        ask_for(&mut knowledge, image());
    }
    pulled(&mut knowledge, true);
    assert_eq!(knowledge.past.failure, None, "it is locked");
}

/// On composefs, only bootc can lock an image, and only while it stages the image. A pull that leaves its image
/// unlocked counts as failed, so the next pull waits.
#[test]
fn an_unlocked_pull_on_composefs_has_failed() {
    for (storage, locked, reason) in [
        (Storage::Ostree, true, None),
        (Storage::Ostree, false, None),
        (Storage::Composefs, true, None),
        (Storage::Composefs, false, Some("LockFailed")),
    ] {
        let mut knowledge = knowing(&offered());
        ask_for(&mut knowledge, image());
        knowledge.after(Event::Pull(succeeded(2)), &at(1));
        let deployments = Deployments {
            storage,
            booted: deployment(1, false),
            staged: Some(deployment(2, locked)),
            ..Deployments::default()
        };
        knowledge.after(look(Os::Bootc(Box::new(deployments))), &at(2));
        let failure = knowledge.past.failure.as_ref().map(|f| f.reason.as_str());
        assert_eq!(failure, reason, "{storage:?} {locked}");
        assert_eq!(knowledge.past.is_complete(&image().digest), reason.is_none());
    }
}

#[test]
fn silence_lasts_from_its_start_to_an_answer() {
    let mut knowledge = knowing(&taken());
    for (seconds, ago) in [(10, 0), (50, 40)] {
        knowledge.after(Event::Unreachable("no answer".to_owned()), &at(seconds));
        let silence = knowledge.facts(&at(seconds)).host.unreachable.unwrap();
        assert_eq!(silence.ago.as_secs(), ago);
    }
    assert!(!knowledge.host.fresh, "anything may have happened meanwhile");
    knowledge.after(Event::Services(Services::under("b1".into())), &at(60));
    assert_eq!(knowledge.host.unreachable, None);
}

#[test]
fn a_failed_pull_leaves_no_usable_image() {
    let mut knowledge = knowing(&offered());
    ask_for(&mut knowledge, image());
    let failed = pull_failed(Reason::PullFailed, "pulling bound images: no route");
    knowledge.after(Event::Pull(failed), &at(1));
    assert!(!knowledge.past.is_complete(&digest(2)));
    knowledge.after(look_at(Some(deployment(2, true))), &at(2));
    assert!(
        knowledge.past.failure.is_some(),
        "staged and locked, and still a failure"
    );
    done(&mut knowledge, &pull(), Ending::Done, 10);
    assert!(knowledge.past.is_complete(&digest(2)));
    knowledge.after(Event::Pull(succeeded(2)), &at(11));
    knowledge.after(look_at(Some(deployment(2, true))), &at(11));
    assert_eq!(knowledge.past.failure, None);
    done(&mut knowledge, &Step::CancelPull(digest(2)), Ending::Done, 12);
    assert!(!knowledge.past.is_complete(&digest(2)));
}

#[test]
fn a_released_node_forgets_its_removed_image() {
    for (staged, why, kept) in [
        (Some(2), WaitReason::NothingAsked, true),
        (None, WaitReason::NothingAsked, false),
        (Some(3), WaitReason::Excluded, false),
        (None, WaitReason::Released, false),
        (None, WaitReason::Updated, true),
    ] {
        let mut knowledge = knowing(&offered());
        knowledge.past.staged_by_us = Some(digest(2));
        knowledge.host.os = os(staged.map(|n| deployment(n, true)));
        let mut unseen = knowledge.clone();
        unseen.host.os = Os::Unknown;
        for (mut knowledge, kept) in [(knowledge, kept), (unseen, true)] {
            knowledge.after(Event::Rests(why), &at(1));
            assert_eq!(knowledge.past.staged_by_us.is_some(), kept, "{staged:?} {why:?}");
        }
    }
}

#[test]
fn the_end_of_a_pull_is_processed_once() {
    let mut knowledge = knowing(&offered());
    knowledge.after(Event::Memory(Some("no space left".into())), &at(0));
    for second in 1..4 {
        assert_eq!(knowledge.pulls.is_news(&digest(2)), second == 1);
        knowledge.after(Event::Pull(succeeded(2)), &at(second));
        assert_eq!(knowledge.pull_to_forget(), None);
    }
    knowledge.after(Event::Memory(None), &at(4));
    assert_eq!(knowledge.pull_to_forget(), Some(&digest(2)));
    knowledge.after(Event::Pull(PullReading::None), &at(5));
    assert!(knowledge.pulls.is_news(&digest(2)), "another pull of it");
}

#[test]
fn a_pull_without_a_staged_image_has_failed() {
    for (staged, fails) in [(Some(2), false), (Some(3), true), (None, true)] {
        let mut knowledge = knowing(&offered());
        ask_for(&mut knowledge, image());
        knowledge.after(Event::Pull(succeeded(2)), &at(1));
        assert_eq!(knowledge.host.os, Os::Unknown);
        knowledge.after(look_at(staged.map(|n| deployment(n, true))), &at(2));
        assert_eq!(knowledge.past.failure.is_some(), fails, "{staged:?}");
    }
}

#[test]
fn an_unusable_host_is_reread_after_a_while() {
    let mut knowledge = knowing(&offered());
    knowledge.host.os = Os::Unusable {
        reason: Reason::StatusFailed,
        message: String::new(),
    };
    for (second, is_fresh) in [(29, true), (30, false)] {
        knowledge.after(Event::Services(Services::under("b1".into())), &at(second));
        assert_eq!(knowledge.host.fresh, is_fresh, "{second}");
    }
}

#[test]
fn new_credentials_retry_an_unauthorized_pull() {
    for (reason, waits) in [(Reason::Unauthorized, false), (Reason::DiskFull, true)] {
        let mut knowledge = knowing(&offered());
        knowledge.after(Event::Pull(pull_failed(reason, "no")), &at(1));
        assert!(knowledge.past.pull_backoff(&digest(2), at(2).wall).is_some());
        knowledge.after(Event::NewCredentials, &at(2));
        assert_eq!(
            knowledge.past.pull_backoff(&digest(2), at(2).wall).is_some(),
            waits,
            "{reason:?}"
        );
        assert_eq!(
            knowledge.past.failure.map(|f| f.attempts),
            Some(1),
            "the failure stays reported"
        );
    }
}

#[test]
fn a_pull_with_old_credentials_is_retried_at_once() {
    let mut knowledge = knowing(&offered());
    for (second, renews, waits) in [(1, false, true), (3, true, false), (5, false, true)] {
        knowledge.after(Event::Begins(&pull()), &at(second));
        if renews {
            knowledge.after(Event::NewCredentials, &at(second));
        }
        let refused = pull_failed(Reason::Unauthorized, "no");
        knowledge.after(Event::Pull(refused), &at(second + 1));
        let left = knowledge.past.pull_backoff(&digest(2), at(second + 1).wall);
        assert_eq!(left.is_some(), waits, "{second}");
    }
}

#[test]
fn an_unsigned_pull_fails_if_a_signature_is_required() {
    for (staged_signed, policy, fails) in [
        (true, Some(digest(7)), false),
        (false, Some(digest(7)), true),
        // `None`: the host already had the image, or an agent that did not check the policy pulled it. Digest 8: the
        // image was pulled under another policy.
        (true, None, true),
        (true, Some(digest(8)), true),
    ] {
        let mut knowledge = knowing(&offered());
        let image = DesiredImage {
            signature: berth_api::pool::SignatureRule::Required,
            ..image()
        };
        ask_for(&mut knowledge, image);
        let rules = Rules {
            policy_digest: Some(digest(7)),
            ..Rules::default()
        };
        knowledge.after(Event::Rules(Box::new(rules)), &at(1));
        let ended = PullReading::Succeeded {
            digest: digest(2),
            policy: policy.clone(),
        };
        knowledge.after(Event::Pull(ended), &at(1));
        let deployments = Deployments {
            booted: deployment(1, false),
            staged: Some(deployment(2, true)),
            staged_signed,
            ..Deployments::default()
        };
        knowledge.after(look(Os::Bootc(Box::new(deployments))), &at(2));
        assert_eq!(
            knowledge.past.failure.is_some(),
            fails,
            "staged under the policy: {staged_signed}, by us: {policy:?}"
        );
    }
}

#[test]
fn a_verified_pull_counts_until_the_next_begins() {
    let mut knowledge = knowing(&offered());
    let ended = PullReading::Succeeded {
        digest: digest(2),
        policy: Some(digest(7)),
    };
    knowledge.after(Event::Pull(ended), &at(1));
    let text = serde_json::to_string(&knowledge.past).unwrap();
    let past: Past = serde_json::from_str(&text).unwrap();
    assert!(
        past.is_verified(&digest(2), Some(&digest(7))),
        "an agent that begins reads it"
    );
    assert!(!past.is_verified(&digest(3), Some(&digest(7))) && !past.is_verified(&digest(2), None));
    knowledge.after(Event::Begins(&pull()), &at(2));
    assert_eq!(knowledge.past.verified, None::<Verified>);
}

/// If the agent cannot write its memory file, the pull's unit keeps the result for the next agent process. The failure
/// counts only once.
#[test]
fn a_stored_pull_is_forgotten_and_counts_once() {
    let mut knowledge = knowing(&offered());
    let failed = pull_failed(Reason::PullFailed, "no");
    for second in 1..=3 {
        knowledge.after(Event::Pull(failed.clone()), &at(second));
        knowledge.after(Event::Memory(Some("disk full".into())), &at(second));
        assert_eq!(knowledge.pull_to_forget(), None);
        assert_eq!(knowledge.past.failure.as_ref().unwrap().attempts, 1);
    }
    knowledge.after(look_at(None), &at(4));
    knowledge.after(Event::Pull(failed.clone()), &at(4));
    assert!(knowledge.host.fresh, "nothing new has come of it");
    knowledge.after(Event::Memory(None), &at(4));
    assert_eq!(knowledge.pull_to_forget(), Some(&digest(2)));
    // The host then reports no pull, or the failure of another pull.
    knowledge.after(Event::Pull(PullReading::None), &at(5));
    assert_eq!(knowledge.pull_to_forget(), None);
    knowledge.after(Event::Pull(failed.clone()), &at(6));
    knowledge.after(Event::Begins(&pull()), &at(7));
    knowledge.after(Event::Pull(failed), &at(8));
    assert_eq!(knowledge.past.failure.unwrap().attempts, 3);
}

/// A pass of the agent's loop takes long if the host is silent. A heartbeat may then be due in every pass.
#[test]
fn heartbeats_keep_the_node_read_on_a_silent_host() {
    for (silent, kept) in [(true, true), (false, false)] {
        let mut knowledge = knowing(&taken());
        if silent {
            knowledge.after(Event::Unreachable("no answer".into()), &at(1));
        }
        knowledge.after(Event::NodeRead(node()), &at(2));
        knowledge.after(Event::Heartbeat, &at(12));
        assert_eq!(knowledge.cluster.node != ClusterNode::Unread, kept, "silent: {silent}");
        knowledge.after(Event::NodeRead(node()), &at(13));
        knowledge.after(Event::Services(Services::under("b1".into())), &at(14));
        let is_old = knowledge.cluster.node == ClusterNode::Unread;
        assert_eq!(is_old, silent, "the first answer has it read again");
    }
}

fn backend_after_a_look(knowledge: &mut Knowledge, staged: Option<Deployment>) -> Option<Backend> {
    let mut deployments = Deployments {
        booted: deployment(1, false),
        staged,
        ..Deployments::default()
    };
    deployments.backend.name = Backend::RpmOstree;
    knowledge.after(look(Os::Bootc(Box::new(deployments))), &at(1));
    knowledge.past.staged_with
}

#[test]
fn an_update_keeps_its_backend() {
    let begun = Some(Backend::RpmOstree);
    let mut knowledge = knowing(&offered());
    ask_for(&mut knowledge, image());
    assert_eq!(backend_after_a_look(&mut knowledge, None), None);
    knowledge.after(Event::Begins(&pull()), &at(1));
    assert_eq!(knowledge.past.staged_with, begun);
    let stored = serde_json::to_string(&knowledge.past).unwrap();
    assert_eq!(
        serde_json::from_str::<Past>(&stored).unwrap().staged_with,
        begun,
        "it survives a restart"
    );
    assert_eq!(backend_after_a_look(&mut knowledge, Some(deployment(2, true))), begun);
    // The turn continues under the next boot, without a staged image.
    knowledge.after(Event::Berths(vec![committed()]), &at(2));
    assert_eq!(backend_after_a_look(&mut knowledge, None), begun);
    knowledge.after(Event::Berths(vec![]), &at(3));
    assert_eq!(
        backend_after_a_look(&mut knowledge, Some(deployment(7, true))),
        None,
        "of another tool"
    );
}
