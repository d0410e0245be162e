use berth_api::condition::{self, CommonReason, Verdict, node as types};
use berth_api::firstboot::NodeFirstboot;
use berth_api::node::timeline::{ChapterName, ImageVersion, TurnRecord};
use berth_api::node::{BootcNodeStatus, Phase};

use super::*;
use crate::agent::facts::StepFailure;
use crate::agent::report::{self, Machine, Subject, report};
use crate::agent::timeline;

fn status(facts: &AgentFacts) -> BootcNodeStatus {
    status_after(facts, &BootcNodeStatus::default())
}

fn status_after(facts: &AgentFacts, before: &BootcNodeStatus) -> BootcNodeStatus {
    status_at(facts, before, 0)
}

pub(super) fn status_at(facts: &AgentFacts, before: &BootcNodeStatus, heartbeat: i64) -> BootcNodeStatus {
    let next = step(facts);
    let subject = Subject {
        generation: Some(1),
        step: &next,
        machine: &Machine::default(),
        heartbeat: later(heartbeat),
        conditions: &before.conditions,
    };
    report(facts, &subject, before)
}

/// Returns status, reason and message of a condition.
pub(super) fn shown(facts: &AgentFacts, type_: &str) -> String {
    let status = status(facts);
    let c = status.conditions.iter().find(|c| c.type_ == type_).unwrap();
    format!("{} {} {}", c.status, c.reason, c.message)
}

/// Returns, for each deployment: the pool, the first byte of the digest, the first byte of the manifest's digest, and
/// the time.
fn deployments(status: &BootcNodeStatus) -> Vec<(String, u8, u8, Option<i64>)> {
    let mut lines = vec![];
    for d in &status.deployments {
        let [digest, manifest] =
            [&d.digest, &d.manifest].map(|digest| u8::from_str_radix(&digest.to_string()[7..9], 16).unwrap());
        let second = d.deployed_time.as_ref().map(|time| time.0.as_second());
        lines.push((d.pool.clone(), digest, manifest, second));
    }
    lines
}

#[test]
fn the_berth_that_a_node_holds_is_named() {
    let mut facts = facts();
    facts.berths = Some(vec![committed()]);
    let held = status(&facts);
    assert_eq!(held.berth, Some(committed().name()));
    facts.berths = Some(vec![]);
    assert_eq!(status_after(&facts, &held).berth, None);
}

fn wants(facts: &mut AgentFacts, n: u8, pool: &str) {
    publish(facts, |member| {
        member.image = Some(DesiredImage {
            index_digest: digest(n + 100),
            ..image(n)
        });
        member.pool = PoolName::from(pool);
    });
}

#[test]
fn a_deployment_is_recorded_after_its_proof() {
    let mut facts = facts();
    wants(&mut facts, 2, "workers");
    let found = status(&facts);
    let before = deployments(&found);
    let first = ("workers".to_owned(), 1, 1, None);
    assert_eq!(before, [first], "that is how the node was found");
    os(&mut facts, 2, None);
    facts.berths = Some(vec![committed()]);
    let unproven = deployments(&status_after(&facts, &found));
    assert_eq!(unproven, before, "it is not proven");
    facts.berths = Some(vec![]);
    let updated = status_after(&facts, &found);
    let second = ("workers".to_owned(), 102, 2, Some(1_000_000));
    let both = [second.clone(), before[0].clone()];
    assert_eq!(deployments(&updated), both);
    facts.now = now() + HOUR;
    let later = deployments(&status_after(&facts, &updated));
    assert_eq!(later, both, "nothing has happened since");
    os(&mut facts, 1, None);
    let unwanted = deployments(&status_after(&facts, &updated));
    assert_eq!(unwanted, both, "the boot loader went back");
    wants(&mut facts, 1, "workers");
    let back = status_after(&facts, &updated);
    let rolled_back = [("workers".to_owned(), 101, 1, Some(1_003_600)), second];
    assert_eq!(deployments(&back), rolled_back, "and that image is wanted now");
    wants(&mut facts, 1, "spare");
    let moved = deployments(&status_after(&facts, &back));
    let spare = ("spare".to_owned(), 101, 1, None);
    assert_eq!(moved[0], spare, "the other pool found it like that");
    assert_eq!(moved[1..], rolled_back);
    let lost = deployments(&status(&facts));
    assert_eq!(lost, [spare], "the start is unknown");
}

