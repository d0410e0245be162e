//! Runs a controller's passes in the world: gathers the inputs of a pass, and delivers its writes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::agent::{After, Delivery};
use crate::controller_view::{ControllerView, SeenBerth, SeenNode};
use crate::fault::Fault;
use crate::judge;
use crate::offered;
use crate::planner::{Plans, PoolPlan};
use crate::set::Set;
use crate::state::{
    Answer, Begun, Berth, BootImages, Controller, Entry, Fleet, Lease, NONE, Node, Number, Object, PlanInputs, Pool,
    Request, State, Status, WatchView, Work, Write,
};
use crate::watch;
use crate::world::{Broken, Follows, World};

/// Returns the current content of the watches.
pub(crate) fn see(state: &State) -> WatchView {
    WatchView {
        nodes: state.nodes.clone(),
        pools: state.pools.clone(),
        fleet: state.fleet,
        slots: state.slots.clone(),
    }
}

fn is_gone(nodes: &[Node], (node, uid): (Number, u8)) -> bool {
    let object = &nodes[usize::from(node)].object;
    !object.exists || object.uid != uid
}

/// Returns the inputs of a controller's pass: objects from the watches (`look`), and the results of live reads.
fn view(world: &World, state: &State, who: usize, look: &WatchView, aged: bool) -> ControllerView {
    let controller = &state.controllers[who];
    let nodes = look.nodes.iter().map(|node| SeenNode {
        object: Object { boot: 0, ..node.object },
        labels: node.labels,
        spec: node.spec,
        status: node.status,
    });
    let slots = state.slots.iter().enumerate().map(|(slot, lease)| SeenBerth {
        is: lease.is,
        stamped: lease.epoch == controller.epoch,
        doubt: controller.doubt.has(slot),
        refused: controller.refused.has(slot),
    });
    let shown: Vec<Option<(Number, u8)>> = look.slots.iter().map(Lease::who).collect();
    let hosts = (0..).zip(&look.nodes).filter_map(|(n, node)| Some((n, node.spec?.uid)));
    let mut gone: Vec<(Number, u8)> = shown.iter().copied().flatten().chain(hosts).collect();
    gone.retain(|one| is_gone(&state.nodes, *one));
    gone.sort_unstable();
    gone.dedup();
    ControllerView {
        nodes: nodes.collect(),
        pools: look.pools.clone(),
        // Reset the fields that a controller does not see.
        fleet: Fleet {
            unguarded: false,
            tries_guard: false,
            tagged: 0,
            old: 0,
            soaked: 0,
            ..look.fleet
        },
        slots: slots.collect(),
        shown,
        gone,
        changed: (0..)
            .zip(&look.pools)
            .filter(|(pool, shown)| asked(world, shown) != asked(world, &state.pools[usize::from(*pool)]))
            .map(|(pool, _)| pool)
            .collect(),
        fleet_changed: look.fleet.paused != state.fleet.paused,
        answering: judge::which(&state.nodes, |node| answers(world, node)),
        offered: controller.offered.clone(),
        unused: controller.unused.clone(),
        endless: controller.endless.clone(),
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

/// Returns the fields of a pool that the admin sets. If the pool follows a tag, the image is 0: moving a tag does not
/// change the pool.
fn asked(world: &World, pool: &Pool) -> (Number, u8, bool, u8, BootImages) {
    let image = if world.has_tag() && world.follows != Follows::Pinned {
        0
    } else {
        pool.target
    };
    (pool.capacity, image, pool.paused, pool.token, pool.boot_images)
}

fn answers(world: &World, node: &Node) -> bool {
    node.labels.server && !node.host.down && world.bad & (1 << node.host.booted) == 0
}

fn entries(state: &State, look: &WatchView, writes: &[Write]) -> VecDeque<Entry> {
    let mut entries = VecDeque::new();
    for write in writes.iter().cloned() {
        let current = match &write {
            Write::Publish { node, .. } => {
                let (seen, now) = (&look.nodes[usize::from(*node)], &state.nodes[usize::from(*node)]);
                now.spec == seen.spec && now.status == seen.status
            }
            _ => true,
        };
        entries.push_back(Entry { write, current });
    }
    entries
}

/// Plans a pass. Returns each possible result: the writes, and the first broken rule, if any. `every`: makes a plan for
/// each assignment of names to nodes, because names decide ties.
fn decide(
    world: &World,
    state: &State,
    (view, look, refused): (&ControllerView, &WatchView, &Set),
    plans: &mut Plans,
    every: bool,
) -> BTreeSet<(Vec<WriteKey>, Option<Broken>)> {
    let all_inputs: Vec<Arc<PlanInputs>> = (0..)
        .zip(&view.pools)
        .map(|(pool, _)| {
            Arc::new(PlanInputs {
                refused: refused.clone(),
                ..judge::inputs(world, look, pool)
            })
        })
        .collect();
    if every {
        let all = plans.named(world, view);
        let written = all.iter().map(|pools| written(world, state, look, pools, &all_inputs));
        return written.collect();
    }
    let passed = plans.of(world, view);
    [written(world, state, look, &passed.pools, &all_inputs)].into()
}

/// Returns the writes of all pools' plans, and the first broken rule, if any. Adds the plan's inputs to each write that
/// the judge checks against them later.
fn written(
    world: &World,
    state: &State,
    look: &WatchView,
    pools: &[PoolPlan],
    all_inputs: &[Arc<PlanInputs>],
) -> (Vec<WriteKey>, Option<Broken>) {
    let (mut writes, mut broken) = (vec![], None);
    for ((pool, planned), (terms, inputs)) in (0..).zip(pools).zip(look.pools.iter().zip(all_inputs)) {
        broken = broken.or(planned.broken);
        broken = broken.or_else(|| judge::adopts(world, look, pool, planned.status.target));
        broken = broken.or_else(|| judge::plan(world, &state.slots, look, pool, &planned.writes, inputs));
        broken = broken.or_else(|| judge::paused(state, pool, &planned.writes));
        for write in &planned.writes {
            let mut write = write.clone();
            if let Write::Berth { lease, offer, .. } = &mut write
                && (matches!(lease.is, Berth::Offered(_)) || !inputs.excluded.is_empty())
            {
                *offer = Some(inputs.clone());
            }
            writes.push(WriteKey(write));
        }
        broken = broken.or_else(|| judge::follows(world, state, look, pool, planned.status.target));
        broken = broken.or_else(|| judge::remembers(look, pool, planned.status.boot_image));
        if planned.status != terms.status {
            let status = planned.status.clone();
            writes.push(WriteKey(Write::Pool { pool, status }));
        }
    }
    (writes, broken)
}

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

/// True if the node no longer needs its permit to pull.
fn has_used_permit(node: &Node) -> bool {
    let status = &node.status;
    let has_begun = status.staged != 0 || status.work == Work::Pulls;
    let mut images = [status.staged, status.booted].into_iter();
    has_begun && node.spec.is_none_or(|spec| images.any(|image| image == spec.image))
}

/// Runs a controller's pass. Returns each possible state after the pass, with the pass's writes in the controller's
/// queue. `every`: makes a plan for each assignment of names to nodes.
pub fn passes(world: &World, state: &State, who: usize, aged: bool, plans: &mut Plans, every: bool) -> Vec<After> {
    let controller = &state.controllers[who];
    if usize::from(state.leader) != who || !controller.queue.is_empty() {
        return vec![];
    }
    let stale = controller.look.is_some();
    let look = controller.look.as_deref().cloned().unwrap_or_else(|| see(state));
    let mut begun = state.clone();
    begun.controllers[who].look = None;
    for number in judge::which(&look.nodes, has_used_permit).iter() {
        begun.controllers[who].unused.drop(number);
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
        let since = passed.pools.first().map_or(Begun::No, |planned| planned.soaks);
        let image = if since == Begun::No { 0 } else { look.pools[0].target };
        begun.controllers[who].soak = (image, since);
    }
    for (writes, broken) in decide(world, &begun, (&view, &look, refused), plans, every) {
        let mut next = begun.clone();
        for WriteKey(write) in writes {
            let current = match &write {
                Write::Pool { pool, .. } => look.pools[usize::from(*pool)] == state.pools[usize::from(*pool)],
                _ => true,
            };
            let write = stamped(write, state, who);
            next.controllers[who].queue.push_back(Entry { write, current });
        }
        let remembers = next.controllers[who] != state.controllers[who];
        if broken.is_some() || stale || remembers {
            after.push((next, broken));
        }
    }
    after
}

/// Records the registry's current answer about the tag in the controller's state.
pub fn ask(state: &mut State, who: usize) {
    let (fleet, image) = (state.fleet, state.pools[0].tagged);
    let controller = &mut state.controllers[who];
    controller.answer = Some(Answer {
        image,
        late: controller.counted && controller.counts == image,
        is_old: fleet.old & (1 << image) != 0,
    });
}

/// Makes the leader count the age of the available image. For a new image, the count starts with the age in the pool's
/// status.
fn count(controller: &mut Controller, pool: &Pool) {
    if controller.counts != pool.available {
        (controller.counts, controller.counted) = (pool.available, pool.available != 0 && pool.known_long);
    }
}

/// Sets the epoch of a berth's write. Epoch 1 becomes the controller's own epoch. Any other number becomes the berth's
/// current epoch.
fn stamped(mut write: Write, state: &State, who: usize) -> Write {
    if let Write::Berth { slot, lease, .. } = &mut write
        && lease.is != Berth::Missing
    {
        lease.epoch = match lease.epoch {
            1 => state.controllers[who].epoch,
            _ => state.slots[usize::from(*slot)].epoch,
        };
    }
    write
}

pub fn send(world: &World, mut state: State, who: usize, delivery: Delivery) -> After {
    let Some(entry) = state.controllers[who].queue.pop_front() else {
        return (state, None);
    };
    let mut broken = None;
    let mut goes_on = matches!(entry.write, Write::Publish { .. });
    let is_refused = matches!(&entry.write, Write::Berth { slot, .. } if state.unwritable.has(*slot));
    if entry.current && is_refused && matches!(delivery, Delivery::Done | Delivery::Lost) {
        if let (Write::Berth { slot, .. }, Delivery::Done) = (&entry.write, delivery) {
            state.controllers[who].refused.add(*slot);
        }
    } else if entry.current {
        match delivery {
            Delivery::Done | Delivery::Lost => broken = land(world, &mut state, &entry.write, Some(who)),
            Delivery::Late | Delivery::Killed => state.air.push(Request::Controller(entry.write.clone())),
        }
        goes_on = goes_on || delivery == Delivery::Done;
    }
    let controller = &mut state.controllers[who];
    if let (Write::Berth { slot, .. }, true) = (&entry.write, entry.current) {
        match delivery {
            // A rejection does not show whether an earlier write succeeded.
            Delivery::Done if is_refused => {}
            Delivery::Done => {
                controller.doubt.drop(*slot);
                controller.refused.drop(*slot);
            }
            _ => controller.doubt.add(*slot),
        }
    }
    if !goes_on {
        // The pool's status reports facts, so the status is written even if an earlier write failed.
        let pool = of_pool(world, &entry.write);
        controller
            .queue
            .retain(|e| matches!(e.write, Write::Pool { .. }) || of_pool(world, &e.write) != pool);
    }
    if delivery == Delivery::Killed {
        controller.epoch = 0;
        elect(&mut state, who);
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

/// Executes a controller's write. `who`: the controller; `None` if it no longer waits for the response.
pub fn land(world: &World, state: &mut State, write: &Write, who: Option<usize>) -> Option<Broken> {
    match write.clone() {
        Write::Berth { slot, lease, offer } => {
            let broken = judge::controller_write(world, state, slot, &lease, offer.as_deref());
            let before = state.slots[usize::from(slot)];
            if let Some(who) = who {
                let target = state.pools[usize::from(world.pool_of(slot))].target;
                offered::count(&mut state.controllers[who].offered, &before.is, &lease.is, target);
            }
            if let (Berth::Held(h), Berth::Closed(_)) = (before.is, lease.is) {
                let ghost = &mut state.nodes[usize::from(h.node)].ghost;
                (ghost.abandoned, ghost.unproven) = (true, false);
            }
            // A write that changes nothing else still changes the renewTime, and so the resourceVersion.
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
        Write::Pool { pool, status } => {
            if status.target != state.pools[usize::from(pool)].target {
                offered::forget(state);
            }
            state.pools[usize::from(pool)].status = status;
            state.touch_pool(pool);
            None
        }
    }
}

pub fn next_epoch(state: &State) -> u8 {
    let epochs = state
        .controllers
        .iter()
        .map(|c| c.epoch)
        .chain(state.slots.iter().map(|l| l.epoch));
    let highest = epochs.max().unwrap_or(0);
    highest + 1
}

/// Elects a controller, without notice to the old leader.
pub fn elect(state: &mut State, who: usize) {
    let epoch = next_epoch(state);
    state.controllers[who] = Controller {
        epoch,
        ..Controller::default()
    };
    state.leader = who as u8;
}

/// Freezes the content of a controller's watches until its next pass.
pub fn look(state: &mut State, who: usize) {
    state.controllers[who].look = Some(Box::new(see(state)));
}

pub fn moves(world: &World, state: &State, who: usize, plans: &mut Plans, push: &mut dyn FnMut(ControllerMove, After)) {
    let controller = &state.controllers[who];
    let leads = usize::from(state.leader) == who;
    if let Some(first) = controller.queue.front() {
        let write = &first.write;
        let faults = [
            (Delivery::Lost, Fault::LostReply),
            (Delivery::Late, Fault::Late),
            (Delivery::Killed, Fault::ControllerCrash),
        ];
        for (delivery, fault) in faults {
            let may_happen = first.current && (delivery != Delivery::Killed || leads);
            if let Some(faulty) = state.spent(fault).filter(|_| may_happen) {
                let after = send(world, faulty, who, delivery);
                push(ControllerMove::Send(write.clone(), delivery), after);
            }
        }
        let after = send(world, state.clone(), who, Delivery::Done);
        push(ControllerMove::Send(write.clone(), Delivery::Done), after);
    }
    for after in passes(world, state, who, false, plans, true) {
        push(ControllerMove::Pass, after);
    }
    if state.slots.iter().any(|l| l.who().is_some())
        && let Some(spent) = state.spent(Fault::Lapse)
    {
        for after in passes(world, &spent, who, true, plans, true) {
            push(ControllerMove::LatePass, after);
        }
    }
    let may_look = leads && controller.queue.is_empty() && controller.look.is_none();
    if let Some(mut looked) = state.spent(Fault::StaleWatch).filter(|_| may_look) {
        look(&mut looked, who);
        push(ControllerMove::Look, (looked, None));
    }
    if let Some(mut crashed) = state.spent(Fault::ControllerCrash).filter(|_| leads) {
        elect(&mut crashed, who);
        push(ControllerMove::Crash, (crashed, None));
    }
    if let Some(mut elected) = state.spent(Fault::Election).filter(|_| !leads) {
        elect(&mut elected, who);
        push(ControllerMove::Elected, (elected, None));
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControllerMove {
    Pass,
    /// A pass at a time when the open offers are old enough to lapse.
    LatePass,
    /// Freezes the content of the controller's watches until its next pass.
    Look,
    Send(Write, Delivery),
    Crash,
    Elected,
}
