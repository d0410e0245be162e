//! Knowledge of the host: what is staged, pulled and armed, and its silence.

use berth_api::backend::Backend;

use super::*;
use crate::agent::facts::Verified;

/// The end of a pull that no signature policy was enforced for.
pub(super) fn succeeded(n: u8) -> PullReading {
    PullReading::Succeeded {
        digest: digest(n),
        policy: None,
    }
}

#[test]
fn what_this_process_saw_disarmed_stays_so_until_it_may_have_armed_something() {
    let seen = |staged| {
        let mut knowledge = knowing(&taken());
        let look = Look {
            os: os(staged),
            rivals: vec![],
            finalization_failed: false,
        };
        knowledge.after(Event::Looked(look), &at(1));
        knowledge
    };
    assert!(seen(None).disarmed && seen(Some(deployment(2, true))).disarmed);
    assert!(!seen(Some(deployment(2, false))).disarmed);
    for (step, disarmed) in [
        (lock(), true),
        (Step::Drain, true),
        (Step::Unlock, false),
        (pull(), false),
        (Step::CancelPull(digest(2)), false),
    ] {
        let mut knowledge = seen(Some(deployment(2, true)));
        knowledge.after(Event::Begins(&step), &at(2));
        assert_eq!(knowledge.disarmed, disarmed, "{step:?}");
    }
    let mut knowledge = seen(None);
    knowledge.after(Event::Pull(succeeded(2)), &at(2));
    assert!(!knowledge.disarmed);
    let mut knowledge = seen(None);
    let unusable = Os::Unusable {
        reason: Reason::StatusFailed,
        message: String::new(),
    };
    let look = Look {
        os: unusable,
        rivals: vec![],
        finalization_failed: false,
    };
    knowledge.after(Event::Looked(look), &at(2));
    assert!(knowledge.disarmed, "not seen is not armed");
}

#[test]
fn what_could_not_be_locked_three_times_is_to_be_removed_until_nothing_is_armed() {
    let failed = || Ending::Failed {
        reason: Reason::LockFailed,
        message: "error: no".into(),
    };
    let look = |knowledge: &mut Knowledge, staged| {
        let look = Look {
            os: os(staged),
            rivals: vec![],
            finalization_failed: false,
        };
        knowledge.after(Event::Looked(look), &at(4));
        knowledge.facts(&at(4)).host.lock_fails.is_some()
    };
    for disarmed in [None, Some(deployment(2, true))] {
        let mut knowledge = knowing(&committed());
        for times in 1..=3 {
            assert!(knowledge.lock_fails.is_none(), "{times}");
            done(&mut knowledge, &lock(), failed(), times);
        }
        assert!(look(&mut knowledge, Some(deployment(2, false))));
        // A removal that fails as well is what is told then, and tried again.
        done(&mut knowledge, &Step::Unstage(deployment(2, false)), failed(), 4);
        assert!(look(&mut knowledge, Some(deployment(2, false))));
        assert!(!look(&mut knowledge, disarmed));
    }
}

/// Somebody is at work on the host: that is no lock that cannot be set, and what is staged there must stay.
#[test]
fn a_host_that_is_busy_can_be_locked_later() {
    let failed = |reason| Ending::Failed {
        reason,
        message: "error: no".into(),
    };
    let mut knowledge = knowing(&committed());
    for times in 1..=9 {
        done(&mut knowledge, &lock(), failed(Reason::HostBusy), times);
        assert!(knowledge.lock_fails.is_none(), "{times}");
    }
    assert!(
        knowledge
            .trouble()
            .is_some_and(|t| t.reason == Reason::HostBusy && t.attempts == 9)
    );
    for (times, gives_up) in [(10, false), (11, false), (12, true)] {
        done(&mut knowledge, &lock(), failed(Reason::LockFailed), times);
        assert_eq!(knowledge.lock_fails.is_some(), gives_up, "{times}");
    }
}

