//! Applies an agent's steps to the world. [`crate::mind`] computes the agent's knowledge after each step.

use berth_api::seeded::Bug;

use crate::decide::{Act, Decision, Put, SmallDuty, Steps};
use crate::fault::Fault;
use crate::host::Switch;
use crate::judge;
use crate::mind::{self, Mind, Observation};
use crate::offered;
use crate::state::{
    Agent, Berth, BootImage, Cordon, Host, Image, Lease, NO_NUMBER, NodeRead, Number, Object, Os, Phase, Request,
    State, Status, Work,
};
use crate::world::{Broken, World};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Done,
    Lost,
    /// The sender gives up while the request is in flight.
    Late,
    /// The sender dies while the request is in flight.
    Killed,
}

/// State after a move, and the rule that the move breaks, if any.
pub type After = (State, Option<Broken>);

/// Gathers facts and runs the steps that only read. Returns the decision with the first step that does more.
pub fn read(world: &World, state: &mut State, node: usize, steps: &mut Steps) -> Decision {
    let mut decision = steps.next(world, state, node);
    for _ in 0..8 {
        settle(state, node, &decision.gathered);
        if decision.forgets_guard {
            state.nodes[node].host.switch = Switch::Disarmed;
        }
        let here = &state.nodes[node];
        let observation = match decision.act {
            Act::Look => Observation::Looked(look(&here.host)),
            Act::ReadNode => Observation::Node(here.object.exists.then_some(here.object)),
            Act::TryGuard => Observation::Guard(!state.fleet.unguarded),
            Act::Pull(_) if here.idle => {
                let act = Act::Idle;
                return Decision { act, ..decision };
            }
            _ => return decision,
        };
        observe(world, state, node, observation, steps);
        decision = steps.next(world, state, node);
    }
    Decision {
        act: Act::Refused,
        ..decision
    }
}

/// Reads the deployments; `None` if they cannot be read.
fn look(host: &Host) -> Option<Os> {
    if host.unusable {
        return None;
    }
    Some(Os {
        booted: host.booted,
        staged: host.staged,
        locked: host.locked,
        previous: host.previous,
        queued: if host.queued { host.previous } else { 0 },
    })
}

/// Gives an observation to a node's agent.
pub fn observe(world: &World, state: &mut State, node: usize, observation: Observation, steps: &mut Steps) {
    let mind = steps.observe(world, state, node, observation);
    settle(state, node, &mind);
    let here = &mut state.nodes[node];
    if let Observation::Node(Some(_)) = observation {
        here.agent.node = NodeRead::Is(here.object, true);
    }
    if let Observation::Guard(refuses) = observation {
        here.ghost.unguarded = !refuses;
    }
}

fn settle(state: &mut State, node: usize, mind: &Mind) {
    let here = &mut state.nodes[node];
    let token = here.host.token;
    mind.settle(&mut here.agent, &mut here.host);
    // If the token changed, the agent has applied an admin's retry. A retry permits another rollback.
    here.ghost.undone &= here.host.token == token;
}

/// True if the step is a write to the API server, which may be lost.
pub fn is_request(act: Act) -> bool {
    matches!(act, Act::Cordon | Act::Restore | Act::Uncordon | Act::Put(..))
}

/// Executes a step that was decided on the facts in this state.
pub fn act(world: &World, mut state: State, node: usize, decision: Decision, delivery: Delivery) -> After {
    if world.guards && decision.act != Act::Forgets && !set_guard(&mut state.nodes[node].host, decision.duty) {
        settle(&mut state, node, &decision.skipped);
        return (state, None);
    }
    let blocked = state.nodes[node].host.blocked;
    let broken = match decision.act {
        Act::Put(put, slot, berth) => return write(world, state, node, &decision, (put, slot, berth), delivery),
        Act::Cordon | Act::Restore | Act::Uncordon => return patch(state, node, &decision, delivery),
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
        Act::Reboot => reboot(&mut state, node, decision, delivery),
        Act::Refused => Some(Broken("the step asks for a transition that the protocol refuses")),
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
        Act::Rollback => roll_back(world, &mut state, node, decision),
    };
    (state, broken)
}

/// Arms or disarms the rollback guard before a step. False if the guard cannot be disarmed because it has fired in the
/// running boot: the agent then skips the step.
fn set_guard(host: &mut Host, duty: SmallDuty) -> bool {
    match (duty, host.switch) {
        (SmallDuty::None, _) => {}
        (SmallDuty::Arm(target, previous), _) => {
            let booted = false;
            host.switch = Switch::Armed {
                target,
                previous,
                booted,
            };
        }
        (SmallDuty::Disarm, Switch::Fired { here, .. }) => return !here,
        (SmallDuty::Disarm, _) => host.switch = Switch::Disarmed,
    }
    true
}

