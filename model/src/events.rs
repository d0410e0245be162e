//! All possible events outside of Berth.

use crate::fault::Fault;
use crate::liar::Lie;
use crate::nature::{
    age, becomes_ready, boot, create, drain_is_over, edit, fall_back, forget_left, guard_fires, guard_is_due,
    guard_reboots, has_fired, has_unnoticed_silence, is_refused, is_well, kubelet, land, later, may_fire, mutes,
    notice_silence, permits, pulled, pulled_in_part, roll_back, soak, window,
};
use crate::set::Set;
use crate::state::{
    Agent, Begun, Berth, BootImages, Cordon, Ended, Failures, Host, NONE, Number, Phase, Request, Spec, State,
};
use crate::world::{Broken, Follows, World};
use crate::{agent, controller, liar, offered};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Lands(Request),
    /// The pull has staged its image, and has locked it if possible.
    Pulled,
    /// The pull failed after it staged its image: the image is not locked, and logically bound images may be missing.
    PulledInPart,
    PullFailed,
    Boots,
    /// The rollback guard fires: it decides to roll the host back.
    GuardFires,
    /// The rollback guard queues the rollback and reboots the host.
    GuardReboots,
    BootsUnfinalized,
    PowerLost,
    /// The host boots its previous image, although the shutdown has finalized the staged image.
    FallsBack,
    RolledBack,
    Kubelet,
    NotReady,
    /// A timeout of the requested reboot expires.
    GraceOver,
    /// The timeout of the boot's proof expires.
    ProofOver,
    BackoffOver,
    DrainOver,
    /// The node's second agent begins to act.
    OtherAgent,
    AgentDies,
    /// Shutdowns are inhibited (true) or allowed.
    Inhibits(bool),
    /// Pods cannot be evicted (true), or can be.
    Blocks(bool),
    /// Locking the staged image fails (true), or works again.
    NoLock(bool),
    /// Removing the staged image fails (true), or works again.
    NoUnstage(bool),
    /// The host's bus no longer answers (true), or answers again.
    Silent(bool),
    /// The bus has not answered for a long time.
    SilenceOver,
    /// The deployments become unreadable (true) or readable.
    Unusable(bool),
    /// The installer's record of the boot image becomes unreadable (true) or readable.
    Untells(bool),
    /// The wall clock jumps ahead (true) or is set back.
    Jumps(bool),
    /// The agent's failed read of the deployments is old enough to retry.
    LooksAgain,
    /// The disk becomes read-only (true) or writable.
    ReadOnly(bool),
    /// An admin queues (true) or unqueues a rollback.
    Queues(bool),
    /// An admin schedules (true) or cancels a shutdown.
    Schedules(bool),
    ShutsDown,
    /// The node's agents stop (true) or resume.
    Mutes(bool),
    /// The leader notices that the node's agents are silent.
    NotHeard,
    /// The agents no longer start pulls (true), or start them again.
    Idles(bool),
    /// The admin pins the image that the tag points to.
    Approves,
    /// The images that the tag has pointed to reach the minimum age.
    AgeOver,
    /// This controller asks the registry about the tag.
    Polled(u8),
    SoakOver,
    /// The permits to pull time out.
    PermitsOver,
    /// The API server accepts (true) or rejects forbidden writes.
    Unguarded(bool),
    /// The API server rejects (true) or accepts all writes of this Lease.
    Refuses(Number, bool),
    /// The leader may retry rejected writes.
    TriesAgain,
    /// The agent's test of the API server is due.
    GuardDue,
    RivalUnlocks,
    RivalRemoves,
    /// An admin cordons (true) or uncordons the node.
    Cordons(bool),
    /// An admin uncordons the node during its turn.
    Meddles,
    Deleted,
    Created,
    /// The node's labels move it to this pool.
    Moves(u8),
    /// The admin excludes (true) or includes the node.
    Excludes(bool),
    /// The admin holds the node back (true) or releases it.
    Holds(bool),
    /// The admin sets another image, or the tag is moved to another image.
    Edits(u8),
    Accepts(BootImages),
    /// The admin sets this capacity.
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
    /// A compromised node writes a berth that it may write.
    Abuses(Number, Berth),
    /// A compromised node writes something false into its BootcNode's status or its Node.
    Lies(Lie),
}

