//! Property tests: the plan keeps I1 in any state.

use std::time::Duration;

use berth_api::berth::Outcome;
use berth_api::{BootId, NodeName};
use proptest::prelude::*;

use berth_api::berth::{ClosedReason, HoldPhase, Holding};

use super::tests::{at, changed, closed, committed, digest, gate, member, offered, taken, uid, wave};

use super::*;
use crate::Moment;
use crate::controller::explain::settle::follow;
use crate::controller::gate::GateReason;
use crate::controller::ledger::Ledger;
use crate::controller::offers::Offers;
use crate::floors::check;

pub(crate) const NODES: [&str; 5] = ["n0", "n1", "n2", "n3", "n4"];

fn any_member(name: &'static str) -> impl Strategy<Value = Member> {
    let flags = proptest::array::uniform10(proptest::bool::weighted(0.85));
    (flags, 1u8..4, 0u32..3, 0u32..2).prop_map(move |(f, desired, turns, offers)| Member {
        offers,
        leaving: !f[8],
        desired: Some(digest(desired)),
        node: NodeState {
            ready: f[0],
            unschedulable: !f[1],
            our_cordon: !f[2],
            held_back: !f[9],
        },
        published: Published {
            observed: f[3],
            digest: Some(digest(desired)),
            uid: uid(name),
        },
        agent: AgentState {
            prepared: f[4],
            heard: f[5],
            staged: f[6].then(|| digest(desired)),
            failed: if f[7] { vec![] } else { vec![digest(2)] },
            last_turn: (turns > 0).then(|| digest(2)),
            ..member(name).agent
        },
        ..member(name)
    })
}

fn any_berth(index: u32) -> impl Strategy<Value = SeenBerth> {
    let state = (
        0usize..8,
        0usize..NODES.len(),
        0i64..100,
        6u64..9,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    );
    state.prop_map(move |(kind, node, until, epoch, in_doubt, refused)| {
        let node = NODES[node];
        let mut berth = match kind {
            0 => offered(index, node),
            1 => taken(index, node),
            2 => taken(index, node).revoked(Some("Paused".into())).unwrap(),
            3 => committed(index, node),
            4 => committed(index, node)
                .releasing(Outcome::Updated, BootId::from("b1"))
                .unwrap(),
            5 => closed(index).closed(ClosedReason::Shrunk).unwrap(),
            _ => closed(index),
        };
        berth.epoch = if epoch == 8 { 6 } else { 7 };
        let lease = berth.name();
        let berth = if kind == 6 && until < 20 {
            Err("edited".to_owned())
        } else {
            Ok(berth)
        };
        SeenBerth {
            lease,
            berth,
            in_doubt,
            refused,
            age: Duration::from_secs(until.unsigned_abs() * 2),
        }
    })
}

/// Makes a random berth fenced and writable, so that it does not block offers. If all berths were fully random, few
/// plans would make an offer.
fn calm_berth(mut seen: SeenBerth) -> SeenBerth {
    (seen.in_doubt, seen.refused) = (false, false);
    if let Ok(berth) = &mut seen.berth {
        berth.epoch = 7;
    }
    seen
}

/// Changes a random member so that more members can get offers: it reports, is prepared, stays in the pool and is not
/// held back.
fn calm_member(mut member: Member) -> Member {
    member.published.observed = true;
    (member.agent.prepared, member.agent.heard) = (true, true);
    (member.leaving, member.node.held_back) = (false, false);
    member
}