#[test]
fn the_obstacle_of_a_stuck_holder_is_reported() {
    let mut facts = stuck(&committed().revoked(Some("Paused".into())).unwrap(), 2);
    assert!(
        shown(&facts, types::UPDATED).contains("Revoked"),
        "{}",
        shown(&facts, types::UPDATED)
    );
    assert!(shown(&facts, types::UPDATED).ends_with("Paused"));
    facts.berths = Some(vec![committed()]);
    facts.now = now() + HOUR;
    assert!(shown(&facts, types::UPDATED).starts_with("False WindowClosed"));
    facts.now = now();
    facts.host.inhibitors = vec!["backup: running".into()];
    assert!(shown(&facts, types::UPDATED).ends_with("blocked by backup: running"));
    assert_eq!(
        shown(&facts, types::NODE_DEGRADED),
        "False AsExpected ",
        "it is not late yet"
    );
    facts.proving_for = HOUR;
    assert!(shown(&facts, types::NODE_DEGRADED).starts_with("True NodeNotReady"));
    assert!(
        shown(&stuck(&committed(), 7), types::NODE_DEGRADED).starts_with("True BootUnproven the node runs sha256:07")
    );
}

#[test]
fn a_silent_host_is_reported_after_a_while() {
    let mut waiting = facts();
    waiting.berths = Some(vec![]);
    for mut facts in [waiting, with(&taken())] {
        let before = status(&facts);
        facts.cluster_node = ClusterNode::Unread;
        let [short, after] = [29, 30].map(|seconds| {
            facts.host.unreachable = Some(Unreachable {
                why: "no reply to Get: timed out".to_owned(),
                ago: Duration::from_secs(seconds),
            });
            assert!(matches!(step(&facts), Step::Wait(WaitReason::HostUnreachable, Some(_))));
            status_after(&facts, &before)
        });
        assert_eq!(short, before);
        assert_eq!((&after.staged, &after.booted), (&before.staged, &before.booted));
        for was in &before.conditions {
            let is = condition::find(&after.conditions, &was.type_).unwrap();
            match was.type_.as_str() {
                types::NODE_DEGRADED => assert_eq!(is.reason, "HostUnreachable"),
                types::UPDATE_PREPARED => assert_eq!(is.status, "False", "no offer now"),
                _ => assert_eq!(is, was),
            }
        }
    }
}

#[test]
fn a_silent_host_is_not_reported_as_pulling() {
    let mut facts = facts();
    facts.berths = Some(vec![]);
    let mut before = status(&facts);
    let pulling = Verdict::unknown(CommonReason::Pulling, "");
    condition::set(&mut before.conditions, types::IMAGE_PULLED, pulling, None, facts.now);
    facts.host.unreachable = Some(Unreachable {
        why: "no answer".to_owned(),
        ago: Duration::from_secs(30),
    });
    let after = status_after(&facts, &before);
    let pulled = condition::find(&after.conditions, types::IMAGE_PULLED).unwrap();
    assert_eq!((pulled.status.as_str(), pulled.reason.as_str()), ("Unknown", "Blocked"));

    // The reason stays `Blocked` even after a failed pull.
    let desired = facts.desired.image().unwrap().digest.clone();
    facts
        .past
        .pull_failed("ImageNotFound", "no such image", &desired, facts.now, 0.0);
    let after = status_after(&facts, &before);
    let pulled = condition::find(&after.conditions, types::IMAGE_PULLED).unwrap();
    assert_eq!((pulled.status.as_str(), pulled.reason.as_str()), ("Unknown", "Blocked"));
}

#[test]
fn released_is_reported_until_a_pool_has_the_node() {
    let never = status(&facts());
    assert_eq!(condition::find(&never.conditions, types::RELEASED), None);
    let mut leaving = facts();
    leaving.desired = Desired::Release;
    leaving.berths = Some(vec![]);
    node_of(&mut leaving, |node| (node.cordon, node.unschedulable) = (None, false));
    assert_eq!(step(&leaving), Step::Wait(WaitReason::Released, None));
    let left = status_after(&leaving, &never);
    assert!(condition::is_true(&left.conditions, types::RELEASED));
    let back = status_after(&facts(), &left);
    let released = condition::find(&back.conditions, types::RELEASED).unwrap();
    assert_eq!(released.status, "False");
}

