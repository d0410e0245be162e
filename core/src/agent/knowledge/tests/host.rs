//! Knowledge of the host: staged, pulled and armed images, and silence.

use berth_api::backend::Backend;

use super::*;
use crate::agent::facts::Verified;

/// A successful pull without an enforced signature policy.
pub(super) fn succeeded(n: u8) -> PullReading {
    PullReading::Succeeded {
        digest: digest(n),
        policy: None,
    }
}

#[test]
fn disarmed_holds_until_this_process_may_arm() {
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
    let look = Look {
        os: unusable,
        rivals: vec![],
        finalization_failed: false,
    };
    knowledge.after(Event::Looked(look), &at(2));
    assert!(knowledge.host.disarmed, "not seen is not armed");
}

#[test]
fn three_failed_locks_remove_the_image() {
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
        knowledge.facts(&at(4)).host.lock_failure.is_some()
    };
    for disarmed in [None, Some(deployment(2, true))] {
        let mut knowledge = knowing(&committed());
        for times in 1..=3 {
            assert!(knowledge.failures.lock.is_none(), "{times}");
            done(&mut knowledge, &lock(), failed(), times);
        }
        assert!(look(&mut knowledge, Some(deployment(2, false))));
        // A removal that fails too is then the reported failure, and is tried again.
        done(&mut knowledge, &Step::Unstage(deployment(2, false)), failed(), 4);
        assert!(look(&mut knowledge, Some(deployment(2, false))));
        assert!(!look(&mut knowledge, disarmed));
    }
}

/// The host is busy with another program's work. That does not count as a failed lock, and the staged image must
/// stay.
#[test]
fn a_host_that_is_busy_can_be_locked_later() {
    let failed = |reason| Ending::Failed {
        reason,
        message: "error: no".into(),
    };
    let mut knowledge = knowing(&committed());
    for times in 1..=9 {
        done(&mut knowledge, &lock(), failed(Reason::HostBusy), times);
        assert!(knowledge.failures.lock.is_none(), "{times}");
    }
    assert!(
        knowledge
            .failures
            .trouble()
            .is_some_and(|t| t.reason == Reason::HostBusy && t.attempts == 9)
    );
    for (times, gives_up) in [(10, false), (11, false), (12, true)] {
        done(&mut knowledge, &lock(), failed(Reason::LockFailed), times);
        assert_eq!(knowledge.failures.lock.is_some(), gives_up, "{times}");
    }
}

/// The reason `Begun` does not outlive the update.
#[test]
fn the_backend_is_chosen_again_after_an_update() {
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
    assert_ne!(knowledge.host.os, Os::Unknown, "the turn continues with it");
    knowledge.after(Event::Berths(vec![]), &at(2));
    assert_eq!((&knowledge.host.os, knowledge.past.staged_with), (&Os::Unknown, None));
}

/// The lock may be removed again, so each next pull waits longer.
#[test]
fn an_unlockable_image_is_staged_again_after_a_pause() {
    let remove = |storage, lock_failure: bool, locked, tries| {
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
            knowledge.host.os = Os::Bootc(Box::new(deployments));
            knowledge.failures.lock = lock_failure.then(LockRetry::default);
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

/// A lock succeeds without effect: the image is removed and pulled again, with growing pauses.
#[test]
fn locks_without_effect_add_up_over_restarts() {
    let no_effect = || Ending::Failed {
        reason: Reason::StepFailed,
        message: "Lock succeeded on the host but had no effect".into(),
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
        knowledge.host.os = os(Some(staged(false)));
        done(&mut knowledge, &Step::Unstage(staged(false)), Ending::Done, 0);
        let failure = knowledge.past.failure.clone().unwrap();
        assert_eq!((failure.reason.as_str(), failure.attempts), ("LockFailed", cycle));
        let left = knowledge.past.pull_backoff(&image().digest, at(0).wall);
        assert_eq!(left.map(|left| left.as_secs()), Some(pause), "{cycle}");
        // Another process reads the count from the status.
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

/// Only bootc locks an image there. A pull that leaves it unlocked must not be followed by the next one at once.
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
fn silence_lasts_from_its_start_to_an_answer() {
    let mut knowledge = knowing(&taken());
    let silent = |knowledge: &mut Knowledge, seconds| {
        knowledge.after(Event::Unreachable("no answer".to_owned()), &at(seconds));
        knowledge.facts(&at(seconds)).host.unreachable.map(|s| s.ago.as_secs())
    };
    assert_eq!(silent(&mut knowledge, 10), Some(0));
    assert_eq!(silent(&mut knowledge, 50), Some(40));
    assert!(!knowledge.host.fresh, "anything may have happened meanwhile");
    knowledge.after(Event::Services(Services::under("b1".into())), &at(60));
    assert_eq!(knowledge.host.unreachable, None);
}

#[test]
fn a_failed_pull_leaves_no_usable_image() {
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

/// The host reports a pull until it may be forgotten.
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
fn an_image_that_is_not_staged_after_its_pull_has_failed() {
    for (staged, fails) in [(Some(2), false), (Some(3), true), (None, true)] {
        let mut knowledge = knowing(&offered());
        ask_for(&mut knowledge, image());
        knowledge.after(Event::Pull(succeeded(2)), &at(1));
        assert_eq!(knowledge.host.os, Os::Unknown);
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
fn an_unusable_host_is_reread_after_a_while() {
    let mut knowledge = knowing(&offered());
    knowledge.host.os = Os::Unusable {
        reason: Reason::StatusFailed,
        message: String::new(),
    };
    let services = || Services::under("b1".into());
    knowledge.after(Event::Services(services()), &at(29));
    assert!(knowledge.host.fresh);
    knowledge.after(Event::Services(services()), &at(30));
    assert!(!knowledge.host.fresh);
}

#[test]
fn new_credentials_retry_an_unauthorized_pull() {
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
fn an_unsigned_pull_fails_if_a_signature_is_required() {
    let ours = || Some(digest(7));
    for (staged_signed, policy, fails) in [
        (true, ours(), false),
        (false, ours(), true),
        // The image was in the repository already, was pulled under another policy, or by an agent that did not
        // check.
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

/// A failure that cannot be written yet stays with its unit, which the next process reads; it counts once.
#[test]
fn a_stored_pull_is_forgotten_and_counts_once() {
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
    assert!(knowledge.host.fresh, "nothing new has come of it");
    knowledge.after(Event::Memory(None), &at(4));
    assert_eq!(knowledge.pull_to_forget(), Some(&digest(2)));
    // The pull is forgotten, or another one has begun and failed too.
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

/// Each pass over a silent host waits for an answer, so a heartbeat may be due in every pass.
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

/// An update is finished by the backend that began it; only then may another one be chosen.
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
    // The turn continues under the next boot, without a staged image.
    knowledge.after(Event::Berths(vec![committed()]), &at(2));
    assert_eq!(looked(&mut knowledge, None), begun);
    knowledge.after(Event::Berths(vec![]), &at(3));
    assert_eq!(
        looked(&mut knowledge, Some(deployment(7, true))),
        None,
        "of another tool"
    );
}