prop_compose! {
    pub(crate) fn any_facts()(
        members in NODES.map(any_member),
        count in 0usize..=NODES.len(),
        berths in [0, 1, 2, 3].map(any_berth),
        there in proptest::array::uniform4(any::<bool>()),
        capacity in 0usize..5,
        published in 0usize..5,
        gated in prop::bool::weighted(0.1),
        waves in proptest::array::uniform5(0usize..2),
        soaked in 0u64..10,
        recorded in prop::option::weighted(0.2, 0usize..5),
        max_failures in 1usize..4,
        (lost, excluded) in (prop::collection::btree_set(0usize..5, 0..2), prop::collection::btree_set(0usize..5, 0..2)),
        (unresolved, outdated) in (prop::bool::weighted(0.1), prop::bool::weighted(0.1)),
        elsewhere in prop::collection::btree_set(0usize..5, 0..2),
        gone in prop::collection::btree_set(0usize..5, 0..2),
        fleet in prop::option::weighted(0.4, (1usize..6, 0usize..4, 0usize..3, 0usize..3, prop::bool::weighted(0.1))),
        ordered in prop::bool::weighted(0.1),
        calm in prop::bool::weighted(0.5),
    ) -> PoolFacts {
        let mut berths: Vec<SeenBerth> = berths.into_iter().zip(there).filter(|(_, t)| *t).map(|(b, _)| b).collect();
        let mut members: Vec<Member> = members.into_iter().zip(waves).map(|(m, wave)| changed(m, |m| m.place.wave = wave)).take(count).collect();
        if calm {
            berths = berths.into_iter().map(calm_berth).collect();
            members = members.into_iter().map(calm_member).collect();
        }
        let facts = PoolFacts {
            pool: "p".into(),
            epoch: 7,
            capacity,
            published: if calm { capacity } else { published },
            gate: if gated { gate(GateReason::Paused) } else { None },
            closes: None,
            waves: vec![wave("canary", 5, soaked), wave(REST, 0, 0)],
            failures: recorded.map(|i| (digest(2), [NodeName::from(NODES[i])].into())).into_iter().collect(),
            excluded: excluded.into_iter().map(|i| NodeName::from(NODES[i])).collect(),
            max_failures,
            lost: lost.into_iter().map(|i| uid(NODES[i])).collect(),
            unresolved: unresolved && !calm,
            outdated: outdated && !calm,
            members,
            berths,
            elsewhere: elsewhere.into_iter().map(|i| uid(NODES[i])).collect(),
            confirmed_gone: gone.into_iter().map(|i| uid(NODES[i])).collect(),
            fleet: fleet.map(|(limit, held, unavailable, both, unfenced)| FleetUse {
                limit,
                held_or_offered: held,
                unavailable: unavailable + both.min(held),
                all: held + unavailable,
                unfenced,
                may_stay: limit.saturating_sub(held),
                ..FleetUse::default()
            }),
            order: if ordered { gate(GateReason::EarlierPool) } else { None },
        };
        // `fleet` so far counts only other pools. Add the use of the limit by this pool.
        let nobody = PoolFacts { members: vec![], berths: vec![], elsewhere: BTreeSet::new(), ..facts.clone() };
        let mut facts = facts;
        follow(&nobody, &mut facts);
        facts
    }
}

/// Simulated Leases. The test applies one write at a time, and counts the sets H, R and U without the code under test.
struct World<'a> {
    facts: &'a PoolFacts,
    berths: BTreeMap<String, Result<Berth, String>>,
    offers: Vec<&'a Member>,
}

impl<'a> World<'a> {
    fn of(facts: &'a PoolFacts) -> Self {
        let berths = facts.berths.iter().map(|s| (s.lease.clone(), s.berth.clone()));
        World {
            facts,
            berths: berths.collect(),
            offers: vec![],
        }
    }

    fn uids(&self, held: bool, offered: bool) -> BTreeSet<NodeUid> {
        let states = self.berths.values().flatten().map(|b| &b.state);
        let mut uids: BTreeSet<NodeUid> = states
            .filter_map(|s| match s {
                BerthState::Held(h) if held => Some(h.uid.clone()),
                BerthState::Offered(o) if offered => Some(o.uid.clone()),
                _ => None,
            })
            .collect();
        let members = self.facts.members.iter().map(|m| m.uid.clone());
        uids.extend(members.filter(|uid| self.facts.elsewhere.contains(uid)));
        uids
    }

