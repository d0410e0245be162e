//! The plans of all pools together keep I11 in any state.

use berth_api::berth::Berth;
use berth_api::waves::is_control_plane;
use jiff::Timestamp;
use proptest::prelude::*;

use super::tests::{NOW, answers, node, of};
use super::*;
use crate::controller::plan::tests::{closed, committed, facts, member, offered, seen, taken};
use crate::controller::plan::{BerthWrite, Member, PoolFacts, WriteReason};
use crate::floors::{Reached, check};

const NODES: [&str; 6] = ["n1", "n2", "n3", "n4", "n5", "n6"];
const EPOCH: u64 = 7;

fn any_node(index: usize) -> impl Strategy<Value = NodeView> {
    (
        prop::bool::weighted(0.7),
        prop::array::uniform4(prop::bool::weighted(0.85)),
    )
        .prop_map(move |(member, [ready, schedulable, free, included])| {
            let labels = [
                member.then_some("node-role.kubernetes.io/control-plane"),
                (!included).then_some(keys::LABEL_EXCLUDE),
            ];
            let labels: Vec<&str> = labels.into_iter().flatten().collect();
            NodeView {
                ready,
                unschedulable: !schedulable,
                our_cordon: !free,
                ..node(NODES[index], &format!("10.0.0.{index}"), &labels)
            }
        })
}

fn any_state() -> impl Strategy<Value = State> {
    prop_oneof![6 => Just(State::Ready), 1 => Just(State::Away), 1 => Just(State::Unknown)]
}

fn any_berth(index: u32) -> impl Strategy<Value = Berth> {
    (0usize..12, 0usize..NODES.len(), prop::bool::weighted(0.03)).prop_map(move |(kind, node, old)| {
        let berth = match kind {
            0 => offered(index, NODES[node]),
            1 => taken(index, NODES[node]),
            2 => committed(index, NODES[node]),
            _ => closed(index),
        };
        berth.stamped(if old { EPOCH - 1 } else { EPOCH })
    })
}

#[derive(Debug, Clone)]
struct World {
    nodes: Vec<NodeView>,
    answers: Answers,
    pools: Vec<PoolFacts>,
}

prop_compose! {
    fn any_world()(
        nodes in [0, 1, 2, 3, 4, 5].map(any_node),
        count in 1usize..=NODES.len(),
        states in proptest::array::uniform6(prop::option::weighted(0.8, any_state())),
        unplaced in prop::collection::vec(any_state(), 0..3),
        listed in prop::bool::weighted(0.9),
        pools in proptest::array::uniform6(0usize..3),
        berths in [[0, 1, 2].map(any_berth), [0, 1, 2].map(any_berth)],
        capacity in 1usize..4,
    ) -> World {
        let nodes: Vec<NodeView> = nodes.into_iter().take(count).collect();
        let placed = states.iter().enumerate().filter_map(|(n, state)| Some((format!("10.0.0.{n}"), (*state)?)));
        let elsewhere = unplaced.iter().enumerate().map(|(n, state)| (format!("192.0.2.{n}"), *state));
        let servers: Vec<(String, State)> = placed.chain(elsewhere).collect();
        let servers: Vec<(&str, State)> = servers.iter().map(|(a, s)| (a.as_str(), *s)).collect();
        let answers = if listed { answers(&servers) } else { Answers::default() };
        let mut pool_facts = vec![];
        for (number, (name, berths)) in ["p", "q"].into_iter().zip(berths).enumerate() {
            let berths = berths.map(|berth| seen(Berth { pool: name.into(), ..berth })).to_vec();
            let mut members = vec![];
            for (node, pool) in nodes.iter().zip(&pools) {
                if *pool == number && is_included(node) {
                    members.push(as_member(node));
                }
            }
            pool_facts.push(PoolFacts { pool: name.into(), ..facts(capacity, members, berths) });
        }
        World { nodes, answers, pools: pool_facts }
    }
}

fn is_included(node: &NodeView) -> bool {
    !node.labels.contains_key(keys::LABEL_EXCLUDE)
}

fn as_member(node: &NodeView) -> Member {
    let mut member = member(node.name.as_str());
    member.node.ready = node.ready;
    member.node.unschedulable = node.unschedulable;
    member.node.our_cordon = node.our_cordon;
    member
}

impl World {
    fn state(&self, node: &NodeView) -> Option<State> {
        let server = self.answers.servers.iter();
        let mut own = server.filter(|(s, _)| node.addresses.contains(&s.ip().to_string()));
        own.next()
            .map(|(_, asked)| asked.state(Moment::after(std::time::Duration::from_secs(3600))))
    }

    fn carriers(&self) -> impl Iterator<Item = &NodeView> {
        let nodes = self.nodes.iter();
        nodes.filter(|n| is_control_plane(&n.labels) || self.state(n).is_some())
    }

    fn berths(&self) -> impl Iterator<Item = &Berth> {
        self.pools
            .iter()
            .flat_map(|pool| &pool.berths)
            .filter_map(|s| s.berth.as_ref().ok())
    }

