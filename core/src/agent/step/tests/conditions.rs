use berth_api::condition::{self, CommonReason, Verdict, node as types};
use berth_api::insight::ScopeType;
use berth_api::node::{BootcNodeStatus, Failure, Phase};

use super::reports::{shown, status_at};
use super::*;
use crate::agent::facts::StepFailure;
use crate::agent::report::phase;

fn uncordoned(facts: AgentFacts) -> AgentFacts {
    change(facts, |f| {
        node_of(f, |node| (node.cordon, node.unschedulable) = (None, false));
    })
}

/// Formats the conditions of a turn: a letter for each true condition, `-` for any other. The order is Cordoned,
/// Drained, UpdateExecuted, RebootedNode, AppliedOSImage, Resumed, Uncordoned, UpdateComplete.
fn turn(facts: &AgentFacts) -> String {
    let status = status_at(facts, &BootcNodeStatus::default(), 0);
    let mut turn = String::new();
    for (type_, letter) in [
        (types::CORDONED, 'c'),
        (types::DRAINED, 'd'),
        (types::UPDATE_EXECUTED, 'e'),
        (types::REBOOTED_NODE, 'r'),
        (types::APPLIED_OS_IMAGE, 'a'),
        (types::RESUMED, 's'),
        (types::UNCORDONED, 'u'),
        (types::UPDATE_COMPLETE, 'f'),
    ] {
        let is_true = condition::is_true(&status.conditions, type_);
        turn.push(if is_true { letter } else { '-' });
    }
    turn
}

#[test]
fn a_turn_shows_how_far_it_is() {
    let given_up = taken().releasing(Outcome::DrainTimeout, "b1".into()).unwrap();
    let updated = committed().releasing(Outcome::Updated, "b2".into()).unwrap();
    let failed = committed().releasing(Outcome::Failed, "b2".into()).unwrap();
    let back = relicensed().relicensed(digest(2), BootId::from("b2")).unwrap();
    let not_ready = change(rebooted(&committed(), 2), |f| ready(f, false));
    for (what, facts, expected) in [
        ("staged, and waiting", facts(), "------u-"),
        (
            "cordoned by an admin",
            change(facts(), |f| node_of(f, |node| node.unschedulable = true)),
            "------u-",
        ),
        ("draining", with(&taken()), "c-------"),
        (
            "uncordoned by an admin",
            change(with(&taken()), |f| node_of(f, |node| node.unschedulable = false)),
            "--------",
        ),
        ("drained", change(with(&taken()), |f| f.drain.done = true), "cd------"),
        ("committed", with(&committed()), "cde-----"),
        ("booted, not Ready", not_ready, "cdera---"),
        ("booted, Ready", rebooted(&committed(), 2), "cderas--"),
        ("back on what ran before", rebooted(&committed(), 1), "cder-s--"),
        ("licensed for the next image", stuck(&relicensed(), 2), "cde-----"),
        ("licensed for what runs", stuck(&back, 2), "cdera---"),
        ("gives back, proven", rebooted(&updated, 2), "cderas--"),
        ("restored, proven", uncordoned(rebooted(&updated, 2)), "-derasu-"),
        ("gives back, failed", rebooted(&failed, 1), "c-------"),
        ("gives back a bad image", rebooted(&failed, 2), "c---a---"),
        ("gives back, never committed", with(&given_up), "c-------"),
        ("restored, never committed", uncordoned(with(&given_up)), "------u-"),
        ("updated", change(facts(), |f| os(f, 2, None)), "-derasuf"),
        (
            "of no pool, not read yet",
            change(facts(), |f| (f.desired, f.host.os) = (Desired::Release, Os::Unknown)),
            "------u-",
        ),
    ] {
        assert_eq!(turn(&facts), expected, "{what}");
    }
}

#[test]
fn a_drain_shows_whom_it_left_behind() {
    let left = DrainBlocker {
        pod: "db/0".into(),
        reason: "cannot end".into(),
        since: later(0),
    };
    for (done, left_behind, expected) in [
        (true, vec![], "True AsExpected "),
        (false, vec![left.clone()], "False NotYet "),
        (true, vec![left], "True LeftBehind drained except db/0: cannot end"),
    ] {
        let mut facts = with(&taken());
        (facts.drain.done, facts.drain.left_behind) = (done, left_behind);
        assert_eq!(shown(&facts, types::DRAINED), expected);
    }
}

