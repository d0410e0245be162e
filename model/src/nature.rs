//! Events outside of Berth: hosts pull and boot, kubelets report, time passes, admins act, faults happen.

use crate::fault::Fault;
use crate::set::Set;
use crate::state::{
    Agent, Begun, Berth, BootImages, Cordon, Ended, Failures, Guard, NONE, Node, Number, Object, Phase, Reboot,
    Request, Spec, State, Until, Work, Write,
};
use crate::world::{Broken, Follows, World};
use crate::{agent, controller, judge};

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A request in flight is executed.
    Lands(Request),
    /// The pull has staged its image, and locked it if possible.
    Pulled,
    /// The pull failed after staging its image: the image is not locked, and logically bound images may be missing.
    PulledInPart,
    /// The pull failed.
    PullFailed,
    /// The host boots after its shutdown.
    Boots,
    /// The host boots after `ostree-finalize-staged` failed.
    BootsUnfinalized,
    /// The host loses power.
    PowerLost,
    /// An admin rolls the host back and reboots it.
    RolledBack,
    /// The kubelet reports.
    Kubelet,
    /// The Node becomes NotReady.
    NotReady,
    /// A timeout of the requested reboot passes.
    GraceOver,
    /// The timeout of the boot's proof passes.
    ProofOver,
    /// The backoff passes.
    BackoffOver,
    /// The timeout of the drain passes.
    DrainOver,
    /// The other agent of the node starts to act.
    OtherAgent,
    /// The agent dies.
    AgentDies,
    /// Shutdowns become inhibited (true) or allowed.
    Inhibits(bool),
    /// Pods become impossible (true) or possible to evict.
    Blocks(bool),
    /// Locking the staged image starts (true) or stops failing.
    NoLock(bool),
    /// Removing the staged image starts (true) or stops failing.
    NoUnstage(bool),
    /// The host's bus stops (true) or resumes answering.
    Silent(bool),
    /// The bus has not answered for a long time.
    SilenceOver,
    /// The deployments become unreadable (true) or readable.
    Unusable(bool),
    /// The installer's record of the boot image becomes unreadable (true) or readable.
    Untells(bool),
    /// The wall clock jumps ahead (true) or is set back.
    Jumps(bool),
    /// The agent's failed read of the deployments is old, and a new one is due.
    LooksAgain,
    /// The disk becomes read-only (true) or writable.
    ReadOnly(bool),
    /// An admin queues (true) or unqueues a rollback.
    Queues(bool),
    /// An admin schedules (true) or cancels a shutdown.
    Schedules(bool),
    /// The scheduled shutdown begins.
    ShutsDown,
    /// The agents stop (true) or continue.
    Mutes(bool),
    /// The leader notices that the agents are silent.
    NotHeard,
    /// The agents stop (true) or resume starting pulls.
    Idles(bool),
    /// The admin pins the image that the tag points to.
    Approves,
    /// The minimum age of the known images passes.
    AgeOver,
    /// A controller asks the registry about the tag.
    Polled(u8),
    /// The soak time of the canaries passes.
    SoakOver,
    /// The timeout of the permits to pull passes.
    PermitsOver,
    /// The API server stops (true) or resumes refusing the writes that it must refuse.
    Unguarded(bool),
    /// The API server starts (true) or stops to refuse all writes to this Lease.
    Refuses(Number, bool),
    /// The leader may try refused writes again.
    TriesAgain,
    /// The agent's test of the API server is due.
    GuardDue,
    /// Another updater unlocks the staged image.
    RivalUnlocks,
    /// Another updater removes the staged image.
    RivalRemoves,
    /// An admin cordons (true) or uncordons the node.
    Cordons(bool),
    /// An admin uncordons the node during its turn.
    Meddles,
    /// The Node is deleted.
    Deleted,
    /// The Node is created again.
    Created,
    /// The node's labels move it to another pool.
    Moves(u8),
    /// The admin excludes (true) or includes the node.
    Excludes(bool),
    /// The admin holds the node back (true) or releases it.
    Holds(bool),
    /// The admin asks for another image, or the tag is moved.
    Edits(u8),
    /// The admin sets another policy for boot images.
    Accepts(BootImages),
    /// The admin sets another capacity.
    Resizes(Number),
    /// The admin pauses or resumes this pool.
    Pauses(u8),
    /// The admin pauses (true) or resumes the fleet.
    PausesFleet(bool),
    /// The windows open (true) or close.
    Window(bool),
    /// The controllers' clock regains (true) or loses synchronization.
    Clock(bool),
    /// An admin deletes the BootcNode.
    Forgotten,
    /// The admin asks to retry failed images.
    Retries,
}

