use berth_api::Digest;
use berth_api::condition::pool::BOOT_IMAGE_SKEW;
use berth_api::condition::{self, Verdict, Word};
use berth_api::node::BootcNodeSpec;
use berth_api::pool::{DigestFailures, PhaseDurations};
use jiff::Timestamp;

use super::*;
use crate::controller::view::Report;
use crate::finding::{self, Subject};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn member(report: Report, heartbeat: i64) -> BootcNodeContent {
    BootcNodeContent {
        spec: BootcNodeSpec::default(),
        report,
        status_error: None,
        heartbeat: Some(at(heartbeat)),
        told: vec![],
    }
}

fn in_phase(phase: Phase, since: i64) -> Report {
    Report {
        phase: Some(phase),
        phase_start: Some(at(since)),
        agent_version: Some("0.1.0".into()),
        ..Report::default()
    }
}

fn condition(type_: &str, status: &str) -> Condition {
    Condition {
        type_: type_.into(),
        status: status.into(),
        reason: "R".into(),
        message: String::new(),
        last_transition_time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time::from(at(77)),
        observed_generation: None,
    }
}

fn lines(facts: &GaugeFacts<'_>) -> Vec<String> {
    let mut lines = vec![];
    for gauge in gauges(facts) {
        let name = gauge.name.trim_start_matches("berth_");
        for series in &gauge.series {
            let labels: Vec<&str> = series.labels.iter().map(|(_, value)| value.as_str()).collect();
            lines.push(format!("{name} {} {}", labels.join(","), series.value));
        }
    }
    lines
}

fn pool<'a>(status: &'a BootcNodePoolStatus, members: Vec<&'a BootcNodeContent>) -> MeasuredPool<'a> {
    MeasuredPool {
        name: "p",
        status,
        gate: None,
        gates: None,
        timed_out: vec![],
        implausible: vec![],
        members,
        waiting: vec![],
    }
}

#[track_caller]
fn has(said: &[String], expected: &[&str]) {
    for line in expected {
        assert!(said.iter().any(|said| said == line), "no {line} in {said:#?}");
    }
}

fn degraded(reason: &str) -> Report {
    Report {
        degraded: Some(finding::node::degraded(
            Subject::Node("n".into(), "p".into()),
            Word::stored(reason),
            "",
        )),
        ..in_phase(Phase::Degraded, 0)
    }
}

#[test]
fn members_are_counted_and_never_named() {
    let members = [
        member(in_phase(Phase::Draining, 100), 400),
        member(in_phase(Phase::Draining, 100), 7300),
        member(in_phase(Phase::Updated, 100), 100_000),
        // The last heartbeat is older than the phase: the node's clock was set back, or no heartbeat has followed yet.
        member(in_phase(Phase::Staging, 900), 100),
        member(degraded("DiskFull"), 5),
        member(degraded("<script>"), 5),
        // An agent that could not start reports no phase, but its node counts as degraded.
        member(
            Report {
                phase: None,
                ..degraded("DiskFull")
            },
            5,
        ),
        member(Report::default(), 5),
    ];
    let status = BootcNodePoolStatus::default();
    let mut pool = pool(&status, members.iter().collect());
    pool.waiting = vec![BlockReason::Capacity, BlockReason::Wave, BlockReason::Capacity];
    let facts = GaugeFacts {
        pools: vec![pool],
        fleet: None,
    };
    let said = lines(&facts);
    has(
        &said,
        &[
            "pool_phase_nodes p,Draining 2",
            "pool_phase_longest_seconds p,Draining 7200",
            "pool_phase_longest_seconds p,Updated 0",
            "pool_phase_longest_seconds p,Staging 0",
            "pool_degraded_nodes p,DiskFull 2",
            "pool_degraded_nodes p,Other 1",
            "pool_phase_nodes p,Degraded 2",
            "pool_waiting_nodes p,Capacity 2",
            "pool_waiting_nodes p,Wave 1",
            "fleet_agents 0.1.0 7",
        ],
    );
    assert!(!said.iter().any(|line| line.contains("script")), "{said:#?}");
}

#[test]
fn common_agent_versions_have_a_series() {
    let mut members = vec![];
    for version in (10..30).chain([29, 29, 28]) {
        let report = Report {
            agent_version: Some(version.to_string()),
            ..in_phase(Phase::Updated, 0)
        };
        members.push(member(report, 0));
    }
    let status = BootcNodePoolStatus::default();
    let facts = GaugeFacts {
        pools: vec![pool(&status, members.iter().collect())],
        fleet: None,
    };
    let said = lines(&facts);
    let agents: Vec<&String> = said.iter().filter(|l| l.starts_with("fleet_agents ")).collect();
    assert_eq!(agents.len(), MAX_VERSIONS + 1);
    has(
        &said,
        &[
            "fleet_agents 29 3",
            "fleet_agents 28 2",
            "fleet_agents 15 1",
            "fleet_agents Other 12",
        ],
    );
}

fn halted(digest: &Digest) -> BootcNodePoolStatus {
    BootcNodePoolStatus {
        conditions: vec![condition("RolloutHalted", "True"), condition("WindowOpen", "Unknown")],
        target: Some(berth_api::pool::Target {
            image: "r.io/os:1".into(),
            digest: digest.clone(),
            version: Some("1.0".into()),
            metadata: None,
            platforms: vec![],
            publish_time: None,
        }),
        failures: vec![DigestFailures {
            digest: digest.clone(),
            nodes: vec!["n1".into()],
            count: 1,
        }],
        phase_durations: PhaseDurations {
            drain_seconds: Some(40),
            ..PhaseDurations::default()
        },
        ..BootcNodePoolStatus::default()
    }
}

