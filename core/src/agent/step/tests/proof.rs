//! Tests of the proof of a boot.

use berth_api::condition::CommonReason;
use berth_api::node::timeline::ProofPart;

use super::reports::shown;
use super::*;
use crate::agent::facts::{BootComplete, CheckAnswer, CheckReading, Checks, HealthBefore, PodReading};

/// Returns the facts of a node that runs image 2 in boot b2. The host is healthy and the Node is Ready, so the proof is
/// complete.
fn booted() -> AgentFacts {
    let mut facts = rebooted(&committed(), 2);
    ready(&mut facts, true);
    facts.past.health_before = Some(HealthBefore::default());
    facts
}

fn with_health(health: HostHealth) -> AgentFacts {
    change(booted(), |facts| facts.host.health = Some(health))
}

fn failed(units: &[&str]) -> HostHealth {
    HostHealth {
        failed_units: units.iter().map(|unit| (*unit).to_owned()).collect(),
        ..HostHealth::default()
    }
}

fn checks(checks: Checks) -> HostHealth {
    HostHealth {
        checks,
        ..HostHealth::default()
    }
}

#[test]
fn a_boot_is_proven_when_nothing_is_missing() {
    assert_eq!(release(&booted()).0, Outcome::Updated);
    let reached = HostHealth {
        boot_complete: BootComplete::Reached,
        ..HostHealth::default()
    };
    assert_eq!(release(&with_health(reached)).0, Outcome::Updated);
}

#[test]
fn each_missing_part_keeps_the_berth_and_names_itself() {
    let incomplete = HostHealth {
        boot_complete: BootComplete::Pending,
        ..HostHealth::default()
    };
    let report = "/etc/berth/health.d/required.d/10-disk: exit status 1: no space".to_owned();
    let starting = HostHealth {
        starting: true,
        ..HostHealth::default()
    };
    for (facts, reason, words) in [
        (with_health(starting), "BootIncomplete", "has not finished starting"),
        (with_health(incomplete), "BootIncomplete", "boot-complete.target"),
        (
            with_health(failed(&["a.service"])),
            "UnitsFailed",
            "before the reboot: a.service",
        ),
        (
            with_health(checks(Checks::Failed(vec![report.clone()]))),
            "HealthCheckFailed",
            report.as_str(),
        ),
    ] {
        assert!(matches!(step(&facts), Step::Wait(..)), "{reason}");
        assert!(
            !shown(&facts, "NodeDegraded").contains(reason),
            "the deadline has not passed"
        );
        let resumed = shown(&facts, "Resumed");
        assert!(resumed.contains(words), "{resumed}");
        let held = change(facts, |facts| facts.proving_for = HOUR);
        let said = shown(&held, "NodeDegraded");
        assert!(
            said.starts_with(&format!("True {reason}")) && said.contains(words),
            "{said}"
        );
        let late = with_rollback(held);
        assert!(
            matches!(step(&late), Step::Rollback(_, word, why) if word.as_str() == reason && why.contains(words)),
            "{:?}",
            step(&late)
        );
    }
}

/// Returns the facts with a rollback deployment.
fn with_rollback(facts: AgentFacts) -> AgentFacts {
    change(facts, |facts| {
        deployments_of(facts, |deployments| deployments.rollback = Some(deployment(1, false)));
    })
}

/// An agent that starts after the deadline has not run the checks yet, and has not seen the Node stay Ready. That must
/// not undo the boot.
#[test]
fn a_part_that_comes_with_time_does_not_undo_the_boot() {
    let unread = change(booted(), |facts| facts.host.health = None);
    let soaking = change(booted(), |facts| {
        publish(facts, |member| member.health.soak_time = Some("30s".into()));
    });
    for facts in [unread, soaking, with_health(checks(Checks::Running))] {
        let late = change(with_rollback(facts), |facts| facts.proving_for = HOUR);
        assert!(matches!(step(&late), Step::Wait(..)), "{:?}", step(&late));
        let not_ready = change(late, |facts| ready(facts, false));
        if not_ready.host.health == Some(HostHealth::default()) {
            assert!(matches!(step(&not_ready), Step::Rollback(..)), "a flapping Node");
        }
    }
}

