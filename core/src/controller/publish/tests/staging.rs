//! Permits to pull: their number and order.

use berth_api::berth::Outcome;
use berth_api::node::Phase;

use super::*;

fn failing(n: u8, attempts: u32) -> Option<Failing> {
    Some(Failing {
        digest: Some(digest(n)),
        attempts,
    })
}

#[test]
fn so_many_stage_at_once() {
    let mut world = world(&["n1", "n2", "n3", "n4"], 2);
    world.step();
    assert_eq!(world.allowed(), ["n1", "n2"]);
    world.staged("n2", 1);
    world.step();
    assert_eq!(world.allowed(), ["n1", "n2", "n3"]);
    world.report("n1", |r| r.pull.failure = failing(1, 1));
    world.step();
    assert_eq!(
        world.allowed(),
        ["n2", "n3", "n4"],
        "a node that backs off passes its permit on"
    );
    world.report("n1", |r| r.pull.failure = None);
    assert!(world.step().is_empty(), "the node waits for the next permit");
}

#[test]
fn who_pulls_keeps_its_place() {
    let mut world = world(&["n1", "n2", "n3"], 1);
    world.step();
    world.report("n1", |r| {
        r.pull.pulling = true;
        r.pull.failure = failing(1, 3);
    });
    assert!(
        world.step().is_empty(),
        "a pulling node keeps its permit after a failed try"
    );
    world.report("n1", |r| r.phase = Some(Phase::Pending));
    assert!(world.step().is_empty(), "the phase does not matter");
    let mut down = node("n1");
    down.ready = false;
    world.nodes.insert("n1".into(), Entry::new(down));
    assert!(
        world.step().is_empty(),
        "a pulling node keeps its permit if its Node is not Ready"
    );
    world.terms.get_mut(&"a".into()).unwrap().unresolved = true;
    assert!(
        world.step().is_empty(),
        "a pulling node keeps its permit if the image is withdrawn"
    );
    world.terms.get_mut(&"a".into()).unwrap().unresolved = false;
    world.heard.remove(&"n1".into());
    world.step();
    assert_eq!(world.allowed(), ["n2"], "a silent node loses its permit");
    world.heard.insert("n1".into());
    world.report("n1", |_| {});
    world.step();
    assert_eq!(world.allowed(), ["n1"], "n1 still pulls, and n2 has not begun");
}

#[test]
fn no_node_begins_to_pull_while_paused() {
    let mut world = world(&["n1", "n2", "n3"], 2);
    world.step();
    assert_eq!(world.allowed(), ["n1", "n2"]);
    world.report("n1", |r| r.pull.pulling = true);
    world.fleet_paused = true;
    world.step();
    assert_eq!(world.allowed(), ["n1"], "a pulling node continues");
    world.fleet_paused = false;
    world.step();
    assert_eq!(world.allowed(), ["n1", "n2"]);
}

#[test]
fn nodes_that_fail_take_turns() {
    let mut world = world(&["n1", "n2", "n3"], 1);
    world.step();
    let mut turns = vec![];
    for _ in 0..9 {
        let name = world.allowed()[0].to_owned();
        assert_eq!(world.allowed().len(), 1);
        world.report(&name, |r| {
            let attempts = r.pull.failure.as_ref().map_or(0, |f| f.attempts);
            r.pull.failure = failing(1, attempts + 1);
        });
        turns.push(name);
        world.step();
    }
    for name in ["n1", "n2", "n3"] {
        assert_eq!(turns.iter().filter(|n| *n == name).count(), 3, "{turns:?}");
    }
    world.report("n2", |r| r.pull.failure = None);
    world.step();
    assert_eq!(world.allowed(), ["n2"], "a node without failures comes first");
}

#[test]
fn who_cannot_pull_has_no_leave() {
    type Change = fn(&mut World);
    let changes: [(&str, Change); 4] = [
        ("failed here", |w| w.report("n1", |r| r.images.failed = vec![digest(1)])),
        ("host unusable", |w| w.report("n1", |r| r.pull.blocked = true)),
        ("busy", |w| {
            drop(w.occupied.insert("uid-n1".into(), ["a".into()].into()))
        }),
        ("silent", |w| w.heard.retain(|n| n.as_str() != "n1")),
    ];
    for (what, change) in changes {
        let mut world = world(&["n1", "n2"], 1);
        world.step();
        assert_eq!(world.allowed(), ["n1"]);
        change(&mut world);
        world.step();
        assert_eq!(world.allowed(), ["n2"], "{what}");
        world.staged("n2", 1);
        world.step();
        assert_eq!(world.allowed(), ["n2"], "{what}: not even when there is room");
    }
}