/// Callback for a possible event: node, event, state after the event, and broken rule.
pub type Push<'a> = &'a mut dyn FnMut(Option<usize>, Event, State, Option<Broken>);

struct Events<'a> {
    state: &'a State,
    node: Option<usize>,
    push: Push<'a>,
}

impl Events<'_> {
    fn add(&mut self, event: Event, change: impl FnOnce(&mut State)) {
        let mut after = self.state.clone();
        change(&mut after);
        (self.push)(self.node, event, after, None);
    }

    /// Adds an event if it changes the state.
    fn add_change(&mut self, event: Event, change: impl FnOnce(&mut State)) {
        let mut after = self.state.clone();
        change(&mut after);
        if after != *self.state {
            (self.push)(self.node, event, after, None);
        }
    }

    /// Adds a fault, unless it has already happened as often as allowed.
    fn fault(&mut self, fault: Fault, event: Event, change: impl FnOnce(&mut State)) {
        if let Some(mut after) = self.state.spent(fault) {
            change(&mut after);
            (self.push)(self.node, event, after, None);
        }
    }
}

pub fn events(world: &World, state: &State, push: Push<'_>) {
    landings(world, state, push);
    for node in 0..world.nodes {
        of_node(world, state, node, push);
    }
    of_admin(world, state, push);
    of_controllers(world, state, push);
}

pub fn of_controllers(world: &World, state: &State, push: Push<'_>) {
    let (leader, node) = (usize::from(state.leader), None);
    let mut events = Events { state, node, push };
    if world.follows != Follows::AtOnce {
        events.add_change(Event::AgeOver, age);
        if state.controllers[leader].queue.is_empty() {
            events.add_change(Event::Polled(state.leader), |s| controller::ask(s, leader));
        }
    }
    if world.soaks {
        events.add_change(Event::SoakOver, soak);
    }
    if !state.controllers[leader].refused.is_empty() {
        events.add(Event::TriesAgain, |s| s.controllers[leader].refused = Set::default());
    }
    if state.fleet.counts_pulls {
        events.add_change(Event::PermitsOver, permits);
    }
}

/// Lists the requests in flight that the API server may execute now.
pub fn landings(world: &World, state: &State, push: Push<'_>) {
    let requests = state.air.iter().enumerate();
    for (at, request) in requests.filter(|(_, request)| !is_refused(state, request)) {
        let mut after = state.clone();
        let broken = land(world, &mut after, at);
        push(None, Event::Lands(request.clone()), after, broken);
    }
}

pub fn of_node(world: &World, state: &State, node: usize, push: Push<'_>) {
    if state.nodes[node].labels.liar.is_some() {
        of_liar(world, state, node, push);
    } else {
        of_host(world, state, node, push);
        faults_of_host(state, node, push);
    }
    of_object(world, state, node, push);
}

/// Lists the writes that a compromised node may make. Its berths cost no fault, since every rollout has them.
fn of_liar(world: &World, state: &State, node: usize, push: Push<'_>) {
    for (slot, berth) in liar::abuses(world, state, node) {
        let mut after = state.clone();
        let broken = liar::write(world, &mut after, node, slot, berth);
        push(Some(node), Event::Abuses(slot, berth), after, broken);
    }
    let Some(spent) = state.spent(Fault::Lie) else {
        return;
    };
    for lie in liar::reports(world, state, node) {
        let mut after = spent.clone();
        liar::report(&mut after, node, lie);
        if after.nodes[node] != state.nodes[node] {
            push(Some(node), Event::Lies(lie), after, None);
        }
    }
}