/// The reason of a choice does not stay behind what it was for.
#[test]
fn a_backend_that_was_kept_for_an_update_is_chosen_anew_after_it() {
    let mut knowledge = knowing(&committed());
    knowledge.past.staged_with = Some(Backend::RpmOstree);
    let mut deployments = Deployments {
        booted: deployment(2, false),
        ..Deployments::default()
    };
    deployments.backend.reason = "Begun".to_owned();
    let look = Look {
        os: Os::Bootc(Box::new(deployments)),
        rivals: vec![],
        finalization_failed: false,
    };
    knowledge.after(Event::Looked(look), &at(1));
    assert_ne!(knowledge.os, Os::Unknown, "the turn goes on with it");
    knowledge.after(Event::Berths(vec![]), &at(2));
    assert_eq!((&knowledge.os, knowledge.past.staged_with), (&Os::Unknown, None));
}

/// Whatever takes the lock off may do so again: the next pull waits, longer each time.
#[test]
fn an_image_that_is_removed_for_want_of_a_lock_is_staged_anew_after_a_pause() {
    let remove = |storage, lock_fails: bool, locked, tries| {
        let mut knowledge = knowing(&offered());
        ask_for(&mut knowledge, image());
        let staged = Deployment {
            digest: Some(image().digest),
            ..deployment(2, locked)
        };
        for n in 0..tries {
            let deployments = Deployments {
                storage,
                booted: deployment(1, false),
                staged: Some(staged.clone()),
                ..Deployments::default()
            };
            knowledge.os = Os::Bootc(Box::new(deployments));
            knowledge.lock_fails = lock_fails.then(LockTrouble::default);
            done(&mut knowledge, &Step::Unstage(staged.clone()), Ending::Done, n + 1);
        }
        let failure = knowledge.past.failure;
        failure.map(|f| (f.reason, f.attempts))
    };
    let failed = |attempts| Some(("LockFailed".to_owned(), attempts));
    assert_eq!(remove(Storage::Ostree, true, false, 2), failed(2));
    assert_eq!(remove(Storage::Composefs, false, false, 1), failed(1));
    assert_eq!(
        remove(Storage::Ostree, true, true, 1),
        None,
        "removed for another reason"
    );
    assert_eq!(remove(Storage::Ostree, false, false, 1), None);
}

/// A lock that ends well and locks nothing: the image is removed and pulled again, and the pauses must grow.
#[test]
fn a_lock_without_effect_is_counted_over_all_pulls_and_restarts() {
    let no_effect = || Ending::Failed {
        reason: Reason::StepFailed,
        message: "Lock ended well on the host, and had no effect".into(),
    };
    let staged = |locked| Deployment {
        digest: Some(image().digest),
        ..deployment(2, locked)
    };
    let pulled = |knowledge: &mut Knowledge, locked| {
        done(knowledge, &pull(), Ending::Done, 0);
        knowledge.after(Event::Pull(succeeded(2)), &at(0));
        let look = Look {
            os: os(Some(staged(locked))),
            rivals: vec![],
            finalization_failed: false,
        };
        knowledge.after(Event::Looked(look), &at(0));
    };
    let mut knowledge = knowing(&offered());
    ask_for(&mut knowledge, image());
    for (cycle, pause) in [(1, 5), (2, 10), (3, 20), (4, 40)] {
        pulled(&mut knowledge, false);
        for _ in 1..=3 {
            done(&mut knowledge, &lock(), no_effect(), 0);
        }
        knowledge.os = os(Some(staged(false)));
        done(&mut knowledge, &Step::Unstage(staged(false)), Ending::Done, 0);
        let failure = knowledge.past.failure.clone().unwrap();
        assert_eq!((failure.reason.as_str(), failure.attempts), ("LockFailed", cycle));
        let left = knowledge.past.pull_backoff(&image().digest, at(0).wall);
        assert_eq!(left.map(|left| left.as_secs()), Some(pause), "{cycle}");
        // Another process, which finds the count in the status.
        let status = BootcNodeStatus {
            failure: Some(failure),
            ..BootcNodeStatus::default()
        };
        knowledge = knowing(&offered());
        knowledge.os = Os::Unknown;
        knowledge.past.adopt(&status);
        ask_for(&mut knowledge, image());
    }
    pulled(&mut knowledge, true);
    assert_eq!(knowledge.past.failure, None, "it is locked");
}