#[test]
fn a_timed_out_drain_is_reported_after_its_turn() {
    for (outcome, target, expected) in [
        (Outcome::DrainTimeout, 2, "False DrainTimeout pod db/0"),
        (Outcome::RebootBlocked, 2, "False NotYet "),
        (Outcome::DrainTimeout, 3, "False NotYet "),
    ] {
        let mut facts = facts();
        facts
            .past
            .turn_ended(outcome, "pod db/0", &digest(target), facts.now, 0.0);
        assert_eq!(shown(&facts, types::DRAINED), expected, "{outcome:?} {target}");
    }
}

fn wait(why: WaitReason) -> Step {
    Step::Wait(why, None)
}

#[test]
fn each_step_without_a_berth_has_its_phase() {
    let berth = offered(2, "u1");
    let staged = facts();
    let bare = change(facts(), |f| os(f, 1, None));
    for (step, with_image, without) in [
        (wait(WaitReason::NothingAsked), Phase::Idle, Phase::Idle),
        (wait(WaitReason::Updated), Phase::Updated, Phase::Updated),
        (wait(WaitReason::Pulling), Phase::Staging, Phase::Staging),
        (pull(2), Phase::Staging, Phase::Staging),
        (lock(), Phase::Staging, Phase::Staging),
        (wait(WaitReason::NoBerth), Phase::Waiting, Phase::Waiting),
        (wait(WaitReason::ForeignBerth), Phase::Waiting, Phase::Waiting),
        (wait(WaitReason::Inhibited), Phase::Waiting, Phase::Waiting),
        (Step::Take(berth), Phase::Waiting, Phase::Waiting),
        (wait(WaitReason::Unguarded), Phase::Waiting, Phase::Pending),
        (wait(WaitReason::BackingOff), Phase::Waiting, Phase::Pending),
        (wait(WaitReason::FailedDigest), Phase::Degraded, Phase::Degraded),
        (wait(WaitReason::Released), Phase::Released, Phase::Released),
        (Step::LookAtHost, Phase::Pending, Phase::Pending),
    ] {
        assert_eq!(phase(&staged, &step), with_image, "{step:?}, staged");
        assert_eq!(phase(&bare, &step), without, "{step:?}, not staged");
    }
}

/// In an unproven boot, the phase is `Rebooting` only if the berth is committed under this boot and its image is still
/// staged.
#[test]
fn an_unproven_boot_without_a_licence_is_proving() {
    let gone = change(stuck(&relicensed(), 2), |f| os(f, 2, None));
    let old = change(rebooted(&committed(), 1), |f| os(f, 1, Some(deployment(2, true))));
    let uncommitted = change(with(&taken()), |f| f.past.unproven_boot = Some(BootId::from("b1")));
    for (what, facts, expected) in [
        ("licensed", stuck(&relicensed(), 2), Phase::Rebooting),
        ("its image is gone", gone, Phase::Proving),
        ("licensed for the boot before", old, Phase::Proving),
        ("not licensed", uncommitted, Phase::Proving),
    ] {
        assert_eq!(phase(&facts, &step(&facts)), expected, "{what}");
    }
}

#[test]
fn a_phase_keeps_its_beginning() {
    let first = status_at(&facts(), &BootcNodeStatus::default(), 0);
    assert_eq!(
        (first.phase, &first.phase_start_time),
        (Some(Phase::Waiting), &Some(later(0)))
    );
    let mut facts = change(facts(), |f| f.now = later(60).0);
    assert_eq!(status_at(&facts, &first, 0).phase_start_time, Some(later(0)));
    let unknown = BootcNodeStatus {
        phase_start_time: None,
        ..first.clone()
    };
    assert_eq!(status_at(&facts, &unknown, 0).phase_start_time, Some(later(60)));
    os(&mut facts, 2, None);
    let updated = status_at(&facts, &first, 0);
    assert_eq!(
        (updated.phase, updated.phase_start_time),
        (Some(Phase::Updated), Some(later(60)))
    );
}

