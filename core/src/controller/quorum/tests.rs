//! Unit tests: which control plane nodes may go down.

use std::time::Duration;

use berth_api::BootId;
use berth_api::berth::{Berth, lease};
use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::controller::plan::tests::{closed, committed, facts, member, offered, seen, taken, uid};
use crate::controller::plan::{BerthWrite, BlockReason, Plan};
use crate::controller::servers::Asked;

const LABEL: &str = "node-role.kubernetes.io/control-plane";
pub(super) const NOW: Duration = Duration::from_secs(3600);

pub(super) fn node(name: &str, address: &str, labels: &[&str]) -> NodeView {
    let labels: BTreeMap<_, _> = labels.iter().map(|l| ((*l).to_owned(), String::new())).collect();
    let object = json!({
        "metadata": { "name": name, "uid": uid(name), "labels": labels },
        "status": {
            "conditions": [{ "type": "Ready", "status": "True" }],
            "addresses": [
                { "type": "Hostname", "address": name }, { "type": "InternalIP", "address": address },
            ],
        },
    });
    NodeView::of(&serde_json::from_value(object).unwrap())
}

/// Returns `count` control plane nodes (c1 at 10.0.0.1 and so on) and a worker w.
fn cluster(count: usize) -> Vec<NodeView> {
    let mut nodes = vec![];
    for n in 1..=count {
        nodes.push(node(&format!("c{n}"), &format!("10.0.0.{n}"), &[LABEL]));
    }
    nodes.push(node("w", "10.0.0.99", &[]));
    nodes
}

pub(super) fn asked(state: State) -> Asked {
    let (long_ago, lately) = (Moment::default(), Moment::after(NOW));
    match state {
        State::Ready => Asked {
            since: long_ago,
            ready: Some(lately),
        },
        State::Unknown => Asked {
            since: lately,
            ready: None,
        },
        State::Away => Asked {
            since: long_ago,
            ready: None,
        },
    }
}

pub(super) fn answers(servers: &[(&str, State)]) -> Answers {
    let mut answers = Answers {
        listed: true,
        ..Answers::default()
    };
    for (address, state) in servers {
        let address = format!("{address}:6443").parse().unwrap();
        answers.servers.insert(address, asked(*state));
    }
    answers
}

/// Returns a server for each control plane node. Servers whose number is in `other` have the given state; the rest are
/// ready.
fn servers(count: usize, other: &[usize], state: State) -> Answers {
    let mut servers = answers(&[]);
    for n in 1..=count {
        let state = if other.contains(&n) { state } else { State::Ready };
        let address = format!("10.0.0.{n}:6443").parse().unwrap();
        servers.servers.insert(address, asked(state));
    }
    servers
}

pub(super) fn of(nodes: &[NodeView], answers: &Answers) -> ControlPlane {
    ControlPlane::of(nodes.iter(), answers, Moment::after(NOW))
}

fn withheld(control_plane: &ControlPlane, count: usize) -> Vec<Option<Cause>> {
    let verdicts = (1..=count).map(|n| control_plane.verdict(&uid(&format!("c{n}"))));
    verdicts.map(|verdict| verdict.unwrap().withhold).collect()
}

fn ask_back(control_plane: &ControlPlane, name: &str) -> Option<Cause> {
    control_plane.verdict(&uid(name)).unwrap().ask_back
}

const UNAVAILABLE: Option<Cause> = Some(Cause::OtherUnavailable);
const AT_WORK: Option<Cause> = Some(Cause::OtherAtWork);
const NO_MAJORITY: Option<Cause> = Some(Cause::NoMajority);
const NO_OTHER: Option<Cause> = Some(Cause::NoOtherServer);
const NOT_KNOWN: Option<Cause> = Some(Cause::NotKnown);