/// Locks are bootc's there, and no other one can be set: a pull that leaves none must not be followed by the next at once.
#[test]
fn a_pull_that_left_no_lock_on_composefs_has_failed() {
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
            staged: Some(Deployment {
                digest: Some(image().digest),
                ..deployment(2, locked)
            }),
            ..Deployments::default()
        };
        let look = Look {
            os: Os::Bootc(Box::new(deployments)),
            rivals: vec![],
            finalization_failed: false,
        };
        knowledge.after(Event::Looked(look), &at(2));
        let failure = knowledge.past.failure.as_ref().map(|f| f.reason.as_str());
        assert_eq!(failure, reason, "{storage:?} {locked}");
        assert_eq!(knowledge.past.is_complete(&image().digest), reason.is_none());
    }
}

#[test]
fn silence_of_the_host_counts_from_its_beginning_and_ends_with_an_answer() {
    let mut knowledge = knowing(&taken());
    let silent = |knowledge: &mut Knowledge, seconds| {
        knowledge.after(Event::Unreachable("no answer".to_owned()), &at(seconds));
        knowledge.facts(&at(seconds)).host.unreachable.map(|s| s.ago.as_secs())
    };
    assert_eq!(silent(&mut knowledge, 10), Some(0));
    assert_eq!(silent(&mut knowledge, 50), Some(40));
    assert!(!knowledge.fresh, "anything may have happened meanwhile");
    knowledge.after(Event::Services(Services::under("b1".into())), &at(60));
    assert_eq!(knowledge.unreachable, None);
}

#[test]
fn what_a_pull_has_staged_that_failed_or_was_stopped_does_not_count() {
    let failed = || {
        let failure = HostFailure {
            reason: Reason::PullFailed,
            message: "pulling bound images: no route".to_owned(),
        };
        let digest = digest(2);
        PullReading::Failed { digest, failure }
    };
    let look = || {
        Event::Looked(Look {
            os: os(Some(deployment(2, true))),
            rivals: vec![],
            finalization_failed: false,
        })
    };
    let mut knowledge = knowing(&offered());
    ask_for(&mut knowledge, image());
    knowledge.after(Event::Pull(failed()), &at(1));
    assert!(!knowledge.past.is_complete(&digest(2)));
    knowledge.after(look(), &at(2));
    assert!(
        knowledge.past.failure.is_some(),
        "staged and locked, and still a failure"
    );
    done(&mut knowledge, &pull(), Ending::Done, 10);
    assert!(knowledge.past.is_complete(&digest(2)));
    knowledge.after(Event::Pull(succeeded(2)), &at(11));
    knowledge.after(look(), &at(11));
    assert_eq!(knowledge.past.failure, None);
    done(&mut knowledge, &Step::CancelPull(digest(2)), Ending::Done, 12);
    assert!(!knowledge.past.is_complete(&digest(2)));
}

#[test]
fn what_berth_staged_is_forgotten_once_it_is_gone_from_a_node_of_no_pool() {
    for (staged, why, kept) in [
        (Some(2), WaitReason::NothingAsked, true),
        (None, WaitReason::NothingAsked, false),
        (Some(3), WaitReason::Excluded, false),
        (None, WaitReason::Released, false),
        (None, WaitReason::Updated, true),
    ] {
        let mut knowledge = knowing(&offered());
        knowledge.past.staged_by_us = Some(digest(2));
        knowledge.os = os(staged.map(|n| deployment(n, true)));
        let mut unseen = knowledge.clone();
        unseen.os = Os::Unknown;
        for (mut knowledge, kept) in [(knowledge, kept), (unseen, true)] {
            knowledge.after(Event::Rests(why), &at(1));
            assert_eq!(knowledge.past.staged_by_us.is_some(), kept, "{staged:?} {why:?}");
        }
    }
}

/// The host goes on to tell of a pull until that may be forgotten.
#[test]
fn the_end_of_a_pull_is_news_once_however_long_the_memory_cannot_be_written() {
    let mut knowledge = knowing(&offered());
    knowledge.after(Event::Memory(Some("no space left".into())), &at(0));
    for second in 1..4 {
        assert_eq!(knowledge.is_news(&digest(2)), second == 1);
        knowledge.after(Event::Pull(succeeded(2)), &at(second));
        assert_eq!(knowledge.pull_to_forget(), None);
    }
    knowledge.after(Event::Memory(None), &at(4));
    assert_eq!(knowledge.pull_to_forget(), Some(&digest(2)));
    knowledge.after(Event::Pull(PullReading::None), &at(5));
    assert!(knowledge.is_news(&digest(2)), "another pull of it");
}

