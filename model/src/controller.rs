//! What a controller's passes do to the world: the model's mirror of `reconcile`.

use std::collections::BTreeSet;

use crate::agent::{After, How};
use crate::fault::Fault;
use crate::judge;
use crate::planner::{OneBerth, OneMember, Plans, View};
use crate::state::{
    Berth, Controller, Cordon, Entry, Lease, Look, NODES, NONE, Pool, Request, SLOTS, Spec, State, Status, Write,
};
use crate::world::{Broken, World, place, rename_write};

/// What the watches show now.
fn see(state: &State) -> Look {
    Look {
        nodes: state.nodes,
        pools: state.pools,
        slots: state.slots,
    }
}

/// Whether no Node has that UID (any more).
fn is_gone(nodes: &[crate::state::Node; NODES], (node, uid): (u8, u8)) -> bool {
    let object = &nodes[usize::from(node)].object;
    !object.there || object.uid != uid
}

/// What is to be published, by what the watches show.
fn publishes(world: &World, state: &State, look: &Look) -> Vec<Entry> {
    let mut entries = vec![];
    for node in 0..world.nodes {
        let here = &look.nodes[node];
        let number = node as u8;
        let stale = here
            .spec
            .is_some_and(|s| !here.object.there || s.uid != here.object.uid);
        let spec = match here.spec {
            // Gone is what a live read says, too.
            Some(s) if stale && is_gone(&state.nodes, (number, s.uid)) => None,
            _ if stale || !here.object.there => continue,
            old => Some(draft(look, node, old)),
        };
        if spec != here.spec && !(spec.is_some_and(|s| s.pool == NONE) && here.spec.is_none()) {
            let now = &state.nodes[node];
            let current = now.spec == here.spec && now.status == here.status;
            entries.push(Entry {
                write: Write::Publish { node: number, spec },
                current,
            });
        }
    }
    entries
}

fn draft(look: &Look, node: usize, old: Option<Spec>) -> Spec {
    let here = &look.nodes[node];
    let uid = here.object.uid;
    let pool = if here.object.excluded { NONE } else { here.ghost.pool };
    let holds = look.slots.iter().any(|l| l.who() == Some((node as u8, uid)));
    if let Some(old) = old
        && old.pool != NONE
        && old.pool != pool
        && holds
    {
        // It finishes first what it has begun.
        return old;
    }
    match look.pools.get(usize::from(pool)) {
        Some(terms) => Spec {
            pool,
            uid,
            image: terms.target,
            token: terms.token,
        },
        None => Spec {
            pool: NONE,
            uid,
            image: 0,
            token: 0,
        },
    }
}

/// One pool as the controller sees it: its nodes as the watches show them, its berths as they are.
fn view(world: &World, state: &State, who: usize, look: &Look, pool: u8, aged: bool) -> View {
    let controller = &state.controllers[who];
    let terms = &look.pools[usize::from(pool)];
    let mut view = View {
        pool,
        capacity: terms.capacity,
        published: terms.published,
        paused: terms.paused,
        failures: terms.failures,
        members: [None; NODES],
        slots: [OneBerth::default(); SLOTS],
        elsewhere: [None; SLOTS],
    };
    for node in 0..world.nodes {
        let here = &look.nodes[node];
        if here.object.there && !here.object.excluded && here.ghost.pool == pool {
            view.members[node] = Some(member(here, terms, pool, controller.lapsed & (1 << node) != 0));
        }
    }
    for (slot, lease) in state.slots.iter().enumerate() {
        let who = lease.who();
        if place(slot, world.split).0 != pool {
            view.elsewhere[slot] = who;
            continue;
        }
        let seen = who.map(|(n, _)| look.nodes[usize::from(n)].object);
        let shown = look.slots[slot].who() == who;
        view.slots[slot] = OneBerth {
            is: lease.is,
            stamped: lease.epoch == controller.epoch,
            doubt: controller.doubt & (1 << slot) != 0,
            aged: aged && who.is_some(),
            // The watches do not show it, and a live read confirms that.
            gone: who.is_some_and(|w| shown && is_gone(&look.nodes, w) && is_gone(&state.nodes, w)),
            lost: who
                .zip(seen)
                .is_some_and(|(w, o)| o.there && o.uid == w.1 && o.excluded && !o.ready),
        };
    }
    view
}

