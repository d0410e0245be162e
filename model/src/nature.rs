//! Effects of events outside of Berth: hosts pull and boot, kubelets report, time passes, admins act.

use berth_api::seeded::Bug;
use berth_core::agent::rollback_guard::{Fire, fires};

use crate::host::Switch;
use crate::number::Image;
use crate::set::Set;
use crate::state::{
    Agent, Begun, Berth, Ended, Guard, Host, NONE, Node, Number, Object, Phase, Reboot, Request, State, Until, Work,
    Write,
};
use crate::world::{Broken, World};
use crate::{agent, controller, judge, offered};

/// Boots a host. `clean`: true after a shutdown, false after a power loss. `finalized`: `ostree-finalize-staged`
/// succeeded.
pub fn boot(state: &mut State, node: usize, clean: bool, finalized: bool) {
    state.next_boot(node);
    let phase = state.held_by(node).map(|(_, h)| (h.phase, h.uid));
    let fleet = state.fleet;
    let here = &mut state.nodes[node];
    let host = &mut here.host;
    host.recall();
    host.switch.boots();
    let applies = clean && host.staged != 0 && !host.locked;
    host.unfinalized = applies && !finalized;
    if applies && finalized {
        (host.booted, host.previous) = (host.staged, host.booted);
    } else if host.queued {
        (host.booted, host.previous) = (host.previous, host.booted);
    }
    (host.queued, host.scheduled, host.silent) = (false, false, false);
    (host.staged, host.locked, host.pull, host.down, host.inhibited) = (0, false, 0, false, false);
    (host.undoes, host.falls) = (false, false);
    (host.relicensed, host.proof, host.ended, host.pull_backoff) = (false, Begun::No, Ended::No, false);
    (here.agent, here.other) = (Agent::fresh(fleet.tries_guard), Agent::fresh(fleet.tries_guard));
    (here.ghost.unguarded, here.ghost.other_unguarded) = (fleet.tries_guard, fleet.tries_guard);
    (here.ghost.armed, here.ghost.partial) = (0, 0);
    here.ghost.ready = false;
    here.ghost.undone |= here.ghost.undoes;
    here.ghost.undoes = false;
    // After a power loss in phase `Releasing`, require no proof: the write that closes the berth may already be in
    // flight, and the agent could not stop it.
    let ours = phase.is_some_and(|(phase, uid)| {
        uid == here.object.uid && here.object.exists && (clean || !matches!(phase, Phase::Releasing(_)))
    });
    here.ghost.unproven = ours;
}

/// Boots the previous image, although a shutdown has finalized the staged one. The finalized image stays first in the
/// boot order.
pub fn fall_back(state: &mut State, node: usize) {
    let target = state.nodes[node].host.staged;
    let held = state
        .held_by(node)
        .filter(|(_, h)| h.phase == Phase::Committed && h.target == target);
    let counts = held.is_some() && has_applied_retries(state, node);
    boot(state, node, true, true);
    let here = &mut state.nodes[node];
    (here.host.booted, here.host.previous) = (here.host.previous, here.host.booted);
    here.host.queued = true;
    if counts {
        here.ghost.left |= 1 << target;
    }
}

/// Rolls the host back to the previous image, and reboots it. The agent notices the rollback if its memory on disk
/// has both images.
pub fn roll_back(state: &mut State, node: usize) {
    let is_free = state.held_by(node).is_none() && has_applied_retries(state, node);
    let here = &mut state.nodes[node];
    let host = &mut here.host;
    let is_known = host.disk.is_none() && host.last == (host.booted, host.previous);
    let has_failed = host.failed & (1 << host.previous) != 0;
    let desired = here.spec.filter(|spec| spec.pool != NONE && !spec.deleting);
    let is_left = desired.is_some_and(|spec| spec.image == host.booted) && !here.object.excluded;
    if is_free && is_known && is_left && !has_failed {
        here.ghost.left |= 1 << host.booted;
    }
    here.ghost.left &= !(1 << host.previous);
    (host.booted, host.previous) = (host.previous, host.booted);
    (host.staged, host.locked) = (0, false);
    boot(state, node, true, true);
}

/// Returns the target, the previous image, and the action of the host's rollback guard if it fires now. `None` if the
/// guard is not armed for the running boot.
fn fire(host: &Host) -> Option<(Image, Image, Fire)> {
    let (target, previous) = match host.switch {
        Switch::Armed {
            target,
            previous,
            booted: true,
        } => (target, previous),
        Switch::Disarmed if Bug::GuardFiresDisarmed.is_awake() => (host.booted, host.previous),
        _ => return None,
    };
    let next = if host.queued { host.previous } else { host.booted };
    let deployed = host.previous == previous && previous != 0;
    Some((
        target,
        previous,
        fires(&target, &previous, &host.booted, &next, deployed),
    ))
}

