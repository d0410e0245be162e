//! A node whose credentials an attacker uses: its own writes and reboots are not judged, all else is.

use super::*;

/// Makes n1 a liar whose last write carries its agent's claim.
fn by_liar(world: &mut World) -> Vec<String> {
    world.liars = vec!["n1".to_owned()];
    for record in world
        .audit
        .iter_mut()
        .filter(|r| r.resource == "leases" && r.user.ends_with(":n1"))
    {
        record.node_claim = Some("n1".to_owned());
    }
    world.judged()
}

#[test]
fn a_liars_own_moves_are_not_judged() {
    let mut world = World::committed();
    world.next(AGENT, |b| b.releasing(Outcome::Revoked, BootId::from("b9")).unwrap());
    world.blamed("I5", "before the reboot");
    assert_eq!(by_liar(&mut world), Vec::<String>::new());
}

#[test]
fn a_liars_reboots_and_cordons_are_not_judged() {
    let mut world = World::offered();
    world.host(HostChange::Down).up("b2", 3).ready("b2");
    world.node(AGENT, "patch", "n1", true, true);
    world.blamed("I2", "without a committed berth");
    world.blamed("I1", "without a berth");
    assert_eq!(by_liar(&mut world), Vec::<String>::new());
}

#[test]
fn a_lie_of_the_kubelet_under_the_agents_name_is_not_judged() {
    let mut world = World::taken();
    let last = world.audit.last().unwrap().clone();
    world.audit.push(Record {
        code: 403,
        response: None,
        refused_by_own_rules: true,
        ..last
    });
    world.blamed("Policy", "was refused");
    assert_eq!(by_liar(&mut world), Vec::<String>::new());
}

#[test]
fn the_controllers_writes_about_a_liar_are_judged() {
    let mut world = World::committed();
    world.next(CONTROLLER, |b| b.ended(ClosedReason::Gone).unwrap());
    by_liar(&mut world);
    world.blamed("I5", "although its Node was not deleted");
}

#[test]
fn a_lying_holder_uses_up_capacity() {
    let mut world = World::taken();
    world.node(ADMIN, "create", "n2", false, false);
    world.berth(CONTROLLER, new(1));
    world.next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap());
    by_liar(&mut world);
    world.blamed("I1b", "1 of 1 berths were held or offered");
}

#[test]
fn a_time_that_cannot_be_parsed_hides_no_write() {
    let mut world = World::committed();
    world.next(CONTROLLER, |b| b.ended(ClosedReason::Gone).unwrap());
    for record in world.audit.iter_mut().filter(|r| r.resource == "leases") {
        if let Some(lease) = &mut record.response {
            lease["spec"]["renewTime"] = json!("9999-12-31T23:59:59.000000Z");
        }
    }
    world.blamed("I5", "although its Node was not deleted");
}
