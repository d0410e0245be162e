//! I10: the fair schedule. From a state, all processes and hosts act one after the other, round after round, without
//! further faults, until all nodes are updated. The schedule is a deterministic function of the state. So each state
//! whose schedule updates all nodes is cached, and a new state costs only a round or two.

use std::collections::{HashMap, VecDeque};

use berth_api::berth::Outcome;

use crate::agent::{self, Delivery};
use crate::controller;
use crate::decide::Act;
use crate::habit::Habit;
use crate::hash::{self, Fast};
use crate::judge;
use crate::liar;
use crate::mind::Observation;
use crate::moves::Memo;
use crate::nature;
use crate::offered;
use crate::set::Set;
use crate::state::{
    Begun, Berth, Cordon, Failures, Fleet, Host, Image, Lease, NO_NUMBER, NONE, Node, Number, Phase, Pool, State, Until,
};
use crate::world::{Broken, Follows, World};

/// Maximum number of rounds: enough to update all nodes of a world twice, one node at a time.
pub const ROUNDS: usize = 60;
/// Limit of one agent's steps in one round.
const STEPS: usize = 40;

pub const I10: Broken = Broken("I10 the fair schedule updates all nodes");

/// Cache of states. From each of them, the fair schedule updates all nodes.
#[derive(Debug, Default)]
pub struct Fair {
    good: HashMap<u64, (), Fast>,
    /// Number of rounds of the longest schedule so far.
    pub longest: usize,
}

impl Fair {
    /// Runs the fair schedule from this state until all nodes are updated. Error: the last states, if [`ROUNDS`] rounds
    /// are not enough.
    pub fn ends(&mut self, world: &World, state: &State, memo: &mut Memo) -> Result<(), Vec<State>> {
        let habits = liar::habits(world);
        habits
            .iter()
            .try_for_each(|habit| self.ends_with(world, state, *habit, memo))
    }

    /// Runs the fair schedule while each compromised node keeps one habit.
    fn ends_with(
        &mut self,
        world: &World,
        state: &State,
        habit: Option<Habit>,
        memo: &mut Memo,
    ) -> Result<(), Vec<State>> {
        let mut now = state.clone();
        heal(world, &mut now);
        liar::adopt(&mut now, habit);
        let mut path = vec![];
        let mut shown = VecDeque::new();
        loop {
            let key = hash::of(&now);
            if self.good.contains_key(&key) || is_updated(world, &now) {
                self.longest = self.longest.max(path.len());
                self.good.extend(path.into_iter().map(|key| (key, ())));
                self.good.insert(key, ());
                return Ok(());
            }
            if path.len() >= ROUNDS {
                return Err(shown.into());
            }
            path.push(key);
            shown.push_back(now.clone());
            if shown.len() > 3 {
                shown.pop_front();
            }
            round(world, &mut now, memo);
        }
    }
}

