//! Effects of a controller's passes on the world: when they look, and in which order they write.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::agent::{After, How};
use crate::fault::Fault;
use crate::judge;
use crate::planner::{OneBerth, Planned, Plans, SeenNode, View};
use crate::set::Set;
use crate::state::{
    Answer, Begun, Berth, BootImages, Controller, Entry, Fleet, Lease, Look, NONE, No, Node, Object, Pool, Request,
    Sight, State, Status, Work, Write,
};
use crate::watch;
use crate::world::{Broken, Follows, World};

/// View that the watches show now.
pub(crate) fn see(state: &State) -> Look {
    Look {
        nodes: state.nodes.clone(),
        pools: state.pools.clone(),
        fleet: state.fleet,
        slots: state.slots.clone(),
    }
}

/// Says whether no Node has that UID (any more).
fn is_gone(nodes: &[Node], (node, uid): (No, u8)) -> bool {
    let object = &nodes[usize::from(node)].object;
    !object.there || object.uid != uid
}

/// The cluster as a controller sees it: objects as the watches show them, berths and Nodes that are gone as they are.
fn view(world: &World, state: &State, who: usize, look: &Look, aged: bool) -> View {
    let controller = &state.controllers[who];
    let seen = |node: &Node| SeenNode {
        object: Object { boot: 0, ..node.object },
        labels: node.labels,
        spec: node.spec,
        status: node.status,
    };
    let berth = |(slot, lease): (usize, &Lease)| OneBerth {
        is: lease.is,
        stamped: lease.epoch == controller.epoch,
        doubt: controller.doubt.has(slot),
        refused: controller.refused.has(slot),
    };
    let shown: Vec<Option<(No, u8)>> = look.slots.iter().map(Lease::who).collect();
    let hosts = (0..).zip(&look.nodes).filter_map(|(n, node)| Some((n, node.spec?.uid)));
    let mut gone: Vec<(No, u8)> = shown.iter().copied().flatten().chain(hosts).collect();
    gone.retain(|one| is_gone(&state.nodes, *one));
    gone.sort_unstable();
    gone.dedup();
    View {
        nodes: look.nodes.iter().map(seen).collect(),
        pools: look.pools.clone(),
        // What agents learn of the API server is nothing to a controller.
        fleet: Fleet {
            unguarded: false,
            tries_guard: false,
            tagged: 0,
            old: 0,
            soaked: 0,
            ..look.fleet
        },
        slots: state.slots.iter().enumerate().map(berth).collect(),
        shown,
        gone,
        changed: (0..)
            .zip(&look.pools)
            .filter(|(pool, shown)| asked(world, shown) != asked(world, &state.pools[usize::from(*pool)]))
            .map(|(pool, _)| pool)
            .collect(),
        fleet_changed: look.fleet.paused != state.fleet.paused,
        answering: (0..)
            .zip(&state.nodes)
            .filter(|(_, n)| answers(world, n))
            .map(|(n, _)| n)
            .collect(),
        lapsed: controller.lapsed.clone(),
        unused: controller.unused.clone(),
        silent: controller.silent.clone(),
        answer: controller.answer.map(|answer| Answer {
            is_old: false,
            ..answer
        }),
        soak: controller.soak,
        counts: (controller.counts, controller.counted),
        aged,
    }
}

/// The admin's part of a pool. A tag is moved in the registry, and the pool stays as it is.
fn asked(world: &World, pool: &Pool) -> (No, u8, bool, u8, BootImages) {
    let image = if world.has_tag() && world.follows != Follows::Pinned {
        0
    } else {
        pool.target
    };
    (pool.capacity, image, pool.paused, pool.token, pool.boot_images)
}

/// True when a control plane node's API server is there to answer.
fn answers(world: &World, node: &Node) -> bool {
    node.labels.server && !node.host.down && world.bad & (1 << node.host.booted) == 0
}

/// The writes to BootcNodes, and which of them would still succeed.
fn entries(state: &State, look: &Look, writes: &[Write]) -> VecDeque<Entry> {
    let entry = |write: &Write| {
        let current = match write {
            Write::Publish { node, .. } => {
                let (seen, now) = (&look.nodes[usize::from(*node)], &state.nodes[usize::from(*node)]);
                now.spec == seen.spec && now.status == seen.status
            }
            _ => true,
        };
        Entry {
            write: write.clone(),
            current,
        }
    };
    writes.iter().map(entry).collect()
}

