//! A compromised node: what its two identities may write by the admission policies, the Node authorizer and
//! NodeRestriction. The node has no agent and no host in the model, because nothing about them can be relied on.

use berth_api::berth::{ClosedReason, Outcome};

use crate::agent;
use crate::habit::Habit;
use crate::nature;
use crate::number::Image;
use crate::state::{Berth, BootImage, Closed, Cordon, Held, Lease, NONE, Number, Offer, Phase, State, Work};
use crate::world::{Broken, World};

/// Habits of the fair schedule. The last two keep a berth for ever.
const HABITS: [Option<Habit>; 6] = [
    Some(Habit::Returns),
    Some(Habit::Fails),
    Some(Habit::Lapses),
    Some(Habit::Pulls),
    Some(Habit::Keeps),
    Some(Habit::Silent),
];

/// Returns the habits that must not keep the other nodes from their update. In a pool with a single berth, a node that
/// keeps the berth stops the pool until the admin closes the berth.
pub fn habits(world: &World) -> &'static [Option<Habit>] {
    match world.liars {
        0 => &[None],
        _ if world.capacity.0 == 1 => &HABITS[..4],
        _ => &HABITS,
    }
}

/// A single false report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    Booted(Image),
    Staged(Image),
    Prepared(bool),
    Released(bool),
    /// The image failed on the node, or did not fail.
    Failed(Image, bool),
    /// Image of the last turn, which failed.
    Turn(Image),
    Work(Work),
    BootImage(BootImage),
    Ready(bool),
    Unschedulable(bool),
    Cordon(Cordon),
    /// The Node reports the current boot (0) or an earlier one.
    Boot(u8),
    /// The node changes its own labels, and so its pool.
    Pool(u8),
}

/// Lists the berths that the policy lets a node write, and their new states.
pub fn abuses(world: &World, state: &State, node: usize) -> Vec<(Number, Berth)> {
    let mut writes = vec![];
    for (slot, lease) in (0..).zip(&state.slots) {
        match lease.is {
            Berth::Offered(offer) if usize::from(offer.node) == node => writes.push((slot, taken(offer))),
            Berth::Held(held) if usize::from(held.node) == node => {
                writes.extend(steps(world, held).into_iter().map(|berth| (slot, berth)));
            }
            _ => {}
        }
    }
    writes
}

fn taken(offer: Offer) -> Berth {
    Berth::Held(Held {
        node: offer.node,
        uid: offer.uid,
        target: offer.target,
        from: 1,
        boot: 0,
        phase: Phase::Taken,
        revoke: 0,
        until: offer.until,
    })
}

/// Lists the states that the holder of a berth may give it.
fn steps(world: &World, held: Held) -> Vec<Berth> {
    let phase = |phase| Berth::Held(Held { phase, ..held });
    let releasing = [Outcome::Updated, Outcome::DrainTimeout, Outcome::Failed].map(|o| phase(Phase::Releasing(o)));
    let licences = world.images.iter().filter(|_| held.revoke == 0).map(|target| {
        Berth::Held(Held {
            target: *target,
            phase: Phase::Committed,
            ..held
        })
    });
    match held.phase {
        Phase::Taken => licences.chain(releasing).collect(),
        Phase::Committed => licences.chain(releasing).chain([phase(Phase::Taken)]).collect(),
        Phase::Releasing(outcome) => vec![closed(held, outcome)],
    }
}

fn closed(held: Held, outcome: Outcome) -> Berth {
    let closed = Closed {
        reason: ClosedReason::Released,
        last: held.node,
        target: held.target,
        outcome: Some(outcome),
    };
    Berth::Closed(closed.kept())
}

/// Writes a berth as the compromised node's agent. Returns the rule that the write breaks.
pub fn write(world: &World, state: &mut State, node: usize, slot: Number, berth: Berth) -> Option<Broken> {
    let lease = Lease {
        is: berth,
        ..state.slots[usize::from(slot)]
    };
    agent::land(world, state, node, slot, lease)
}

