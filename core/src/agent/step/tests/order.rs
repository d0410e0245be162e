use super::*;

#[test]
fn the_node_is_read_before_anything_begins() {
    let mut facts = facts();
    facts.cluster_node = ClusterNode::Unread;
    assert_eq!(step(&facts), Step::ReadNode);
}

#[test]
fn a_turn_is_finished_also_for_another_pool() {
    let mut moved = with(&taken());
    let stays = step(&moved);
    publish(&mut moved, |member| member.pool = PoolName::from("spare"));
    assert_eq!(stays, Step::Drain);
    assert_eq!(step(&moved), stays);
}

#[test]
fn a_drain_waits_until_its_next_pass() {
    let pause = Duration::from_secs(5);
    for (next_pass, expected) in [
        (None, Step::Drain),
        (Some(pause), Step::Wait(WaitReason::Draining, Some(pause))),
        (Some(Duration::ZERO), Step::Drain),
    ] {
        let mut facts = with(&taken());
        facts.drain.next_pass = next_pass;
        assert_eq!(step(&facts), expected, "{next_pass:?}");
    }
}

/// The berth licenses a reboot into image 3, but image 3 is no longer staged.
#[test]
fn nothing_is_staged_for_a_reboot_that_is_inhibited() {
    let mut facts = stuck(&relicensed(), 2);
    os(&mut facts, 2, None);
    assert_eq!(step(&facts), pull(3));
    facts.host.inhibitors = vec!["backup: running".into()];
    assert_eq!(step(&facts), Step::Wait(WaitReason::Inhibited, Some(LOOK_INTERVAL_MAX)));
    os(&mut facts, 1, None);
    facts.past.unproven_boot = Some(BootId::from("b2"));
    ready(&mut facts, true);
    let (outcome, why) = release(&facts);
    assert!(
        outcome == Outcome::RebootBlocked && why.ends_with("backup: running"),
        "{outcome:?}: {why}"
    );
}

/// An earlier write of a cordon may still be in flight. If the agent writes the Node again, the API server rejects the
/// earlier write.
#[test]
fn a_berth_is_closed_after_the_node_is_restored() {
    let releasing = taken().releasing(Outcome::Revoked, BootId::from("b1")).unwrap();
    let restore = Step::Restore(releasing.clone());
    for (cordon, restored, expected) in [
        (true, false, restore.clone()),
        (false, false, restore.clone()),
        (true, true, restore),
        (false, true, Step::GiveBack(releasing.clone())),
    ] {
        let mut facts = with(&releasing);
        facts.restored = restored;
        if !cordon {
            facts.cluster_node = ClusterNode::Is(node());
        }
        assert_eq!(step(&facts), expected, "cordon: {cordon}, restored: {restored}");
    }
}