/// Decisions of a pass about the berths, for each naming of the nodes that makes a difference.
fn decide(
    world: &World,
    state: &State,
    (view, look, refused): (&View, &Look, &Set),
    plans: &mut Plans,
    every: bool,
) -> BTreeSet<(Vec<WriteKey>, Option<Broken>)> {
    let sights: Vec<Arc<Sight>> = (0..)
        .zip(&view.pools)
        .map(|(pool, _)| {
            Arc::new(Sight {
                refused: refused.clone(),
                ..judge::sight(world, look, pool)
            })
        })
        .collect();
    if every {
        let all = plans.named(world, view);
        let written = all.iter().map(|pools| written(world, state, look, pools, &sights));
        return written.collect();
    }
    let passed = plans.of(world, view);
    [written(world, state, look, &passed.pools, &sights)].into()
}

/// The writes of all pools' plans, each with the world that it was decided on for the judge, who looks at them first.
fn written(
    world: &World,
    state: &State,
    look: &Look,
    pools: &[Planned],
    sights: &[Arc<Sight>],
) -> (Vec<WriteKey>, Option<Broken>) {
    let (mut writes, mut broken) = (vec![], None);
    for ((pool, planned), (terms, sight)) in (0..).zip(pools).zip(look.pools.iter().zip(sights)) {
        broken = broken.or(planned.broken);
        broken = broken.or_else(|| judge::adopts(world, look, pool, planned.target));
        broken = broken.or_else(|| judge::plan(world, &state.slots, look, pool, &planned.writes, sight));
        broken = broken.or_else(|| judge::paused(state, pool, &planned.writes));
        for write in &planned.writes {
            let mut write = write.clone();
            if let Write::Berth { lease, offer, .. } = &mut write
                && (matches!(lease.is, Berth::Offered(_)) || !sight.excluded.is_empty())
            {
                *offer = Some(sight.clone());
            }
            writes.push(WriteKey(write));
        }
        broken = broken.or_else(|| judge::follows(world, state, look, pool, planned.target));
        broken = broken.or_else(|| judge::remembers(look, pool, planned.boot_image));
        let status = (planned.target, planned.total, planned.available);
        if status != (terms.target, terms.published, (terms.available, terms.known_long))
            || planned.boot_image != terms.boot_image
            || (world.soaks && planned.soaked.0 != terms.soaked)
            || planned.failures != terms.failures
        {
            writes.push(WriteKey(Write::Pool {
                pool,
                target: planned.target,
                total: planned.total,
                available: planned.available.0,
                known_long: planned.available.1,
                soaked: world.soaks && planned.soaked.0 && planned.target == terms.target,
                boot_image: planned.boot_image,
                failures: planned.failures.clone(),
            }));
        }
    }
    (writes, broken)
}

/// A write, in an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteKey(Write);

impl PartialOrd for WriteKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WriteKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        crate::hash::of(&self.0).cmp(&crate::hash::of(&other.0))
    }
}

/// The passes that a controller may make now: the states after it, with the writes to be made in its queue.
/// `every`: with every naming of the nodes.
pub fn passes(world: &World, state: &State, who: usize, aged: bool, plans: &mut Plans, every: bool) -> Vec<After> {
    let controller = &state.controllers[who];
    if usize::from(state.leader) != who || !controller.queue.is_empty() {
        return vec![];
    }
    let stale = controller.look.is_some();
    let look = controller.look.as_deref().cloned().unwrap_or_else(|| see(state));
    let mut begun = state.clone();
    begun.controllers[who].look = None;
    for held in state.slots.iter().filter_map(Lease::held) {
        begun.controllers[who].lapsed.drop(held.node);
    }
    for (number, node) in (0..)
        .zip(&look.nodes)
        .filter(|(_, node)| node.status.staged != 0 || node.status.work == Work::Pulls)
    {
        if node
            .spec
            .is_none_or(|spec| [node.status.staged, node.status.booted].contains(&spec.image))
        {
            begun.controllers[who].unused.drop(number);
        }
    }
    if world.follows != Follows::AtOnce {
        count(&mut begun.controllers[who], &look.pools[0]);
        let controller = &begun.controllers[who];
        if controller.answer.is_none() || watch::wants_confirmation(world, &look.pools[0], controller) {
            ask(&mut begun, who);
        }
    }
    let view = view(world, &begun, who, &look, aged);
    let passed = plans.of(world, &view);
    let publishes = &passed.publishes;
    if !publishes.is_empty() && !aged {
        begun.controllers[who].queue = entries(state, &look, publishes);
        let broken = judge::publishes(world, &look, publishes);
        return vec![(begun, broken.or_else(|| judge::permits(world, &look, publishes)))];
    }
    let mut after = vec![];
    let refused = &controller.refused;
    if world.soaks {
        let since = passed.pools.first().map_or(Begun::No, |planned| planned.soaked.1);
        let image = if since == Begun::No { 0 } else { look.pools[0].target };
        begun.controllers[who].soak = (image, since);
    }
    for (writes, broken) in decide(world, &begun, (&view, &look, refused), plans, every) {
        let mut next = begun.clone();
        let current = |write: &Write| match write {
            Write::Pool { pool, .. } => look.pools[usize::from(*pool)] == state.pools[usize::from(*pool)],
            _ => true,
        };
        let entry = |WriteKey(write): WriteKey| Entry {
            current: current(&write),
            write,
        };
        next.controllers[who].queue = writes.into_iter().map(entry).map(|e| stamped(e, state, who)).collect();
        let remembers = next.controllers[who] != state.controllers[who];
        if broken.is_some() || stale || remembers {
            after.push((next, broken));
        }
    }
    after
}