fn of_host(world: &World, state: &State, node: usize, push: Push<'_>) {
    let here = &state.nodes[node];
    let mut events = Events {
        state,
        node: Some(node),
        push,
    };
    if here.host.pull != 0 {
        events.add(Event::Pulled, |s| pulled(s, node));
    }
    if here.host.down {
        events.add(Event::Boots, |s| boot(s, node, true, true));
    }
    if may_fire(world, state, node) {
        let mut after = state.clone();
        let broken = guard_fires(&mut after, node);
        (events.push)(events.node, Event::GuardFires, after, broken);
    }
    if has_fired(&here.host) {
        events.add(Event::GuardReboots, |s| guard_reboots(s, node));
    }
    if has_unnoticed_silence(state, node) {
        events.add(Event::NotHeard, |s| notice_silence(s, node));
    }
    let ready = becomes_ready(world, state, node);
    if here.object.exists && !here.host.down && (here.object.boot != 0 || here.object.ready != ready) {
        events.add(Event::Kubelet, |s| kubelet(world, s, node));
    }
    if let Some(later) = later(here) {
        events.add(Event::GraceOver, |s| s.nodes[node].agent.reboot = later);
    }
    if here.ghost.unproven && here.host.proof == Begun::Lately && !here.host.down {
        events.add(Event::ProofOver, |s| s.nodes[node].host.proof_is_over());
    }
    if here.host.backoff || here.host.pull_backoff {
        events.add(Event::BackoffOver, |s| s.nodes[node].host.backoff_is_over());
    }
    let draining = state.held_by(node).is_some_and(|(_, h)| h.phase == Phase::Taken);
    if here.host.blocked && draining && !here.agent.drained && here.host.drain == Begun::Lately {
        events.add(Event::DrainOver, |s| drain_is_over(s, node));
    }
    if here.agent.silence == Begun::Lately && here.host.silent {
        events.add(Event::SilenceOver, |s| s.nodes[node].agent.silence = Begun::LongAgo);
    }
    if here.agent.blind && here.agent.fresh && !here.agent.blind_long {
        events.add(Event::LooksAgain, |s| s.nodes[node].agent.blind_long = true);
    }
    if here.host.scheduled && !here.host.down {
        events.add(Event::ShutsDown, |s| s.nodes[node].host.down = true);
    }
    if guard_is_due(state, node) && !here.host.down {
        events.add(Event::GuardDue, |s| s.nodes[node].agent.guard_due = true);
    }
}

type SwitchEvent = fn(bool) -> Event;
type HostFlag = fn(&mut Host) -> &mut bool;

/// Faults that switch a property of a host on or off.
const SWITCHES: [(Fault, SwitchEvent, HostFlag); 11] = [
    (Fault::Inhibit, Event::Inhibits, |host| &mut host.inhibited),
    (Fault::Silent, Event::Silent, |host| &mut host.silent),
    (Fault::Unusable, Event::Unusable, |host| &mut host.unusable),
    (Fault::Jump, Event::Jumps, |host| &mut host.ahead),
    (Fault::Untold, Event::Untells, |host| &mut host.no_note),
    (Fault::ReadOnly, Event::ReadOnly, |host| &mut host.read_only),
    (Fault::Queue, Event::Queues, |host| &mut host.queued),
    (Fault::Schedule, Event::Schedules, |host| &mut host.scheduled),
    (Fault::Block, Event::Blocks, |host| &mut host.blocked),
    (Fault::Stuck, Event::NoLock, |host| &mut host.no_lock),
    (Fault::Stuck, Event::NoUnstage, |host| &mut host.no_unstage),
];

/// True if an admin may roll a host back now: the berth is committed or the node holds none, and no write of the berth
/// is in flight. At other times, the rollback could boot an image that cannot be proven, and the admin would have to
/// release the berth.
fn may_roll_back(state: &State, node: usize) -> bool {
    let host = &state.nodes[node].host;
    let is_uncommitted = state.held_by(node).is_some_and(|(_, h)| h.phase != Phase::Committed);
    let mut air = state.air.iter();
    let is_late = air.any(|r| matches!(r, Request::Berth { node: n, .. } if usize::from(*n) == node));
    host.previous != 0 && !host.down && !is_uncommitted && !is_late
}

