use berth_api::berth::Outcome;

use super::*;
use crate::agent::lifecycle::{NOTHING, Wanted};
use crate::agent::maintenance::wanted;

const PLANNED: Wanted = [true, false, false, false];
const DRAINING: Wanted = [false, true, false, true];
const DOWN: Wanted = [false, false, true, true];
/// Conditions during a turn without a drain, or after a reboot has ended the drain.
const WORK: Wanted = [false, false, false, true];

fn uncordoned(berth: &Berth) -> AgentFacts {
    AgentFacts {
        cluster_node: ClusterNode::Is(node()),
        ..with(berth)
    }
}

fn without_drain(facts: &mut AgentFacts) {
    let mut member = member(2);
    member.drain.enabled = Some(false);
    facts.desired = Desired::Member(Box::new(member));
}

fn excluded(facts: &mut AgentFacts) {
    node_of(facts, |node| node.excluded = true);
}

fn of_another_uid(facts: &mut AgentFacts) {
    node_of(facts, |node| node.uid = "u9".into());
}

fn uncordoned_by_somebody(facts: &mut AgentFacts) {
    node_of(facts, |node| node.unschedulable = false);
}

#[test]
fn a_turn_is_shown_from_cordon_to_restore() {
    let releasing = taken().releasing(Outcome::Revoked, BootId::from("b1")).unwrap();
    for (what, facts, expected) in [
        ("staged, and waiting", facts(), Some(PLANNED)),
        ("nothing staged", change(facts(), |f| os(f, 1, None)), Some(NOTHING)),
        ("updated", change(facts(), |f| os(f, 2, None)), Some(NOTHING)),
        ("excluded", change(uncordoned(&taken()), excluded), Some(NOTHING)),
        (
            "released",
            change(facts(), |f| f.desired = Desired::Release),
            Some(NOTHING),
        ),
        ("taken, not cordoned yet", uncordoned(&taken()), Some(PLANNED)),
        ("draining", with(&taken()), Some(DRAINING)),
        ("drained", change(with(&taken()), |f| f.drain.done = true), Some(DOWN)),
        ("committed", with(&committed()), Some(DOWN)),
        ("rebooted", rebooted(&committed(), 2), Some(DOWN)),
        ("no drain", change(with(&taken()), without_drain), Some(WORK)),
        (
            "no drain, committed",
            change(with(&committed()), without_drain),
            Some(WORK),
        ),
        // `None`: the state is unknown or about to change.
        (
            "uncordoned meanwhile",
            change(with(&taken()), uncordoned_by_somebody),
            None,
        ),
        ("releasing", with(&releasing), None),
        ("restored, to be tried again", uncordoned(&releasing), Some(PLANNED)),
        (
            "a cordon without a berth",
            change(facts(), |f| f.cluster_node = cordoned()),
            None,
        ),
        (
            "a boot in the drain",
            change(with(&taken()), |f| f.host.boot_id = BootId::from("b9")),
            Some(WORK),
        ),
        (
            "another Node of this name",
            change(with(&taken()), of_another_uid),
            None,
        ),
        (
            "the Node is not read",
            change(with(&taken()), |f| f.cluster_node = ClusterNode::Unread),
            None,
        ),
    ] {
        assert_eq!(wanted(&facts).map(|(wanted, _)| wanted), expected, "{what}");
    }
    let drains = with(&taken());
    let (_, berth) = wanted(&drains).unwrap();
    assert_eq!(berth.map(Berth::name), Some(taken().name()));
}
