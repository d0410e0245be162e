//! A node whose credentials an attacker uses: its own writes need not follow the protocol, but may concern only itself.
//! All else is judged.

use super::*;

const TOKEN: &str = "system:serviceaccount:berth-system:berth-agent";

/// Makes n1 a liar that writes berths with its agent's token.
fn by_liar(world: &mut World) -> Vec<String> {
    world.liars = vec!["n1".to_owned()];
    for record in world
        .audit
        .iter_mut()
        .filter(|r| r.resource == "leases" && r.user.ends_with(":n1"))
    {
        record.user = TOKEN.to_owned();
        record.node_claim = Some("n1".to_owned());
    }
    world.judged()
}

#[test]
fn a_liars_own_moves_are_not_judged() {
    let mut world = World::committed();
    world.next(AGENT, |b| b.releasing(Outcome::Revoked, BootId::from("b1")).unwrap());
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

/// Adds a write that n1 was allowed, with its agent's token or its kubelet's certificate.
fn written_by(with_token: bool, verb: &str, target: &str, name: &str) -> World {
    let mut world = World {
        liars: vec!["n1".to_owned()],
        ..World::default()
    };
    world
        .write(
            ADMIN,
            "create",
            "pods/binding",
            "own",
            json!({ "target": { "name": "n1" } }),
            json!({}),
        )
        .write(
            ADMIN,
            "create",
            "pods/binding",
            "other",
            json!({ "target": { "name": "n2" } }),
            json!({}),
        )
        .write(
            AGENT,
            verb,
            target,
            name,
            json!({}),
            json!({ "metadata": { "name": name } }),
        );
    if with_token {
        let last = world.audit.last_mut().unwrap();
        last.user = TOKEN.to_owned();
        last.node_claim = Some("n1".to_owned());
    }
    world
}

#[test]
fn a_liar_writes_its_own_objects_only() {
    for (with_token, verb, target, own, other) in [
        (true, "patch", "bootcnodes/status", "n1", "n2"),
        (false, "patch", "nodes/status", "n1", "n2"),
        (false, "patch", "nodes", "n1", "n2"),
        (false, "create", "pods/eviction", "own", "other"),
        (false, "delete", "pods", "own", "other"),
        (false, "patch", "pods/status", "own", "other"),
    ] {
        assert_eq!(written_by(with_token, verb, target, own).judged(), Vec::<String>::new());
        let what = format!("n1 was allowed to {verb} {target} {other}");
        written_by(with_token, verb, target, other).blamed("I6", &what);
    }
    for (with_token, verb, target, name) in [
        // The agent's token has none of the kubelet's rights.
        (true, "create", "pods/eviction", "own"),
        (true, "patch", "nodes", "n1"),
        (true, "patch", "bootcnodes", "n1"),
        (true, "delete", "leases", "workers-0"),
        (false, "delete", "nodes", "n1"),
        (false, "patch", "pods", "own"),
        (false, "deletecollection", "pods", ""),
        (false, "patch", "bootcnodepools", "workers"),
    ] {
        written_by(with_token, verb, target, name).blamed("I6", &format!("n1 was allowed to {verb} {target}"));
    }
    let mut world = written_by(false, "create", "serviceaccounts/token", "berth-controller");
    world.audit.last_mut().unwrap().namespace = "berth-system".to_owned();
    world.blamed("I6", "n1 was allowed to create serviceaccounts/token");
    // The controller's token names the node that the controller runs on.
    let mut world = written_by(true, "patch", "bootcnodes", "n2");
    world.audit.last_mut().unwrap().user = "system:serviceaccount:berth-system:berth-controller".to_owned();
    assert_eq!(world.judged(), Vec::<String>::new());
}

#[test]
fn a_liar_writes_its_own_berths_only() {
    let mut world = World::given_back();
    world.next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap());
    world.next(AGENT, |b| {
        let (node, uid) = (NodeName::from("n1"), NodeUid::from("uid-n1"));
        new(b.index)
            .offered(offer("n1", 2))
            .unwrap()
            .taken(&node, &uid, None, BootId::from("b1"))
            .unwrap()
    });
    by_liar(&mut world);
    world.blamed(
        "I6",
        "a node may write only a berth that it held or was offered (offered:n2 -> n1 Taken",
    );
}

