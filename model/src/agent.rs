//! Effects of an agent's steps on the world. What the agent knows of that is for [`crate::mind`] to say.

use berth_api::seeded::Bug;

use crate::decide::{Act, Decision, Put, Steps};
use crate::fault::Fault;
use crate::judge;
use crate::mind::{self, Mind, Told};
use crate::state::{
    Agent, Berth, BootImage, Cordon, Host, Image, Lease, NOBODY, No, Object, Os, Phase, Request, Seen, State, Status,
    Work,
};
use crate::world::{Broken, World};

/// Fate of a request to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The request is made and answered.
    Done,
    /// The request is made, and its answer is lost.
    Lost,
    /// The request is still on its way, and its sender gives up waiting.
    Late,
    /// The request is on its way, and its sender dies.
    Killed,
}

/// A way on: the state after it, and the rule that it breaks.
pub type After = (State, Option<Broken>);

/// Gathers, and reads what the step asks for; answers the step that is more than a read.
pub fn read(world: &World, state: &mut State, node: usize, steps: &mut Steps) -> Decision {
    let mut decision = steps.next(world, state, node);
    for _ in 0..8 {
        settle(state, node, &decision.gathered);
        let here = &state.nodes[node];
        let told = match decision.act {
            Act::Look => Told::Looked(look(&here.host)),
            Act::ReadNode => Told::Node(here.object.there.then_some(here.object)),
            Act::TryGuard => Told::Guard(!state.fleet.unguarded),
            Act::Pull(_) if here.idle => {
                let act = Act::Idle;
                return Decision { act, ..decision };
            }
            _ => return decision,
        };
        tell(world, state, node, told, steps);
        decision = steps.next(world, state, node);
    }
    Decision {
        act: Act::Refused,
        ..decision
    }
}

/// The deployments as the host shows them.
fn look(host: &Host) -> Option<Os> {
    if host.unusable {
        return None;
    }
    Some(Os {
        booted: host.booted,
        staged: host.staged,
        locked: host.locked,
        queued: if host.queued { host.previous } else { 0 },
    })
}

/// Tells an agent something that is no step of its own.
pub fn tell(world: &World, state: &mut State, node: usize, told: Told, steps: &mut Steps) {
    let mind = steps.told(world, state, node, told);
    settle(state, node, &mind);
    let here = &mut state.nodes[node];
    if let Told::Node(Some(_)) = told {
        here.agent.node = Seen::Is(here.object, true);
    }
    if let Told::Guard(refuses) = told {
        here.ghost.unguarded = !refuses;
    }
}

fn settle(state: &mut State, node: usize, mind: &Mind) {
    let here = &mut state.nodes[node];
    mind.settle(&mut here.agent, &mut here.host);
}

/// Says whether a step is a request to the API server that may get lost.
pub fn is_request(act: Act) -> bool {
    matches!(act, Act::Cordon | Act::Restore | Act::Uncordon | Act::Put(..))
}

/// Does a step that was decided on the facts in the state.
pub fn act(world: &World, mut state: State, node: usize, decision: Decision, how: How) -> After {
    let blocked = state.nodes[node].host.blocked;
    let broken = match decision.act {
        Act::Put(put, slot, berth) => return write(world, state, node, &decision, (put, slot, berth), how),
        Act::Cordon | Act::Restore | Act::Uncordon => return patch(state, node, &decision, how),
        Act::Wait(_) => {
            let broken = judge::rest(&state, node);
            report(&mut state, node, decision);
            settle(&mut state, node, &decision.done);
            broken
        }
        Act::Drain => {
            settle(
                &mut state,
                node,
                if blocked { &decision.failed } else { &decision.done },
            );
            None
        }
        Act::Reboot => reboot(&mut state, node, decision, how),
        Act::Refused => Some(Broken("step asks for what the protocol refuses")),
        Act::Look | Act::ReadNode | Act::TryGuard => None,
        Act::Idle => {
            let work = Work::Other;
            report(&mut state, node, Decision { work, ..decision });
            None
        }
        Act::Forgets => {
            settle(&mut state, node, &decision.failed);
            None
        }
        Act::Pull(image) | Act::Cancel(image) => pull(&mut state, node, decision, image),
        Act::Lock | Act::Unlock | Act::Unstage => change(&mut state, node, decision),
    };
    (state, broken)
}