fn reboot(state: &mut State, node: usize, decision: Decision, delivery: Delivery) -> Option<Broken> {
    report(state, node, decision);
    let broken = judge::reboot(state, node);
    let refused = state.nodes[node].host.inhibited;
    settle(state, node, if refused { &decision.failed } else { &decision.done });
    let here = &mut state.nodes[node];
    here.host.down = !refused && delivery != Delivery::Lost;
    here.ghost.undoes |= here.host.down && here.host.undoes;
    broken
}

/// Writes the agent's report to the BootcNode's status. Does nothing if the BootcNode does not exist.
fn report(state: &mut State, node: usize, decision: Decision) {
    let fleet = state.fleet;
    let here = &mut state.nodes[node];
    if here.spec.is_none() {
        return;
    }
    let status = Status {
        observed: true,
        uid: match here.agent.node {
            NodeRead::Is(object, _) => object.uid,
            _ => here.status.uid,
        },
        booted: here.agent.os.map_or(here.status.booted, |os| os.booted),
        staged: here.agent.os.filter(|os| os.locked).map_or(0, |os| os.staged),
        prepared: decision.prepared,
        released: decision.released,
        failed: here.host.failed,
        turn: decision.turn,
        token: here.host.token,
        boot_image: if !fleet.tells_boot_images || here.host.no_note {
            BootImage::Unknown
        } else if here.labels.newer {
            BootImage::Newer
        } else {
            BootImage::Older
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

/// Queues the rollback deployment. bootc then discards the staged deployment.
fn roll_back(world: &World, state: &mut State, node: usize, decision: Decision) -> Option<Broken> {
    let broken = judge::undo(world, state, node);
    settle(state, node, &decision.done);
    let here = &mut state.nodes[node];
    if here.host.previous != 0 {
        here.host.queued = true;
        (here.host.staged, here.host.locked) = (0, false);
        (here.ghost.armed, here.ghost.partial) = (0, 0);
    }
    broken
}

/// Writes the memory on the host, then the berth, then the result into the agent's knowledge.
fn write(
    world: &World,
    mut state: State,
    node: usize,
    decision: &Decision,
    (put, slot, berth): (Put, Number, Berth),
    delivery: Delivery,
) -> After {
    settle(&mut state, node, &decision.begun);
    let lease = Lease {
        is: berth,
        ..state.slots[usize::from(slot)]
    };
    let mut broken =
        judge::decided(&state, node, put, slot, &berth).or_else(|| judge::sent(&state, node, slot, &berth));
    let is_refused = state.unwritable.has(slot);
    match delivery {
        Delivery::Done | Delivery::Lost if is_refused => {
            ends(&mut state, node, decision, Delivery::Lost);
            return (state, broken);
        }
        Delivery::Done | Delivery::Lost => broken = land(world, &mut state, node, slot, lease).or(broken),
        Delivery::Late | Delivery::Killed => {
            let node = Number::try_from(node).unwrap_or(NO_NUMBER);
            state.air.push(Request::Berth { slot, lease, node });
        }
    }
    ends(&mut state, node, decision, delivery);
    (state, broken)
}

/// Updates the agent's knowledge after the delivery of a request.
fn ends(state: &mut State, node: usize, decision: &Decision, delivery: Delivery) {
    match delivery {
        Delivery::Done => settle(state, node, &decision.done),
        Delivery::Lost | Delivery::Late => settle(state, node, &decision.failed),
        Delivery::Killed => {
            settle(state, node, &decision.begun);
            crash(state, node);
        }
    }
}

fn is_releasing(lease: &Lease) -> bool {
    lease
        .held()
        .is_some_and(|held| matches!(held.phase, Phase::Releasing(_)))
}

/// Executes an agent's PUT of a berth.
pub fn land(world: &World, state: &mut State, node: usize, slot: Number, lease: Lease) -> Option<Broken> {
    let broken = judge::agent_write(world, state, node, slot, &lease);
    let before = state.slots[usize::from(slot)];
    // A PUT that was sent in an earlier boot proves nothing about this boot.
    let proves = is_releasing(&lease) && !is_releasing(&before) && lease.held().is_some_and(|h| h.boot == 0);
    if proves || lease.held().is_none() {
        state.nodes[node].ghost.unproven = false;
    }
    // A new licence permits another rollback.
    if let (Some(old), Some(new)) = (before.held(), lease.held())
        && new.phase == Phase::Committed
        && (old.target != new.target || old.boot != new.boot)
    {
        state.nodes[node].ghost.undone = false;
    }
    if matches!(lease.is, Berth::Closed(_)) {
        let target = state.pools[usize::from(world.pool_of(slot))].target;
        offered::forget_updated(state, node, target);
    }
    if matches!(before.is, Berth::Offered(_)) {
        let ghost = &mut state.nodes[node].ghost;
        (ghost.drain_over, ghost.undoes, ghost.undone) = (false, false, false);
    }
    state.slots[usize::from(slot)] = lease;
    state.touch_slot(slot);
    broken
}

/// Sends the patch that cordons or restores the Node.
fn patch(mut state: State, node: usize, decision: &Decision, delivery: Delivery) -> After {
    let NodeRead::Is(seen, current) = state.nodes[node].agent.node else {
        return (state, None);
    };
    let (unschedulable, cordon) = match decision.act {
        Act::Cordon => (true, recorded(&seen)),
        _ => (restored(&seen), Cordon::No),
    };
    if !current || state.nodes[node].object.uid != seen.uid {
        let is_killed = delivery == Delivery::Killed;
        ends(
            &mut state,
            node,
            decision,
            if is_killed { delivery } else { Delivery::Lost },
        );
        return (state, None);
    }
    if matches!(delivery, Delivery::Done | Delivery::Lost) {
        land_patch(&mut state, node, unschedulable, cordon);
    } else {
        let node = Number::try_from(node).unwrap_or(NO_NUMBER);
        state.air.push(Request::Node {
            node,
            unschedulable,
            cordon,
        });
    }
    ends(&mut state, node, decision, delivery);
    (state, None)
}

fn recorded(seen: &Object) -> Cordon {
    if seen.unschedulable && seen.cordon != Cordon::OverSchedulable {
        Cordon::OverCordoned
    } else {
        Cordon::OverSchedulable
    }
}

fn restored(seen: &Object) -> bool {
    match seen.cordon {
        Cordon::No => seen.unschedulable,
        Cordon::OverSchedulable => false,
        Cordon::OverCordoned => seen.unschedulable && !Bug::UncordonAlways.is_awake(),
    }
}

/// Executes a patch of a Node. No rule restricts this move, but the judge checks the state after it.
pub fn land_patch(state: &mut State, node: usize, unschedulable: bool, cordon: Cordon) {
    let object = &mut state.nodes[node].object;
    object.unschedulable = unschedulable;
    object.cordon = cordon;
    state.nodes[node].ghost.abandoned &= cordon != Cordon::No;
    state.touch_node(node);
}

pub fn crash(state: &mut State, node: usize) {
    let fleet = state.fleet;
    let here = &mut state.nodes[node];
    here.agent = Agent::fresh(fleet.tries_guard);
    here.ghost.unguarded = fleet.tries_guard;
    here.host.recall();
    here.host.drain = mind::recalled_drain(&here.host);
    // A new process pulls without a backoff.
    here.host.pull_backoff = false;
}

pub fn moves(
    world: &World,
    state: &State,
    node: usize,
    steps: &mut Steps,
    push: &mut dyn FnMut(Act, Delivery, bool, After),
) {
    if state.nodes[node].host.down || state.nodes[node].mute {
        return;
    }
    let mut after = state.clone();
    let decision = read(world, &mut after, node, steps);
    let may_pause = !matches!(decision.act, Act::Wait(_) | Act::Idle) && after != *state;
    if let Some(paused) = after.spent(Fault::StaleRead).filter(|_| may_pause) {
        push(decision.act, Delivery::Done, true, (paused, None));
    }
    let faults: &[(Delivery, Fault)] = match decision.act {
        Act::Reboot => &[(Delivery::Lost, Fault::Dropped)],
        request if is_request(request) => &[
            (Delivery::Lost, Fault::LostReply),
            (Delivery::Late, Fault::Late),
            (Delivery::Killed, Fault::AgentCrash),
        ],
        _ => &[],
    };
    for (delivery, fault) in faults {
        if let Some(faulty) = after.spent(*fault) {
            let faulty = act(world, faulty, node, decision, *delivery);
            push(decision.act, *delivery, false, faulty);
        }
    }
    let done = act(world, after, node, decision, Delivery::Done);
    push(decision.act, Delivery::Done, false, done);
}