#[test]
fn an_unread_node_keeps_its_conditions() {
    let mut facts = with(&taken());
    let cordoned = status(&facts);
    assert!(condition::is_true(&cordoned.conditions, types::CORDONED));
    facts.cluster_node = ClusterNode::Unread;
    let unread = status_after(&facts, &cordoned);
    assert!(condition::is_true(&unread.conditions, types::CORDONED));
    // A new agent process has not read its Node yet, and without an earlier status the condition is not True.
    assert!(!condition::is_true(&status(&facts).conditions, types::CORDONED));
}

#[test]
fn a_silent_host_reports_the_end_of_its_turn() {
    let mut facts = with(&taken());
    facts.drain.blockers = vec![DrainBlocker {
        pod: "db/0".into(),
        reason: "its budget".into(),
        since: later(0),
    }];
    let mut before = status(&facts);
    let cordoned = Verdict::yes(CommonReason::AsExpected, "");
    condition::set(&mut before.conditions, types::CORDONED, cordoned, None, facts.now);
    assert_eq!((before.phase, before.drain_blockers.len()), (Some(Phase::Draining), 1));
    facts.host.unreachable = Some(Unreachable {
        why: "no answer".to_owned(),
        ago: Duration::from_secs(30),
    });
    facts
        .past
        .turn_ended(Outcome::DrainTimeout, "db/0", &digest(2), facts.now, 0.0);
    facts.berths = Some(vec![]);
    node_of(&mut facts, |node| node.cordon = None);
    let after = status_after(&facts, &before);
    assert_eq!((after.phase, after.drain_blockers.len()), (Some(Phase::Degraded), 0));
    assert_eq!(after.last_turn, facts.past.last_turn);
    assert!(!condition::is_true(&after.conditions, types::CORDONED));
    assert!(condition::is_true(&after.conditions, types::UNCORDONED));
}

#[test]
fn an_unwritable_memory_is_reported_and_blocks_offers() {
    let mut facts = facts();
    facts.host.memory_error = Some("cannot write /var/lib/berth/state.json: disk full".into());
    assert!(shown(&facts, types::UPDATE_PREPARED).starts_with("False"));
    let degraded = shown(&facts, types::NODE_DEGRADED);
    assert!(
        degraded.starts_with("True MemoryUnwritable cannot write /var/lib/berth"),
        "{degraded}"
    );
    facts.past.not_applied = Some((digest(2), 2));
    facts.past.tried = Some(digest(2));
    let status = status(&facts);
    assert_eq!(status.not_applied.map(|n| n.attempts), Some(2));
    assert_eq!(status.tried, Some(digest(2)));
}

#[test]
fn an_unguarded_server_is_reported_with_the_fix() {
    let mut facts = facts();
    facts.guard.answer = Guard::Allows("this node's agent could write Lease workers-0; do this".into());
    let degraded = shown(&facts, types::NODE_DEGRADED);
    assert!(degraded.starts_with("True Unguarded "), "{degraded}");
    assert!(degraded.contains("could write Lease workers-0; do this"), "{degraded}");
    let prepared = shown(&facts, types::UPDATE_PREPARED);
    assert!(prepared.starts_with("False Unguarded "), "{prepared}");
    facts.guard.answer = Guard::Unknown;
    assert!(shown(&facts, types::UPDATE_PREPARED).starts_with("False Unguarded not yet known"));
    assert!(
        shown(&facts, types::NODE_DEGRADED).starts_with("False"),
        "no answer is not a yes"
    );
    let wait = Step::Wait(WaitReason::Unguarded, None);
    assert_ne!(report::phase(&facts, &wait), Phase::Degraded, "nor is it a trouble");
    facts.guard.silence = Some("webhook w: connection refused".into());
    let silent = shown(&facts, types::NODE_DEGRADED);
    assert!(
        silent.starts_with("True Unguarded") && silent.ends_with("connection refused"),
        "{silent}"
    );
    assert_eq!(report::phase(&facts, &wait), Phase::Degraded);
    node_of(&mut facts, |node| node.excluded = true);
    assert!(
        shown(&facts, types::NODE_DEGRADED).starts_with("False"),
        "it would take no berth anyway"
    );
}