fn reboot(state: &mut State, node: usize, decision: Decision, how: How) -> Option<Broken> {
    report(state, node, decision);
    let broken = judge::reboot(state, node);
    let refused = state.nodes[node].host.inhibited;
    settle(state, node, if refused { &decision.failed } else { &decision.done });
    state.nodes[node].host.down = !refused && how != How::Lost;
    broken
}

/// The agent writes its status whenever it rests.
fn report(state: &mut State, node: usize, decision: Decision) {
    let fleet = state.fleet;
    let here = &mut state.nodes[node];
    if here.spec.is_none() {
        return;
    }
    let status = Status {
        observed: true,
        uid: match here.agent.node {
            Seen::Is(object, _) => object.uid,
            _ => here.status.uid,
        },
        booted: here.agent.os.map_or(here.status.booted, |os| os.booted),
        staged: here.agent.os.filter(|os| os.locked).map_or(0, |os| os.staged),
        prepared: decision.prepared,
        released: decision.released,
        failed: here.host.failed,
        turn: decision.turn,
        token: here.host.token,
        boot_image: match fleet.tells_boot_images && !here.host.no_note {
            true if here.labels.newer => BootImage::Newer,
            true => BootImage::Older,
            false => BootImage::Unknown,
        },
        work: if fleet.counts_pulls { decision.work } else { Work::Other },
    };
    if here.status != status {
        here.status = status;
        state.touch_bootc(node);
    }
}

fn pull(state: &mut State, node: usize, decision: Decision, image: Image) -> Option<Broken> {
    let broken = judge::pull(state, node, decision.act);
    settle(state, node, &decision.done);
    let host = &mut state.nodes[node].host;
    match decision.act {
        Act::Pull(_) if host.pull == 0 => {
            host.pull = image;
            if state.fleet.counts_pulls {
                report(state, node, decision);
                state.nodes[node].status.work = Work::Pulls;
            }
        }
        Act::Pull(_) => {}
        _ => host.pull = 0,
    }
    broken
}

fn change(state: &mut State, node: usize, decision: Decision) -> Option<Broken> {
    let host = state.nodes[node].host;
    let fails = match decision.act {
        Act::Lock => host.no_lock,
        Act::Unstage => host.no_unstage && host.staged != 0,
        _ => false,
    };
    if fails {
        settle(state, node, &decision.failed);
        return None;
    }
    settle(state, node, &decision.done);
    let here = &mut state.nodes[node];
    if here.host.staged != 0 {
        match decision.act {
            Act::Lock => here.host.locked = true,
            Act::Unlock => here.host.locked = false,
            _ => (here.host.staged, here.host.locked, here.ghost.partial) = (0, false, 0),
        }
    }
    let armed = decision.act == Act::Unlock && here.host.staged != 0;
    here.ghost.armed = if armed { here.object.uid + 1 } else { 0 };
    None
}

/// Writes a berth: with the memory of it on the host before, and what the agent knows of it afterwards.
fn write(
    world: &World,
    mut state: State,
    node: usize,
    decision: &Decision,
    (put, slot, berth): (Put, No, Berth),
    how: How,
) -> After {
    settle(&mut state, node, &decision.begun);
    let lease = Lease {
        is: berth,
        ..state.slots[usize::from(slot)]
    };
    let mut broken =
        judge::decided(&state, node, put, slot, &berth).or_else(|| judge::sent(&state, node, slot, &berth));
    let is_refused = state.unwritable.has(slot);
    match how {
        How::Done | How::Lost if is_refused => {
            ends(&mut state, node, decision, How::Lost);
            return (state, broken);
        }
        How::Done | How::Lost => broken = land(world, &mut state, node, slot, lease).or(broken),
        How::Late | How::Killed => {
            let node = No::try_from(node).unwrap_or(NOBODY);
            state.air.push(Request::Berth { slot, lease, node });
        }
    }
    ends(&mut state, node, decision, how);
    (state, broken)
}

/// Knowledge of an agent after a request that ended like this.
fn ends(state: &mut State, node: usize, decision: &Decision, how: How) {
    match how {
        How::Done => settle(state, node, &decision.done),
        How::Lost | How::Late => settle(state, node, &decision.failed),
        How::Killed => {
            settle(state, node, &decision.begun);
            crash(state, node);
        }
    }
}