/// Establishes the preconditions of I10: gates are open, the image is good, hosts work, no node is held back, and fewer
/// than k members are unavailable for reasons other than Berth. With [`World::keep_blocked`], some faults remain.
pub fn heal(world: &World, state: &mut State) {
    nature::forget_left(state);
    state.left = [0; crate::fault::FAULTS];
    state.fleet = Fleet {
        tries_guard: state.fleet.tries_guard,
        counts_pulls: state.fleet.counts_pulls,
        tells_boot_images: state.fleet.tells_boot_images,
        tagged: state.fleet.tagged,
        old: state.fleet.old,
        soaked: state.fleet.soaked,
        ..Fleet::default()
    };
    // A berth whose writes are always rejected counts as used, so at least one other berth must stay writable.
    let most = if world.keep_blocked {
        state.pools[0].capacity.saturating_sub(1)
    } else {
        0
    };
    // An unwritable Lease that closed with a failure halts the rollout again after every retry. So the admin makes it
    // writable again.
    let slots = &state.slots;
    let refused = state
        .unwritable
        .iter()
        .filter(|slot| !has_failure(&slots[usize::from(*slot)]));
    state.unwritable = refused.take(most.into()).collect();
    let mut is_changed = false;
    for pool in &mut state.pools {
        (pool.paused, pool.outside) = (false, false);
        if !world.is_good(pool.target) || !world.is_good(pool.tagged) {
            // The admin changes to a good image.
            let good = world.images.iter().find(|i| world.is_good(**i));
            let before = pool.target;
            pool.target = good.copied().unwrap_or(pool.target);
            pool.tagged = pool.target;
            is_changed |= pool.target != before;
        }
    }
    if is_changed {
        offered::forget(state);
    }
    let capacity = match world.fleet {
        0 => state.pools[0].capacity,
        limit => limit.min(state.pools[0].capacity),
    };
    // A berth whose Lease cannot be written counts as used, and a compromised node may keep a berth.
    let mut kept = Number::try_from(state.unwritable.len() + world.liars).unwrap_or(NO_NUMBER);
    for node in 0..world.nodes {
        heal_node(world, state, node);
        if capacity == 1 && state.nodes[node].labels.liar.is_some() {
            liar::come_up(state, node);
        }
        let here = &mut state.nodes[node];
        if here.ghost.admin {
            kept += 1;
            if kept >= capacity || here.labels.server {
                here.ghost.admin = false;
                match here.object.cordon {
                    Cordon::No => here.object.unschedulable = false,
                    _ => here.object.cordon = Cordon::OverSchedulable,
                }
                state.touch_node(node);
            }
        }
    }
    for pool in 0..state.pools.len() {
        state.touch_pool(pool as u8);
    }
}

/// Ends the faults of a node, except those that [`World::keep_blocked`] keeps.
fn heal_node(world: &World, state: &mut State, node: usize) {
    let here = &mut state.nodes[node];
    if !here.object.exists {
        nature::create(state, node);
    }
    // A node keeps its berth if its host or agent stops responding during the turn. So these faults must end.
    let in_turn = state.held_by(node).is_some() || state.nodes[node].ghost.unproven;
    let here = &mut state.nodes[node];
    here.idle &= world.keep_blocked && !in_turn;
    let is_mute = here.mute && world.keep_blocked && !in_turn;
    nature::mutes(state, node, is_mute);
    let here = &mut state.nodes[node];
    heal_host(&mut here.host, world.keep_blocked, in_turn);
    here.host.blocked = here.host.blocked && world.keep_blocked;
    if here.labels.held && !world.keep_blocked {
        here.labels.held = false;
        state.touch_node(node);
    }
    let here = &mut state.nodes[node];
    // An excluded control plane node still counts for the majority, but would never leave a bad image. So include it.
    if here.labels.server && here.object.excluded && !world.is_good(here.host.booted) {
        here.object.excluded = false;
        state.touch_node(node);
    }
}

/// Ends the faults of a host. With `keeps`, the faults that prevent a new turn remain. During a turn (`in_turn`), only
/// a failing lock remains.
fn heal_host(host: &mut Host, keeps: bool, in_turn: bool) {
    (host.inhibited, host.no_unstage, host.scheduled, host.no_note) = (false, false, false, false);
    host.ahead = false;
    host.no_lock &= keeps;
    host.read_only &= keeps && !in_turn;
    host.silent &= keeps && !in_turn;
    host.unusable &= keeps && !in_turn;
    host.queued &= keeps && !in_turn;
    if host.drain == Begun::LongAgo {
        host.drain = Begun::Lately;
    }
}

/// True if the pool's target failed on the node, and no retry was requested since.
fn has_failed(node: &Node, pool: &Pool) -> bool {
    let (host, target) = (&node.host, pool.target);
    let has_left = target != 0 && host.tried == target && host.booted != target && node.ghost.unproven;
    host.token == pool.token && (host.failed & (1 << target) != 0 || has_left)
}

/// True if the Lease shows a closed berth whose last turn failed.
fn has_failure(lease: &Lease) -> bool {
    matches!(lease.is, Berth::Closed(closed) if closed.outcome == Some(Outcome::Failed))
}