/// Callback for one possible event, with its node, if any.
pub type Push<'a> = &'a mut dyn FnMut(Option<usize>, Event, State, Option<Broken>);

/// Boots a host. `clean`: after a shutdown. `finalized`: `ostree-finalize-staged` succeeded.
pub fn boot(state: &mut State, node: usize, clean: bool, finalized: bool) {
    state.next_boot(node);
    let phase = state.held_by(node).map(|(_, h)| (h.phase, h.uid));
    let fleet = state.fleet;
    let here = &mut state.nodes[node];
    let host = &mut here.host;
    host.recall();
    let applies = clean && host.staged != 0 && !host.locked;
    host.unfinalized = applies && !finalized;
    if applies && finalized {
        (host.booted, host.previous) = (host.staged, host.booted);
    } else if host.queued {
        (host.booted, host.previous) = (host.previous, host.booted);
    }
    (host.queued, host.scheduled, host.silent) = (false, false, false);
    (host.staged, host.locked, host.pull, host.down, host.inhibited) = (0, false, 0, false, false);
    (host.relicensed, host.proof, host.ended, host.pull_backoff) = (false, Begun::No, Ended::No, false);
    (here.agent, here.other) = (Agent::fresh(fleet), Agent::fresh(fleet));
    (here.ghost.unguarded, here.ghost.other_unguarded) = (fleet.tries_guard, fleet.tries_guard);
    (here.ghost.armed, here.ghost.partial) = (0, 0);
    here.ghost.ready = false;
    // Excludes a power loss while the last write of a turn is in flight: a rule for it is impossible.
    let ours = phase.is_some_and(|(phase, uid)| {
        uid == here.object.uid && here.object.exists && (clean || !matches!(phase, Phase::Releasing(_)))
    });
    here.ghost.unproven = ours;
}

fn is_well(world: &World, state: &State, node: usize) -> bool {
    world.bad & (1 << state.nodes[node].host.booted) == 0
}

/// Lets the kubelet report under the running boot.
pub fn kubelet(world: &World, state: &mut State, node: usize) {
    let ready = is_well(world, state, node);
    let here = &mut state.nodes[node];
    here.object.boot = 0;
    here.object.ready = ready;
    here.ghost.ready |= ready;
    state.touch_node(node);
}

/// Executes a request in flight.
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
        } => agent::land_patch(state, usize::from(node), unschedulable, cordon),
        Request::Controller(write) => controller::land(world, state, &write, None),
    }
}

/// True if the API server would refuse the request.
fn is_refused(state: &State, request: &Request) -> bool {
    match request {
        Request::Berth { slot, .. } | Request::Controller(Write::Berth { slot, .. }) => state.unwritable.has(*slot),
        _ => false,
    }
}

/// Creates the Node again, under its name.
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

/// Opens or closes the windows of all pools. Berths whose window was open run out.
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

/// Asks all pools for another image. Without a tag, it becomes the target at once.
pub fn edit(world: &World, state: &mut State, image: u8) {
    for pool in &mut state.pools {
        pool.tagged = image;
        if !world.has_tag() {
            pool.soaked &= pool.target == image;
            pool.target = image;
        }
    }
    if world.has_tag() {
        state.fleet.tagged |= 1 << image;
    }
}

/// Lets the soak time pass: proven canaries have soaked.
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

/// Lets the minimum age pass for all known images.
pub fn age(state: &mut State) {
    state.fleet.old = state.fleet.tagged;
    for controller in &mut state.controllers {
        controller.counted = controller.counts != 0;
    }
}

/// Lists events of a tag: its minimum age passes, or a controller asks the registry.
fn of_tag(world: &World, state: &State, push: Push<'_>) {
    if world.follows == Follows::AtOnce {
        return;
    }
    let leader = usize::from(state.leader);
    let mut after = state.clone();
    age(&mut after);
    if after != *state {
        push(None, Event::AgeOver, after, None);
    }
    let mut after = state.clone();
    controller::ask(&mut after, leader);
    if after != *state && state.controllers[leader].queue.is_empty() {
        push(None, Event::Polled(state.leader), after, None);
    }
}