    fn unknown(&self) -> usize {
        let mut unknown = 0;
        for (lease, berth) in &self.berths {
            let mut berths = self.facts.berths.iter();
            let is_refused = berths.any(|seen| seen.lease == *lease && seen.refused);
            let is_unknown = match berth {
                Err(_) => true,
                Ok(berth) => berth.node().is_none() && is_refused,
            };
            unknown += usize::from(is_unknown);
        }
        unknown
    }

    /// Checks the fleet's limit and the order of the pools, and counts the offer.
    fn check_fleet(&mut self, member: &'a Member) {
        let facts = self.facts;
        let fleet = facts.fleet.as_ref();
        let repairs = !member.node.ready && fleet.is_some_and(|fleet| fleet.unavailable >= fleet.limit);
        assert!(facts.order.is_none() || repairs, "an earlier pool has nodes to update");
        if let Some(fleet) = fleet {
            assert!(!fleet.unfenced);
            let more = self.offers.iter().filter(|m| !m.node.is_unavailable()).count();
            assert!(
                fleet.held_or_offered + self.offers.len() < fleet.limit,
                "|H ∪ R| of all pools"
            );
            assert!(
                member.node.is_unavailable() || fleet.all + more < fleet.limit,
                "|H ∪ U ∪ R| of all pools"
            );
        }
        self.offers.push(member);
    }

    fn check_offer(&mut self, before: &Berth, offer: &Offer) {
        let facts = self.facts;
        let k = facts.capacity.min(facts.published);
        assert!(matches!(before.state, BerthState::Closed(_)) && (before.index as usize) < k);
        let member = facts.members.iter().find(|m| m.uid == offer.uid).unwrap();
        assert!(facts.gate.is_none() && !facts.unresolved && !facts.outdated);
        assert!(!failures::is_unrecorded(before), "the failure is recorded first");
        self.check_gates(member);
        self.check_fleet(member);
        assert!(
            !member.leaving
                && !member.node.held_back
                && member.agent.prepared
                && member.published.observed
                && member.agent.heard
        );
        assert_eq!(member.desired.as_ref(), Some(&offer.target));
        assert_eq!(member.agent.staged.as_ref(), Some(&offer.target));
        assert!(!member.agent.failed.contains(&offer.target));
        let worked_on = self.uids(true, true);
        assert!(!worked_on.contains(&offer.uid), "one berth for each node");
        assert!(worked_on.len() + self.unknown() < k, "|H ∪ R| < k");
        assert!(self.uids(true, false).len() < k, "|H| < k");
        let mut all = worked_on;
        let down = facts.members.iter().filter(|m| m.node.is_unavailable());
        all.extend(down.map(|m| m.uid.clone()));
        assert!(
            member.node.is_unavailable() || all.len() + self.unknown() < k,
            "n ∈ U or |H ∪ U ∪ R| < k"
        );
        for seen in &facts.berths {
            let stamped = seen.berth.as_ref().is_ok_and(|b| b.epoch == facts.epoch);
            assert!(
                (stamped && !seen.in_doubt) || seen.berth.is_err() || seen.refused,
                "fenced before any offer"
            );
        }
    }

    /// Checks that the earlier waves are proven and have soaked, and that not too many nodes have failed.
    fn check_gates(&self, member: &Member) {
        let facts = self.facts;
        let mut canaries = facts.members.iter().filter(|m| m.place.wave == 0).peekable();
        let down = facts.members.iter().filter(|m| m.node.is_unavailable()).count();
        let starved = facts
            .fleet
            .as_ref()
            .is_some_and(|fleet| fleet.unavailable >= fleet.limit);
        let repairs = !member.node.ready && (starved || down >= facts.capacity.min(facts.published));
        if member.place.wave == 1 && canaries.peek().is_some() && !repairs {
            assert!(
                canaries.all(|m| m.agent.booted == m.desired && m.node.ready),
                "the canaries are proven"
            );
            assert!(facts.waves[0].soaked >= facts.waves[0].soak, "the canaries have soaked");
        }
        let mut failed = BTreeSet::new();
        for desired in facts.members.iter().filter_map(|m| m.desired.as_ref()) {
            let held = facts
                .berths
                .iter()
                .filter_map(|seen| seen.berth.as_ref().ok()?.holding());
            let held = held.filter(|h| h.target == *desired && h.phase != HoldPhase::Taken);
            let reports = facts.members.iter().filter(|m| m.agent.failed.contains(desired));
            let reports = reports.filter(|m| held.clone().any(|h| h.uid == m.uid));
            let on_record = facts.failures.get(desired).into_iter().flatten();
            failed.extend(reports.map(|m| &m.name).chain(on_record));
        }
        failed.retain(|name| !facts.excluded.contains(*name));
        assert!(failed.len() < facts.max_failures, "{failed:?}");
    }