/// True if a failure of the target is recorded for a node that is not compromised.
fn has_honest_failure(state: &State, pool: &Pool) -> bool {
    let failures = pool.failures.get(usize::from(pool.target));
    let mut nodes = failures.into_iter().flat_map(Set::iter);
    nodes.any(|node| state.nodes[usize::from(node)].labels.liar.is_none())
}

/// Requests a retry, as an admin does, if the target failed on a node. Here the target is good: it failed because it
/// was not finalized or was rolled back.
fn retry(state: &mut State) {
    // Wait until all failures are recorded: a later failure would need another request.
    if state.slots.iter().any(has_failure) {
        return;
    }
    for number in 0..state.pools.len() {
        let pool = &state.pools[number];
        if state.nodes.iter().any(|node| has_failed(node, pool)) || has_honest_failure(state, pool) {
            state.pools[number].token += 1;
            state.pools[number].failures = Failures::default();
            nature::forget_left(state);
            offered::forget(state);
            state.touch_pool(number as u8);
        }
    }
}

/// Runs one round. Returns the first rule that a move breaks.
pub fn round(world: &World, state: &mut State, memo: &mut Memo) -> Option<Broken> {
    let mut broken = None;
    retry(state);
    while !state.air.is_empty() {
        broken = broken.or(nature::land(world, state, 0));
    }
    if world.has_tag() {
        nature::age(state);
        controller::ask(state, usize::from(state.leader));
    }
    if world.soaks {
        nature::soak(state);
    }
    for node in 0..world.nodes {
        if nature::has_unnoticed_silence(state, node) {
            nature::notice_silence(state, node);
        }
    }
    // The leader may retry rejected writes.
    let leader = usize::from(state.leader);
    state.controllers[leader].refused = Set::default();
    for who in 0..state.controllers.len() {
        for _ in 0..2 {
            broken = broken.or(lead(world, state, who, memo));
        }
    }
    for node in 0..world.nodes {
        broken = broken.or(live(world, state, node, memo));
    }
    if world.max_staging != 0 {
        nature::permits(state);
    }
    // Offers that can no longer be taken lapse.
    let mut offers = state.slots.iter().filter_map(|lease| match lease.is {
        Berth::Offered(offer) => Some(offer),
        _ => None,
    });
    if offers.any(|offer| offer.until == Until::Over || never_takes(&state.nodes[usize::from(offer.node)])) {
        let leader = usize::from(state.leader);
        broken = broken
            .or(pass(world, state, leader, true, memo))
            .or(send_all(world, state, leader));
    }
    state.air.clear();
    broken
}

/// Runs a controller: sends its queued writes, runs a pass, and sends the writes of the pass. Returns the first broken
/// rule.
pub fn lead(world: &World, state: &mut State, who: usize, memo: &mut Memo) -> Option<Broken> {
    let broken = send_all(world, state, who);
    let broken = broken.or(pass(world, state, who, false, memo));
    broken.or(send_all(world, state, who))
}

fn pass(world: &World, state: &mut State, who: usize, late: bool, memo: &mut Memo) -> Option<Broken> {
    let passes = controller::passes(world, state, who, late, &mut memo.plans, false);
    let (next, broken) = passes.into_iter().next()?;
    *state = next;
    broken
}

fn send_all(world: &World, state: &mut State, who: usize) -> Option<Broken> {
    let mut broken = None;
    while !state.controllers[who].queue.is_empty() {
        let (next, breaks) = controller::send(world, std::mem::take(state), who, Delivery::Done);
        *state = next;
        broken = broken.or(breaks);
    }
    broken
}