/// The leader asks the registry what the tag points at.
pub fn ask(state: &mut State, who: usize) {
    let (fleet, image) = (state.fleet, state.pools[0].tagged);
    let controller = &mut state.controllers[who];
    controller.answer = Some(Answer {
        image,
        late: controller.counted && controller.counts == image,
        is_old: fleet.old & (1 << image) != 0,
    });
}

/// The leader counts for how long it has known of the image that the status calls available, from what leaders before it
/// have counted.
fn count(controller: &mut Controller, pool: &Pool) {
    if controller.counts != pool.available {
        (controller.counts, controller.counted) = (pool.available, pool.available != 0 && pool.known_long);
    }
}

/// The plan knows its own epoch as 1; any other is the one that the berth has.
fn stamped(mut entry: Entry, state: &State, who: usize) -> Entry {
    if let Write::Berth { slot, lease, .. } = &mut entry.write
        && lease.is != Berth::Missing
    {
        lease.epoch = match lease.epoch {
            1 => state.controllers[who].epoch,
            _ => state.slots[usize::from(*slot)].epoch,
        };
    }
    entry
}

/// The first write of a controller's queue is sent.
pub fn send(world: &World, mut state: State, who: usize, how: How) -> After {
    let Some(entry) = state.controllers[who].queue.pop_front() else {
        return (state, None);
    };
    let mut broken = None;
    let mut goes_on = matches!(entry.write, Write::Publish { .. });
    let is_refused = matches!(&entry.write, Write::Berth { slot, .. } if state.unwritable.has(*slot));
    if entry.current && is_refused && matches!(how, How::Done | How::Lost) {
        if let (Write::Berth { slot, .. }, How::Done) = (&entry.write, how) {
            state.controllers[who].refused.add(*slot);
        }
    } else if entry.current {
        match how {
            How::Done | How::Lost => broken = land(world, &mut state, &entry.write, Some(who)),
            How::Late | How::Killed => state.air.push(Request::Controller(entry.write.clone())),
        }
        goes_on = goes_on || how == How::Done;
    }
    let controller = &mut state.controllers[who];
    if let (Write::Berth { slot, .. }, true) = (&entry.write, entry.current) {
        match how {
            // A write that is refused says nothing of one before it.
            How::Done if is_refused => {}
            How::Done => {
                controller.doubt.drop(*slot);
                controller.refused.drop(*slot);
            }
            _ => controller.doubt.add(*slot),
        }
    }
    if !goes_on {
        // The pool's status is written all the same: it says what was read.
        let pool = of_pool(world, &entry.write);
        controller
            .queue
            .retain(|e| matches!(e.write, Write::Pool { .. }) || of_pool(world, &e.write) != pool);
    }
    if how == How::Killed {
        controller.epoch = 0;
        let epoch = next_epoch(&state);
        state.controllers[who] = Controller {
            epoch,
            ..Controller::default()
        };
        state.leader = who as u8;
    }
    (state, broken)
}

fn of_pool(world: &World, write: &Write) -> u8 {
    match write {
        Write::Berth { slot, .. } => world.pool_of(*slot),
        Write::Pool { pool, .. } => *pool,
        Write::Publish { .. } => NONE,
    }
}