#[test]
fn an_unguarded_server_hides_no_other_failure() {
    let mut pulling = facts();
    pulling.guard.answer = Guard::Unknown;
    pulling.guard.silence = Some("webhook w: connection refused".into());
    pulling.past.failure = Some(berth_api::node::Failure {
        reason: "RegistryUnreachable".into(),
        message: "no route".into(),
        digest: Some(digest(2)),
        attempts: 1,
        next_try_time: later(60),
    });
    let other = shown(&pulling, types::NODE_DEGRADED);
    assert!(!other.contains("Unguarded"), "what ails this node comes first: {other}");
    let guarded = shown(&pulling, types::GUARDED);
    assert!(
        guarded.starts_with("False Unguarded") && guarded.ends_with("connection refused"),
        "and hides nothing: {guarded}"
    );
    let before = status(&pulling);
    pulling.guard.silence = None;
    for (answer, expected) in [
        // Without an answer to the guard probe, the condition keeps its value.
        (Guard::Unknown, ("False", "Unguarded")),
        (Guard::Refuses, ("True", "AsExpected")),
    ] {
        pulling.guard.answer = answer;
        let status = status_after(&pulling, &before);
        let guarded = condition::find(&status.conditions, types::GUARDED).unwrap();
        assert_eq!((guarded.status.as_str(), guarded.reason.as_str()), expected);
    }
    let never = status(&facts());
    let guarded = condition::find(&never.conditions, types::GUARDED);
    assert_eq!(guarded, None, "nothing is written where all was well always");
}

#[test]
fn a_refused_host_reports_its_image() {
    let mut facts = facts();
    deployments_of(&mut facts, |deployments| {
        deployments.refusal = Some("its bootc cannot lock".to_owned());
    });
    assert_eq!(step(&facts), Step::Wait(WaitReason::HostUnusable, None));
    let degraded = shown(&facts, types::NODE_DEGRADED);
    assert_eq!(degraded, "True ComposefsNotSupported its bootc cannot lock");
    let mut without = facts.clone();
    deployments_of(&mut without, |deployments| deployments.staged = None);
    let pulled = shown(&without, types::IMAGE_PULLED);
    assert_eq!(pulled, "Unknown Blocked see NodeDegraded for the problem to fix first");
    assert!(
        shown(&facts, types::UPDATE_PREPARED).starts_with("False"),
        "no berth is offered"
    );
    assert_eq!(status(&facts).booted.unwrap_or_default().digest, Some(digest(1)));
}

#[test]
fn a_second_deployment_in_composefs_is_reported() {
    for (storage, rollback, waits) in [
        (Storage::Composefs, 2, true),
        (Storage::Composefs, 3, false),
        (Storage::Ostree, 2, false),
    ] {
        let mut facts = facts();
        facts.host.os = Os::Bootc(Box::new(Deployments {
            storage,
            stages_locked: true,
            booted: deployment(1, false),
            rollback: Some(deployment(rollback, false)),
            ..Deployments::default()
        }));
        let next = step(&facts);
        let lock = StagingLock::of(storage, true).unwrap();
        assert_eq!(next == Step::StartPull(image(2), lock), !waits, "{next:?}");
        let degraded = shown(&facts, types::NODE_DEGRADED);
        let said = degraded.starts_with("True SameDeployment ") && degraded.contains("`bootc rollback`");
        assert_eq!(said, waits, "{degraded}");
    }
}

#[test]
fn a_node_with_a_queued_rollback_is_not_updated() {
    let mut facts = facts();
    facts.host.os = Os::Bootc(Box::new(Deployments {
        booted: deployment(2, false),
        staged: None,
        rollback: Some(deployment(1, false)),
        rollback_queued: true,
        ..Deployments::default()
    }));
    assert!(status(&facts).rollback_queued);
    let degraded = shown(&facts, types::NODE_DEGRADED);
    assert!(
        degraded.starts_with("True RollbackQueued the next boot takes sha256:0101"),
        "{degraded}"
    );
    assert!(shown(&facts, types::UPDATED).starts_with("False RollbackQueued"));
}