/// Lists the false reports that a compromised node may make.
pub fn reports(world: &World, state: &State, node: usize) -> Vec<Lie> {
    let here = &state.nodes[node];
    let mut lies = vec![
        Lie::Prepared(!here.status.prepared),
        Lie::Released(!here.status.released),
        Lie::Turn(0),
        Lie::Ready(!here.object.ready),
        Lie::Unschedulable(!here.object.unschedulable),
        Lie::Boot(1 - here.object.boot.min(1)),
    ];
    for image in world.images.iter().copied().chain([1]) {
        let has_failed = here.status.failed & (1 << image) != 0;
        lies.extend([
            Lie::Booted(image),
            Lie::Staged(image),
            Lie::Failed(image, !has_failed),
            Lie::Turn(image),
        ]);
    }
    lies.extend([Cordon::No, Cordon::OverSchedulable, Cordon::OverCordoned].map(Lie::Cordon));
    if state.fleet.counts_pulls {
        lies.extend([Work::Other, Work::Pulls, Work::Proves, Work::Blocked].map(Lie::Work));
    }
    if state.fleet.tells_boot_images {
        lies.extend([BootImage::Unknown, BootImage::Older, BootImage::Newer].map(Lie::BootImage));
    }
    lies.extend((0..world.pools.len() as u8).chain([NONE]).map(Lie::Pool));
    lies
}

/// Stores a false report.
pub fn report(state: &mut State, node: usize, lie: Lie) {
    let here = &mut state.nodes[node];
    let (status, object) = (&mut here.status, &mut here.object);
    status.observed = true;
    match lie {
        Lie::Booted(image) => status.booted = image,
        Lie::Staged(image) => status.staged = image,
        Lie::Prepared(is) => status.prepared = is,
        Lie::Released(is) => status.released = is,
        Lie::Failed(image, true) => status.failed |= 1 << image,
        Lie::Failed(image, false) => status.failed &= !(1 << image),
        Lie::Turn(image) => status.turn = image,
        Lie::Work(work) => status.work = work,
        Lie::BootImage(image) => status.boot_image = image,
        Lie::Ready(is) => object.ready = is,
        Lie::Unschedulable(is) => object.unschedulable = is,
        Lie::Cordon(cordon) => object.cordon = cordon,
        Lie::Boot(boot) => object.boot = boot,
        Lie::Pool(pool) => here.labels.pool = pool,
    }
    state.touch_node(node);
    state.touch_bootc(node);
}

/// Gives the compromised nodes a habit.
pub fn adopt(state: &mut State, habit: Option<Habit>) {
    for node in 0..state.nodes.len() {
        let here = &mut state.nodes[node];
        if here.labels.liar.is_some() {
            here.labels.liar = habit;
            nature::mutes(state, node, habit == Some(Habit::Silent));
        }
    }
}

/// Makes the node Ready and schedulable. With a capacity of 1, an unavailable node stops the pool until an admin excludes
/// it, so I10 does not hold.
pub fn come_up(state: &mut State, node: usize) {
    for lie in [Lie::Ready(true), Lie::Unschedulable(false), Lie::Cordon(Cordon::No)] {
        report(state, node, lie);
    }
}

/// A compromised node acts by its habit, for one round of the fair schedule.
pub fn live(world: &World, state: &mut State, node: usize) -> Option<Broken> {
    let here = &state.nodes[node];
    let target = here.spec.map_or(0, |spec| spec.image);
    match here.labels.liar {
        None | Some(Habit::Any | Habit::Silent) => None,
        Some(Habit::Pulls) => {
            let broken = turn(world, state, node, Habit::Pulls);
            for lie in [
                Lie::Booted(1),
                Lie::Staged(0),
                Lie::Prepared(false),
                Lie::Work(Work::Pulls),
            ] {
                report(state, node, lie);
            }
            broken
        }
        Some(habit) => {
            for lie in [
                Lie::Booted(1),
                Lie::Staged(target),
                Lie::Prepared(true),
                Lie::Work(Work::Other),
            ] {
                report(state, node, lie);
            }
            turn(world, state, node, habit)
        }
    }
}

/// Uses the berths of a compromised node by its habit.
fn turn(world: &World, state: &mut State, node: usize, habit: Habit) -> Option<Broken> {
    let outcome = match habit {
        Habit::Fails => Outcome::Failed,
        _ => Outcome::DrainTimeout,
    };
    let mut broken = None;
    for slot in 0..state.slots.len() as Number {
        let taken = match state.slots[usize::from(slot)].is {
            Berth::Offered(offer) if usize::from(offer.node) == node && habit.takes() => {
                let taken = taken(offer);
                broken = broken.or(write(world, state, node, slot, taken));
                taken
            }
            held @ Berth::Held(_) => held,
            _ => continue,
        };
        let Berth::Held(held) = taken else { continue };
        if usize::from(held.node) == node && habit != Habit::Keeps {
            let releasing = Held {
                phase: Phase::Releasing(outcome),
                ..held
            };
            broken = broken.or(write(world, state, node, slot, Berth::Held(releasing)));
            broken = broken.or(write(world, state, node, slot, closed(releasing, outcome)));
        }
    }
    broken
}