#[test]
fn only_the_node_that_is_down_goes() {
    for count in [1, 2, 3, 5] {
        let mut nodes = cluster(count);
        assert_eq!(
            withheld(&of(&nodes, &servers(count, &[], State::Ready)), count),
            vec![None; count]
        );
        nodes[0].ready = false;
        let mut expected = vec![UNAVAILABLE; count];
        expected[0] = None;
        let control_plane = of(&nodes, &servers(count, &[1], State::Away));
        assert_eq!(withheld(&control_plane, count), expected, "{count}");
        nodes[0].labels.remove(LABEL);
        let verdict = of(&nodes, &servers(count, &[], State::Ready)).verdict(&uid("w"));
        assert_eq!(verdict, None);
        let verdict = of(&nodes, &Answers::default()).verdict(&uid("w")).unwrap();
        assert_eq!(verdict.withhold, Some(Cause::NotListed), "any node may run a server");
        assert_eq!(
            ControlPlane::default().verdict(&uid("w")),
            None,
            "no node needs an update"
        );
    }
}

#[test]
fn two_broken_nodes_are_repaired_in_turn() {
    let mut nodes = cluster(3);
    (nodes[0].ready, nodes[1].ready) = (false, false);
    for (away, expected) in [
        (&[1, 2][..], [None, None, UNAVAILABLE]),
        (&[], [None, None, UNAVAILABLE]),
        // c2 still serves and is needed for the majority.
        (&[1], [None, NO_MAJORITY, UNAVAILABLE]),
    ] {
        let control_plane = of(&nodes, &servers(3, away, State::Away));
        assert_eq!(withheld(&control_plane, 3), expected, "{away:?}");
    }
    let mut control_plane = of(&nodes, &servers(3, &[1, 2], State::Away));
    control_plane.see(&offered(0, "c1"), true);
    assert_eq!(withheld(&control_plane, 3), [None, AT_WORK, AT_WORK]);
}

#[test]
fn a_foreign_cordon_announces_maintenance() {
    let mut nodes = cluster(3);
    nodes[0].unschedulable = true;
    let ready = servers(3, &[], State::Ready);
    assert_eq!(withheld(&of(&nodes, &ready), 3), [None, UNAVAILABLE, UNAVAILABLE]);
    let mut control_plane = of(&nodes, &ready);
    control_plane.see(&taken(0, "c2"), true);
    assert_eq!(ask_back(&control_plane, "c2"), None, "a cordoned node is not down");
    nodes.iter_mut().for_each(|node| node.unschedulable = true);
    assert_eq!(
        withheld(&of(&nodes, &ready), 3),
        [None; 3],
        "some admins cordon all control plane nodes permanently"
    );
    // Two of five nodes are down, and either may be updated: the other three are a majority of etcd, although one is
    // cordoned.
    let mut nodes = cluster(5);
    (nodes[0].ready, nodes[1].ready, nodes[2].unschedulable) = (false, false, true);
    let control_plane = of(&nodes, &servers(5, &[1, 2], State::Away));
    assert_eq!(withheld(&control_plane, 3), [None, None, UNAVAILABLE]);
    // The node has Berth's cordon but no berth: its agent is about to remove the cordon, or the host is going down.
    let mut nodes = cluster(3);
    (nodes[0].unschedulable, nodes[0].our_cordon) = (true, true);
    assert_eq!(withheld(&of(&nodes, &ready), 3), [None, UNAVAILABLE, UNAVAILABLE]);
}

#[test]
fn other_servers_must_answer_with_a_majority() {
    for (count, expected) in [
        (1, &[None][..]),
        // c1 may be updated, because c2 answers.
        (2, &[None, NO_OTHER]),
        (3, &[None, NO_MAJORITY, NO_MAJORITY]),
        (5, &[None; 5]),
    ] {
        let control_plane = of(&cluster(count), &servers(count, &[1], State::Away));
        assert_eq!(withheld(&control_plane, count), expected);
    }
    let control_plane = of(&cluster(2), &servers(2, &[1, 2], State::Away));
    assert_eq!(withheld(&control_plane, 2), [NO_OTHER, NO_OTHER]);
}

