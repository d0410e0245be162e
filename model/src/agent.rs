//! What an agent's decisions do to the world: the model's mirror of the agent's `gather` and `act`.

use berth_api::berth::Outcome;
use berth_api::seeded::Bug;
use berth_core::agent::step::WaitReason;

use crate::decide::{self, Act, Decision, Put, Steps};
use crate::fault::Fault;
use crate::judge;
use crate::rich;
use crate::state::{
    Agent, Berth, Cordon, Host, Image, Lease, NONE, Object, Os, Phase, Reboot, Request, Seen, State, Status,
};
use crate::world::{Broken, World};

/// What becomes of a request to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It is made and answered.
    Done,
    /// It is made, and its answer is lost.
    Lost,
    /// It is on its way still, and its sender gives up waiting.
    Late,
    /// It is on its way, and its sender dies.
    Killed,
}

/// A way on: the state after it, and the rule that it breaks.
pub type After = (State, Option<Broken>);

/// Gathers, and reads what the step asks for; answers the step that is more than a read.
pub fn read(world: &World, state: &mut State, node: usize, steps: &mut Steps) -> Decision {
    for _ in 0..8 {
        gather(state, node);
        let decision = steps.next(state, node, world.split);
        let host = &mut state.nodes[node].host;
        let Host {
            booted,
            previous,
            staged,
            locked,
            blocked,
            ..
        } = *host;
        *host = Host {
            booted,
            previous,
            staged,
            locked,
            blocked,
            ..decision.host
        };
        match decision.act {
            Act::Look => look(state, node),
            Act::ReadNode => {
                let here = &mut state.nodes[node];
                here.agent.node = if here.object.there {
                    Seen::Is(here.object, true)
                } else {
                    Seen::Gone
                };
            }
            _ => return decision,
        }
    }
    Decision {
        act: Act::Refused,
        prepared: false,
        turn: 0,
        host: state.nodes[node].host,
    }
}

fn gather(state: &mut State, node: usize) {
    let here = &mut state.nodes[node];
    if here.host.pull != 0 {
        here.agent.os = None;
        here.agent.fresh = false;
    }
}

fn look(state: &mut State, node: usize) {
    let in_turn = state.held_by(node).is_some();
    let here = &mut state.nodes[node];
    here.agent.os = Some(Os {
        booted: here.host.booted,
        staged: here.host.staged,
        locked: here.host.locked,
    });
    here.agent.fresh = true;
    if in_turn {
        here.agent.node = Seen::Unread;
    }
}

/// Whether a step is a request to the API server that may get lost.
pub fn is_request(act: Act) -> bool {
    matches!(act, Act::Cordon | Act::Restore | Act::Uncordon | Act::Put(..))
}

/// Does a step that was decided on what is in the state.
pub fn act(world: &World, mut state: State, node: usize, decision: Decision, how: How) -> After {
    let broken = match decision.act {
        Act::Wait(why) => {
            rest(&mut state, node, why);
            report(&mut state, node, decision);
            None
        }
        Act::Drain => {
            let here = &mut state.nodes[node];
            if !here.host.blocked {
                here.agent.drained = true;
                here.agent.fresh = false;
            }
            here.agent.node = Seen::Unread;
            None
        }
        Act::Reboot => {
            report(&mut state, node, decision);
            let broken = judge::reboot(&state, node);
            let agent = &mut state.nodes[node].agent;
            agent.reboot = Reboot::Asked;
            agent.fresh = false;
            let host = &mut state.nodes[node].host;
            match (host.inhibited, how) {
                (true, _) => state.nodes[node].agent.reboot = Reboot::Blocked,
                (false, How::Lost) => {}
                (false, _) => host.down = true,
            }
            broken
        }
        Act::Put(put, slot, berth) => return write(world, state, node, (put, slot, berth), how),
        Act::Cordon | Act::Restore | Act::Uncordon => return patch(state, node, decision.act, how),
        Act::Refused => Some(Broken("step asks for what the protocol refuses")),
        Act::Look | Act::ReadNode => None,
        Act::Pull(image) | Act::Cancel(image) => pull(&mut state, node, decision.act, image),
        Act::Lock | Act::Unlock | Act::Unstage => change(&mut state, node, decision.act),
    };
    (state, broken)
}