fn member(here: &crate::state::Node, terms: &Pool, pool: u8, lapsed: bool) -> OneMember {
    let spec = here.spec.unwrap_or_default();
    let ours = here.spec.is_some_and(|s| s.pool == pool);
    let status = here.status;
    OneMember {
        uid: here.object.uid,
        ready: here.object.ready,
        unschedulable: here.object.unschedulable,
        ours: here.object.cordon != Cordon::No,
        desired: terms.target,
        published: if ours { spec.image } else { 0 },
        published_uid: spec.uid,
        observed: status.observed && status.uid == spec.uid,
        prepared: status.prepared,
        staged: status.staged,
        booted: status.booted,
        // Before the agent has obeyed a retry token, what it says of failures is what the token takes back.
        failed: if status.token == terms.token { status.failed } else { 0 },
        turn: status.turn,
        lapsed,
    }
}

/// Every way in which names can be given to the nodes: which of two equal ones comes first is by name, and the model's
/// nodes have none.
fn namings(nodes: usize) -> &'static [[u8; NODES]] {
    match nodes {
        3.. => &[[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]],
        2 => &[[0, 1, 2], [1, 0, 2]],
        _ => &[[0, 1, 2]],
    }
}

fn rename_view(view: &View, to: [u8; NODES]) -> View {
    let mut new = *view;
    for (node, member) in view.members.iter().enumerate() {
        new.members[usize::from(to[node])] = *member;
    }
    for slot in &mut new.slots {
        let mut lease = Lease { epoch: 0, is: slot.is };
        crate::world::rename_lease(&mut lease, to);
        slot.is = lease.is;
    }
    for (node, _) in new.elsewhere.iter_mut().flatten() {
        *node = to[usize::from(*node)];
    }
    new.failures = new.failures.map(|bits| crate::world::rename_bits(bits, to));
    new
}

fn inverse(to: [u8; NODES]) -> [u8; NODES] {
    let mut back = [0; NODES];
    for (from, to) in to.iter().enumerate() {
        back[usize::from(*to)] = from as u8;
    }
    back
}

/// What a pass decides, for each naming of the nodes that makes a difference.
fn decide(
    world: &World,
    state: &State,
    who: usize,
    look: &Look,
    aged: bool,
    plans: &mut Plans,
    every: bool,
) -> BTreeSet<(Vec<WriteKey>, Option<Broken>)> {
    let pools = if world.split < SLOTS { 2 } else { 1 };
    let mut decided = BTreeSet::new();
    let namings = namings(if every { world.nodes } else { 1 });
    for naming in namings {
        let (mut writes, mut broken) = (vec![], None);
        for pool in 0..pools {
            let view = rename_view(&view(world, state, who, look, pool, aged), *naming);
            let planned = plans.of(world, &view);
            broken = broken.or(planned.broken);
            let back = inverse(*naming);
            let mut of_pool: Vec<Write> = planned.writes.clone();
            let failures = planned.failures.map(|bits| crate::world::rename_bits(bits, back));
            of_pool.iter_mut().for_each(|w| rename_write(w, back));
            let terms = &look.pools[usize::from(pool)];
            if planned.total != terms.published || failures != terms.failures {
                of_pool.push(Write::Pool {
                    pool,
                    total: planned.total,
                    failures,
                });
            }
            writes.extend(of_pool.into_iter().map(WriteKey));
        }
        decided.insert((writes, broken));
    }
    decided
}