#[test]
fn unknown_states_withhold_but_revoke_nothing() {
    for count in [1, 2, 3, 5] {
        let mut control_plane = of(&cluster(count), &Answers::default());
        assert_eq!(withheld(&control_plane, count), vec![NOT_KNOWN; count]);
        control_plane.see(&taken(0, "c1"), true);
        let verdict = control_plane.verdict(&uid("c1")).unwrap();
        assert_eq!((verdict.ask_back, verdict.stay), (None, None), "{count}");
    }
    for (count, unknown, expected) in [
        (2, &[1][..], &[None, NOT_KNOWN][..]),
        (3, &[1], &[None, NOT_KNOWN, NOT_KNOWN]),
        // Enough other servers answer.
        (5, &[1], &[None; 5]),
        (3, &[1, 2, 3], &[NOT_KNOWN; 3]),
    ] {
        let mut control_plane = of(&cluster(count), &servers(count, unknown, State::Unknown));
        assert_eq!(withheld(&control_plane, count), expected);
        control_plane.see(&taken(0, "c2"), true);
        assert_eq!(ask_back(&control_plane, "c2"), None);
    }
    // A node that is not Ready may still serve and be needed for the majority.
    let mut nodes = cluster(3);
    nodes[0].ready = false;
    let mut list = servers(3, &[1], State::Unknown);
    list.servers
        .insert("10.0.0.2:6443".parse().unwrap(), asked(State::Away));
    let mut control_plane = of(&nodes, &list);
    assert_eq!(withheld(&control_plane, 3)[0], NOT_KNOWN);
    control_plane.see(&taken(0, "c1"), true);
    assert_eq!(ask_back(&control_plane, "c1"), None);
    // A cause that is certain is reported in place of an unknown state.
    let mut nodes = cluster(3);
    nodes[0].ready = false;
    let mut control_plane = of(&nodes, &Answers::default());
    assert_eq!(withheld(&control_plane, 3), [NOT_KNOWN, UNAVAILABLE, UNAVAILABLE]);
    control_plane.see(&taken(0, "c2"), true);
    assert_eq!(ask_back(&control_plane, "c2"), UNAVAILABLE);
}

#[test]
fn a_berth_of_any_pool_keeps_the_others() {
    let other = Berth::new("q".into(), 0, 7).offered(offered(0, "c1").offer().unwrap().clone());
    let other = other.unwrap();
    let held = other.taken(&"c1".into(), &uid("c1"), None, BootId::from("b")).unwrap();
    for berth in [other, held] {
        let mut control_plane = of(&cluster(3), &servers(3, &[], State::Ready));
        control_plane.see(&berth, true);
        assert_eq!(withheld(&control_plane, 3), [None, AT_WORK, AT_WORK]);
        assert_eq!(ask_back(&control_plane, "c1"), None, "a node at work continues");
    }
    let mut nodes = cluster(3);
    nodes[0].uid = "new".into();
    let mut control_plane = of(&nodes, &servers(3, &[], State::Ready));
    control_plane.see(&committed(0, "c1"), true);
    assert_eq!(
        control_plane.verdict(&uid("c2")).unwrap().withhold,
        AT_WORK,
        "the same machine under a new UID"
    );
}

#[test]
fn an_unreadable_lease_counts_for_its_label() {
    let mut lease = lease::create(&taken(0, "c1"), "ns", Duration::from_secs(1), Timestamp::UNIX_EPOCH);
    lease.metadata.annotations = None;
    let view = LeaseView::of(lease);
    assert!(view.berth.is_err(), "{view:?}");
    let control_plane = of(&cluster(3), &servers(3, &[], State::Ready)).with_leases(&[view], |_, _| true);
    assert_eq!(withheld(&control_plane, 3), [None, AT_WORK, AT_WORK]);
}

#[test]
fn a_berth_that_another_leader_may_still_open_withholds() {
    let mut control_plane = of(&cluster(3), &servers(3, &[], State::Ready));
    control_plane.see(&closed(0), true);
    assert_eq!(withheld(&control_plane, 3), [None; 3]);
    control_plane.see(&closed(1), false);
    assert_eq!(withheld(&control_plane, 3), [Some(Cause::Unfenced); 3]);
    control_plane.see(&taken(2, "c1"), false);
    assert_eq!(ask_back(&control_plane, "c1"), None);
}

