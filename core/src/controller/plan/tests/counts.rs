//! Counts of a plan, and the nodes that use up capacity.

use berth_api::berth::ClosedReason;

use super::*;

#[test]
fn a_smaller_capacity_waits_for_offers() {
    for (k, second, total) in [
        // No berth is offered, so the capacity is lowered at once.
        (1, taken(1, "n2"), 1),
        // The lowered capacity has room for the open offer.
        (2, offered(1, "n2"), 2),
        (1, offered(1, "n2"), 3),
    ] {
        let berths = vec![seen(taken(0, "n1")), seen(second)];
        let mut f = facts(k, names(&["n1", "n2", "n3"]), berths);
        f.published = 3;
        assert_eq!(now(&f).counts.total, total);
    }
}

#[test]
fn each_berth_counts_as_what_it_is() {
    // Number of held, offered and closed berths.
    let rows = [
        (seen(closed(0)), [0, 0, 1]),
        (refused(closed(0)), [1, 0, 0]),
        (seen(offered(0, "n1")), [0, 1, 0]),
        (refused(offered(0, "n1")), [0, 1, 0]),
        (seen(taken(0, "n1")), [1, 0, 0]),
        (seen(committed(0, "n1")), [1, 0, 0]),
        (unreadable(0), [1, 0, 0]),
    ];
    for (berth, expected) in rows {
        let counts = now(&facts(1, names(&["n1"]), vec![berth.clone()])).counts;
        assert_eq!([counts.held, counts.offered, counts.closed], expected, "{berth:?}");
    }
}

#[test]
fn a_node_has_one_berth() {
    let why = WriteReason::Withdrawn("the node has another berth", Origin::Node);
    for first in [
        seen(taken(0, "n1")),
        seen(committed(0, "n1")),
        seen(offered(0, "n1")),
        refused(offered(0, "n1")),
    ] {
        let berths = vec![first.clone(), seen(offered(1, "n1")), seen(closed(2))];
        let plan = now(&facts(3, names(&["n1"]), berths));
        let [BerthWrite::Update { lease, why: is, .. }] = plan.writes.as_slice() else {
            panic!("{first:?}: {:?}", plan.writes);
        };
        assert_eq!((lease.as_str(), *is), ("p-1", why), "{first:?}");
    }
}

#[test]
fn a_plan_knows_its_writes_and_who_waits() {
    let mut f = facts(2, names(&["n1"]), vec![seen(closed(0)), seen(closed(1))]);
    f.members
        .push(changed(member("n2"), |n2| n2.agent.booted = Some(digest(2))));
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Offer n1"]);
    assert!(plan.writes_to("p-0") && !plan.writes_to("p-1"));
    assert!(!plan.has_waiting(), "n1 goes, and n2 runs the target");
    f.members[1].agent.booted = Some(digest(1));
    f.members[1].agent.heard = false;
    assert!(now(&f).has_waiting());
    let others = [
        facts(1, names(&["n1"]), vec![]),
        facts(0, vec![], vec![seen(closed(0))]),
        facts(0, vec![], vec![seen(closed(0).closed(ClosedReason::Shrunk).unwrap())]),
    ];
    for (f, expected) in others.iter().zip(["p-0 Create", "p-0 Shrunk", "p-0 Delete"]) {
        let plan = now(f);
        assert_eq!(words(&plan), [expected]);
        assert!(plan.writes_to("p-0") && !plan.writes[0].is_offer());
    }
}
