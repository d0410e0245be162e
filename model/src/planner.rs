//! The shipped [`berth_core::controller::plan::plan`], asked once for each view of a pool that differs.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use berth_api::berth::{ClosedReason, Outcome};
use berth_api::{NodeName, NodeUid};
use berth_core::controller::plan::{
    self, BerthWrite, Estimate, Failures, Gate, Member, OPEN_FOR, Plan, PoolFacts, REST, SeenBerth, Wave, Why,
};

use crate::judge;
use crate::rich;
use crate::state::{Berth, Closed, Image, Lease, NODES, NONE, SLOTS, Write};
use crate::world::{Broken, World, place, slot};

/// All that the plan of one pool depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    /// The pool.
    pub pool: u8,
    /// Its capacity by the spec.
    pub capacity: u8,
    /// By the status.
    pub published: u8,
    /// A gate is closed.
    pub paused: bool,
    /// What is on record.
    pub failures: [u8; 4],
    /// The members.
    pub members: [Option<OneMember>; NODES],
    /// The berths of the pool; [`Berth::Missing`] for those of others.
    pub slots: [OneBerth; SLOTS],
    /// Who has a berth or an offer of another pool: node and UID.
    pub elsewhere: [Option<(u8, u8)>; SLOTS],
}

/// A member, as the watches show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OneMember {
    /// UID of its Node.
    pub uid: u8,
    /// Ready.
    pub ready: bool,
    /// Unschedulable.
    pub unschedulable: bool,
    /// Carries our cordon.
    pub ours: bool,
    /// What it should run.
    pub desired: Image,
    /// What is published to it, by this pool.
    pub published: Image,
    /// For this UID.
    pub published_uid: u8,
    /// Its agent has seen that.
    pub observed: bool,
    /// It is ready for an offer.
    pub prepared: bool,
    /// What is staged and locked.
    pub staged: Image,
    /// What runs.
    pub booted: Image,
    /// What failed there, as bits.
    pub failed: u8,
    /// The image of its last turn, when that ended badly.
    pub turn: Image,
    /// This controller saw it let an offer lapse.
    pub lapsed: bool,
}

/// A berth as it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct OneBerth {
    /// What it says.
    pub is: Berth,
    /// It carries this controller's epoch.
    pub stamped: bool,
    /// A write of unknown fate may be on its way.
    pub doubt: bool,
    /// It has been like that for long.
    pub aged: bool,
    /// Its Node is gone, confirmed.
    pub gone: bool,
    /// Its Node is excluded and not Ready.
    pub lost: bool,
}

/// A plan in the model's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The writes to berths; leases carry the epoch 1 where the plan stamps them as its own.
    pub writes: Vec<Write>,
    /// The capacity to publish.
    pub total: u8,
    /// The failures to record.
    pub failures: [u8; 4],
    /// The rule that the plan breaks in the state that it was made from.
    pub broken: Option<Broken>,
}

/// The plans made so far.
#[derive(Debug, Default)]
pub struct Plans {
    known: HashMap<View, Planned, crate::hash::Fast>,
}

impl Plans {
    /// The plan for a view.
    pub fn of(&mut self, world: &World, view: &View) -> &Planned {
        self.known.entry(*view).or_insert_with(|| make(world, view))
    }
}

fn make(world: &World, view: &View) -> Planned {
    let facts = facts(world, view);
    let plan = plan::plan(&facts, rich::NOW);
    let mut planned = read(world, view, &plan);
    // What the model leaves out of a closed berth must make no difference.
    let mut other = facts;
    for seen in &mut other.berths {
        seen.berth = seen.berth.as_ref().map(rich::otherwise).map_err(Clone::clone);
    }
    let again = read(world, view, &plan::plan(&other, rich::NOW));
    if (&again.writes, again.total) != (&planned.writes, planned.total) {
        planned.broken = Some(Broken("the model leaves out something that the plan depends on"));
    }
    planned
}

fn read(world: &World, view: &View, plan: &Plan) -> Planned {
    let limit = view.capacity.min(view.published);
    let members = view.members.iter().enumerate();
    let unavailable = members
        .clone()
        .filter(|(_, m)| m.is_some_and(|m| !m.ready || m.unschedulable || m.ours));
    let unavailable = unavailable.fold(0, |bits, (n, _)| bits | 1 << n);
    let write = |write: &BerthWrite| match write {
        BerthWrite::Create(berth) => {
            let lease = Lease {
                epoch: 1,
                is: rich::small(berth),
            };
            Write::Berth {
                slot: slot(berth, world.split),
                lease,
                offer: None,
            }
        }
        BerthWrite::Update { berth, why, .. } => {
            let lease = Lease {
                epoch: u8::from(berth.epoch == rich::OWN_EPOCH),
                is: rich::small(berth),
            };
            let offer = (*why == Why::Offer).then_some((unavailable, limit));
            Write::Berth {
                slot: slot(berth, world.split),
                lease,
                offer,
            }
        }
        BerthWrite::Delete { lease } => {
            let slot = (0..SLOTS).find(|s| name(*s, world.split) == *lease);
            let slot = slot.and_then(|s| u8::try_from(s).ok()).unwrap_or(NONE);
            Write::Berth {
                slot,
                lease: Lease::default(),
                offer: None,
            }
        }
    };
    let writes: Vec<Write> = plan.writes.iter().map(write).collect();
    let slots = view.slots.map(|s| Lease { epoch: 0, is: s.is });
    let everybody: Vec<(u8, u8)> = view.elsewhere.into_iter().flatten().collect();
    let bits = members
        .filter(|(_, m)| m.is_some())
        .fold(0, |bits, (n, _)| bits | 1 << n);
    let broken = judge::plan(
        world,
        &slots,
        view.pool,
        &writes,
        (unavailable, limit, bits, &everybody),
    );
    Planned {
        writes,
        total: u8::try_from(plan.counts.total).unwrap_or(NONE),
        failures: recorded(plan),
        broken,
    }
}