#[test]
fn a_holder_is_asked_back_only_for_certain_causes() {
    let mut nodes = cluster(3);
    (nodes[0].unschedulable, nodes[0].our_cordon) = (true, true);
    let mut other_down = nodes.clone();
    other_down[1].ready = false;
    let mut both_down = other_down.clone();
    both_down[0].ready = false;
    for (nodes, answers, expected) in [
        (&nodes, servers(3, &[], State::Ready), None),
        (&nodes, servers(3, &[2], State::Unknown), None),
        (&nodes, servers(3, &[2], State::Away), NO_MAJORITY),
        (&cluster(2), servers(2, &[2], State::Away), NO_OTHER),
        (&other_down, servers(3, &[], State::Ready), UNAVAILABLE),
        // The holder may be stuck and may need the new image for its repair.
        (&both_down, servers(3, &[1, 2], State::Away), None),
    ] {
        let mut control_plane = of(nodes, &answers);
        control_plane.see(&taken(0, "c1"), true);
        assert_eq!(ask_back(&control_plane, "c1"), expected);
    }
}

#[test]
fn of_two_at_work_one_goes_on() {
    for (first, second, expected) in [
        (taken(0, "c1"), taken(1, "c2"), [None, AT_WORK]),
        (taken(0, "c1"), committed(1, "c2"), [AT_WORK, None]),
        (offered(0, "c1"), taken(1, "c2"), [AT_WORK, None]),
        (offered(0, "c1"), offered(1, "c2"), [None, AT_WORK]),
    ] {
        let mut control_plane = of(&cluster(3), &servers(3, &[], State::Ready));
        control_plane.see(&first, true);
        control_plane.see(&second, true);
        assert_eq!(["c1", "c2"].map(|name| ask_back(&control_plane, name)), expected);
    }
}

#[test]
fn two_stuck_nodes_do_not_block_each_other() {
    let mut nodes = cluster(3);
    (nodes[0].ready, nodes[1].ready) = (false, false);
    for (others, state, expected) in [
        ([1, 2], State::Away, [None, None]),
        ([2, 3], State::Away, [NO_OTHER, None]),
        ([2, 3], State::Unknown, [None, None]),
    ] {
        let mut control_plane = of(&nodes, &servers(3, &others, state));
        control_plane.see(&committed(0, "c1"), true);
        control_plane.see(&committed(1, "c2"), true);
        let stay = ["c1", "c2"].map(|name| control_plane.verdict(&uid(name)).unwrap().stay);
        assert_eq!(stay, expected, "{others:?} {state:?}");
    }
}

#[test]
fn a_worker_with_a_listed_server_counts() {
    let nodes = cluster(3);
    let mut answers = servers(3, &[], State::Ready);
    let worker = "10.0.0.99:6443".parse().unwrap();
    answers.servers.insert(worker, asked(State::Ready));
    let mut control_plane = of(&nodes, &answers);
    assert_eq!(control_plane.verdict(&uid("w")).unwrap().withhold, None);
    control_plane.see(&offered(0, "c1"), true);
    assert_eq!(control_plane.verdict(&uid("w")).unwrap().withhold, AT_WORK);
    // Three of four servers answer. Without the updated node only two are left, which are not a majority. A majority of
    // the etcd members would be left.
    answers.servers.insert(worker, asked(State::Away));
    assert_eq!(withheld(&of(&nodes, &answers), 3), [NO_MAJORITY; 3]);
}

#[test]
fn an_excluded_member_counts_for_majorities_only() {
    for (count, ready, unschedulable, away, expected) in [
        (3, true, false, &[][..], None),
        (3, false, false, &[1], NO_MAJORITY),
        (5, false, false, &[1], None),
        // The cordon shows that an admin is taking the excluded node down.
        (3, true, true, &[], NO_MAJORITY),
        (5, true, true, &[], None),
    ] {
        let mut nodes = cluster(count);
        nodes[0].labels.insert(keys::LABEL_EXCLUDE.to_owned(), String::new());
        (nodes[0].ready, nodes[0].unschedulable) = (ready, unschedulable);
        let control_plane = of(&nodes, &servers(count, away, State::Away));
        assert_eq!(withheld(&control_plane, count)[1], expected, "{count} {ready}");
    }
}