#[test]
fn no_berth_becomes_unreadable() {
    let mut world = World::taken();
    world.next(AGENT, Berth::clone);
    let lease = world.audit.last_mut().unwrap().response.as_mut().unwrap();
    lease["metadata"]["annotations"]["berth.dev/phase"] = json!("Nonsense");
    by_liar(&mut world);
    world.blamed("I6", "n1 stored an unreadable berth workers-0");
}

#[test]
fn a_liar_is_offered_one_berth_at_a_time() {
    let mut world = World::default();
    world.capacity(2).berth(CONTROLLER, new(1));
    world.offers().next(AGENT, take);
    world.capacity(2);
    world
        .berth(CONTROLLER, new(1))
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    by_liar(&mut world);
    world.blamed("I1", "workers-1 was opened for n1");
    world.blamed("I1", "while the node already had workers-0");
}

/// A pool of one berth with a member n2 that an admin has cordoned. A berth is offered to the liar n1.
fn offered_beside_a_cordon(statuses: &[Value], lag: i64) -> Vec<String> {
    let mut world = World {
        liars: vec!["n1".to_owned()],
        ..World::default()
    };
    world
        .capacity(1)
        .node(ADMIN, "create", "n2", false, false)
        .node(ADMIN, "patch", "n2", true, false)
        .member("n2", "workers")
        .node(ADMIN, "create", "n1", false, false)
        .up("b1", 1)
        .ready("b1")
        .berth(CONTROLLER, new(0));
    for status in statuses {
        let node = json!({ "metadata": { "name": "n1" }, "status": status });
        world
            .pass(20)
            .write(AGENT, "patch", "nodes/status", "n1", json!({}), node);
    }
    world.pass(20).next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    world.judged_with(SignedDuration::from_secs(lag))
}

#[test]
fn a_liar_that_says_not_ready_may_be_repaired() {
    fn ready(status: &str) -> Value {
        json!({ "conditions": [{ "type": "Ready", "status": status }] })
    }
    let time = json!({ "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "x" }] });
    for statuses in [vec![ready("False")], vec![ready("True"), json!({})], vec![time]] {
        assert_eq!(
            offered_beside_a_cordon(&statuses, 5),
            Vec::<String>::new(),
            "{statuses:?}"
        );
    }
    for statuses in [vec![], vec![ready("True")], vec![ready("False"), ready("True")]] {
        let said = offered_beside_a_cordon(&statuses, 5);
        assert!(said.len() == 1 && said[0].starts_with("I1b: "), "{statuses:?} {said:?}");
    }
    // The controller may not have seen the last status.
    let recently = offered_beside_a_cordon(&[ready("False"), ready("True")], 30);
    assert_eq!(recently, Vec::<String>::new());
}

#[test]
fn a_liar_may_hide_its_own_failure_only() {
    fn opened(hidden: bool) -> World {
        let mut world = World::taken();
        world.next(AGENT, |b| b.releasing(Outcome::Failed, BootId::from("b1")).unwrap());
        world.next(AGENT, |b| b.given_back().unwrap());
        if hidden {
            let lease = world.audit.last_mut().unwrap().response.as_mut().unwrap();
            let notes = lease["metadata"]["annotations"].as_object_mut().unwrap();
            notes.remove("berth.dev/last-node");
        }
        world.next(CONTROLLER, |b| new(b.index).offered(offer("n2", 2)).unwrap());
        by_liar(&mut world);
        world
    }
    assert_eq!(opened(true).judged(), Vec::<String>::new());
    opened(false).blamed("I8", "before the pool's status recorded the failure");
    let mut honest = opened(true);
    honest.liars.clear();
    honest.blamed("I8", "before the pool's status recorded the failure");
    honest.earlier_liars = vec![("n1".to_owned(), at(honest.now))];
    let said = honest.judged();
    assert!(!said.iter().any(|violation| violation.starts_with("I8")), "{said:?}");
    honest.earlier_liars = vec![("n1".to_owned(), at(0))];
    honest.blamed("I8", "before the pool's status recorded the failure");
}