#[test]
fn an_image_that_is_not_staged_after_its_pull_has_failed() {
    for (staged, fails) in [(Some(2), false), (Some(3), true), (None, true)] {
        let mut knowledge = knowing(&offered());
        ask_for(&mut knowledge, image());
        knowledge.after(Event::Pull(succeeded(2)), &at(1));
        assert_eq!(knowledge.os, Os::Unknown);
        let look = Look {
            os: os(staged.map(|n| deployment(n, true))),
            rivals: vec![],
            finalization_failed: false,
        };
        knowledge.after(Event::Looked(look), &at(2));
        assert_eq!(knowledge.past.failure.is_some(), fails, "{staged:?}");
    }
}

#[test]
fn a_host_that_cannot_be_used_is_looked_at_again_after_a_while() {
    let mut knowledge = knowing(&offered());
    knowledge.os = Os::Unusable {
        reason: Reason::StatusFailed,
        message: String::new(),
    };
    let services = || Services::under("b1".into());
    knowledge.after(Event::Services(services()), &at(29));
    assert!(knowledge.fresh);
    knowledge.after(Event::Services(services()), &at(30));
    assert!(!knowledge.fresh);
}

#[test]
fn a_pull_that_was_refused_for_its_credentials_is_tried_at_once_with_others() {
    for (reason, waits) in [(Reason::Unauthorized, false), (Reason::DiskFull, true)] {
        let mut knowledge = knowing(&offered());
        let failure = HostFailure {
            reason,
            message: "no".to_owned(),
        };
        let failed = PullReading::Failed {
            digest: digest(2),
            failure,
        };
        knowledge.after(Event::Pull(failed), &at(1));
        assert!(knowledge.past.pull_backoff(&digest(2), at(2).wall).is_some());
        knowledge.after(Event::NewCredentials, &at(2));
        assert_eq!(
            knowledge.past.pull_backoff(&digest(2), at(2).wall).is_some(),
            waits,
            "{reason:?}"
        );
        assert_eq!(knowledge.past.failure.map(|f| f.attempts), Some(1), "it stays told");
    }
}

#[test]
fn a_pull_that_ran_with_the_former_credentials_is_tried_at_once() {
    let mut knowledge = knowing(&offered());
    for (second, renews, waits) in [(1, false, true), (3, true, false), (5, false, true)] {
        knowledge.after(Event::Begins(&pull()), &at(second));
        if renews {
            knowledge.after(Event::NewCredentials, &at(second));
        }
        let failure = HostFailure {
            reason: Reason::Unauthorized,
            message: "no".to_owned(),
        };
        let failed = PullReading::Failed {
            digest: digest(2),
            failure,
        };
        knowledge.after(Event::Pull(failed), &at(second + 1));
        let left = knowledge.past.pull_backoff(&digest(2), at(second + 1).wall);
        assert_eq!(left.is_some(), waits, "{second}");
    }
}

#[test]
fn a_pull_that_was_to_be_signed_and_is_not_has_failed() {
    let ours = || Some(digest(7));
    for (staged_signed, policy, fails) in [
        (true, ours(), false),
        (false, ours(), true),
        // It was in the repository already, was pulled under another policy, or by an agent that did not look.
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
            policy_digest: ours(),
            ..Rules::default()
        };
        knowledge.after(Event::Rules(Box::new(rules)), &at(1));
        let ended = PullReading::Succeeded {
            digest: digest(2),
            policy: policy.clone(),
        };
        knowledge.after(Event::Pull(ended), &at(1));
        let look = Look {
            os: Os::Bootc(Box::new(Deployments {
                booted: deployment(1, false),
                staged: Some(deployment(2, true)),
                staged_signed,
                ..Deployments::default()
            })),
            rivals: vec![],
            finalization_failed: false,
        };
        knowledge.after(Event::Looked(look), &at(2));
        assert_eq!(
            knowledge.past.failure.is_some(),
            fails,
            "staged under the policy: {staged_signed}, by us: {policy:?}"
        );
    }
}