    fn check_held(&self, before: &Berth, holding: &Holding, after: &Berth) {
        if let BerthState::Closed(c) = &after.state {
            let (gone, lost) = (&self.facts.confirmed_gone, &self.facts.lost);
            match c.reason {
                ClosedReason::Gone => assert!(gone.contains(&holding.uid)),
                ClosedReason::Excluded => assert!(lost.contains(&holding.uid)),
                other => panic!("{other:?}"),
            }
            let unproven = holding.phase == HoldPhase::Committed;
            assert!(
                !unproven || c.outcome == Some(Outcome::Failed),
                "an unproven turn has failed"
            );
            return;
        }
        let revoke = after.holding().unwrap().revoke.clone();
        let until = after.holding().unwrap().open_until;
        assert!(until == holding.open_until || (until.is_none() && self.facts.closes.is_none()));
        let same = before
            .revoked(revoke)
            .unwrap()
            .open_until(until)
            .unwrap()
            .stamped(self.facts.epoch);
        assert_eq!(*after, same, "only revoke, window and epoch change on a held berth");
    }

    fn apply(&mut self, write: &BerthWrite) {
        let mut seen = self.facts.berths.iter();
        assert!(
            !seen.any(|seen| seen.refused && seen.lease == write.lease()),
            "{write:?}"
        );
        match write {
            BerthWrite::Create(berth) => {
                assert!(matches!(berth.state, BerthState::Closed(_)), "created closed");
                let old = self.berths.insert(berth.name(), Ok(berth.clone()));
                assert!(old.is_none());
            }
            BerthWrite::Delete { lease } => {
                let old = self.berths.remove(lease).unwrap().unwrap();
                assert!(matches!(old.state, BerthState::Closed(_)));
                assert!(old.index as usize >= self.facts.capacity);
            }
            BerthWrite::Update { lease, berth, .. } => {
                let before = self.berths[lease].clone().unwrap();
                assert_eq!(berth.epoch, self.facts.epoch);
                if let BerthState::Held(holding) = &before.state {
                    self.check_held(&before, holding, berth);
                }
                if let (Some(offer), false) = (berth.offer(), before.offer().is_some()) {
                    self.check_offer(&before, offer);
                }
                assert!(
                    berth.holding().is_none() || before.holding().is_some(),
                    "the controller makes no holder"
                );
                self.berths.insert(lease.clone(), Ok(berth.clone()));
            }
        }
    }
}

/// Returns a Lease as read right after a write.
fn fresh((lease, berth): (String, Result<Berth, String>)) -> SeenBerth {
    SeenBerth::new(lease, berth)
}

/// Carries out `plans` plans in a row. Checks I1 at each write. Returns the nodes that were offered a berth.
pub(crate) fn offered_by(mut facts: PoolFacts, plans: usize) -> BTreeSet<NodeName> {
    let mut offered = BTreeSet::new();
    for _ in 0..plans {
        let plan = plan(&facts, at(50));
        let mut world = World::of(&facts);
        plan.writes.iter().for_each(|write| world.apply(write));
        offered.extend(world.offers.iter().map(|member| member.name.clone()));
        let berths = world.berths.into_iter().map(fresh).collect();
        let before = facts.clone();
        (facts.published, facts.failures) = (plan.counts.total as usize, plan.failures);
        facts.berths = berths;
        follow(&before, &mut facts);
    }
    offered
}