#[test]
fn a_silent_host_stops_no_heartbeat() {
    let before = status_at(&facts(), &BootcNodeStatus::default(), 0);
    for seconds in [1, 30] {
        let mut facts = facts();
        facts.host.unreachable = Some(Unreachable {
            why: "no answer".to_owned(),
            ago: Duration::from_secs(seconds),
        });
        let after = status_at(&facts, &before, 120);
        assert_eq!(after.heartbeat_time, Some(later(120)), "after {seconds} s");
    }
}

fn failure(n: u8) -> Failure {
    Failure {
        reason: "ImageNotFound".into(),
        message: "no such image".into(),
        digest: Some(digest(n)),
        attempts: 1,
        next_try_time: later(60),
    }
}

#[test]
fn the_pull_of_the_desired_image_is_reported() {
    let bare = change(facts(), |f| os(f, 1, None));
    let failed = change(bare.clone(), |f| f.past.failure = Some(failure(2)));
    let mut again = failed.clone();
    again.host.os = Os::Unknown;
    again.host.pull = Some(PullFacts {
        digest: digest(2),
        progress: None,
    });
    for (what, facts, expected) in [
        ("staged", facts(), "True AsExpected "),
        ("it runs", change(facts(), |f| os(f, 2, None)), "True AsExpected "),
        ("nothing was tried", bare.clone(), "Unknown NotStarted "),
        ("it failed", failed, "False ImageNotFound no such image"),
        (
            "another one failed",
            change(bare.clone(), |f| f.past.failure = Some(failure(3))),
            "Unknown NotStarted ",
        ),
        ("it is pulled again", again, "Unknown Pulling pulling sha256:0202"),
        (
            "something is to be repaired first",
            change(bare, |f| f.past.failed_digests = vec![digest(2)]),
            "Unknown Blocked see NodeDegraded for the problem to fix first",
        ),
    ] {
        let shown = shown(&facts, types::IMAGE_PULLED);
        assert!(shown.starts_with(expected), "{what}: {shown}");
    }
}

#[test]
fn an_excluded_node_reports_its_exclusion() {
    let mut excluded = change(facts(), |f| node_of(f, |node| node.excluded = true));
    os(&mut excluded, 2, None);
    let runs = shown(&excluded, types::UPDATED);
    assert!(
        runs.starts_with("True Updated the node runs sha256:0202") && runs.ends_with("; the Node is excluded"),
        "{runs}"
    );
    os(&mut excluded, 1, None);
    let waits = shown(&excluded, types::UPDATED);
    assert!(
        waits.starts_with("False Excluded the node should run sha256:0202")
            && waits.ends_with(": the Node is excluded; to update it, remove its label berth.dev/exclude"),
        "{waits}"
    );
}

#[test]
fn a_node_is_updated_after_the_give_back() {
    let holds = shown(&rebooted(&committed(), 2), types::UPDATED);
    assert!(holds.starts_with("False Proving the node runs sha256:0202"), "{holds}");
    let rests = shown(&change(facts(), |f| os(f, 2, None)), types::UPDATED);
    assert!(rests.starts_with("True Updated the node runs sha256:0202"), "{rests}");
}

/// The controller offers a berth only to a node that reports `UpdatePrepared`.
#[test]
fn only_a_node_that_takes_offers_is_prepared() {
    let cases: [(&str, Change, &str); 11] = [
        ("no offer", |_| {}, "True Ready "),
        ("an offer", |f| f.berths = Some(vec![offered(2, "u1")]), "True Ready "),
        (
            "an offer for the Node before",
            |f| f.berths = Some(vec![offered(2, "u0")]),
            "True Ready ",
        ),
        ("it runs", |f| os(f, 2, None), "False Booted nothing is left to prepare"),
        (
            "it holds a berth",
            |f| *f = with(&taken()),
            "False InTurn the node holds a berth",
        ),
        (
            "inhibited",
            |f| f.host.inhibitors = vec!["backup".into()],
            "False Inhibited the reboot is blocked by backup",
        ),
        (
            "a turn has failed",
            |f| {
                f.past
                    .turn_ended(Outcome::DrainTimeout, "pod db/0", &digest(2), f.now, 0.0)
            },
            "False BackingOff DrainTimeout: pod db/0",
        ),
        (
            "a pull has failed",
            |f| {
                os(f, 1, None);
                f.past.failure = Some(failure(2));
            },
            "False NotStaged ",
        ),
        ("nothing is staged", |f| os(f, 1, None), "False NotStaged "),
        (
            "staged but not locked",
            |f| os(f, 1, Some(deployment(2, false))),
            "False NotStaged ",
        ),
        (
            "staged, and its memory is lost",
            |f| f.host.memory_error = Some("disk full".into()),
            "False NotReady ",
        ),
    ];
    for (what, spoil, expected) in cases {
        assert_eq!(
            shown(&change(facts(), spoil), types::UPDATE_PREPARED),
            expected,
            "{what}"
        );
    }
}