fn rest(state: &mut State, node: usize, why: WaitReason) {
    let in_turn = state.held_by(node).is_some();
    let agent = &mut state.nodes[node].agent;
    if in_turn {
        agent.node = Seen::Unread;
    }
    match why {
        WaitReason::ForeignBerth | WaitReason::OtherNode | WaitReason::Excluded => agent.node = Seen::Unread,
        WaitReason::Rebooting
        | WaitReason::NoBerth
        | WaitReason::Revoked
        | WaitReason::WindowClosed
        | WaitReason::Inhibited => agent.fresh = false,
        _ => {}
    }
}

/// The agent writes its status whenever it rests.
fn report(state: &mut State, node: usize, decision: Decision) {
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
        failed: here.host.failed,
        turn: decision.turn,
        token: here.host.token,
    };
    if here.status != status {
        here.status = status;
        state.touch_bootc(node);
    }
}

fn pull(state: &mut State, node: usize, act: Act, image: Image) -> Option<Broken> {
    let broken = judge::pull(state, node, act);
    let here = &mut state.nodes[node];
    match act {
        Act::Pull(_) => {
            here.host.ours = image;
            if here.host.pull == 0 {
                here.host.pull = image;
            }
        }
        _ => here.host.pull = 0,
    }
    here.agent.os = None;
    here.agent.fresh = false;
    broken
}

fn change(state: &mut State, node: usize, act: Act) -> Option<Broken> {
    let here = &mut state.nodes[node];
    if here.host.staged != 0 {
        match act {
            Act::Lock => here.host.locked = true,
            Act::Unlock => here.host.locked = false,
            _ => (here.host.staged, here.host.locked) = (0, false),
        }
    }
    let armed = act == Act::Unlock && here.host.staged != 0;
    here.ghost.armed = if armed { here.object.uid + 1 } else { 0 };
    here.agent.os = None;
    here.agent.fresh = false;
    here.agent.node = Seen::Unread;
    None
}

/// What the agent does before a berth is written, and after that went well.
fn write(world: &World, mut state: State, node: usize, (put, slot, berth): (Put, u8, Berth), how: How) -> After {
    prepare(&mut state, node, put, slot, &berth);
    let lease = Lease {
        is: berth,
        ..state.slots[usize::from(slot)]
    };
    let mut broken =
        judge::decided(&state, node, put, slot, &berth).or_else(|| judge::sent(&state, node, slot, &berth));
    match how {
        How::Done | How::Lost => broken = land(world, &mut state, node, slot, lease).or(broken),
        How::Late | How::Killed => {
            let node = u8::try_from(node).unwrap_or(NONE);
            state.air.push(Request::Berth { slot, lease, node });
        }
    }
    let agent = &mut state.nodes[node].agent;
    agent.fenced = how == How::Done;
    match (how, put) {
        (How::Done, Put::Uncommit) if matches!(agent.reboot, Reboot::Asked | Reboot::Late | Reboot::Long) => {
            agent.reboot = Reboot::Blocked;
        }
        (How::Done, Put::GiveBack) => begin_turn(agent),
        (How::Killed, _) => *agent = Agent::default(),
        _ => {}
    }
    state.nodes[node].agent.node = Seen::Unread;
    (state, broken)
}