/// Returns the kind of a write. The test counts how many random cases reach each kind.
fn kind(write: &BerthWrite, before: &BTreeMap<String, Result<Berth, String>>) -> &'static str {
    let berth = match write {
        BerthWrite::Create(_) => return "create",
        BerthWrite::Delete { .. } => return "delete",
        BerthWrite::Update { berth, .. } => berth,
    };
    let old = before.get(&write.lease()).and_then(|old| old.as_ref().ok());
    let was = old.map(|old| &old.state);
    match (was, &berth.state) {
        (_, BerthState::Offered(_)) if old.is_none_or(|old| old.offer().is_none()) => "offer",
        (Some(BerthState::Offered(_)), BerthState::Closed(_)) => "withdrawal",
        (Some(BerthState::Held(_)), BerthState::Closed(_)) => "loss of a holder",
        (Some(BerthState::Held(_)), BerthState::Held(_)) => "write to a holder",
        _ => "stamp",
    }
}

#[test]
fn every_write_keeps_i1() {
    let floors = [
        ("create", 1500),
        ("delete", 150),
        ("offer", 60),
        ("offer under a fleet's limit", 8),
        ("withdrawal", 400),
        ("loss of a holder", 300),
        ("write to a holder", 600),
        ("smaller", 150),
    ];
    check(
        ProptestConfig::with_cases(4000),
        any_facts(),
        &floors,
        |facts, reached| {
            let plan = plan(&facts, at(50));
            let mut world = World::of(&facts);
            for write in &plan.writes {
                reached.note(kind(write, &world.berths));
                world.apply(write);
            }
            if !world.offers.is_empty() && facts.fleet.is_some() {
                reached.note("offer under a fleet's limit");
            }
            // The capacity is lowered only when no open offer exceeds the lower capacity.
            let total = plan.counts.total as usize;
            prop_assert!(total == facts.capacity || total == facts.published);
            if total < facts.published {
                reached.note("smaller");
                let before = World::of(&facts);
                let open = facts.readable().any(|(_, b)| b.offer().is_some());
                prop_assert!(!open || before.uids(true, true).len() + before.unknown() <= total);
            }
            Ok(())
        },
    );
}

#[test]
fn a_plan_carried_out_leaves_only_offers() {
    let floors = [("second plan writes", 600), ("third plan writes", 400)];
    check(
        ProptestConfig::with_cases(4000),
        any_facts(),
        &floors,
        |mut facts, reached| {
            for pass in 0..6 {
                let plan = plan(&facts, at(50));
                match (pass, plan.writes.is_empty()) {
                    (1, false) => reached.note("second plan writes"),
                    (2, false) => reached.note("third plan writes"),
                    _ => {}
                }
                let mut world = World::of(&facts);
                plan.writes.iter().for_each(|w| world.apply(w));
                let berths = world.berths.into_iter().map(fresh).collect();
                let before = facts.clone();
                facts.published = plan.counts.total as usize;
                facts.berths = berths;
                follow(&before, &mut facts);
            }
            let last = plan(&facts, at(50));
            prop_assert!(last.writes.is_empty(), "{:?}", last.writes);
            Ok(())
        },
    );
}

#[test]
fn boot_ids_do_not_matter_to_the_plan() {
    // Only the agent changes the boot ID of a held berth.
    let mut f = super::tests::facts(1, vec![member("n1")], vec![]);
    let back = committed(0, "n1").uncommitted().unwrap();
    let again = back.committed(BootId::from("b2")).unwrap();
    f.berths = vec![super::tests::seen(again)];
    assert!(plan(&f, at(50)).writes.is_empty());
}

/// Move of a compromised node after each offer.
#[derive(Debug, Clone, Copy)]
enum Move {
    /// Lets the offer lapse.
    Lapse,
    /// Reports that it is no longer prepared, so the controller withdraws the offer.
    Unprepare,
    /// Takes the berth and gives it back with this outcome, under a new UID of its Node.
    GiveBack(Outcome),
}