/// A write, in an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    for slot in &state.slots {
        if let Berth::Held(h) = slot.is {
            begun.controllers[who].lapsed &= !(1 << h.node);
        }
    }
    let publishes = publishes(world, state, &look);
    if !publishes.is_empty() && !aged {
        begun.controllers[who].queue = publishes;
        return vec![(begun, None)];
    }
    let mut after = vec![];
    for (writes, broken) in decide(world, &begun, who, &look, aged, plans, every) {
        let mut next = begun.clone();
        let current = |write: &Write| match write {
            Write::Pool { pool, .. } => look.pools[usize::from(*pool)] == state.pools[usize::from(*pool)],
            _ => true,
        };
        let entry = |WriteKey(write): WriteKey| Entry {
            write,
            current: current(&write),
        };
        next.controllers[who].queue = writes.into_iter().map(entry).map(|e| stamped(e, state, who)).collect();
        if broken.is_some() || stale || !next.controllers[who].queue.is_empty() {
            after.push((next, broken));
        }
    }
    after
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
    if state.controllers[who].queue.is_empty() {
        return (state, None);
    }
    let entry = state.controllers[who].queue.remove(0);
    let mut broken = None;
    let mut goes_on = matches!(entry.write, Write::Publish { .. });
    if entry.current {
        match how {
            How::Done | How::Lost => broken = land(world, &mut state, &entry.write, Some(who)),
            How::Late | How::Killed => state.air.push(Request::Controller(entry.write)),
        }
        goes_on = goes_on || how == How::Done;
    }
    let controller = &mut state.controllers[who];
    if let (Write::Berth { slot, .. }, true) = (&entry.write, entry.current) {
        match how {
            How::Done => controller.doubt &= !(1 << slot),
            _ => controller.doubt |= 1 << slot,
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
        Write::Berth { slot, .. } => place(usize::from(*slot), world.split).0,
        Write::Pool { pool, .. } => *pool,
        Write::Publish { .. } => NONE,
    }
}

/// A write of a controller arrives. `who`: the one that still waits for the answer.
pub fn land(world: &World, state: &mut State, write: &Write, who: Option<usize>) -> Option<Broken> {
    match *write {
        Write::Berth { slot, lease, offer } => {
            let broken = judge::controller_write(world, state, slot, &lease, offer);
            let before = state.slots[usize::from(slot)];
            if let (Berth::Offered(o), Berth::Closed(c), Some(who)) = (before.is, lease.is, who)
                && c.outcome == Some(berth_api::berth::Outcome::Lapsed)
            {
                state.controllers[who].lapsed |= 1 << o.node;
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
            if here.spec.map(|s| s.uid) != spec.map(|s| s.uid) {
                here.agent.node = crate::state::Seen::Unread;
                here.other.node = crate::state::Seen::Unread;
            }
            here.spec = spec;
            state.touch_bootc(node);
            None
        }
        Write::Pool { pool, total, failures } => {
            let pool_now = &mut state.pools[usize::from(pool)];
            pool_now.published = total;
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

/// Everything that a controller may do next.
pub fn moves(world: &World, state: &State, who: usize, plans: &mut Plans, push: &mut dyn FnMut(Doing, After)) {
    let controller = &state.controllers[who];
    let leads = usize::from(state.leader) == who;
    if let Some(first) = controller.queue.first() {
        let write = first.write;
        let faults = [
            (How::Lost, Fault::LostReply),
            (How::Late, Fault::Late),
            (How::Killed, Fault::ControllerCrash),
        ];
        for (how, fault) in faults {
            if state.may(fault) && first.current && (how != How::Killed || leads) {
                let mut faulty = state.clone();
                faulty.spend(fault);
                push(Doing::Send(write, how), send(world, faulty, who, how));
            }
        }
        push(
            Doing::Send(write, How::Done),
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
        looked.controllers[who].look = Some(Box::new(see(state)));
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

/// What a controller does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// It looks at everything and decides.
    Pass,
    /// The same, long after it saw the open offers.
    LatePass,
    /// Its watches show it the world; it decides later.
    Look,
    /// It sends a write.
    Send(Write, How),
    /// It dies, and starts anew.
    Crash,
    /// It is elected.
    Elected,
}