#[test]
fn a_fault_of_the_boot_before_does_not_count() {
    let slow = HostHealth {
        starting: true,
        boot_complete: BootComplete::Pending,
        ..HostHealth::default()
    };
    let facts = change(with_health(slow.clone()), |facts| {
        facts.past.health_before = Some(HealthBefore::from(&slow));
    });
    assert_eq!(release(&facts).0, Outcome::Updated);
}

#[test]
fn only_new_failures_of_units_count() {
    let ours = "berth-check-0-disk.service";
    for (unit, before, ignored, counts) in [
        ("a.service", None, None, true),
        ("a.service", Some("a.service"), None, false),
        ("a.service", Some("b.service"), Some("b*"), true),
        ("a.service", None, Some("a.service"), false),
        ("a@1.service", None, Some("a@*"), false),
        ("ab.service", None, Some("a"), true),
        ("dump@2.service", Some("dump@1.service"), None, false),
        ("dump@2.socket", Some("dump@1.service"), None, true),
        ("session-3.scope", None, None, false),
        ("var-lib-kubelet-pods-x.mount", None, None, false),
        (ours, None, None, false),
        ("ostree-boot-complete.service", None, None, false),
    ] {
        let facts = change(with_health(failed(&[unit])), |facts| {
            let before = failed(before.as_slice());
            facts.past.health_before = Some(HealthBefore::from(&before));
            publish(facts, |member| {
                member.health.ignored_units = ignored.map(str::to_owned).into_iter().collect();
            });
        });
        let waits = step(&facts) == Step::Wait(WaitReason::Unhealthy, Some(READY_LOOK_INTERVAL));
        assert_eq!(waits, counts, "{unit} {before:?} {ignored:?}");
    }
}

#[test]
fn the_node_soaks_before_its_boot_is_proven() {
    let mut facts = change(booted(), |facts| {
        publish(facts, |member| member.health.soak_time = Some("30s".into()));
    });
    assert!(matches!(step(&facts), Step::Wait(WaitReason::Unhealthy, _)));
    facts.ready_for = Duration::from_secs(30);
    assert_eq!(release(&facts).0, Outcome::Updated);
}

#[test]
fn the_previous_image_is_proven_as_well() {
    let facts = change(with_health(failed(&["a.service"])), |facts| os(facts, 1, None));
    assert!(matches!(step(&facts), Step::Wait(WaitReason::Unhealthy, _)));
}

#[test]
fn without_a_record_of_the_reboot_no_failed_unit_counts() {
    let facts = change(with_health(failed(&["a.service"])), |facts| {
        facts.past.health_before = None
    });
    assert_eq!(release(&facts).0, Outcome::Updated);
}

/// Returns the facts of a node whose pool has one check of this kind, given as JSON.
fn with_pool_check(kind: serde_json::Value) -> AgentFacts {
    let mut check = serde_json::json!({ "name": "app" });
    check.as_object_mut().unwrap().extend(kind.as_object().unwrap().clone());
    change(booted(), |facts| {
        publish(facts, |member| {
            member.health.checks = vec![serde_json::from_value(check).unwrap()]
        });
    })
}

fn answered(mut facts: AgentFacts, answer: CheckAnswer) -> AgentFacts {
    facts.check_readings = vec![CheckReading {
        name: "app".to_owned(),
        answer,
    }];
    facts
}