#[test]
fn nodes_that_use_no_offer_starve_no_other() {
    // Two nodes come first by name, use no offer, and report nothing.
    for what in [
        Move::Lapse,
        Move::Unprepare,
        Move::GiveBack(Outcome::Updated),
        Move::GiveBack(Outcome::Revoked),
        Move::GiveBack(Outcome::DrainTimeout),
    ] {
        let mut one = super::tests::facts(1, NODES.map(member).into(), vec![super::tests::seen(closed(0))]);
        let offers = updated_beside_two_liars(&mut one, what);
        assert!(
            offers[0].abs_diff(offers[1]) <= 1,
            "they alternate: {what:?} {offers:?}"
        );
        // n0 is also unavailable, so without its earlier offers it would go first.
        let two = vec![super::tests::seen(closed(0)), super::tests::seen(closed(1))];
        let mut two = super::tests::facts(2, NODES.map(member).into(), two);
        two.members[0].node.unschedulable = true;
        updated_beside_two_liars(&mut two, what);
    }
}

/// Makes 16 plans, which is enough to update all nodes that use their offers. Nodes n0 and n1 use no offer. Checks that
/// all others are updated. Returns the numbers of offers to n0 and n1.
fn updated_beside_two_liars(f: &mut PoolFacts, what: Move) -> [u32; 2] {
    let (mut ages, mut ledger) = (Offers::default(), Ledger::default());
    let mut clock = Moment::default();
    let mut counts = [0, 0];
    for round in 0..16 {
        clock = clock + OPEN_FOR;
        let berths: Vec<(String, Berth)> = f
            .berths
            .iter()
            .map(|s| (s.lease.clone(), s.berth.clone().unwrap()))
            .collect();
        let seen = || berths.iter().map(|(lease, berth)| (lease.as_str(), berth));
        ages.see(seen(), clock);
        ledger.see(seen());
        f.berths.iter_mut().for_each(|s| s.age = ages.age(&s.lease, clock));
        for member in &mut f.members {
            member.offers = ledger.offers(&member.name, &digest(2));
            // The node is prepared again in every other round.
            member.agent.prepared = !matches!(what, Move::Unprepare) || round % 2 == 0;
        }
        for write in plan(f, at(50)).writes {
            ledger.wrote(&write);
            let BerthWrite::Update { lease, berth, .. } = write else {
                panic!()
            };
            let liar = ["n0", "n1"]
                .iter()
                .position(|liar| berth.offer().is_some_and(|o| o.node.as_str() == *liar));
            if let Some(liar) = liar {
                counts[liar] += 1;
            }
            let seen = f.berths.iter_mut().find(|s| s.lease == lease).unwrap();
            seen.berth = Ok(after(f.members.as_mut_slice(), berth, liar.map(|_| what)));
        }
    }
    let updated = f.members.iter().filter(|m| m.agent.booted == Some(digest(2))).count();
    assert_eq!(updated, 3, "{what:?} {counts:?}");
    counts
}

/// Returns the berth after the node's move. `what`: the move of a compromised node. Any other node uses its offer before
/// the next plan.
fn after(members: &mut [Member], berth: Berth, what: Option<Move>) -> Berth {
    let Some(offer) = berth.offer().cloned() else {
        return berth;
    };
    let member = members.iter_mut().find(|m| m.name == offer.node).unwrap();
    match what {
        None => {
            member.agent.booted = Some(digest(2));
            closed(berth.index)
        }
        Some(Move::Lapse | Move::Unprepare) => berth,
        Some(Move::GiveBack(outcome)) => {
            let taken = berth.taken(&offer.node, &offer.uid, None, BootId::from("b1")).unwrap();
            member.uid = NodeUid::new(format!("{}+", member.uid));
            member.published.uid = member.uid.clone();
            taken
                .releasing(outcome, BootId::from("b1"))
                .unwrap()
                .given_back()
                .unwrap()
        }
    }
}
