//! Holders that do not come back, and turns that end badly.

use super::*;

#[test]
fn a_holder_that_does_not_come_back_is_reported() {
    let mut case = case(vec![(node("n1"), None, Some(holding(true)))]);
    case.overdue = true;
    let says = case.says("Degraded");
    assert!(
        says.starts_with("True RebootTimedOut 1 degraded: n1: RebootTimedOut"),
        "{says}"
    );
}

#[test]
fn an_agent_that_is_back_knows_better() {
    let mut report = booted(1);
    report.degraded = Some(degraded_by("n1", "BootUnproven", "a third image"));
    report.host.boot_id = Some("another".into());
    let mut down = node("n1");
    down.ready = false;
    let mut case = case(vec![(down, Some(host(report.clone())), Some(holding(true)))]);
    case.overdue = true;
    assert_eq!(
        case.says("Degraded"),
        "True NodesDegraded 1 degraded: n1: BootUnproven: a third image"
    );
    case.heard = false;
    assert_eq!(
        case.condition("Degraded").reason,
        "RebootTimedOut",
        "the agent is silent again"
    );
    case.heard = true;
    report.host.boot_id = Some(holding(true).boot_id);
    case.members[0].1 = Some(host(report));
    assert_eq!(
        case.condition("Degraded").reason,
        "RebootTimedOut",
        "the agent reported the problem before the reboot"
    );
}

#[test]
fn a_silent_holder_outside_the_pool_is_reported() {
    let mut case = case(vec![
        up("n2", booted(2)),
        (node("n1"), Some(host(booted(1))), Some(holding(false))),
    ]);
    (case.overdue, case.away) = (true, 1);
    let says = case.says("Degraded");
    assert!(
        says.starts_with("True RebootTimedOut 1 degraded: n1: RebootTimedOut: holds a berth and is silent"),
        "{says}"
    );
    assert_eq!(case.status().nodes.degraded, 0);
    case.overdue = false;
    assert_eq!(case.condition("Degraded").status, "False");
}

fn bad_turn(outcome: &str, attempts: u32, target: u8) -> Report {
    Report {
        last_turn: Some(BadTurn {
            outcome: outcome.into(),
            message: "pods still on the node after 900s: default/web-1: budget web".into(),
            digest: digest(target),
            attempts,
        }),
        ..booted(1)
    }
}

#[test]
fn a_node_whose_turns_end_badly_is_named() {
    let drain = bad_turn("DrainTimeout", 2, 2);
    let says = case(vec![up("n1", drain.clone()), up("n2", booted(2))]).says("Degraded");
    let message = "1 degraded: n1: DrainTimeout: pods still on the node after 900s: default/web-1: budget web (turn 2)";
    assert_eq!(says, format!("True DrainTimeout {message}"));
    for (outcome, attempts, target, reason) in [
        ("RebootBlocked", 1, 2, "RebootBlocked"),
        ("NotApplied", 1, 2, "NotApplied"),
        ("NotStaged", 1, 2, "AsExpected"),
        ("NotStaged", 2, 2, "NotStaged"),
        // Bad turns with an earlier digest do not count.
        ("DrainTimeout", 2, 1, "AsExpected"),
    ] {
        let bad = up("n1", bad_turn(outcome, attempts, target));
        let degraded = case(vec![bad, up("n2", booted(2))]).condition("Degraded");
        assert_eq!(degraded.reason, reason, "{outcome} {attempts} {target}");
    }
    let disk = Report {
        degraded: Some(degraded_by("n3", "DiskFull", "no space")),
        ..booted(1)
    };
    let both = case(vec![up("n1", drain), up("n3", disk)]);
    assert_eq!(both.condition("Degraded").reason, "NodesDegraded");
}

#[test]
fn a_node_that_uses_no_offer_is_named() {
    let mut case = case(vec![up("n1", booted(1)), up("n2", booted(2))]);
    assert_eq!(case.condition("Degraded").status, "False");
    case.plan.vain = [("n1".into(), 4)].into();
    let says = case.says("Degraded");
    assert!(
        says.starts_with("True TurnsWithoutUpdate 1 degraded: n1: ") && says.contains("kubectl berth exclude n1"),
        "{says}"
    );
    assert_eq!(case.status().nodes.degraded, 1);
    let mut told = self::case(vec![up("n1", bad_turn("DrainTimeout", 2, 2)), up("n2", booted(2))]);
    told.plan.vain = [("n1".into(), 4)].into();
    assert_eq!(
        told.condition("Degraded").reason,
        "DrainTimeout",
        "the node reports why"
    );
}