/// A write of a controller arrives. `who`: the one that still waits for the answer.
pub fn land(world: &World, state: &mut State, write: &Write, who: Option<usize>) -> Option<Broken> {
    match write.clone() {
        Write::Berth { slot, lease, offer } => {
            let broken = judge::controller_write(world, state, slot, &lease, offer.as_deref());
            let before = state.slots[usize::from(slot)];
            if let (Berth::Offered(o), Berth::Closed(c), Some(who)) = (before.is, lease.is, who)
                && c.outcome == Some(berth_api::berth::Outcome::Lapsed)
            {
                state.controllers[who].lapsed.add(o.node);
            }
            if let (Berth::Held(h), Berth::Closed(_)) = (before.is, lease.is) {
                let ghost = &mut state.nodes[usize::from(h.node)].ghost;
                (ghost.abandoned, ghost.unproven) = (true, false);
            }
            // A PUT that changes nothing does not move the resourceVersion; a fence writes its time.
            state.slots[usize::from(slot)] = lease;
            state.touch_slot(slot);
            broken
        }
        Write::Publish { node, spec } => {
            let node = usize::from(node);
            let here = &mut state.nodes[node];
            if here.spec.is_none() || spec.is_none() {
                here.status = Status::default();
            }
            here.status.observed = false;
            here.spec = spec;
            state.touch_bootc(node);
            None
        }
        Write::Pool {
            pool,
            target,
            total,
            available,
            known_long,
            soaked,
            boot_image,
            failures,
        } => {
            let pool_now = &mut state.pools[usize::from(pool)];
            (pool_now.target, pool_now.published) = (target, total);
            (pool_now.available, pool_now.known_long) = (available, known_long);
            (pool_now.boot_image, pool_now.soaked) = (boot_image, soaked);
            pool_now.failures = failures;
            state.touch_pool(pool);
            None
        }
    }
}

/// The epoch of the next leader.
pub fn next_epoch(state: &State) -> u8 {
    let epochs = state
        .controllers
        .iter()
        .map(|c| c.epoch)
        .chain(state.slots.iter().map(|l| l.epoch));
    let highest = epochs.max().unwrap_or(0);
    highest + 1
}

/// The other controller is elected. The old one does not know it yet.
pub fn elect(state: &mut State, who: usize) {
    let epoch = next_epoch(state);
    state.controllers[who] = Controller {
        epoch,
        ..Controller::default()
    };
    state.leader = who as u8;
}

/// A controller's watches show it the world, and fall silent until it has decided on that.
pub fn look(state: &mut State, who: usize) {
    state.controllers[who].look = Some(Box::new(see(state)));
}

/// Everything that a controller may do next.
pub fn moves(world: &World, state: &State, who: usize, plans: &mut Plans, push: &mut dyn FnMut(Doing, After)) {
    let controller = &state.controllers[who];
    let leads = usize::from(state.leader) == who;
    if let Some(first) = controller.queue.front() {
        let write = &first.write;
        let faults = [
            (How::Lost, Fault::LostReply),
            (How::Late, Fault::Late),
            (How::Killed, Fault::ControllerCrash),
        ];
        for (how, fault) in faults {
            if state.may(fault) && first.current && (how != How::Killed || leads) {
                let mut faulty = state.clone();
                faulty.spend(fault);
                push(Doing::Send(write.clone(), how), send(world, faulty, who, how));
            }
        }
        push(
            Doing::Send(write.clone(), How::Done),
            send(world, state.clone(), who, How::Done),
        );
    }
    for after in passes(world, state, who, false, plans, true) {
        push(Doing::Pass, after);
    }
    if state.may(Fault::Lapse) && state.slots.iter().any(|l| l.who().is_some()) {
        let mut spent = state.clone();
        spent.spend(Fault::Lapse);
        for after in passes(world, &spent, who, true, plans, true) {
            push(Doing::LatePass, after);
        }
    }
    if leads && state.may(Fault::StaleWatch) && controller.queue.is_empty() && controller.look.is_none() {
        let mut looked = state.clone();
        looked.spend(Fault::StaleWatch);
        look(&mut looked, who);
        push(Doing::Look, (looked, None));
    }
    if leads && state.may(Fault::ControllerCrash) {
        let mut crashed = state.clone();
        crashed.spend(Fault::ControllerCrash);
        elect(&mut crashed, who);
        push(Doing::Crash, (crashed, None));
    }
    if !leads && state.may(Fault::Election) {
        let mut elected = state.clone();
        elected.spend(Fault::Election);
        elect(&mut elected, who);
        push(Doing::Elected, (elected, None));
    }
}

/// An action of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doing {
    /// The controller looks at everything and decides.
    Pass,
    /// The same, long after it saw the open offers.
    LatePass,
    /// Its watches show it the world; it decides later.
    Look,
    /// The controller sends a write.
    Send(Write, How),
    /// The controller dies, and starts anew.
    Crash,
    /// The controller is elected.
    Elected,
}