fn faults_of_host(state: &State, node: usize, push: Push<'_>) {
    let (here, host) = (&state.nodes[node], state.nodes[node].host);
    let may_roll_back = may_roll_back(state, node);
    let mut events = Events {
        state,
        node: Some(node),
        push,
    };
    if host.pull != 0 {
        events.fault(Fault::Pull, Event::PulledInPart, |s| pulled_in_part(s, node));
        events.fault(Fault::Pull, Event::PullFailed, |s| {
            let host = &mut s.nodes[node].host;
            (host.ended, host.pull) = (Ended::Badly(host.pull), 0);
        });
    }
    if host.down && host.staged != 0 && !host.locked {
        events.fault(Fault::Finalize, Event::BootsUnfinalized, |s| boot(s, node, true, false));
        events.fault(Fault::FallBack, Event::FallsBack, |s| fall_back(s, node));
    }
    if may_roll_back {
        events.fault(Fault::Rollback, Event::RolledBack, |s| roll_back(s, node));
    }
    events.fault(Fault::Power, Event::PowerLost, |s| boot(s, node, false, false));
    if here.agent != Agent::fresh(state.fleet.tries_guard) && !host.down {
        events.fault(Fault::AgentCrash, Event::AgentDies, |s| agent::crash(s, node));
    }
    for (fault, event, flag) in SWITCHES {
        let may_happen = match fault {
            Fault::Inhibit | Fault::Schedule => !host.down,
            Fault::Untold => state.fleet.tells_boot_images,
            Fault::Queue => host.queued || may_roll_back,
            _ => true,
        };
        if may_happen {
            let is_on = *flag(&mut host.clone());
            events.fault(fault, event(!is_on), |s| *flag(&mut s.nodes[node].host) = !is_on);
        }
    }
    events.fault(Fault::Mute, Event::Mutes(!here.mute), |s| mutes(s, node, !here.mute));
    events.fault(Fault::Idle, Event::Idles(!here.idle), |s| {
        s.nodes[node].idle = !here.idle
    });
    if !host.down {
        of_others(&mut events, node, &host);
    }
}

/// Lists the actions of a node's second agent and of another updater on its host.
fn of_others(events: &mut Events<'_>, node: usize, host: &Host) {
    events.fault(Fault::Second, Event::OtherAgent, |s| {
        let here = &mut s.nodes[node];
        (here.agent, here.other) = (here.other, here.agent);
        let ghost = &mut here.ghost;
        (ghost.unguarded, ghost.other_unguarded) = (ghost.other_unguarded, ghost.unguarded);
    });
    if host.staged != 0 && host.locked {
        events.fault(Fault::Rival, Event::RivalUnlocks, |s| s.nodes[node].host.locked = false);
    }
    if host.staged != 0 {
        events.fault(Fault::Rival, Event::RivalRemoves, |s| {
            let here = &mut s.nodes[node];
            (here.host.staged, here.host.locked) = (0, false);
            (here.ghost.armed, here.ghost.partial) = (0, 0);
        });
    }
}

fn of_object(world: &World, state: &State, node: usize, push: Push<'_>) {
    let here = &state.nodes[node];
    let object = here.object;
    // Every event here changes the Node, except the deletion of the BootcNode.
    let push: Push<'_> = &mut |of, event, mut after, broken| {
        if event != Event::Forgotten {
            after.touch_node(node);
        }
        push(of, event, after, broken);
    };
    let mut events = Events {
        state,
        node: Some(node),
        push,
    };
    if !object.exists {
        return events.add(Event::Created, |s| create(s, node));
    }
    if object.ready && object.boot == 0 && is_well(world, state, node) {
        events.fault(Fault::NotReady, Event::NotReady, |s| s.nodes[node].object.ready = false);
    }
    if object.cordon == Cordon::No {
        let to = !object.unschedulable;
        events.fault(Fault::Cordon, Event::Cordons(to), |s| {
            s.nodes[node].object.unschedulable = to;
            s.nodes[node].ghost.admin = to;
        });
    } else if object.unschedulable {
        events.fault(Fault::Meddle, Event::Meddles, |s| {
            s.nodes[node].object.unschedulable = false;
            s.nodes[node].ghost.admin = false;
        });
    }
    if object.uid < 2 {
        events.fault(Fault::Delete, Event::Deleted, |s| {
            s.nodes[node].object.exists = false;
            s.nodes[node].ghost.left = 0;
        });
    }
    events.fault(Fault::Exclude, Event::Excludes(!object.excluded), |s| {
        s.nodes[node].ghost.left = 0;
        s.nodes[node].object.excluded = !object.excluded;
    });
    events.fault(Fault::Hold, Event::Holds(!here.labels.held), |s| {
        s.nodes[node].labels.held = !here.labels.held;
    });
    let other = match here.labels.pool {
        NONE => 0,
        pool if usize::from(pool) + 1 < world.pools.len() => pool + 1,
        _ => NONE,
    };
    events.fault(Fault::Move, Event::Moves(other), |s| {
        s.nodes[node].labels.pool = other;
        s.nodes[node].ghost.left = 0;
    });
    if here.spec.is_some_and(|spec| !spec.deleting) {
        events.fault(Fault::Forget, Event::Forgotten, |s| {
            let here = &mut s.nodes[node];
            here.spec = here.spec.map(|spec| Spec { deleting: true, ..spec });
            here.status.observed = false;
            here.ghost.left = 0;
            s.touch_bootc(node);
        });
    }
}