#[test]
fn a_pool_has_gauges_for_conditions_and_windows() {
    let digest: Digest = format!("sha256:{}", "1".repeat(64)).parse().unwrap();
    let status = halted(&digest);
    let [open, closed] = [
        (Verdict::yes(CommonReason::Open, ""), 500),
        (Verdict::no(GateReason::OutsideWindows, ""), 600),
    ]
    .map(|(window, changes)| Gates {
        gate: None,
        closes: None,
        changes: Some(at(changes)),
        window,
    });
    let name = NodeName::from("n7");
    let fleet = BootcFleetStatus {
        conditions: vec![condition("Guarded", "False")],
        ..BootcFleetStatus::default()
    };
    let mut facts = GaugeFacts {
        pools: vec![MeasuredPool {
            gates: Some(&open),
            gate: Some(GateReason::RolloutHalted),
            timed_out: vec![&name],
            implausible: vec![(&name, Contradiction::ClockDiffers)],
            ..pool(&status, vec![])
        }],
        fleet: Some(&fleet),
    };
    let said = lines(&facts);
    let target = format!("pool_target_info p,r.io/os:1,{digest},1.0 1");
    has(
        &said,
        &[
            "fleet_condition Guarded,True 0",
            "fleet_condition Guarded,False 1",
            "pool_condition p,RolloutHalted,True 1",
            "pool_condition p,WindowOpen,Unknown 1",
            "pool_condition p,WindowOpen,False 0",
            "pool_condition_transition_timestamp_seconds p,RolloutHalted 77",
            "rollout_halted p 1",
            "gate_closed p,RolloutHalted 1",
            "pool_failed_nodes p 1",
            "pool_phase_median_seconds p,drain 40",
            "pool_window_open p 1",
            "pool_window_close_timestamp_seconds p 500",
            "reboot_timed_out p 1",
            "node_reboot_timed_out p,n7 1",
            "node_implausible p,n7,ClockDiffers 1",
            "pool_nodes p,total 0",
            "pool_berths p,held 0",
            &target,
        ],
    );
    facts.pools[0].gates = Some(&closed);
    let said = lines(&facts);
    has(
        &said,
        &["pool_window_open p 0", "pool_window_next_open_timestamp_seconds p 600"],
    );
    assert!(!said.iter().any(|l| l.contains("close_timestamp")), "{said:#?}");
}

#[test]
fn a_pool_that_is_gone_has_no_series() {
    assert!(lines(&GaugeFacts::default()).is_empty());
    assert_eq!(gauges(&GaugeFacts::default()).len(), 29);
}

#[test]
fn unchecked_boot_images_have_a_gauge() {
    for (why, unchecked) in [
        (Some(CommonReason::Disabled), 1),
        (Some(CommonReason::CannotCompare), 1),
        (Some(CommonReason::NotReported), 0),
        (Some(CommonReason::WithinLimit), 0),
        (None, 0),
    ] {
        let mut status = BootcNodePoolStatus::default();
        if let Some(why) = why {
            let verdict = Verdict::no(why, "words");
            condition::set(
                &mut status.conditions,
                BOOT_IMAGE_SKEW,
                verdict,
                None,
                Timestamp::UNIX_EPOCH,
            );
        }
        let facts = GaugeFacts {
            pools: vec![pool(&status, vec![])],
            ..GaugeFacts::default()
        };
        has(&lines(&facts), &[&format!("pool_boot_image_unchecked p {unchecked}")]);
    }
}

#[test]
fn a_feed_that_fails_has_its_reason() {
    let (feed, image) = ("pool_feed_failing", "pool_image_unresolved");
    for (type_, status, reason, expected) in [
        ("FeedFailing", "True", "Unauthorized", Some((feed, "Unauthorized"))),
        (
            "FeedFailing",
            "True",
            "PullSecretNotFound",
            Some((feed, "PullSecretNotFound")),
        ),
        ("FeedFailing", "True", "NoSuchPlatform", Some((feed, "NoSuchPlatform"))),
        ("FeedFailing", "True", "MadeUp", Some((feed, "Other"))),
        ("FeedFailing", "False", "AsExpected", None),
        ("FeedFailing", "Unknown", "NotPolled", None),
        (
            "ImageResolved",
            "False",
            "ImageNotFound",
            Some((image, "ImageNotFound")),
        ),
        ("ImageResolved", "Unknown", "Resolving", None),
        ("ImageResolved", "True", "Unauthorized", None),
    ] {
        let condition = Condition {
            reason: reason.into(),
            ..condition(type_, status)
        };
        let status = BootcNodePoolStatus {
            conditions: vec![condition],
            ..BootcNodePoolStatus::default()
        };
        let facts = GaugeFacts {
            pools: vec![pool(&status, vec![])],
            fleet: None,
        };
        let mut said = lines(&facts);
        said.retain(|line| line.starts_with(&format!("{feed} ")) || line.starts_with(&format!("{image} ")));
        let expected: Vec<_> = expected
            .iter()
            .map(|(gauge, reason)| format!("{gauge} p,{reason} 1"))
            .collect();
        assert_eq!(said, expected, "{type_} {reason}");
    }
}