#[test]
fn an_unlisted_server_counts_for_its_node() {
    let left = answers(&[("10.0.0.1", State::Ready)]);
    let mut nodes = cluster(2);
    assert_eq!(withheld(&of(&nodes, &left), 2), [NO_OTHER, None]);
    nodes[1].labels.insert(keys::LABEL_EXCLUDE.to_owned(), String::new());
    assert_eq!(withheld(&of(&nodes, &left), 2), [None, None]);
}

#[test]
fn an_unlisted_server_counts_among_all() {
    let (c1, c2, worker) = ("10.0.0.1", "10.0.0.2", "10.0.0.99");
    let mut nodes = cluster(2);
    let only_worker = answers(&[(worker, State::Ready)]);
    assert_eq!(withheld(&of(&nodes, &only_worker), 2), [NO_MAJORITY; 2]);
    let two = answers(&[(c1, State::Ready), (worker, State::Ready)]);
    assert_eq!(withheld(&of(&nodes, &two), 2), [NO_MAJORITY, None]);
    nodes[1].labels.insert(keys::LABEL_EXCLUDE.to_owned(), String::new());
    assert_eq!(withheld(&of(&nodes, &two), 2), [None, None]);
    // c3 has no listed server, so its update does not require that another server answers.
    let control_plane = of(&cluster(3), &answers(&[(c1, State::Away), (c2, State::Away)]));
    assert_eq!(withheld(&control_plane, 3), [NO_OTHER, NO_OTHER, NO_MAJORITY]);
}

#[test]
fn a_server_at_an_unknown_address_may_be_any() {
    let (x, y, z) = ("192.0.2.1", "192.0.2.2", "192.0.2.3");
    let (ready, away) = (State::Ready, State::Away);
    for (list, expected) in [
        (&[(x, ready), (y, ready)][..], &[None, None][..]),
        (&[(x, ready), (y, away)], &[NO_OTHER, NO_OTHER]),
        (&[(x, ready), (y, ready), (z, ready)], &[None; 3]),
        (&[(x, ready), (y, ready), (z, away)], &[NO_MAJORITY; 3]),
        // The address belongs to a load balancer.
        (&[(x, ready)], &[None; 3]),
        (&[], &[None; 3]),
        (&[("10.0.0.1", away), (x, ready)], &[None, NO_OTHER]),
        (&[("10.0.0.1", ready), (x, away)], &[NO_OTHER]),
    ] {
        let count = expected.len();
        let control_plane = of(&cluster(count), &answers(list));
        assert_eq!(withheld(&control_plane, count), expected, "{list:?}");
    }
}

#[test]
fn where_no_server_is_listed_only_members_count() {
    let mut nodes = cluster(5);
    for node in &mut nodes[..2] {
        (node.unschedulable, node.our_cordon) = (true, true);
    }
    for node in &mut nodes[3..5] {
        node.labels.insert(keys::LABEL_EXCLUDE.to_owned(), String::new());
    }
    let control_plane = of(&nodes, &answers(&[]));
    assert_eq!(
        withheld(&control_plane, 3),
        [None, None, UNAVAILABLE],
        "three members stay up, two of them excluded"
    );
}

#[test]
fn a_small_control_plane_names_the_loss() {
    let meanwhile = [0, 1, 2, 3].map(|count| of(&cluster(count), &Answers::default()).meanwhile());
    let expected = [None, Some(Meanwhile::Everything), Some(Meanwhile::Majority), None];
    assert_eq!(meanwhile, expected);
    let words = [Meanwhile::Everything, Meanwhile::Majority].map(Meanwhile::words);
    assert!(words[0].contains("no API server answers"), "{}", words[0]);
    assert!(words[1].contains("etcd has no majority"), "{}", words[1]);
}

fn offers(plan: &Plan) -> Vec<&str> {
    let nodes = plan.writes.iter().map(|write| match write {
        BerthWrite::Update { berth, .. } => berth.node().unwrap().0.as_str(),
        other => panic!("{other:?}"),
    });
    nodes.collect()
}