fn prepare(state: &mut State, node: usize, put: Put, slot: u8, berth: &Berth) {
    let held = state.slots[usize::from(slot)].held().copied();
    let here = &mut state.nodes[node];
    let mut past = decide::past(&here.host);
    match (put, held) {
        (Put::Take, _) => {
            begin_turn(&mut here.agent);
            past.turn_begins();
        }
        (Put::Commit, _) => here.agent.reboot = Reboot::No,
        (Put::Relicense, Some(held)) => {
            here.agent.reboot = Reboot::No;
            let Berth::Held(new) = berth else { return };
            let before = Lease {
                epoch: 0,
                is: Berth::Held(held),
            };
            let before = rich::berth((0, 0), &before, rich::OWN_EPOCH);
            if let Some(holding) = before.as_ref().and_then(|b| b.holding()) {
                past.goes_on(holding, &rich::digest(new.target), &rich::boot(0), rich::NOW);
            }
        }
        (Put::Release(_), _) => here.agent.restored = false,
        (Put::GiveBack, Some(held)) if !here.agent.counted => {
            here.agent.counted = true;
            if let Phase::Releasing(outcome) = held.phase {
                let target = rich::digest(held.target);
                past.turn_ended(outcome, "", &target, rich::NOW, 0.0);
                if outcome == Outcome::Updated {
                    past.succeeded(&target);
                }
            }
        }
        _ => {}
    }
    here.host = decide::remembered(here.host, &past);
}

fn begin_turn(agent: &mut Agent) {
    *agent = Agent {
        os: agent.os,
        fresh: agent.fresh,
        node: agent.node,
        ..Agent::default()
    };
}

/// An agent's PUT of a berth arrives.
pub fn land(world: &World, state: &mut State, node: usize, slot: u8, lease: Lease) -> Option<Broken> {
    let broken = judge::agent_write(world, state, node, slot, &lease);
    let before = state.slots[usize::from(slot)];
    let released = |l: &Lease| l.held().is_some_and(|h| matches!(h.phase, Phase::Releasing(_)));
    // One that was sent under an earlier boot says nothing of this one.
    let proves = released(&lease) && !released(&before) && lease.held().is_some_and(|h| h.boot == 0);
    if proves || lease.held().is_none() {
        state.nodes[node].ghost.unproven = false;
    }
    state.slots[usize::from(slot)] = lease;
    state.touch_slot(slot);
    broken
}

/// The cordon patch, or the restore patch.
fn patch(mut state: State, node: usize, act: Act, how: How) -> After {
    let here = &mut state.nodes[node];
    if act == Act::Cordon {
        here.agent.drained = false;
        here.agent.fresh = false;
    }
    let Seen::Is(seen, current) = here.agent.node else {
        return (state, None);
    };
    let (unschedulable, cordon) = match act {
        Act::Cordon => (true, recorded(&seen)),
        _ => (restored(&seen), Cordon::No),
    };
    let mut broken = None;
    match (current && state.nodes[node].object.uid == seen.uid, how) {
        (true, How::Done | How::Lost) => {
            broken = land_patch(&mut state, node, unschedulable, cordon);
        }
        (true, How::Late | How::Killed) => {
            let node = u8::try_from(node).unwrap_or(NONE);
            state.air.push(Request::Node {
                node,
                unschedulable,
                cordon,
            });
        }
        (false, _) => {}
    }
    let agent = &mut state.nodes[node].agent;
    if act != Act::Cordon && current && how == How::Done {
        agent.restored = true;
    }
    agent.node = Seen::Unread;
    if how == How::Killed {
        *agent = Agent::default();
    }
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
    state.nodes[node].agent = Agent::default();
}

/// Everything that the agent of a node may do next.
pub fn moves(
    world: &World,
    state: &State,
    node: usize,
    steps: &mut Steps,
    push: &mut dyn FnMut(Act, How, bool, After),
) {
    if state.nodes[node].host.down {
        return;
    }
    let mut after = state.clone();
    let decision = read(world, &mut after, node, steps);
    if state.may(Fault::StaleRead) && !matches!(decision.act, Act::Wait(_)) && after != *state {
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
