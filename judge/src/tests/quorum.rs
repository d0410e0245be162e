use super::*;

/// The control plane nodes n1 and n2 and the worker n3, in two pools. n1 has a berth of pool workers.
fn servers() -> World {
    let mut world = World::default();
    for (name, labels) in [
        ("n1", json!({ "node-role.kubernetes.io/control-plane": "" })),
        ("n2", json!({ "node-role.kubernetes.io/control-plane": "" })),
        ("n3", json!({})),
    ] {
        let object = json!({ "metadata": { "name": name, "uid": format!("uid-{name}"), "labels": labels } });
        world.write(ADMIN, "create", "nodes", name, json!({}), object);
    }
    world.pass(10).berth(CONTROLLER, new(0));
    world.next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    world
}

/// Opens a berth of another pool.
fn then_opened(mut world: World, node: &str) -> Vec<String> {
    world
        .pass(10)
        .berth(CONTROLLER, Berth::new(PoolName::from("spare"), 0, 7))
        .next(CONTROLLER, |b| b.offered(offer(node, 2)).unwrap());
    let mut said = world.judged_with(SignedDuration::from_secs(3));
    said.retain(|violation| violation.starts_with("I11"));
    said
}

#[test]
fn control_plane_nodes_have_berths_one_at_a_time() {
    let said = then_opened(servers(), "n2");
    let [one] = said.as_slice() else { panic!("{said:?}") };
    assert!(
        one.starts_with("I11: spare-0 was opened for n2")
            && one.ends_with("another control plane node, n1, had workers-0"),
        "{one}"
    );
    assert_eq!(then_opened(servers(), "n3"), Vec::<String>::new());
    let mut world = servers();
    world.next(CONTROLLER, |b| b.closed(ClosedReason::Withdrawn).unwrap());
    assert_eq!(then_opened(world, "n2"), Vec::<String>::new());
    // The node became a control plane node after its offer.
    let mut world = servers();
    for record in world.audit.iter_mut().filter(|r| r.name == "n1") {
        record.response.as_mut().unwrap()["metadata"]["labels"] = json!({});
    }
    assert_eq!(then_opened(world, "n2"), Vec::<String>::new());
}
