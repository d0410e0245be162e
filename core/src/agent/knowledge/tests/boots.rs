//! Tests: the agent notices from its readings that the host booted another image without a berth.

use super::*;
use crate::agent::facts::Deployments;

fn swapped(booted: u8, rollback: u8) -> Os {
    Os::Bootc(Box::new(Deployments {
        booted: deployment(booted, false),
        rollback: Some(deployment(rollback, false)),
        ..Deployments::default()
    }))
}

fn ready(boot: &str, ready: bool) -> ClusterNode {
    let ClusterNode::Is(mut node) = node() else {
        unreachable!()
    };
    node.boot_id = Some(boot.into());
    (node.ready, node.unschedulable) = (ready, false);
    ClusterNode::Is(node)
}

/// Returns the knowledge of an agent that holds no berth in this boot.
fn idle(past: Past, boot: &str, os: Os, node: ClusterNode) -> Knowledge {
    let mut knowledge = Knowledge::new("n1".into(), boot.into(), past, &at(0));
    ask_for(&mut knowledge, image());
    knowledge.after(Event::Berths(vec![]), &at(1));
    knowledge.after(look(os), &at(2));
    knowledge.after(Event::NodeRead(node), &at(3));
    knowledge
}

#[test]
fn the_first_record_needs_a_ready_node() {
    for (node, expected) in [
        (ready("b1", true), true),
        (ready("b1", false), false),
        (ready("b0", true), false),
    ] {
        let knowledge = idle(Past::default(), "b1", swapped(2, 1), node);
        assert_eq!(knowledge.past.last_booted.is_some(), expected);
    }
}

#[test]
fn a_rollback_is_noticed_even_if_the_node_is_not_ready() {
    let before = idle(Past::default(), "b1", swapped(2, 1), ready("b1", true)).past;
    let after = idle(before.clone(), "b2", swapped(1, 2), ready("b2", false));
    assert!(after.past.outside_boot.is_some_and(|outside| outside.is_rollback));
    assert_eq!(after.past.failed_digests, [digest(2)]);
    let unreadable = Os::Unusable {
        reason: Reason::StatusFailed,
        message: String::new(),
    };
    for (os, node) in [(unreadable, ready("b2", true)), (swapped(1, 2), ClusterNode::Gone)] {
        let silent = idle(before.clone(), "b2", os, node);
        assert_eq!(
            (silent.past.outside_boot, &silent.past.last_booted),
            (None, &before.last_booted)
        );
    }
}

#[test]
fn a_boot_under_a_berth_is_expected() {
    let mut before = idle(Past::default(), "b1", swapped(1, 7), ready("b1", true)).past;
    before.target_deployed = Some(false);
    let mut after = Knowledge::new("n1".into(), "b2".into(), before, &at(0));
    ask_for(&mut after, image());
    after.after(Event::Berths(vec![committed()]), &at(1));
    after.after(look(swapped(2, 1)), &at(2));
    after.after(Event::NodeRead(ready("b2", true)), &at(3));
    // The pool desires another image before the agent gives the berth back.
    let mut other = image();
    other.digest = digest(3);
    ask_for(&mut after, other);
    after.after(Event::Berths(vec![]), &at(4));
    assert_eq!(after.past.outside_boot, None);
    assert!(after.past.failed_digests.is_empty());
}

#[test]
fn a_turn_names_the_fall_back_of_its_boot() {
    let mut before = idle(Past::default(), "b1", swapped(1, 7), ready("b1", true)).past;
    before.target_deployed = Some(false);
    for (booted, expected) in [((1, 2), Some("FellBack")), ((2, 1), None)] {
        let mut after = Knowledge::new("n1".into(), "b2".into(), before.clone(), &at(0));
        ask_for(&mut after, image());
        after.after(Event::Berths(vec![committed()]), &at(1));
        after.after(look(swapped(booted.0, booted.1)), &at(2));
        let failed = committed().releasing(Outcome::Failed, "b2".into()).unwrap();
        after.after(Event::Berths(vec![failed]), &at(3));
        assert_eq!(after.past.turns[0].reason.as_deref(), expected, "{booted:?}");
    }
}

#[test]
fn an_excluded_or_released_node_is_its_admins() {
    let before = idle(Past::default(), "b1", swapped(2, 1), ready("b1", true));
    let mut excluded = before.clone();
    let ClusterNode::Is(mut node) = ready("b1", true) else {
        unreachable!()
    };
    node.excluded = true;
    excluded.after(Event::NodeRead(ClusterNode::Is(node)), &at(5));
    assert_eq!(excluded.past.last_booted, None);
    let mut released = before;
    let gone = Event::Published {
        desired: Desired::Release,
        uid: Some("u1".into()),
        status: None,
        is_unread: false,
    };
    released.after(gone, &at(5));
    assert_eq!(released.past.last_booted, None);
}