/// Runs the due events of a host and its kubelet, then the agent until it has nothing to do. Returns the first broken
/// rule.
pub fn live(world: &World, state: &mut State, node: usize, memo: &mut Memo) -> Option<Broken> {
    if state.nodes[node].labels.liar.is_some() {
        return liar::live(world, state, node);
    }
    let here = &mut state.nodes[node];
    if here.host.pull != 0 {
        nature::pulled(state, node);
    }
    let here = &mut state.nodes[node];
    here.host.backoff_is_over();
    if here.host.silent && here.agent.silence == Begun::Lately {
        here.agent.silence = Begun::LongAgo;
    }
    if nature::has_fired(&here.host) {
        nature::guard_reboots(state, node);
    }
    let here = &mut state.nodes[node];
    if here.host.down {
        nature::boot(state, node, true, true);
    } else if let Some(later) = nature::later(here) {
        here.agent.reboot = later;
    }
    nature::kubelet(world, state, node);
    if nature::guard_is_due(state, node) {
        state.nodes[node].agent.guard_due = true;
    }
    let draining = state.held_by(node).is_some_and(|(_, h)| h.phase == Phase::Taken);
    let here = &mut state.nodes[node];
    if here.host.blocked && draining && !here.agent.drained {
        nature::drain_is_over(state, node);
    }
    // At a heartbeat, the agent repeats reads that have no notification.
    agent::observe(world, state, node, Observation::Heartbeat, &mut memo.steps);
    let mut broken = None;
    for _ in 0..STEPS {
        if state.nodes[node].host.down || state.nodes[node].mute {
            break;
        }
        let decision = agent::read(world, state, node, &mut memo.steps);
        let (next, breaks) = agent::act(world, std::mem::take(state), node, decision, Delivery::Done);
        *state = next;
        broken = broken.or(breaks);
        let rests = matches!(decision.act, Act::Wait(_) | Act::Pull(_) | Act::Idle | Act::Forgets);
        if rests || (decision.act == Act::Drain && !state.nodes[node].agent.drained) {
            // The timeout of a proof passes by the next round.
            let here = &mut state.nodes[node];
            if here.ghost.unproven && here.host.proof == Begun::Lately {
                here.host.proof_is_over();
            }
            break;
        }
    }
    broken
}

/// Returns the image that a pool's members should finally run. This is the tag's image, but the current target if the
/// pool is pinned or the boot image policy forbids the tag's image.
fn wanted(world: &World, state: &State, pool: u8) -> Image {
    let Some(terms) = state.pools.get(usize::from(pool)) else {
        return 0;
    };
    if world.follows == Follows::Pinned {
        return terms.target;
    }
    if judge::is_refused(world, &state.nodes, (pool, terms), terms.tagged) {
        terms.target
    } else {
        terms.tagged
    }
}

/// True if no agent takes the node's offers, or none can be relied on.
fn never_takes(node: &Node) -> bool {
    node.mute || node.labels.liar.is_some()
}

/// True if a fault prevents the node's turn, or the node is compromised.
fn is_stuck(node: &Node) -> bool {
    let host = &node.host;
    let is_host_stuck = host.no_lock || host.read_only || host.silent || host.unusable || host.queued;
    host.blocked || is_host_stuck || node.labels.held || node.mute || node.idle || node.labels.liar.is_some()
}

/// True if all members run their image without Berth's cordon, and no berth is offered or held. Ignores members that
/// cannot have a turn because of a fault, and berths whose Leases cannot be written. While a drain is blocked, berths
/// may be offered or held.
pub fn is_updated(world: &World, state: &State) -> bool {
    let (mut rests, mut kept) = (true, Set::default());
    for (slot, lease) in state.slots.iter().enumerate() {
        if let Some((node, _)) = lease.who() {
            if state.unwritable.has(slot) || state.nodes[usize::from(node)].labels.liar.is_some() {
                kept.add(node);
            } else {
                rests = false;
            }
        }
    }
    let blocked = state.nodes.iter().take(world.nodes).any(|n| n.host.blocked);
    let members = state.nodes.iter().take(world.nodes).enumerate().all(|(number, node)| {
        let is_kept = is_stuck(node) || kept.has(number);
        let counts = node.object.exists && !node.object.excluded && node.labels.pool != NONE && !is_kept;
        let target = wanted(world, state, node.labels.pool);
        !counts || (node.host.booted == target && node.object.cordon == Cordon::No)
    });
    members && (rests || blocked)
}