/// Lets the timeout of the permits to pull pass. Only differences between members matter, so if all waiting members have an
/// unused permit, the record is cleared.
pub fn permits(state: &mut State) {
    let leader = usize::from(state.leader);
    let mut waiting = vec![];
    for (number, node) in (0..).zip(&state.nodes) {
        let Some(spec) = node.spec.filter(|spec| !spec.deleting) else {
            continue;
        };
        if [node.status.booted, node.status.staged].contains(&spec.image) || node.status.work == Work::Pulls {
            continue;
        }
        // Such members get no permit now.
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

/// Stops the agents of a node, or lets them continue and report again.
pub fn mutes(state: &mut State, node: usize, mute: bool) {
    state.nodes[node].mute = mute;
    for controller in &mut state.controllers {
        controller.silent.drop(node as Number);
    }
}

/// True if the leader has yet to notice that the agents of a node are silent.
pub fn has_unnoticed_silence(state: &State, node: usize) -> bool {
    let here = &state.nodes[node];
    let leader = &state.controllers[usize::from(state.leader)];
    here.mute && here.spec.is_some() && !leader.silent.has(node as Number)
}

/// Lets the leader notice that the agents of a node are silent.
pub fn notice_silence(state: &mut State, node: usize) {
    state.controllers[usize::from(state.leader)].silent.add(node as Number);
}

/// Lists all possible events.
pub fn events(world: &World, state: &State, push: Push<'_>) {
    landings(world, state, push);
    for node in 0..world.nodes {
        of_node(world, state, node, push);
    }
    of_admin(world, state, push);
    of_controllers(world, state, push);
}

/// Lists the timeouts that controllers wait for.
pub fn of_controllers(world: &World, state: &State, push: Push<'_>) {
    of_tag(world, state, push);
    if world.soaks {
        let mut after = state.clone();
        soak(&mut after);
        if after != *state {
            push(None, Event::SoakOver, after, None);
        }
    }
    let leader = usize::from(state.leader);
    if !state.controllers[leader].refused.is_empty() {
        let mut after = state.clone();
        after.controllers[leader].refused = Set::default();
        push(None, Event::TriesAgain, after, None);
    }
    if state.fleet.counts_pulls {
        let mut after = state.clone();
        permits(&mut after);
        if after != *state {
            push(None, Event::PermitsOver, after, None);
        }
    }
}

/// Lists the requests in flight that may be executed.
pub fn landings(world: &World, state: &State, push: Push<'_>) {
    let may_land = |(_, request): &(usize, &Request)| !is_refused(state, request);
    for (at, request) in state.air.iter().enumerate().filter(may_land) {
        let mut after = state.clone();
        let broken = land(world, &mut after, at);
        push(None, Event::Lands(request.clone()), after, broken);
    }
}

/// Lists the possible events of one node.
pub fn of_node(world: &World, state: &State, node: usize, push: Push<'_>) {
    of_host(world, state, node, push);
    faults_of_host(state, node, push);
    of_object(world, state, node, push);
}

fn of_host(world: &World, state: &State, node: usize, push: Push<'_>) {
    let here = &state.nodes[node];
    let mut happens = |event: Event, change: &dyn Fn(&mut State)| {
        let mut after = state.clone();
        change(&mut after);
        push(Some(node), event, after, None);
    };
    if here.host.pull != 0 {
        happens(Event::Pulled, &|s| pulled(s, node));
    }
    if here.host.down {
        happens(Event::Boots, &|s| boot(s, node, true, true));
    }
    if has_unnoticed_silence(state, node) {
        happens(Event::NotHeard, &|s| notice_silence(s, node));
    }
    let well = is_well(world, state, node);
    if here.object.exists && !here.host.down && (here.object.boot != 0 || here.object.ready != well) {
        happens(Event::Kubelet, &|s| kubelet(world, s, node));
    }
    if let Some(later) = later(here) {
        happens(Event::GraceOver, &|s| s.nodes[node].agent.reboot = later);
    }
    if here.ghost.unproven && here.host.proof == Begun::Lately && !here.host.down {
        happens(Event::ProofOver, &|s| s.nodes[node].host.proof_is_over());
    }
    if here.host.backoff || here.host.pull_backoff {
        happens(Event::BackoffOver, &|s| s.nodes[node].host.backoff_is_over());
    }
    let draining = state.held_by(node).is_some_and(|(_, h)| h.phase == Phase::Taken);
    if here.host.blocked && draining && !here.agent.drained && here.host.drain == Begun::Lately {
        happens(Event::DrainOver, &|s| drain_is_over(s, node));
    }
    if here.agent.silence == Begun::Lately && here.host.silent {
        happens(Event::SilenceOver, &|s| s.nodes[node].agent.silence = Begun::LongAgo);
    }
    if here.agent.blind && here.agent.fresh && !here.agent.blind_long {
        happens(Event::LooksAgain, &|s| s.nodes[node].agent.blind_long = true);
    }
    if here.host.scheduled && !here.host.down {
        happens(Event::ShutsDown, &|s| s.nodes[node].host.down = true);
    }
    if guard_is_due(state, node) && !here.host.down {
        happens(Event::GuardDue, &|s| s.nodes[node].agent.guard_due = true);
    }
}

/// Lets the timeout of a node's drain pass.
pub fn drain_is_over(state: &mut State, node: usize) {
    let here = &mut state.nodes[node];
    here.host.drain_is_over();
    here.ghost.drain_over = true;
}

/// True if a new test of the API server would give the agent another result than its last one.
pub fn guard_is_due(state: &State, node: usize) -> bool {
    let agent = &state.nodes[node].agent;
    !agent.guard_due && (agent.guard == Guard::Refuses) == state.fleet.unguarded
}

/// Returns the next state of a requested reboot, after a timeout.
pub fn later(here: &Node) -> Option<Reboot> {
    match here.agent.reboot {
        _ if here.host.down => None,
        Reboot::Asked => Some(Reboot::Late),
        // An agent that cannot revert the commit asks again.
        Reboot::Late if here.ghost.unproven => Some(Reboot::Long),
        Reboot::Blocked if here.ghost.unproven => Some(Reboot::BlockedLong),
        _ => None,
    }
}

/// Ends a pull that has staged its image. It succeeds if the image can be locked.
pub fn pulled(state: &mut State, node: usize) {
    let here = &mut state.nodes[node];
    let (image, locked) = (here.host.pull, !here.host.no_lock);
    here.host.ended = match locked {
        true => Ended::Well(image),
        false => Ended::Badly(image),
    };
    (here.host.staged, here.host.locked, here.host.pull) = (image, locked, 0);
    (here.ghost.armed, here.ghost.partial) = (0, 0);
}

/// Fails a pull after it has staged its image.
fn pulled_in_part(state: &mut State, node: usize) {
    let here = &mut state.nodes[node];
    here.host.ended = Ended::Badly(here.host.pull);
    (here.host.staged, here.host.locked, here.host.pull) = (here.host.pull, false, 0);
    (here.ghost.armed, here.ghost.partial) = (0, here.host.staged);
}

fn faults_of_host(state: &State, node: usize, push: Push<'_>) {
    let host = state.nodes[node].host;
    let mut fault = |fault: Fault, event: Event, change: &dyn Fn(&mut State)| {
        if let Some(mut after) = state.spent(fault) {
            change(&mut after);
            push(Some(node), event, after, None);
        }
    };
    if host.pull != 0 {
        fault(Fault::Pull, Event::PulledInPart, &|s| pulled_in_part(s, node));
        fault(Fault::Pull, Event::PullFailed, &|s| {
            let host = &mut s.nodes[node].host;
            (host.ended, host.pull) = (Ended::Badly(host.pull), 0);
        });
    }
    if host.down && host.staged != 0 && !host.locked {
        fault(Fault::Finalize, Event::BootsUnfinalized, &|s| {
            boot(s, node, true, false)
        });
    }
    // Excludes times before the commit and while the berth is given back: an admin who then boots a host into an image that
    // cannot be proven has to release the berth by hand.
    let late = |r: &Request| matches!(r, Request::Berth { node: n, .. } if usize::from(*n) == node);
    let by_hand = state.held_by(node).is_some_and(|(_, h)| h.phase != Phase::Committed) || state.air.iter().any(late);
    if host.previous != 0 && !host.down && !by_hand {
        fault(Fault::Rollback, Event::RolledBack, &|s| {
            let host = &mut s.nodes[node].host;
            (host.booted, host.previous) = (host.previous, host.booted);
            (host.staged, host.locked) = (0, false);
            boot(s, node, true, true);
        });
    }
    fault(Fault::Power, Event::PowerLost, &|s| boot(s, node, false, false));
    if state.nodes[node].agent != Agent::fresh(state.fleet) && !host.down {
        fault(Fault::AgentCrash, Event::AgentDies, &|s| agent::crash(s, node));
    }
    if !host.down {
        fault(Fault::Second, Event::OtherAgent, &|s| {
            let here = &mut s.nodes[node];
            (here.agent, here.other) = (here.other, here.agent);
            let ghost = &mut here.ghost;
            (ghost.unguarded, ghost.other_unguarded) = (ghost.other_unguarded, ghost.unguarded);
        });
        fault(Fault::Inhibit, Event::Inhibits(!host.inhibited), &|s| {
            s.nodes[node].host.inhibited = !host.inhibited
        });
    }
    fault(Fault::Silent, Event::Silent(!host.silent), &|s| {
        s.nodes[node].host.silent = !host.silent
    });
    fault(Fault::Unusable, Event::Unusable(!host.unusable), &|s| {
        s.nodes[node].host.unusable = !host.unusable
    });
    fault(Fault::Jump, Event::Jumps(!host.ahead), &|s| {
        s.nodes[node].host.ahead = !host.ahead
    });
    if state.fleet.tells_boot_images {
        fault(Fault::Untold, Event::Untells(!host.no_note), &|s| {
            s.nodes[node].host.no_note = !host.no_note
        });
    }
    fault(Fault::ReadOnly, Event::ReadOnly(!host.read_only), &|s| {
        s.nodes[node].host.read_only = !host.read_only
    });
    if host.queued || host.previous != 0 && !host.down && !by_hand {
        fault(Fault::Queue, Event::Queues(!host.queued), &|s| {
            s.nodes[node].host.queued = !host.queued
        });
    }
    let mute = state.nodes[node].mute;
    fault(Fault::Mute, Event::Mutes(!mute), &|s| mutes(s, node, !mute));
    let idle = state.nodes[node].idle;
    fault(Fault::Idle, Event::Idles(!idle), &|s| s.nodes[node].idle = !idle);
    if !host.down {
        fault(Fault::Schedule, Event::Schedules(!host.scheduled), &|s| {
            s.nodes[node].host.scheduled = !host.scheduled
        });
    }
    fault(Fault::Block, Event::Blocks(!host.blocked), &|s| {
        s.nodes[node].host.blocked = !host.blocked
    });
    fault(Fault::Stuck, Event::NoLock(!host.no_lock), &|s| {
        s.nodes[node].host.no_lock = !host.no_lock
    });
    fault(Fault::Stuck, Event::NoUnstage(!host.no_unstage), &|s| {
        s.nodes[node].host.no_unstage = !host.no_unstage
    });
    if host.staged != 0 && host.locked && !host.down {
        fault(Fault::Rival, Event::RivalUnlocks, &|s| {
            s.nodes[node].host.locked = false
        });
    }
    if host.staged != 0 && !host.down {
        fault(Fault::Rival, Event::RivalRemoves, &|s| {
            let here = &mut s.nodes[node];
            (here.host.staged, here.host.locked) = (0, false);
            (here.ghost.armed, here.ghost.partial) = (0, 0);
        });
    }
}

fn of_object(world: &World, state: &State, node: usize, push: Push<'_>) {
    let here = &state.nodes[node];
    let object = here.object;
    if !object.exists {
        let mut after = state.clone();
        create(&mut after, node);
        return push(Some(node), Event::Created, after, None);
    }
    let mut fault = |fault: Fault, event: Event, change: &dyn Fn(&mut State)| {
        if let Some(mut after) = state.spent(fault) {
            change(&mut after);
            after.touch_node(node);
            push(Some(node), event, after, None);
        }
    };
    if object.ready && object.boot == 0 && is_well(world, state, node) {
        fault(Fault::NotReady, Event::NotReady, &|s| {
            s.nodes[node].object.ready = false
        });
    }
    if object.cordon == Cordon::No {
        let to = !object.unschedulable;
        fault(Fault::Cordon, Event::Cordons(to), &|s| {
            s.nodes[node].object.unschedulable = to;
            s.nodes[node].ghost.admin = to;
        });
    } else if object.unschedulable {
        fault(Fault::Meddle, Event::Meddles, &|s| {
            s.nodes[node].object.unschedulable = false;
            s.nodes[node].ghost.admin = false;
        });
    }
    if object.uid < 2 {
        fault(Fault::Delete, Event::Deleted, &|s| s.nodes[node].object.exists = false);
    }
    fault(Fault::Exclude, Event::Excludes(!object.excluded), &|s| {
        s.nodes[node].object.excluded = !object.excluded;
    });
    fault(Fault::Hold, Event::Holds(!here.labels.held), &|s| {
        s.nodes[node].labels.held = !here.labels.held;
    });
    let other = match here.labels.pool {
        NONE => 0,
        pool if usize::from(pool) + 1 < world.pools.len() => pool + 1,
        _ => NONE,
    };
    fault(Fault::Move, Event::Moves(other), &|s| s.nodes[node].labels.pool = other);
    let is_there = here.spec.is_some_and(|spec| !spec.deleting);
    if let Some(mut after) = state.spent(Fault::Forget).filter(|_| is_there) {
        let here = &mut after.nodes[node];
        here.spec = here.spec.map(|spec| Spec { deleting: true, ..spec });
        here.status.observed = false;
        after.touch_bootc(node);
        push(Some(node), Event::Forgotten, after, None);
    }
}

/// Lists the possible actions of an admin on pools and the fleet.
pub fn of_admin(world: &World, state: &State, push: Push<'_>) {
    let pool = &state.pools[0];
    let mut fault = |fault: Fault, event: Event, change: &dyn Fn(&mut State)| {
        if let Some(mut after) = state.spent(fault) {
            change(&mut after);
            (0..after.pools.len()).for_each(|pool| after.touch_pool(pool as u8));
            push(None, event, after, None);
        }
    };
    for image in world.images.iter().filter(|i| **i != pool.tagged) {
        fault(Fault::Edit, Event::Edits(*image), &|s| edit(world, s, *image));
    }
    if world.follows == Follows::Pinned && pool.tagged != pool.target {
        fault(Fault::Approve, Event::Approves, &|s| {
            s.pools.iter_mut().for_each(|pool| pool.target = pool.tagged)
        });
    }
    for rule in BootImages::ALL {
        if world.too_old != 0 && rule != pool.boot_images {
            fault(Fault::Accept, Event::Accepts(rule), &|s| {
                s.pools.iter_mut().for_each(|p| p.boot_images = rule)
            });
        }
    }
    let (one, other) = world.capacity;
    let to = if pool.capacity == one { other } else { one };
    if one != other {
        fault(Fault::Resize, Event::Resizes(to), &|s| s.pools[0].capacity = to);
    }
    for (number, pool) in state.pools.iter().enumerate() {
        fault(Fault::Pause, Event::Pauses(number as u8), &|s| {
            s.pools[number].paused = !pool.paused;
        });
    }
    fault(Fault::Fleet, Event::PausesFleet(!state.fleet.paused), &|s| {
        s.fleet.paused = !s.fleet.paused
    });
    if state.fleet.tries_guard {
        fault(Fault::Unguarded, Event::Unguarded(!state.fleet.unguarded), &|s| {
            s.fleet.unguarded = !s.fleet.unguarded
        });
    }
    for slot in (0..).take(world.slots()) {
        let (pool, index) = world.place(usize::from(slot));
        let is_used = state.unwritable.has(slot) || index < state.pools[usize::from(pool)].capacity;
        if is_used {
            let refuses = !state.unwritable.has(slot);
            fault(Fault::Refuse, Event::Refuses(slot, refuses), &|s| match refuses {
                true => s.unwritable.add(slot),
                false => s.unwritable.drop(slot),
            });
        }
    }
    if world.windows {
        fault(Fault::Window, Event::Window(pool.outside), &|s| window(s, pool.outside));
        fault(Fault::Clock, Event::Clock(state.fleet.clock_lost), &|s| {
            s.fleet.clock_lost = !s.fleet.clock_lost
        });
    }
    fault(Fault::Retry, Event::Retries, &|s| {
        for pool in &mut s.pools {
            pool.token += 1;
            pool.failures = Failures::default();
        }
    });
}