#[test]
fn a_node_not_ready_pulls_last() {
    let mut world = world(&["n1", "n2"], 1);
    let mut broken = node("n1");
    broken.ready = false;
    world.nodes.insert("n1".into(), Entry::new(broken));
    world.step();
    assert_eq!(world.allowed(), ["n2"]);
    world.staged("n2", 1);
    world.step();
    assert_eq!(
        world.allowed(),
        ["n1", "n2"],
        "an image that repairs the node must reach it"
    );
}

#[test]
fn a_holder_that_cannot_prove_its_boot_pulls_first() {
    let mut world = world(&["n1", "n2"], 1);
    world.commit("n2");
    world.terms.get_mut(&"a".into()).unwrap().target = Some(target(3));
    world.step();
    for (boot, first) in [("boot-1", "n1"), ("boot-2", "n2")] {
        world.report_of_boot("n2", boot);
        world.step();
        assert_eq!(world.allowed(), [first], "{boot}");
    }
}

#[test]
fn a_stuck_holder_pulls_as_well() {
    // n2 holds a berth and runs its earlier image. Now another image is published.
    let mut world = world(&["n1", "n2"], 1);
    world.commit("n2");
    world.holdings.get_mut(&"uid-n2".into()).unwrap().phase = HoldPhase::Taken;
    world.step();
    world.terms.get_mut(&"a".into()).unwrap().target = Some(target(3));
    world.report_of_boot("n2", "boot-1");
    world.step();
    assert_eq!(
        world.allowed(),
        ["n1"],
        "a holder whose boot was not changed gives its berth back first"
    );
    world.change("n2", |node| node.ready = false);
    world.step();
    assert_eq!(world.allowed(), ["n2"]);
    world.holdings.get_mut(&"uid-n2".into()).unwrap().phase = HoldPhase::Releasing(Outcome::NotApplied);
    world.step();
    assert_eq!(world.allowed(), ["n1"], "a holder that is giving back finishes first");
}

#[test]
fn leave_that_is_not_used_goes_round() {
    let mut world = world(&["n1", "n2", "n3"], 1);
    let mut turns = BTreeSet::new();
    let start = Moment::default();
    for minute in 0..80 {
        world.step();
        assert_eq!(world.allowed().len(), 1);
        turns.insert(world.allowed()[0].to_owned());
        world
            .permits
            .see(&world.bootc_nodes, start + Duration::from_secs(60 * minute));
    }
    assert_eq!(turns.len(), 3);
}

#[test]
fn a_stuck_holder_passes_unused_permits_on() {
    let mut world = world(&["n1", "n2", "n3"], 1);
    world.commit("n2");
    world.step();
    // n2 never pulls, for example because its host refuses the image.
    world.report_of_boot("n2", "boot-2");
    let mut turns = BTreeSet::new();
    for minute in 0..80 {
        world.step();
        turns.insert(world.allowed()[0].to_owned());
        world
            .permits
            .see(&world.bootc_nodes, Moment::default() + Duration::from_secs(60 * minute));
    }
    assert_eq!(turns.len(), 3, "{turns:?}");
}

#[test]
fn no_node_begins_a_withdrawn_image() {
    let mut world = world(&["n1", "n2", "n3"], 2);
    world.step();
    world.staged("n3", 1);
    world.step();
    world.terms.get_mut(&"a".into()).unwrap().unresolved = true;
    world.step();
    assert_eq!(world.allowed(), ["n3"], "a node keeps its permit");
    assert_eq!(
        world.spec("n1").image.as_ref().unwrap().digest,
        digest(1),
        "nothing is unstaged"
    );
}

#[test]
fn another_digest_starts_over() {
    let mut world = world(&["n1", "n2", "n3"], 1);
    world.step();
    world.staged("n1", 1);
    world.step();
    assert_eq!(world.allowed(), ["n1", "n2"]);
    world.terms.get_mut(&"a".into()).unwrap().target = Some(target(3));
    world.report("n3", |r| r.images.booted = Some(digest(3)));
    let writes = world.step();
    assert_eq!(writes.len(), 3, "published to all at once");
    assert_eq!(world.allowed(), ["n1", "n3"], "a node with the image needs no permit");
}

#[test]
fn a_dead_node_keeps_no_place() {
    let mut world = world(&["n1", "n2"], 1);
    world.step();
    assert_eq!(world.allowed(), ["n1"]);
    world.heard.remove(&"n1".into());
    world.step();
    assert_eq!(world.allowed(), ["n2"]);
}