#[test]
fn the_phase_separates_proving_from_rebooting() {
    let back = relicensed().relicensed(digest(2), BootId::from("b2")).unwrap();
    for (facts, expected) in [
        (with(&taken()), Phase::Draining),
        (with(&committed()), Phase::Rebooting),
        (stuck(&committed(), 2), Phase::Proving),
        (stuck(&relicensed(), 2), Phase::Rebooting),
        (stuck(&back, 2), Phase::Proving),
    ] {
        assert_eq!(status(&facts).phase, Some(expected));
    }
    assert!(shown(&stuck(&back, 2), types::REBOOTED_NODE).starts_with("True"));
}

#[test]
fn an_overdue_drain_names_its_blockers_and_reason() {
    let blockers = vec![DrainBlocker {
        pod: "web/a".into(),
        reason: "budget web".into(),
        since: later(0),
    }];
    let drain = DrainFacts {
        elapsed: HOUR,
        blockers,
        ..DrainFacts::default()
    };
    for (on_timeout, words) in [
        (OnTimeout::Hold, "the drain continues (drain.onTimeout: Hold)"),
        (OnTimeout::Force, "budgets are ignored now"),
    ] {
        let mut facts = AgentFacts {
            drain: drain.clone(),
            ..with(&taken())
        };
        let settings = Drain {
            timeout: Some("1h".into()),
            on_timeout: Some(on_timeout),
            ..Drain::default()
        };
        publish(&mut facts, |member| member.drain = settings);
        for (type_, status) in [(types::DRAINED, "False"), (types::NODE_DEGRADED, "True")] {
            let shown = shown(&facts, type_);
            assert!(
                shown.starts_with(&format!(
                    "{status} DrainTimeout pods still on the node after 3600s: web/a: budget web;"
                )),
                "{shown}"
            );
            assert!(shown.contains(words), "{shown}");
        }
    }
    let mut stuck = stuck(&committed(), 2);
    stuck.drain = drain;
    assert!(
        shown(&stuck, types::DRAINED).ends_with("the berth cannot be given back"),
        "{}",
        shown(&stuck, types::DRAINED)
    );
    assert_eq!(status(&stuck).drain_blockers.len(), 1);
}

#[test]
fn what_the_controller_plans_with_is_reported() {
    let mut facts = facts();
    facts.past.retry_token = Some("again".into());
    timeline::join(&mut facts.past.timeline, "workers", facts.now);
    let running = TurnRecord {
        berth: "workers-0".into(),
        node_uid: "u1".into(),
        from: None,
        to: digest(2),
        boot_id_before: "b1".into(),
        start_time: later(0),
        drain_seconds: None,
        proof: None,
        end_time: None,
        outcome: None,
        reason: None,
    };
    let ended = TurnRecord {
        end_time: Some(later(9)),
        ..running.clone()
    };
    facts.past.turns = vec![running, ended.clone()];
    let status = status(&facts);
    assert_eq!(
        (status.retry_token.as_deref(), status.clock_synchronized),
        (Some("again"), Some(true))
    );
    assert_eq!(status.timeline, facts.past.timeline);
    assert_eq!(status.turns, [ended], "a turn that runs is not on record yet");
}