/// Lists the possible actions of an admin on pools and the fleet.
pub fn of_admin(world: &World, state: &State, push: Push<'_>) {
    let push: Push<'_> = &mut |node, event, mut after, broken| {
        (0..after.pools.len()).for_each(|pool| after.touch_pool(pool as u8));
        push(node, event, after, broken);
    };
    let mut events = Events {
        state,
        node: None,
        push,
    };
    on_pools(world, state, &mut events);
    events.fault(Fault::Fleet, Event::PausesFleet(!state.fleet.paused), |s| {
        s.fleet.paused = !s.fleet.paused
    });
    if state.fleet.tries_guard {
        events.fault(Fault::Unguarded, Event::Unguarded(!state.fleet.unguarded), |s| {
            s.fleet.unguarded = !s.fleet.unguarded
        });
    }
    for slot in (0..).take(world.slots()) {
        let (pool, index) = world.place(usize::from(slot));
        if state.unwritable.has(slot) {
            events.fault(Fault::Refuse, Event::Refuses(slot, false), |s| s.unwritable.drop(slot));
        } else if index < state.pools[usize::from(pool)].capacity {
            events.fault(Fault::Refuse, Event::Refuses(slot, true), |s| s.unwritable.add(slot));
        }
    }
    if world.windows {
        let is_outside = state.pools[0].outside;
        events.fault(Fault::Window, Event::Window(is_outside), |s| window(s, is_outside));
        events.fault(Fault::Clock, Event::Clock(state.fleet.clock_lost), |s| {
            s.fleet.clock_lost = !s.fleet.clock_lost
        });
    }
}

fn on_pools(world: &World, state: &State, events: &mut Events<'_>) {
    let pool = &state.pools[0];
    for image in world.images.iter().filter(|i| **i != pool.tagged) {
        events.fault(Fault::Edit, Event::Edits(*image), |s| edit(world, s, *image));
    }
    if world.follows == Follows::Pinned && pool.tagged != pool.target {
        events.fault(Fault::Approve, Event::Approves, |s| {
            s.pools.iter_mut().for_each(|pool| pool.target = pool.tagged);
            offered::forget(s);
        });
    }
    for rule in BootImages::ALL {
        if world.too_old != 0 && rule != pool.boot_images {
            events.fault(Fault::Accept, Event::Accepts(rule), |s| {
                s.pools.iter_mut().for_each(|p| p.boot_images = rule)
            });
        }
    }
    let (one, other) = world.capacity;
    let to = if pool.capacity == one { other } else { one };
    if one != other {
        events.fault(Fault::Resize, Event::Resizes(to), |s| s.pools[0].capacity = to);
    }
    for (number, pool) in state.pools.iter().enumerate() {
        events.fault(Fault::Pause, Event::Pauses(number as u8), |s| {
            s.pools[number].paused = !pool.paused;
        });
    }
    events.fault(Fault::Retry, Event::Retries, |s| {
        forget_left(s);
        offered::forget(s);
        for pool in &mut s.pools {
            pool.token += 1;
            pool.failures = Failures::default();
        }
    });
}
