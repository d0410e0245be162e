use berth_api::condition::Word;
use berth_api::node::timeline::{Chapter, ChapterName, ImageVersion, NodeUpdate, Timeline};
use berth_api::node::{Deployment, DrainBlocker};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use super::*;

fn digest(c: char) -> Digest {
    format!("sha256:{}", c.to_string().repeat(64)).parse().unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn condition(type_: &str, reason: &str, message: &str) -> Condition {
    let mut conditions = vec![];
    let verdict = Verdict::yes(Word::stored(reason), message);
    condition::set(&mut conditions, type_, verdict, None, at(0));
    conditions.remove(0)
}

/// Returns a timeline with one update whose drain and reboot took this long, in seconds.
fn measured(drain: i64, reboot: i64) -> Timeline {
    let (committed, proven) = (drain, drain + reboot);
    let chapters = [
        (ChapterName::Drained, 0, committed),
        (ChapterName::Rebooted, committed, proven - 1),
        (ChapterName::Proven, proven - 1, proven),
        (ChapterName::Completed, proven, proven),
    ]
    .map(|(name, start, end)| Chapter {
        name,
        start_time: Some(Time::from(at(start))),
        end_time: Some(Time::from(at(end))),
    });
    let update = NodeUpdate {
        from: None,
        to: ImageVersion {
            digest: digest('1'),
            version: None,
        },
        chapters: chapters.into(),
        proof: vec![],
        clock_set: false,
    };
    Timeline {
        firstboot: None,
        joined: None,
        updates: vec![update],
    }
}

/// Returns the status of a node that runs version `1.0` and is in this phase.
fn status(phase: Phase) -> BootcNodeStatus {
    BootcNodeStatus {
        phase: Some(phase),
        booted: Some(Deployment {
            digest: Some(digest('1')),
            version: Some("1.0".to_owned()),
            ..Deployment::default()
        }),
        timeline: measured(60, 180),
        ..BootcNodeStatus::default()
    }
}

/// Formats an insight like `oc adm upgrade status`: assessment, phase, version, estimate, message.
fn line(status: &BootcNodeStatus, desired: char, change: impl FnOnce(&mut Inputs<'_>)) -> String {
    let desired = digest(desired);
    let mut facts = Inputs {
        node: "worker-1",
        pool: "workers",
        scope: ScopeType::WorkerPool,
        desired: Some(&desired),
        status,
        unavailable: Some(vec![]),
        held: None,
        told: &status.conditions,
        silent: None,
        medians: PhaseDurations::default(),
    };
    change(&mut facts);
    let insight = insight(&facts, None, at(100)).unwrap();
    format!(
        "{} {} {} {} {}",
        assessment(&insight).as_str(),
        phase(&insight),
        insight.version.as_deref().unwrap_or("?"),
        insight.est_to_complete.as_ref().map_or("?", Written::as_str),
        insight.message
    )
    .trim_end()
    .to_owned()
}

#[test]
fn each_phase_has_its_line() {
    for (phase, expected) in [
        (Phase::Idle, "Outdated Pending 1.0 ?"),
        (Phase::Pending, "Outdated Pending 1.0 ?"),
        (Phase::Waiting, "Outdated Pending 1.0 ?"),
        (Phase::Degraded, "Outdated Pending 1.0 ?"),
        (Phase::Staging, "Progressing Updating 1.0 ?"),
        (Phase::Draining, "Progressing Draining 1.0 240s"),
        (Phase::Rebooting, "Progressing Rebooting 1.0 180s"),
        (Phase::Proving, "Progressing Rebooting 1.0 180s"),
        (Phase::Releasing, "Progressing Updating 1.0 ?"),
    ] {
        assert_eq!(line(&status(phase), '2', |_| {}), expected, "{phase:?}");
    }
    for phase in [Phase::Updated, Phase::Idle, Phase::Degraded] {
        assert_eq!(
            line(&status(phase), '1', |_| {}),
            "Completed Updated 1.0 0s",
            "{phase:?}"
        );
    }
    let nothing = BootcNodeStatus::default();
    assert_eq!(
        line(&nothing, '2', |_| {}),
        "Unknown CannotDetermine ? ? no agent has reported yet"
    );
    let idle = status(Phase::Idle);
    assert_eq!(
        line(&idle, '2', |f| f.desired = None),
        "Unknown CannotDetermine 1.0 ? the controller has published no image for this node"
    );
}

#[test]
fn the_reason_for_a_held_node_is_reported() {
    let waits = status(Phase::Waiting);
    let told = condition(
        types::WAITING,
        "WaveSoaking",
        "waits until the soak time of wave canary is over",
    );
    for (change, expected) in [
        (
            Box::new(|f: &mut Inputs<'_>| f.held = Some(Held::Paused)) as Box<dyn FnOnce(&mut Inputs<'_>)>,
            "Excluded Paused 1.0 ?",
        ),
        (
            Box::new(|f| f.held = Some(Held::Excluded)),
            "Excluded Paused 1.0 ? Node is excluded",
        ),
        (
            Box::new(|f| f.unavailable = Some(vec![Unavailable::NotReady, Unavailable::Unschedulable])),
            "Unavailable Pending 1.0 ? Not ready | Node is marked unschedulable",
        ),
    ] {
        assert_eq!(line(&waits, '2', change), expected);
    }
    let desired = digest('2');
    let facts = Inputs {
        node: "worker-1",
        pool: "workers",
        scope: ScopeType::ControlPlane,
        desired: Some(&desired),
        status: &waits,
        unavailable: None,
        held: None,
        told: std::slice::from_ref(&told),
        silent: None,
        medians: PhaseDurations::default(),
    };
    let told = insight(&facts, None, at(1)).unwrap();
    assert_eq!(told.message, "waits until the soak time of wave canary is over");
    assert_eq!(told.scope_type, ScopeType::ControlPlane);
    let available = condition::find(&told.conditions, AVAILABLE).unwrap();
    assert_eq!(
        (available.status.as_str(), available.reason.as_str()),
        ("Unknown", "CannotDetermine")
    );
}

fn cordoned(f: &mut Inputs<'_>) {
    f.unavailable = Some(vec![Unavailable::Unschedulable]);
}

#[test]
fn an_update_is_not_unavailability_and_errors_go_first() {
    let mut drains = status(Phase::Draining);
    drains.drain_blockers.push(DrainBlocker {
        pod: "shop/db-0".to_owned(),
        reason: "budget shop/db".to_owned(),
        since: Time::from(at(0)),
    });
    assert_eq!(
        line(&drains, '2', cordoned),
        "Progressing Draining 1.0 240s shop/db-0: budget shop/db"
    );
    drains.conditions.push(condition(
        types::NODE_DEGRADED,
        "DrainTimeout",
        "failed to drain worker-1 for 1h",
    ));
    assert_eq!(
        line(&drains, '2', cordoned),
        "Degraded Draining 1.0 240s failed to drain <node> for 1h"
    );
    let mut lost = status(Phase::Rebooting);
    lost.conditions
        .push(condition(types::REBOOT_TIMED_OUT, "Overdue", "does not come back"));
    assert_eq!(
        line(&lost, '2', |f| f.medians.reboot_seconds = Some(90)),
        "Degraded Rebooting 1.0 90s does not come back"
    );
    let staging = status(Phase::Staging);
    assert_eq!(
        line(&staging, '2', |f| f.medians.staging_seconds = Some(30)),
        "Progressing Updating 1.0 270s"
    );
    let releasing = status(Phase::Releasing);
    assert_eq!(
        line(&releasing, '2', |f| f.medians.staging_seconds = Some(30)),
        "Progressing Updating 1.0 ?",
        "its pull is long over"
    );
}

const SILENT: &str = "its agent does not report";

fn silent(f: &mut Inputs<'_>) {
    f.silent = Some(SILENT);
}

/// The insight of a node with a silent agent keeps the last report. The report's error and estimate are dropped,
/// because they are outdated.
#[test]
fn a_silent_agent_degrades_its_node() {
    for (phase, desired, expected) in [
        (Phase::Updated, '1', "Degraded Updated 1.0 ? its agent does not report"),
        (Phase::Updated, '2', "Degraded Pending 1.0 ? its agent does not report"),
        (Phase::Waiting, '2', "Degraded Pending 1.0 ? its agent does not report"),
        (Phase::Staging, '2', "Degraded Updating 1.0 ? its agent does not report"),
        (
            Phase::Draining,
            '2',
            "Degraded Draining 1.0 ? its agent does not report",
        ),
        (
            Phase::Rebooting,
            '2',
            "Degraded Rebooting 1.0 ? its agent does not report",
        ),
    ] {
        assert_eq!(line(&status(phase), desired, silent), expected, "{phase:?}");
        let not_ready = line(&status(phase), desired, |f| {
            (f.silent, f.unavailable) = (Some(SILENT), Some(vec![Unavailable::NotReady]));
        });
        assert_eq!(not_ready, expected, "{phase:?}");
    }
    let nothing = BootcNodeStatus::default();
    assert_eq!(
        line(&nothing, '2', silent),
        "Degraded CannotDetermine ? ? its agent does not report"
    );
    let mut troubled = status(Phase::Draining);
    troubled.conditions.push(condition(
        types::NODE_DEGRADED,
        "DrainTimeout",
        "failed to drain for 1h",
    ));
    assert_eq!(
        line(&troubled, '2', silent),
        "Degraded Draining 1.0 ? its agent does not report"
    );
    let lost = condition(types::REBOOT_TIMED_OUT, "RebootTimedOut", "has not come back");
    let lost = std::slice::from_ref(&lost);
    for (silent, told, tells) in [
        (Some(SILENT), &[][..], true),
        (None, &[], false),
        (Some(SILENT), lost, false),
    ] {
        let desired = digest('2');
        let facts = Inputs {
            node: "worker-1",
            pool: "workers",
            scope: ScopeType::WorkerPool,
            desired: Some(&desired),
            status: &troubled,
            unavailable: Some(vec![]),
            held: None,
            told,
            silent,
            medians: PhaseDurations::default(),
        };
        let first = insight(&facts, None, at(1)).unwrap();
        assert_eq!(is_silent(&first), tells, "{first:?}");
        assert_eq!(insight(&facts, Some(&first), at(2)), Some(first), "nothing changed");
    }
}

#[test]
fn an_insight_keeps_times_and_needs_a_pool() {
    let waits = status(Phase::Waiting);
    let desired = digest('2');
    let mut facts = Inputs {
        node: "worker-1",
        pool: "workers",
        scope: ScopeType::WorkerPool,
        desired: Some(&desired),
        status: &waits,
        unavailable: Some(vec![]),
        held: None,
        told: &[],
        silent: None,
        medians: PhaseDurations::default(),
    };
    let first = insight(&facts, None, at(1)).unwrap();
    facts.unavailable = None;
    let second = insight(&facts, Some(&first), at(2)).unwrap();
    assert_eq!(first, second, "nothing was heard of the Node, and nothing changed");
    let drains = status(Phase::Draining);
    facts.status = &drains;
    let third = insight(&facts, Some(&second), at(3)).unwrap();
    for (type_, since) in [(UPDATING, at(3)), (AVAILABLE, at(1))] {
        let condition = condition::find(&third.conditions, type_).unwrap();
        assert_eq!(condition.last_transition_time.0, since, "{type_}");
    }
    facts.pool = "";
    assert_eq!(insight(&facts, Some(&third), at(4)), None);
    let released = status(Phase::Released);
    (facts.pool, facts.status) = ("workers", &released);
    assert_eq!(insight(&facts, None, at(4)), None);
}

proptest! {
    /// OpenShift's own code exceeded the limits of its API with long texts and texts of several lines.
    #[test]
    fn any_words_fit(words in "\\PC{0,300}", node in "[a-z0-9.-]{1,60}", lines in any::<bool>()) {
        let mut degraded = status(Phase::Draining);
        let words = if lines { words.replace(' ', "\n") } else { words };
        degraded.conditions.push(Condition { message: words, ..condition(types::NODE_DEGRADED, "StepFailed", "") });
        let desired = digest('2');
        let facts = Inputs {
            node: &node, pool: "workers", scope: ScopeType::WorkerPool, desired: Some(&desired), status: &degraded,
            unavailable: None, held: None, told: &[], silent: None, medians: PhaseDurations::default(),
        };
        let insight = insight(&facts, None, at(1)).unwrap();
        prop_assert!(insight.message.chars().count() <= MAX_MESSAGE && !insight.message.contains('\n'));
        for condition in &insight.conditions {
            prop_assert!(!condition.reason.is_empty() && condition.reason.bytes().all(|b| b.is_ascii_alphanumeric()));
        }
    }
}

#[test]
fn a_node_on_an_unsupported_platform_is_degraded() {
    let mut status = status(Phase::Idle);
    let words = "quay.io/os:1 has no image for arm64, only for amd64";
    let waiting = Verdict::yes(CommonReason::NoSuchPlatform, words);
    condition::set(&mut status.conditions, types::WAITING, waiting, None, at(10));
    let expected = format!("Degraded CannotDetermine 1.0 ? {words}");
    assert_eq!(line(&status, '2', |facts| facts.desired = None), expected);
    // The controller has published an image since, and will soon clear the condition.
    assert!(line(&status, '2', |_| {}).starts_with("Outdated Pending"));
}
