use berth_api::condition::CommonReason;
use berth_api::pool::OnFailure;

use super::reports::shown;
use super::*;
use crate::agent::facts::{Fired, Undone};

/// Returns the facts of a node that runs image 2 in boot b2 and is not Ready after `health.deadline`. Image 1 is its
/// rollback deployment.
fn failing() -> AgentFacts {
    let mut facts = rebooted(&committed(), 2);
    ready(&mut facts, false);
    deployments_of(&mut facts, |deployments| {
        deployments.rollback = Some(deployment(1, false))
    });
    facts.proving_for = HOUR;
    facts
}

fn begun(boot_id: &str) -> AgentFacts {
    let mut facts = failing();
    facts.past.undone = Some(Undone {
        digest: digest(2),
        boot_id: boot_id.into(),
        reason: "HealthCheckFailed".to_owned(),
        why: "a check failed".to_owned(),
    });
    facts
}

/// Returns the step that rolls back a boot whose Node does not become Ready.
fn back() -> Step {
    let why = "the Node did not become Ready after the reboot".to_owned();
    Step::Rollback(digest(1), CommonReason::NodeNotReady, why)
}

fn queue(facts: &mut AgentFacts) {
    deployments_of(facts, |deployments| deployments.rollback_queued = true);
}

#[test]
fn an_unproven_boot_is_undone_after_its_deadline() {
    let mut facts = failing();
    let back = back();
    assert_eq!(step(&facts), back);
    assert!(back.needs_memory(), "otherwise another process could roll back again");
    assert!(shown(&facts, "NodeDegraded").starts_with("True RollingBack"));
    facts.proving_for = HOUR - Duration::from_secs(1);
    assert!(matches!(step(&facts), Step::Wait(WaitReason::NotReady, _)));

    let mut queued = begun("b2");
    assert_eq!(step(&queued), back, "the first command may have failed");
    queue(&mut queued);
    assert_eq!(step(&queued), Step::Reboot);
    assert!(!shown(&queued, "NodeDegraded").contains("RollbackQueued"));
    ready(&mut queued, true);
    assert_eq!(step(&queued), Step::Reboot, "a rollback that has begun is finished");
    queued.host.inhibitors = vec!["backup".to_owned()];
    assert!(matches!(step(&queued), Step::Wait(WaitReason::Inhibited, _)));
    queued.host.inhibitors.clear();
    queued.host.reboot = Reboot::Asked(Duration::ZERO);
    assert!(matches!(step(&queued), Step::Wait(WaitReason::Rebooting, _)));

    let mut ready_in_time = failing();
    ready(&mut ready_in_time, true);
    assert_eq!(release(&ready_in_time).0, Outcome::Updated, "proven, though late");
}

#[test]
fn another_persons_rollback_is_recorded_before_the_reboot() {
    let mut facts = failing();
    queue(&mut facts);
    assert_eq!(step(&facts), back(), "recorded first; the command does nothing");
}

#[test]
fn a_node_holds_if_it_cannot_or_must_not_roll_back() {
    let hold = change(failing(), |facts| {
        publish(facts, |member| member.health.on_failure = Some(OnFailure::Hold));
    });
    let no_deployment = change(failing(), |facts| {
        deployments_of(facts, |deployments| deployments.rollback = None);
    });
    let another = change(failing(), |facts| {
        deployments_of(facts, |deployments| deployments.rollback = Some(deployment(7, false)));
    });
    let twice = begun("b1");
    for (facts, why) in [
        (hold, "health.onFailure is Hold"),
        (no_deployment, "no rollback deployment of"),
        (another, "no rollback deployment of"),
        (twice, "rolled back once"),
    ] {
        assert!(matches!(step(&facts), Step::Wait(WaitReason::NotReady, _)), "{why}");
        let said = shown(&facts, "NodeDegraded");
        assert!(said.starts_with("True NodeNotReady") && said.contains(why), "{said}");
    }
}

#[test]
fn a_boot_without_a_new_licence_is_not_undone() {
    let third = change(failing(), |facts| {
        deployments_of(facts, |deployments| deployments.booted = deployment(7, false));
    });
    assert!(!matches!(step(&third), Step::Rollback(..)), "not the target");
    // The berth licenses a reboot into image 3 from this boot, so the agent continues to image 3.
    let forward = change(stuck(&relicensed(), 2), |facts| {
        deployments_of(facts, |deployments| deployments.rollback = Some(deployment(1, false)));
        facts.proving_for = HOUR;
    });
    assert_eq!(step(&forward), Step::Unlock);
}

#[test]
fn the_previous_image_is_proven_before_the_give_back() {
    let mut facts = change(begun("b2"), |facts| {
        facts.host.boot_id = "b3".into();
        os(facts, 1, None);
        facts.past.tried = Some(digest(2));
    });
    assert!(matches!(step(&facts), Step::Wait(WaitReason::NotReady, _)));
    node_of(&mut facts, |node| {
        node.ready = true;
        node.boot_id = Some("b3".into());
    });
    let (outcome, message) = release(&facts);
    assert_eq!(outcome, Outcome::Failed);
    assert!(message.contains("rolled the host back"), "{message}");
}

#[test]
fn the_record_keeps_the_failure_when_the_turn_goes_on() {
    let mut facts = begun("b2");
    let holding = committed().holding().unwrap().clone();
    facts.past.relicensed(&holding, &digest(3), &"b3".into());
    assert_eq!(facts.past.failed_digests, [digest(2)]);
    assert_eq!(facts.past.undone, None);
}

#[test]
fn the_agent_waits_while_the_guard_rolls_back() {
    let mut facts = failing();
    facts.host.rollback_guard = RollbackGuard::Fired(Fired {
        digest: digest(2),
        boot_id: "b2".into(),
    });
    assert!(matches!(step(&facts), Step::Wait(WaitReason::Rebooting, Some(_))));
    ready(&mut facts, true);
    assert!(matches!(step(&facts), Step::Wait(WaitReason::Rebooting, Some(_))));
    let mut back = rebooted(&committed(), 1);
    back.past.undone = Some(Undone {
        digest: digest(2),
        boot_id: "b2".into(),
        reason: "RollbackGuardFired".to_owned(),
        why: String::new(),
    });
    let words = "no agent proved the boot in time; the host's rollback guard rolled the host back";
    assert_eq!(release(&back), (Outcome::Failed, words.to_owned()));
}