/// Earlier agent versions stored durations in other fields. Such a duration counts until the timeline has a newer
/// value.
#[test]
fn durations_of_an_earlier_version_are_kept() {
    let old: BootcNodeStatus = serde_json::from_str(r#"{"drainSeconds": 40, "rebootSeconds": 90}"#).unwrap();
    assert_eq!((old.measured().drain, old.measured().reboot), (Some(40), Some(90)));
    let mut facts = facts();
    let kept = status_after(&facts, &old);
    assert_eq!((kept.drain_seconds, kept.reboot_seconds), (Some(40), Some(90)));
    for (chapter, second) in [(ChapterName::Drained, 0), (ChapterName::Rebooted, 7)] {
        let to = ImageVersion {
            digest: digest(2),
            version: None,
        };
        let seen = timeline::UpdateState::On {
            chapter,
            to,
            began: None,
        };
        facts.past.timeline = timeline::timeline(&facts.past.timeline, &seen, None, later(second).0);
    }
    let next = status_after(&facts, &kept);
    assert_eq!((next.drain_seconds, next.reboot_seconds), (None, Some(90)));
    assert_eq!((next.measured().drain, next.measured().reboot), (Some(7), Some(90)));
}

#[test]
fn a_failing_step_is_reported_before_its_cause() {
    let mut facts = facts();
    facts.host.rules = forbidding();
    assert!(shown(&facts, types::NODE_DEGRADED).starts_with("True RegistryNotAllowed"));
    facts.trouble = Some(StepFailure {
        reason: Reason::StepFailed,
        message: "cannot remove the staged image".into(),
        attempts: 3,
    });
    let degraded = shown(&facts, types::NODE_DEGRADED);
    assert!(
        degraded.starts_with("True StepFailed cannot remove the staged image"),
        "{degraded}"
    );
}

#[test]
fn a_reboot_timeout_and_the_first_boot_are_reported() {
    let (facts, before) = (facts(), BootcNodeStatus::default());
    let firstboot: NodeFirstboot = serde_json::from_str(
        r#"{"outcome": "Unknown", "startTime": "2026-03-01T07:50:00Z", "endTime": "2026-03-01T07:50:02Z"}"#,
    )
    .unwrap();
    let mut shown = vec![];
    let late = Verdict::yes(CommonReason::RebootTimedOut, "does not come back");
    condition::set(&mut shown, types::REBOOT_TIMED_OUT, late, None, facts.now);
    let next = step(&facts);
    let machine = Machine {
        firstboot: Some(firstboot.clone()),
        ..Machine::default()
    };
    let subject = Subject {
        generation: None,
        step: &next,
        machine: &machine,
        heartbeat: later(0),
        conditions: &shown,
    };
    let status = report(&facts, &subject, &before);
    assert_eq!(status.firstboot.as_ref(), Some(&firstboot));
    let chapter = status.timeline.firstboot.as_ref().unwrap();
    assert_eq!(chapter.name.as_str(), "Firstboot");
    assert_eq!(
        (&chapter.start_time, chapter.seconds()),
        (&firstboot.start_time, Some(2))
    );
    let looked_at_nothing = NodeFirstboot {
        outcome: berth_api::firstboot::FirstbootOutcome::NotFirstBoot,
        ..firstboot.clone()
    };
    let shown = timeline::reported(&status.timeline, Some(&looked_at_nothing));
    assert_eq!(shown.firstboot, None, "nothing was looked at");
    let later = Subject {
        machine: &Machine::default(),
        ..subject
    };
    let after = report(&facts, &later, &status);
    assert!(
        after.firstboot.is_none() && after.timeline.firstboot.is_none(),
        "an admin has removed the record"
    );
    assert!(
        condition::find(&status.conditions, types::REBOOT_TIMED_OUT).is_none(),
        "it is the controller's"
    );
    assert_eq!(status.insight.unwrap().message, "does not come back");
}

/// The status shows the backend even after a failure of its tool, because the tool is still installed.
#[test]
fn the_backend_is_shown_until_the_host_has_none() {
    let mut facts = facts();
    let before = status(&facts);
    assert!(before.backend.is_some());
    for (reason, kept) in [
        (Reason::StatusFailed, true),
        (Reason::BootcFailed, true),
        (Reason::BootcMissing, false),
        (Reason::LayeredHost, false),
    ] {
        facts.host.os = Os::Unusable {
            reason,
            message: String::new(),
        };
        assert_eq!(status_after(&facts, &before).backend.is_some(), kept, "{reason:?}");
    }
}

#[test]
fn the_insight_shows_a_paused_pool() {
    let paused = change(facts(), |f| publish(f, |member| member.paused = true));
    // A paused pool changes nothing for a node that is updated.
    let updated = change(paused.clone(), |f| os(f, 2, None));
    for (facts, phase) in [(facts(), "Pending"), (paused, "Paused"), (updated, "Updated")] {
        let insight = status(&facts).insight.unwrap();
        assert_eq!(crate::insight::phase(&insight), phase);
    }
}

#[test]
fn an_unmeasured_node_has_its_pools_estimate() {
    let mut facts = with(&taken());
    let unmeasured = status(&facts).insight.unwrap();
    assert_eq!(unmeasured.est_to_complete, None, "nothing was measured");
    publish(&mut facts, |member| {
        member.estimates = berth_api::pool::PhaseDurations {
            staging_seconds: Some(300),
            drain_seconds: Some(30),
            reboot_seconds: Some(90),
        };
    });
    let estimate = status(&facts).insight.unwrap().est_to_complete;
    assert_eq!(estimate, Some("120s".into()), "the drain and the reboot");
}