/// True if the rollback guard may fire now. The guard must have an action for the running boot. In addition, the image
/// must be bad, the node's agents must have stopped, or the boot must not need a proof.
pub fn may_fire(world: &World, state: &State, node: usize) -> bool {
    let here = &state.nodes[node];
    let is_late = !is_well(world, state, node) || here.mute || !here.ghost.unproven;
    world.guards && !here.host.down && is_late && fire(&here.host).is_some_and(|(.., plan)| plan != Fire::No)
}

/// Records that the rollback guard has fired. A later move reboots the host ([`guard_reboots`]). Returns the rule that
/// this breaks, if any.
pub fn guard_fires(state: &mut State, node: usize) -> Option<Broken> {
    let (target, previous, _) = fire(&state.nodes[node].host)?;
    let broken = judge::guard(state, node, previous);
    state.nodes[node].host.switch = Switch::Fired { target, here: true };
    broken
}

/// Makes the next boot use the previous image, and reboots the host, as a rollback guard that has fired does.
pub fn guard_reboots(state: &mut State, node: usize) {
    let here = &mut state.nodes[node];
    if !here.host.queued {
        here.host.queued = true;
        (here.host.staged, here.host.locked) = (0, false);
        (here.ghost.armed, here.ghost.partial) = (0, 0);
    }
    here.host.down = true;
    here.ghost.undoes = true;
}

/// True if the rollback guard has fired in the running boot, and the host has not gone down yet.
pub fn has_fired(host: &Host) -> bool {
    !host.down && matches!(host.switch, Switch::Fired { here: true, .. })
}

/// True if the agent has applied the admin's last retry. A retry that the agent has not applied yet will allow every
/// image again.
fn has_applied_retries(state: &State, node: usize) -> bool {
    let here = &state.nodes[node];
    let pool = state.pools.get(usize::from(here.labels.pool));
    pool.is_some_and(|pool| pool.token == here.host.token)
}

pub(crate) fn is_well(world: &World, state: &State, node: usize) -> bool {
    world.is_good(state.nodes[node].host.booted)
}

/// True if the running image lets the Node become Ready.
pub(crate) fn becomes_ready(world: &World, state: &State, node: usize) -> bool {
    world.bad & (1 << state.nodes[node].host.booted) == 0
}

/// Makes the kubelet report in the running boot.
pub fn kubelet(world: &World, state: &mut State, node: usize) {
    let (ready, well) = (becomes_ready(world, state, node), is_well(world, state, node));
    let here = &mut state.nodes[node];
    here.object.boot = 0;
    here.object.ready = ready;
    here.ghost.ready |= well;
    state.touch_node(node);
}

pub fn land(world: &World, state: &mut State, at: usize) -> Option<Broken> {
    let request = state.air.remove(at);
    if is_refused(state, &request) {
        return None;
    }
    match request {
        Request::Berth { slot, lease, node } => agent::land(world, state, usize::from(node), slot, lease),
        Request::Node {
            node,
            unschedulable,
            cordon,
        } => {
            agent::land_patch(state, usize::from(node), unschedulable, cordon);
            None
        }
        Request::Controller(write) => controller::land(world, state, &write, None),
    }
}

pub(crate) fn is_refused(state: &State, request: &Request) -> bool {
    match request {
        Request::Berth { slot, .. } | Request::Controller(Write::Berth { slot, .. }) => state.unwritable.has(*slot),
        _ => false,
    }
}

/// Creates the Node again, under its old name.
pub fn create(state: &mut State, node: usize) {
    let here = &mut state.nodes[node];
    here.object = Object {
        exists: true,
        uid: here.object.uid + 1,
        ..Object::default()
    };
    here.ghost.admin = false;
    here.ghost.unproven = false;
    here.ghost.abandoned = false;
    state.touch_node(node);
}

/// Opens or closes the windows of all pools. When they close, nodes with a berth or an offer may no longer start a
/// reboot.
pub fn window(state: &mut State, open: bool) {
    state.pools.iter_mut().for_each(|pool| pool.outside = !open);
    state.each_lease(|lease| {
        let until = match &mut lease.is {
            Berth::Offered(offer) => &mut offer.until,
            Berth::Held(held) => &mut held.until,
            Berth::Missing | Berth::Closed(_) => return,
        };
        if *until == Until::Close {
            *until = Until::Over;
        }
    });
}

/// Makes the admin set another image for all pools, or move their tag to it. Without a tag, the image becomes the
/// target at once.
pub fn edit(world: &World, state: &mut State, image: u8) {
    forget_left(state);
    for pool in &mut state.pools {
        pool.tagged = image;
        if !world.has_tag() {
            pool.soaked &= pool.target == image;
            pool.target = image;
        }
    }
    offered::forget(state);
    if world.has_tag() {
        state.fleet.tagged |= 1 << image;
    }
}

/// Allows nodes to try all images again that their hosts left without Berth.
pub fn forget_left(state: &mut State) {
    state.nodes.iter_mut().for_each(|node| node.ghost.left = 0);
}