#[test]
fn each_check_of_the_pool_is_needed() {
    let get = || with_pool_check(serde_json::json!({ "httpGet": { "port": 80 } }));
    let selector = serde_json::json!({ "matchLabels": { "app": "cni" } });
    let pods = || {
        let mut facts =
            with_pool_check(serde_json::json!({ "podsReady": { "namespace": "net", "selector": selector } }));
        facts.past.containers_before = vec!["old".to_owned()];
        facts
    };
    let pod = |id: &str| {
        CheckAnswer::Pods(vec![PodReading {
            name: "net/cni".to_owned(),
            ready: true,
            is_ending: false,
            containers: vec![id.to_owned()],
        }])
    };
    let mut condition = with_pool_check(serde_json::json!({ "nodeCondition": { "type": "StorageReady" } }));
    for (facts, reason, words) in [
        (
            answered(get(), CheckAnswer::Http(503)),
            "HttpCheckFailed",
            "app: the HTTP status is 503",
        ),
        (
            answered(get(), CheckAnswer::NoHttp("connection refused".to_owned())),
            "HttpCheckFailed",
            "app: connection refused",
        ),
        (
            answered(pods(), CheckAnswer::Pods(vec![])),
            "PodsNotReady",
            "no pod on the node matches",
        ),
        (
            answered(pods(), pod("old")),
            "PodsNotReady",
            "net/cni did not become Ready after the reboot",
        ),
        (
            condition.clone(),
            "NodeConditionWrong",
            "StorageReady is absent, not True",
        ),
    ] {
        assert!(
            matches!(step(&facts), Step::Wait(WaitReason::Unhealthy, Some(_))),
            "{words}"
        );
        let late = change(facts, |facts| {
            facts.proving_for = HOUR;
            publish(facts, |member| {
                member.health.on_failure = Some(berth_api::pool::OnFailure::Hold)
            });
        });
        let said = shown(&late, "NodeDegraded");
        assert!(
            said.starts_with(&format!("True {reason}")) && said.contains(words),
            "{said}"
        );
    }
    assert_eq!(release(&answered(get(), CheckAnswer::Http(204))).0, Outcome::Updated);
    assert_eq!(release(&answered(pods(), pod("new"))).0, Outcome::Updated);
    node_of(&mut condition, |node| {
        node.conditions.insert("StorageReady".to_owned(), "True".to_owned());
    });
    assert_eq!(release(&condition).0, Outcome::Updated);
}

#[test]
fn a_check_that_cannot_be_read_is_no_fault() {
    for answer in [None, Some(CheckAnswer::Unread("no answer".to_owned()))] {
        let mut facts = with_pool_check(serde_json::json!({ "httpGet": { "port": 80 } }));
        deployments_of(&mut facts, |deployments| {
            deployments.rollback = Some(deployment(1, false))
        });
        facts.proving_for = HOUR;
        if let Some(answer) = answer {
            facts = answered(facts, answer);
        }
        assert!(matches!(step(&facts), Step::Wait(WaitReason::Unhealthy, Some(_))));
    }
}

#[test]
fn each_reason_of_an_unproven_boot_has_a_section() {
    let page = include_str!("../../../../../docs/unproven.md");
    let parts = [
        Missing::Unread,
        Missing::Starting,
        Missing::BootComplete,
        Missing::Units(vec![]),
        Missing::RunningChecks,
        Missing::Checks(vec![]),
        Missing::Ready,
        Missing::Taint(String::new()),
        Missing::PoolCheck(CommonReason::PodsNotReady, String::new()),
        Missing::PoolCheck(CommonReason::HttpCheckFailed, String::new()),
        Missing::PoolCheck(CommonReason::NodeConditionWrong, String::new()),
        Missing::UnreadPoolCheck(String::new()),
        Missing::Soak(HOUR),
    ];
    let others = [
        CommonReason::BootUnproven,
        CommonReason::RollbackGuardFired,
        CommonReason::FellBack,
    ];
    for reason in parts.iter().map(Missing::reason).chain(others) {
        let section = format!("\n## {}\n", reason.as_str());
        assert!(
            page.contains(&section),
            "docs/unproven.md has no section {}",
            reason.as_str()
        );
    }
}

#[test]
fn the_parts_of_a_proof_come_in_order() {
    let all = ProofPart::ALL;
    assert_eq!(proven_parts(&booted()), Some(all));
    let starting = HostHealth {
        starting: true,
        ..HostHealth::default()
    };
    let soaking = change(booted(), |facts| {
        publish(facts, |member| member.health.soak_time = Some("1m".into()));
    });
    let get = serde_json::json!({ "httpGet": { "port": 80 } });
    for (facts, missing) in [
        (with_health(starting), ProofPart::Started),
        (with_health(failed(&["a.service"])), ProofPart::UnitsHealthy),
        (with_health(checks(Checks::Running)), ProofPart::ChecksPassed),
        (change(booted(), |facts| ready(facts, false)), ProofPart::NodeReady),
        (with_pool_check(get), ProofPart::PoolChecksPassed),
        (soaking, ProofPart::Soaked),
    ] {
        let there = proven_parts(&facts).unwrap();
        assert_eq!(all.get(there.len()), Some(&missing));
    }
    assert_eq!(
        proven_parts(&rebooted(&committed(), 1)),
        None,
        "the previous image runs"
    );
}
