use super::*;

const LAG: SignedDuration = SignedDuration::from_secs(3);

/// Pool workers, with the Ready node n1, goes after pool infra. Pool infra has the node n2, which runs image 1 and is
/// to run image 2.
fn one_after_the_other() -> World {
    let mut world = World::default();
    world
        .up("b1", 1)
        .capacity(1)
        .node(ADMIN, "create", "n1", false, false)
        .ready("b1")
        .node(ADMIN, "create", "n2", false, false)
        .pool("workers", &["infra"])
        .pool("infra", &[])
        .wants("n2", "infra", 2)
        .of("n2", up("a1", 1))
        .of("n2", ready("a1"));
    world.now += 10;
    world.berth(CONTROLLER, new(0));
    world
}

fn opened(mut world: World) -> World {
    world.next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    world
}

fn judged(world: World) -> Vec<String> {
    let mut said = opened(world).judged_with(LAG);
    said.retain(|violation| violation.starts_with("Order"));
    said
}

fn up(boot: &str, n: u8) -> HostChange {
    HostChange::Up {
        boot_id: boot.to_owned(),
        digest: digest(n).to_string(),
        version: n.to_string(),
    }
}

fn ready(boot: &str) -> HostChange {
    HostChange::Ready {
        boot_id: boot.to_owned(),
    }
}

#[test]
fn a_pool_waits_for_earlier_pools() {
    let said = judged(one_after_the_other());
    assert!(
        said.len() == 1
            && said[0].starts_with("Order: workers-0 was opened for n1")
            && said[0].contains("n2 of pool infra"),
        "{said:#?}"
    );
    let mut world = one_after_the_other();
    world.of("n2", HostChange::Down).of("n2", up("a2", 2));
    assert_eq!(judged(world).len(), 1, "it is not Ready yet");
    let mut world = one_after_the_other();
    world
        .of("n2", HostChange::Down)
        .of("n2", up("a2", 2))
        .of("n2", ready("a2"));
    assert_eq!(judged(world), Vec::<String>::new());
}

#[test]
fn only_an_order_older_than_the_lag_counts() {
    type Change = fn(&mut World) -> &mut World;
    let quiet: [(&str, Change); 6] = [
        ("the order was taken away", |w| w.pool("workers", &[])),
        ("the order is new", |w| {
            w.pool("workers", &[]).pool("workers", &["infra"])
        }),
        ("the image is new", |w| w.wants("n2", "infra", 3)),
        ("its pool has no such member any more", |w| {
            w.wants("n2", "others", 2).pass(10)
        }),
        ("the member may have been moved", |w| {
            let labels = json!({ "metadata": { "name": "n2", "uid": "uid-n2", "labels": { "pool": "others" } } });
            w.write(ADMIN, "patch", "nodes", "n2", json!({}), labels)
        }),
        ("the Node is gone", |w| {
            let nothing = json!({ "metadata": {} });
            w.write(ADMIN, "delete", "nodes", "n2", json!({}), nothing).pass(10)
        }),
    ];
    for (why, change) in quiet {
        let mut world = one_after_the_other();
        change(&mut world);
        assert_eq!(judged(world), Vec::<String>::new(), "{why}");
    }
    let mut world = one_after_the_other();
    world.wants("n2", "infra", 3);
    world.now += 10;
    // The BootcNode is written again with an unchanged image, for example because its permit to pull has changed.
    world.wants("n2", "infra", 3).pool("workers", &["infra"]);
    assert_eq!(judged(world).len(), 1, "the image is older than the lag");
}

#[test]
fn an_unready_node_waits_for_no_pool() {
    let mut world = one_after_the_other();
    world.host(HostChange::Down).up("b1", 1);
    world.now += 10;
    assert_eq!(judged(world), Vec::<String>::new());
}