/// Lets the soak time pass. If all canaries are proven, they have then soaked.
pub fn soak(state: &mut State) {
    let target = state.pools[0].target;
    let mut canaries = state.nodes.iter().filter(|node| judge::is_canary(node));
    if !canaries.all(|node| judge::is_proven(node, target)) {
        return;
    }
    state.fleet.soaked |= 1 << target;
    for controller in &mut state.controllers {
        if controller.soak == (target, Begun::Lately) {
            controller.soak.1 = Begun::LongAgo;
        }
    }
}

pub fn age(state: &mut State) {
    state.fleet.old = state.fleet.tagged;
    for controller in &mut state.controllers {
        controller.counted = controller.counts != 0;
    }
}

/// Lets the timeout of the permits to pull pass: the leader records the waiting members whose permit is unused. Only
/// differences between members matter, so the record is cleared if it contains all waiting members.
pub fn permits(state: &mut State) {
    let leader = usize::from(state.leader);
    // A pull of an honest node ends within the time limit that its agent sets.
    let endless = judge::which(&state.nodes, |n| {
        n.labels.liar.is_some() && n.status.work == Work::Pulls
    });
    endless
        .iter()
        .for_each(|node| state.controllers[leader].endless.add(node));
    let mut waiting = vec![];
    for (number, node) in (0..).zip(&state.nodes) {
        let Some(spec) = node.spec.filter(|spec| !spec.deleting) else {
            continue;
        };
        if [node.status.booted, node.status.staged].contains(&spec.image) || node.status.work == Work::Pulls {
            continue;
        }
        // Members where the image has failed get no permit now.
        let has_failed = node.status.failed & (1 << spec.image) != 0;
        let is_silent = state.controllers[leader].silent.has(number);
        let has_berth = state.held_by(usize::from(number)).is_some();
        let is_busy = has_berth && node.status.work != Work::Proves;
        if !spec.may_pull && (has_failed || is_silent || is_busy || node.status.work == Work::Blocked) {
            continue;
        }
        waiting.push(number);
        if spec.may_pull {
            state.controllers[leader].unused.add(number);
        }
    }
    let unused = &mut state.controllers[leader].unused;
    if waiting.iter().all(|number| unused.has(*number)) {
        *unused = Set::default();
    }
}

/// Stops a node's agents, or lets them continue. The controllers must then notice any silence again.
pub fn mutes(state: &mut State, node: usize, mute: bool) {
    state.nodes[node].mute = mute;
    for controller in &mut state.controllers {
        controller.silent.drop(node as Number);
    }
}

/// True if a node's agents are silent and the leader has not noticed that yet.
pub fn has_unnoticed_silence(state: &State, node: usize) -> bool {
    let here = &state.nodes[node];
    let leader = &state.controllers[usize::from(state.leader)];
    here.mute && here.spec.is_some() && !leader.silent.has(node as Number)
}

pub fn notice_silence(state: &mut State, node: usize) {
    state.controllers[usize::from(state.leader)].silent.add(node as Number);
}

pub fn drain_is_over(state: &mut State, node: usize) {
    let here = &mut state.nodes[node];
    here.host.drain_is_over();
    here.ghost.drain_over = true;
}

/// True if a new test of the API server would give the agent another result than its last test.
pub fn guard_is_due(state: &State, node: usize) -> bool {
    let agent = &state.nodes[node].agent;
    !agent.guard_due && (agent.guard == Guard::Refuses) == state.fleet.unguarded
}

/// Returns the next state of a requested reboot, after a timeout.
pub fn later(here: &Node) -> Option<Reboot> {
    match here.agent.reboot {
        _ if here.host.down => None,
        Reboot::Asked => Some(Reboot::Late),
        // An agent that cannot revert its commit requests the reboot again.
        Reboot::Late if here.ghost.unproven => Some(Reboot::Long),
        Reboot::Blocked if here.ghost.unproven => Some(Reboot::BlockedLong),
        _ => None,
    }
}

/// Ends a pull that has staged its image. The pull succeeds if the image can be locked.
pub fn pulled(state: &mut State, node: usize) {
    let here = &mut state.nodes[node];
    let (image, locked) = (here.host.pull, !here.host.no_lock);
    here.host.ended = if locked {
        Ended::Well(image)
    } else {
        Ended::Badly(image)
    };
    (here.host.staged, here.host.locked, here.host.pull) = (image, locked, 0);
    (here.ghost.armed, here.ghost.partial) = (0, 0);
}

/// Makes a pull fail after it has staged its image.
pub(crate) fn pulled_in_part(state: &mut State, node: usize) {
    let here = &mut state.nodes[node];
    here.host.ended = Ended::Badly(here.host.pull);
    (here.host.staged, here.host.locked, here.host.pull) = (here.host.pull, false, 0);
    (here.ghost.armed, here.ghost.partial) = (0, here.host.staged);
}