    /// Checks one offer against I11. `at_work`: the nodes that hold a berth or are offered one.
    fn judge(&self, uid: &NodeUid, at_work: &BTreeSet<NodeUid>, reached: &Reached) {
        assert!(self.answers.listed, "any node may run a server before they are listed");
        let Some(node) = self.carriers().find(|n| n.uid == *uid) else {
            reached.note("worker");
            return;
        };
        reached.note(if is_control_plane(&node.labels) {
            "member"
        } else {
            "unlabelled server"
        });
        assert!(
            self.berths().all(|b| b.epoch == EPOCH),
            "an earlier leader may still open a berth"
        );
        let others: Vec<&NodeView> = self.carriers().filter(|n| n.uid != *uid).collect();
        assert!(
            !others.iter().any(|n| at_work.contains(&n.uid)),
            "one control plane node at a time, over all pools"
        );
        if !node.ready {
            reached.note("repair");
            return;
        }
        let mut included = others.iter().filter(|n| is_included(n));
        assert!(
            included.all(|n| n.ready && (node.our_cordon || !n.our_cordon)),
            "no offer while another control plane node is in a worse state"
        );
        let (mut all, mut rest) = (0, 0);
        for member in self.nodes.iter().filter(|n| is_control_plane(&n.labels)) {
            all += 1;
            let is_up = member.ready && matches!(self.state(member), None | Some(State::Ready));
            rest += usize::from(is_up && member.uid != *uid);
        }
        let is_member = is_control_plane(&node.labels);
        assert!(
            !is_member || all < 3 || rest > all / 2,
            "{rest} of {all} members are left"
        );
        let all = self.answers.servers.len();
        let states = self
            .answers
            .servers
            .values()
            .map(|asked| asked.state(Moment::after(NOW)));
        let ready = states.filter(|state| *state == State::Ready).count();
        let own = usize::from(self.state(node) == Some(State::Ready));
        assert!(
            own == 0 || all < 3 || ready - own > all / 2,
            "{ready} of {all} servers answer"
        );
        assert!(own == 0 || all < 2 || ready > own, "another API server answers");
    }
}

/// Runs the plans of all pools in order, and checks each offer.
fn run(world: &World, reached: &Reached) {
    let mut control_plane = of(&world.nodes, &world.answers);
    world
        .berths()
        .for_each(|berth| control_plane.see(berth, berth.epoch == EPOCH));
    let mut at_work: BTreeSet<NodeUid> = world.berths().filter_map(|b| Some(b.node()?.1.clone())).collect();
    for pool in &world.pools {
        let plan = control_plane.plan(&mut pool.clone(), Timestamp::UNIX_EPOCH);
        for write in &plan.writes {
            if let BerthWrite::Update {
                berth,
                why: WriteReason::Offer,
                ..
            } = write
            {
                let (_, uid) = berth.node().unwrap();
                world.judge(uid, &at_work, reached);
                at_work.insert(uid.clone());
            }
        }
    }
}

fn config() -> ProptestConfig {
    ProptestConfig::with_cases(1500)
}

#[test]
fn every_offer_keeps_i11() {
    let floors = [
        ("worker", 40),
        ("member", 60),
        ("unlabelled server", 25),
        ("repair", 25),
    ];
    check(config(), any_world(), &floors, |world, reached| {
        run(&world, reached);
        Ok(())
    });
}

#[test]
fn what_may_be_offered_is_not_asked_back() {
    check(config(), any_world(), &[("carrier", 300)], |world, reached| {
        for uid in world.nodes.iter().map(|n| &n.uid) {
            let mut control_plane = of(&world.nodes, &world.answers);
            world.berths().for_each(|berth| control_plane.see(berth, true));
            let Some(Verdict { withhold: None, .. }) = control_plane.verdict(uid) else {
                continue;
            };
            reached.note("carrier");
            let name = world.nodes.iter().find(|n| n.uid == *uid).unwrap().name.as_str();
            for berth in [offered(9, name), taken(9, name)] {
                control_plane.see(&berth, true);
                let verdict = control_plane.verdict(uid).unwrap();
                prop_assert_eq!((verdict.ask_back, verdict.stay), (None, None));
            }
        }
        Ok(())
    });
}

/// I10: every control plane node may be updated if all nodes are available, all servers are ready, and no node has a
/// berth.
#[test]
fn a_control_plane_that_is_well_is_updated() {
    check(config(), any_world(), &[("several", 400)], |world, reached| {
        let mut nodes = world.nodes;
        for node in &mut nodes {
            (node.ready, node.unschedulable, node.our_cordon) = (true, false, false);
            node.labels.remove(keys::LABEL_EXCLUDE);
        }
        let list: Vec<String> = (0..nodes.len()).map(|n| format!("10.0.0.{n}")).collect();
        let list: Vec<(&str, State)> = list.iter().map(|a| (a.as_str(), State::Ready)).collect();
        let control_plane = of(&nodes, &answers(&list));
        if control_plane.nodes().count() > 2 {
            reached.note("several");
        }
        for (_, uid) in control_plane.nodes() {
            prop_assert_eq!(control_plane.verdict(uid).unwrap(), Verdict::default());
        }
        Ok(())
    });
}