#[test]
fn that_a_pull_ran_under_the_policy_counts_until_the_next_one_begins() {
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

/// A failure that cannot be written yet stays with its unit, which the next process would read; it counts once.
#[test]
fn the_end_of_a_pull_is_forgotten_once_it_is_stored_and_counts_once() {
    let mut knowledge = knowing(&offered());
    let failed = || PullReading::Failed {
        digest: digest(2),
        failure: HostFailure {
            reason: Reason::PullFailed,
            message: "no".into(),
        },
    };
    let attempts = |knowledge: &Knowledge| knowledge.past.failure.as_ref().map_or(0, |f| f.attempts);
    for second in 1..=3 {
        knowledge.after(Event::Pull(failed()), &at(second));
        knowledge.after(Event::Memory(Some("disk full".into())), &at(second));
        assert_eq!((knowledge.pull_to_forget(), attempts(&knowledge)), (None, 1));
    }
    knowledge.after(Event::Looked(look_at(None)), &at(4));
    knowledge.after(Event::Pull(failed()), &at(4));
    assert!(knowledge.fresh, "nothing new has come of it");
    knowledge.after(Event::Memory(None), &at(4));
    assert_eq!(knowledge.pull_to_forget(), Some(&digest(2)));
    // It is forgotten, or another one has begun and failed as well.
    knowledge.after(Event::Pull(PullReading::None), &at(5));
    assert_eq!(knowledge.pull_to_forget(), None);
    knowledge.after(Event::Pull(failed()), &at(6));
    knowledge.after(Event::Begins(&pull()), &at(7));
    knowledge.after(Event::Pull(failed()), &at(8));
    assert_eq!(attempts(&knowledge), 3);
}

pub(super) fn look_at(staged: Option<Deployment>) -> Look {
    Look {
        os: os(staged),
        rivals: vec![],
        finalization_failed: false,
    }
}

/// Each pass over a silent host waits for an answer, and a sign of life may be due in every one.
#[test]
fn the_node_stays_read_over_the_signs_of_life_beside_a_silent_host() {
    for (silent, kept) in [(true, true), (false, false)] {
        let mut knowledge = knowing(&taken());
        if silent {
            knowledge.after(Event::Unreachable("no answer".into()), &at(1));
        }
        knowledge.after(Event::NodeRead(node()), &at(2));
        knowledge.after(Event::Heartbeat, &at(12));
        assert_eq!(knowledge.cluster_node != ClusterNode::Unread, kept, "silent: {silent}");
        knowledge.after(Event::NodeRead(node()), &at(13));
        knowledge.after(Event::Services(Services::under("b1".into())), &at(14));
        let is_old = knowledge.cluster_node == ClusterNode::Unread;
        assert_eq!(is_old, silent, "with the first answer it is read anew");
    }
}

/// An update is ended by the backend that began it; only then another one may be chosen.
#[test]
fn the_backend_of_an_update_stays_until_that_has_ended() {
    let looked = |knowledge: &mut Knowledge, staged: Option<Deployment>| {
        let mut deployments = Deployments {
            booted: deployment(1, false),
            staged,
            ..Deployments::default()
        };
        deployments.backend.name = Backend::RpmOstree;
        let look = Look {
            os: Os::Bootc(Box::new(deployments)),
            rivals: vec![],
            finalization_failed: false,
        };
        knowledge.after(Event::Looked(look), &at(1));
        knowledge.past.staged_with
    };
    let ours = || {
        Some(Deployment {
            digest: Some(image().digest),
            ..deployment(2, true)
        })
    };
    let begun = Some(Backend::RpmOstree);
    let mut knowledge = knowing(&offered());
    ask_for(&mut knowledge, image());
    assert_eq!(looked(&mut knowledge, None), None);
    knowledge.after(Event::Begins(&pull()), &at(1));
    assert_eq!(knowledge.past.staged_with, begun);
    let stored = serde_json::to_string(&knowledge.past).unwrap();
    assert_eq!(
        serde_json::from_str::<Past>(&stored).unwrap().staged_with,
        begun,
        "it survives a restart"
    );
    assert_eq!(looked(&mut knowledge, ours()), begun);
    // The turn goes on under the next boot, where nothing is staged any more.
    knowledge.after(Event::Berths(vec![committed()]), &at(2));
    assert_eq!(looked(&mut knowledge, None), begun);
    knowledge.after(Event::Berths(vec![]), &at(3));
    assert_eq!(
        looked(&mut knowledge, Some(deployment(7, true))),
        None,
        "of somebody else"
    );
}