#[test]
fn a_look_changes_nothing_of_being_prepared() {
    let looks: [(Change, &str); 3] = [
        (|f| f.cluster_node = ClusterNode::Unread, "NotReady"),
        (|f| f.host.os = Os::Unknown, "NotStaged"),
        (|f| f.guard.next_try = Duration::ZERO, "NotReady"),
    ];
    for (look, unprepared) in looks {
        let facts = change(facts(), look);
        let mut before = BootcNodeStatus::default();
        for (verdict, expected) in [
            (Verdict::yes(CommonReason::Ready, ""), "Ready"),
            (Verdict::no(CommonReason::NotStaged, ""), unprepared),
        ] {
            condition::set(&mut before.conditions, types::UPDATE_PREPARED, verdict, None, now());
            let after = status_at(&facts, &before, 0);
            let prepared = condition::find(&after.conditions, types::UPDATE_PREPARED).unwrap();
            assert_eq!(prepared.reason, expected, "{:?}", step(&facts));
        }
    }
}

#[test]
fn a_failing_step_is_reported_at_powers_of_two() {
    for (attempts, shown_as) in [(3, 2), (4, 4), (5, 4), (8, 8), (100, 64)] {
        let mut facts = facts();
        facts.trouble = Some(StepFailure {
            reason: Reason::StepFailed,
            message: "no answer".into(),
            attempts,
        });
        assert_eq!(
            shown(&facts, types::NODE_DEGRADED),
            format!("True StepFailed no answer (failed at least {shown_as} times)")
        );
    }
}

#[test]
fn a_failed_digest_is_reported_unless_it_runs() {
    let mut facts = change(facts(), |f| os(f, 1, None));
    facts.past.failed_digests = vec![digest(2)];
    let shown_now = shown(&facts, types::NODE_DEGRADED);
    assert!(shown_now.starts_with("True DigestFailed sha256:0202"), "{shown_now}");
    os(&mut facts, 2, None);
    assert_eq!(shown(&facts, types::NODE_DEGRADED), "False AsExpected ");
}

/// The insight keeps the Node's last known role until the agent reads the Node again.
#[test]
fn an_insight_knows_a_node_of_the_control_plane() {
    for (control_plane, scope) in [(true, ScopeType::ControlPlane), (false, ScopeType::WorkerPool)] {
        let mut facts = change(facts(), |f| node_of(f, |node| node.control_plane = control_plane));
        let read = status_at(&facts, &BootcNodeStatus::default(), 0);
        facts.cluster_node = ClusterNode::Unread;
        let unread = status_at(&facts, &read, 0);
        for status in [read, unread] {
            assert_eq!(status.insight.unwrap().scope_type, scope);
        }
    }
}

#[test]
fn an_insight_shows_a_node_not_ready() {
    for (is_ready, message) in [(true, ""), (false, "Not ready")] {
        let facts = change(facts(), |f| ready(f, is_ready));
        let status = status_at(&facts, &BootcNodeStatus::default(), 0);
        assert_eq!(status.insight.unwrap().message, message);
    }
}

#[test]
fn an_image_without_a_required_unit_is_reported() {
    let mut facts = facts();
    let Os::Bootc(deployments) = &mut facts.host.os else {
        unreachable!()
    };
    deployments.link_without_unit = Some("/etc/link".to_owned());
    let degraded = shown(&facts, types::NODE_DEGRADED);
    assert!(
        degraded.starts_with("True UnitMissing") && degraded.contains("Run `rm /etc/link`"),
        "{degraded}"
    );
    let prepared = shown(&facts, types::UPDATE_PREPARED);
    assert!(prepared.starts_with("False Inhibited"), "{prepared}");
}