/// An agent's PUT of a berth arrives.
pub fn land(world: &World, state: &mut State, node: usize, slot: No, lease: Lease) -> Option<Broken> {
    let broken = judge::agent_write(world, state, node, slot, &lease);
    let before = state.slots[usize::from(slot)];
    let released = |l: &Lease| l.held().is_some_and(|h| matches!(h.phase, Phase::Releasing(_)));
    // One that was sent under an earlier boot says nothing of this one.
    let proves = released(&lease) && !released(&before) && lease.held().is_some_and(|h| h.boot == 0);
    if proves || lease.held().is_none() {
        state.nodes[node].ghost.unproven = false;
    }
    if matches!(before.is, Berth::Offered(_)) {
        state.nodes[node].ghost.drain_over = false;
    }
    state.slots[usize::from(slot)] = lease;
    state.touch_slot(slot);
    broken
}

/// The cordon patch, or the restore patch.
fn patch(mut state: State, node: usize, decision: &Decision, how: How) -> After {
    let Seen::Is(seen, current) = state.nodes[node].agent.node else {
        return (state, None);
    };
    let (unschedulable, cordon) = match decision.act {
        Act::Cordon => (true, recorded(&seen)),
        _ => (restored(&seen), Cordon::No),
    };
    let mut broken = None;
    let current = current && state.nodes[node].object.uid == seen.uid;
    match (current, how) {
        (true, How::Done | How::Lost) => {
            broken = land_patch(&mut state, node, unschedulable, cordon);
        }
        (true, How::Late | How::Killed) => {
            let node = No::try_from(node).unwrap_or(NOBODY);
            state.air.push(Request::Node {
                node,
                unschedulable,
                cordon,
            });
        }
        (false, _) => {}
    }
    let how = if current || how == How::Killed { how } else { How::Lost };
    ends(&mut state, node, decision, how);
    (state, broken)
}

fn recorded(seen: &Object) -> Cordon {
    match (seen.unschedulable, seen.cordon) {
        (true, Cordon::No | Cordon::OverCordoned) => Cordon::OverCordoned,
        _ => Cordon::OverSchedulable,
    }
}

fn restored(seen: &Object) -> bool {
    match seen.cordon {
        Cordon::No => seen.unschedulable,
        Cordon::OverSchedulable => false,
        Cordon::OverCordoned => seen.unschedulable && !Bug::UncordonAlways.is_awake(),
    }
}

/// A patch of a Node arrives.
pub fn land_patch(state: &mut State, node: usize, unschedulable: bool, cordon: Cordon) -> Option<Broken> {
    let object = &mut state.nodes[node].object;
    object.unschedulable = unschedulable;
    object.cordon = cordon;
    state.nodes[node].ghost.abandoned &= cordon != Cordon::No;
    state.touch_node(node);
    judge::cordon(state, node)
}

/// The agent dies.
pub fn crash(state: &mut State, node: usize) {
    let fleet = state.fleet;
    let here = &mut state.nodes[node];
    here.agent = Agent::fresh(fleet);
    here.ghost.unguarded = fleet.tries_guard;
    here.host.recall();
    here.host.drain = mind::recalled_drain(&here.host);
    // A new process tries at once.
    here.host.pull_backoff = false;
}

/// Everything that the agent of a node may do next.
pub fn moves(
    world: &World,
    state: &State,
    node: usize,
    steps: &mut Steps,
    push: &mut dyn FnMut(Act, How, bool, After),
) {
    if state.nodes[node].host.down || state.nodes[node].mute {
        return;
    }
    let mut after = state.clone();
    let decision = read(world, &mut after, node, steps);
    if state.may(Fault::StaleRead) && !matches!(decision.act, Act::Wait(_) | Act::Idle) && after != *state {
        let mut paused = after.clone();
        paused.spend(Fault::StaleRead);
        push(decision.act, How::Done, true, (paused, None));
    }
    let faults = [
        (How::Lost, Fault::LostReply),
        (How::Late, Fault::Late),
        (How::Killed, Fault::AgentCrash),
    ];
    for (how, fault) in faults {
        if is_request(decision.act) && state.may(fault) {
            let mut faulty = after.clone();
            faulty.spend(fault);
            push(decision.act, how, false, act(world, faulty, node, decision, how));
        }
    }
    if decision.act == Act::Reboot && state.may(Fault::Dropped) {
        let mut faulty = after.clone();
        faulty.spend(Fault::Dropped);
        push(
            decision.act,
            How::Lost,
            false,
            act(world, faulty, node, decision, How::Lost),
        );
    }
    push(
        decision.act,
        How::Done,
        false,
        act(world, after, node, decision, How::Done),
    );
}
