use super::*;

#[test]
fn the_published_capacity_applies() {
    // A second berth is opened while the first is held, but the capacity is one.
    let mut world = World::taken();
    world
        .berth(CONTROLLER, new(1))
        .next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap())
        .blamed("I1b", "1 of 1 berths were held");
    // The berth was already open when the capacity shrank.
    let mut world = World::default();
    world
        .capacity(2)
        .up("b1", 1)
        .berth(CONTROLLER, new(1))
        .next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap());
    let other = world.berth.take().unwrap();
    world
        .berth(CONTROLLER, new(0))
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap())
        .next(AGENT, take);
    assert_eq!(world.judged(), Vec::<String>::new());
    world.capacity(1);
    let taken = other
        .taken(&NodeName::from("n2"), &NodeUid::from("uid-n2"), None, BootId::from("x"))
        .unwrap();
    world.berth(AGENT, taken).blamed("I1c", "while 1 of 1 berths were held");
}

#[test]
fn a_node_holds_one_berth_at_a_time() {
    let mut world = World::taken();
    let other = Berth::new(PoolName::from("spare"), 0, 7);
    world
        .berth(CONTROLLER, other)
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    world.next(AGENT, take).blamed("I1", "already held workers-0");
    // A node that has given its berth back may take one in another pool.
    let mut world = World::given_back();
    world
        .ready("b2")
        .berth(CONTROLLER, Berth::new(PoolName::from("spare"), 0, 7));
    world.next(CONTROLLER, |b| b.offered(offer("n1", 3)).unwrap());
    let (node, uid) = (NodeName::from("n1"), NodeUid::from("uid-n1"));
    world.next(AGENT, |b| {
        b.taken(&node, &uid, Some(digest(2)), BootId::from("b2")).unwrap()
    });
    assert_eq!(world.judged(), Vec::<String>::new());
}

#[test]
fn nodes_cordoned_by_others_use_capacity() {
    let mut world = World::default();
    world
        .capacity(1)
        .node(ADMIN, "create", "n2", false, false)
        .node(ADMIN, "patch", "n2", true, false);
    let member = json!({ "metadata": { "name": "n2" }, "spec": { "poolName": "workers", "nodeUID": "uid-n2" } });
    world.write(CONTROLLER, "create", "bootcnodes", "n2", json!({}), member);
    world.now += 5;
    world.berth(CONTROLLER, new(0));
    // A member of another pool does not count in this pool.
    let mut other = world.clone();
    other
        .member("n2", "others")
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    assert_eq!(other.judged(), Vec::<String>::new());
    world.member("n2", "workers");
    let mut same = world.clone();
    world
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap())
        .blamed("I1b", "berths and cordoned nodes");
    // The offer is for a node with the mark of Berth's cordon, which a liar may have written: Berth counts it as unavailable.
    let mut marked = same.clone();
    marked
        .node("system:node:n1", "patch", "n1", false, true)
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    assert_eq!(marked.judged(), Vec::<String>::new());
    // The offer is for the cordoned node itself, to repair it.
    same.next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap());
    assert_eq!(same.judged(), Vec::<String>::new());
}

#[test]
fn a_new_node_may_count_as_unavailable() {
    let mut world = World::default();
    world
        .capacity(1)
        .node(ADMIN, "create", "n2", true, false)
        .member("n2", "workers")
        .berth(CONTROLLER, new(0));
    world.now += 5;
    world.up("a", 1).node("system:node:n1", "create", "n1", false, false);
    fn judged(world: &World, ready: bool) -> World {
        let mut world = world.clone();
        if ready {
            world.ready("a");
        }
        world.now += 5;
        world.next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
        world
    }
    assert_eq!(judged(&world, false).judged(), Vec::<String>::new());
    judged(&world, true).blamed("I1b", "berths and cordoned nodes");
}

#[test]
fn the_pools_of_a_fleet_share_its_limit() {
    fn second(fleet: Option<usize>) -> World {
        let mut world = World::taken();
        world.fleet = fleet;
        let spare = Berth::new(PoolName::from("spare"), 0, 7);
        world
            .berth(CONTROLLER, spare)
            .next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap());
        world
    }
    assert_eq!(second(None).judged(), Vec::<String>::new());
    assert_eq!(second(Some(2)).judged(), Vec::<String>::new());
    second(Some(1)).blamed("I1b", "1 of the fleet's limit of 1");
    // A node of another pool that an admin has cordoned counts too.
    fn cordoned(offered: &str) -> World {
        let mut world = World {
            fleet: Some(1),
            ..World::default()
        };
        world
            .capacity(1)
            .node(ADMIN, "create", "n2", false, false)
            .node(ADMIN, "patch", "n2", true, false)
            .member("n2", "spare");
        world.now += 5;
        world
            .berth(CONTROLLER, new(0))
            .next(CONTROLLER, |b| b.offered(offer(offered, 2)).unwrap());
        world
    }
    cordoned("n1").blamed("I1b", "of the fleet's limit of 1");
    assert_eq!(cordoned("n2").judged(), Vec::<String>::new());
}

#[test]
fn an_earlier_cordon_excuses_no_offer() {
    fn offered(since: i64) -> World {
        let mut world = World::default();
        world
            .capacity(1)
            .member("n2", "workers")
            .berth(CONTROLLER, new(0))
            .node(ADMIN, "patch", "n1", true, false)
            // The mark of Berth's cordon counts, too.
            .node(ADMIN, "patch", "n2", false, true);
        world.now += 60;
        world.node(ADMIN, "patch", "n1", false, false);
        world.now += since;
        world.next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
        world
    }
    let said = offered(0).judged_with(SignedDuration::from_secs(10));
    assert_eq!(
        said,
        Vec::<String>::new(),
        "Berth may not know yet that n1 is available"
    );
    offered(30).blamed("I1b", "berths and cordoned nodes");
}