#[test]
fn a_plan_counts_offers_of_the_plan_before() {
    let mut control_plane = of(&cluster(3), &servers(3, &[], State::Ready));
    let mut p = facts(1, vec![member("c1")], vec![seen(closed(0))]);
    let berths = [0, 1, 2].map(|index| seen(Berth::new("q".into(), index, 7)));
    let mut q = facts(3, ["c2", "c3", "w"].map(member).into(), berths.into());
    q.pool = "q".into();
    let now = Timestamp::UNIX_EPOCH;
    assert_eq!(offers(&control_plane.plan(&mut p, now)), ["c1"]);
    let plan = control_plane.plan(&mut q, now);
    assert_eq!(offers(&plan), ["w"]);
    assert_eq!(
        plan.waiting[&"c2".into()],
        BlockReason::ControlPlane(Cause::OtherAtWork)
    );
    p.members[0].agent.heard = false;
    let mut control_plane = of(&cluster(3), &servers(3, &[], State::Ready));
    assert!(offers(&control_plane.plan(&mut p, now)).is_empty());
    assert_eq!(offers(&control_plane.plan(&mut q, now)), ["c2", "w"]);
}

#[test]
fn each_cause_names_the_nodes_it_is_about() {
    for (ready, unschedulable, away, unavailable, no_majority) in [
        (true, false, &[][..], vec![], vec![]),
        (false, false, &[], vec!["c1".into()], vec!["c1".into()]),
        (true, false, &[2], vec![], vec!["c2".into()]),
        // A cordon does not stop the server of c2.
        (true, true, &[], vec!["c1".into()], vec![]),
    ] {
        let mut nodes = cluster(3);
        (nodes[0].ready, nodes[0].unschedulable) = (ready, unschedulable);
        let mut control_plane = of(&nodes, &servers(3, away, State::Away));
        control_plane.see(&offered(0, "c3"), true);
        let waited_for = control_plane.waited_for();
        for (cause, names) in [
            (Cause::OtherAtWork, vec!["c3".into()]),
            (Cause::OtherUnavailable, unavailable),
            (Cause::NoMajority, no_majority.clone()),
            (Cause::NoOtherServer, no_majority),
        ] {
            let found = waited_for.get(&cause).cloned().unwrap_or_default();
            assert_eq!(found, names, "{cause:?}");
        }
    }
}

#[test]
fn an_address_of_a_labelled_node_is_its_own() {
    let mut nodes = cluster(3);
    let mut stale = node("stale", "10.0.0.2", &[]);
    stale.ready = false;
    nodes.push(stale);
    let control_plane = of(&nodes, &servers(3, &[], State::Ready));
    assert_eq!(control_plane.verdict(&uid("stale")), None);
    assert_eq!(withheld(&control_plane, 3), [None; 3]);
    assert!(control_plane.conflicts.is_empty());
}

#[test]
fn nodes_that_share_a_servers_address_are_named() {
    let mut nodes = vec![
        node("w1", "10.0.0.1", &[]),
        node("w2", "10.0.0.2", &[]),
        node("w3", "10.0.0.3", &[]),
    ];
    let mut stale = node("stale", "10.0.0.2", &[]);
    stale.ready = false;
    nodes.push(stale);
    let mut control_plane = of(&nodes, &servers(3, &[], State::Ready));
    let verdict = control_plane.verdict(&uid("w1")).unwrap();
    assert_eq!(verdict.withhold, Some(Cause::OtherUnavailable));
    let mut pool = facts(1, vec![member("w1")], vec![seen(closed(0))]);
    let plan = control_plane.plan(&mut pool, Timestamp::UNIX_EPOCH);
    let words = plan.wait_words(plan.waiting[&"w1".into()], &[&"w1".into()]);
    assert_eq!(
        words,
        "waits until every other control plane node is Ready and schedulable (stale)"
    );
    let conflict = &plan.address_conflicts[0];
    assert!(
        conflict.starts_with("the Nodes w2, stale have the same API server address, 10.0.0.2, "),
        "{conflict}"
    );
}