fn recorded(plan: &Plan) -> [u8; 4] {
    let mut bits = [0; 4];
    for (digest, nodes) in &plan.failures {
        if let Some(bits) = bits.get_mut(usize::from(rich::image(Some(digest)))) {
            *bits = nodes
                .iter()
                .map(|n| rich::node(Some(n)))
                .fold(0, |bits, n| bits | 1 << n);
        }
    }
    bits
}

fn name(slot: usize, split: usize) -> String {
    let (pool, index) = place(slot, split);
    format!("{}-{index}", rich::pool(pool))
}

fn facts(world: &World, view: &View) -> PoolFacts {
    let seen = |(at, one): (usize, &OneBerth)| {
        let epoch = if one.stamped {
            rich::OWN_EPOCH
        } else {
            rich::OTHER_EPOCH
        };
        let place = place(at, world.split);
        let berth = rich::berth(place, &Lease { epoch: 0, is: one.is }, epoch)?;
        let age = if one.aged { OPEN_FOR } else { Duration::ZERO };
        Some(SeenBerth {
            lease: name(at, world.split),
            berth: Ok(berth),
            in_doubt: one.doubt,
            age,
        })
    };
    let whose = |which: fn(&OneBerth) -> bool| -> BTreeSet<NodeUid> {
        let slots = view.slots.iter().filter(|s| which(s));
        slots
            .filter_map(|s| Lease { epoch: 0, is: s.is }.who())
            .map(|(n, uid)| rich::uid(n, uid))
            .collect()
    };
    PoolFacts {
        pool: rich::pool(view.pool),
        epoch: rich::OWN_EPOCH,
        capacity: view.capacity.into(),
        published: view.published.into(),
        gate: view.paused.then(|| Gate {
            reason: "Paused",
            message: String::new(),
        }),
        closes: None,
        waves: vec![Wave {
            name: REST.to_owned(),
            soak: Duration::ZERO,
            soaked: Duration::ZERO,
        }],
        failures: failures(view),
        max_failures: world.max_failures,
        unresolved: false,
        members: view
            .members
            .iter()
            .enumerate()
            .filter_map(|(n, m)| Some(member(n, m.as_ref()?)))
            .collect(),
        berths: view.slots.iter().enumerate().filter_map(seen).collect(),
        elsewhere: view
            .elsewhere
            .iter()
            .flatten()
            .map(|(n, uid)| rich::uid(*n, *uid))
            .collect(),
        confirmed_gone: whose(|s| s.gone),
        lost: whose(|s| s.lost),
    }
}

fn failures(view: &View) -> Failures {
    let mut failures = Failures::new();
    for (image, bits) in (0..).zip(view.failures) {
        let nodes: BTreeSet<NodeName> = (0..NODES as u8)
            .filter(|n| bits & (1 << n) != 0)
            .map(rich::name)
            .collect();
        if !nodes.is_empty() {
            failures.insert(rich::digest(image), nodes);
        }
    }
    failures
}

fn member(node: usize, one: &OneMember) -> Member {
    let node = u8::try_from(node).unwrap_or(NONE);
    Member {
        name: rich::name(node),
        uid: rich::uid(node, one.uid),
        ready: one.ready,
        unschedulable: one.unschedulable,
        our_cordon: one.ours,
        desired: rich::some_digest(one.desired),
        published: rich::some_digest(one.published),
        published_uid: rich::uid(node, one.published_uid),
        observed: one.observed,
        prepared: one.prepared,
        staged: rich::some_digest(one.staged),
        booted: rich::some_digest(one.booted),
        failed: (1..4)
            .filter(|i| one.failed & (1 << i) != 0)
            .map(rich::digest)
            .collect(),
        last_turn: (one.turn != 0).then(|| (rich::digest(one.turn), 1)),
        lapses: one.lapsed.into(),
        heard: true,
        wave: 0,
        zone: String::new(),
        control_plane: None,
        clock_synchronized: true,
        estimate: Estimate::default(),
    }
}

/// A closed berth that nobody used yet.
pub fn closed() -> Berth {
    Berth::Closed(Closed {
        reason: ClosedReason::Released,
        last: NONE,
        target: 0,
        outcome: None::<Outcome>,
    })
}
