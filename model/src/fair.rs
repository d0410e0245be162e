//! I10: from a state, a schedule without further faults in which everybody gets a turn, again and again. It is one
//! deterministic function from state to state, so that a state from which it once ended well always ends well; what
//! ended well is remembered, and each new state costs a round or two.

use std::collections::{HashMap, VecDeque};

use berth_api::berth::Outcome;

use crate::agent::{self, How};
use crate::controller;
use crate::decide::Act;
use crate::hash::{self, Fast};
use crate::moves::Memo;
use crate::nature;
use crate::state::{Berth, Cordon, NONE, Node, Phase, State};
use crate::world::{Broken, World};

/// So many rounds are enough for every node of a world to be updated, one after the other, twice.
pub const ROUNDS: usize = 60;
/// Steps of one agent in one round: it works until it has nothing to do.
const STEPS: usize = 40;

/// The rule that a state breaks from which no fair schedule ends updated.
pub const I10: Broken = Broken("I10 a fair schedule ends updated");

/// The states that are known to end well, and the most rounds that one took.
#[derive(Debug, Default)]
pub struct Fair {
    good: HashMap<u64, (), Fast>,
    /// The longest schedule so far.
    pub longest: usize,
}

impl Fair {
    /// Whether the fair schedule from this state ends updated.
    ///
    /// # Errors
    /// The states of the schedule, when it does not.
    pub fn ends(&mut self, world: &World, state: &State, memo: &mut Memo) -> Result<(), Vec<State>> {
        let mut now = state.clone();
        heal(world, &mut now);
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

/// What I10 presumes: gates open, a good image, hosts that work, fewer than k members kept unavailable by others.
pub fn heal(world: &World, state: &mut State) {
    state.left = [0; crate::fault::FAULTS];
    for pool in &mut state.pools {
        pool.paused = false;
        if world.bad & (1 << pool.target) != 0 {
            // The admin goes forward to another image.
            let good = world.images.iter().find(|i| world.bad & (1 << **i) == 0);
            pool.target = good.copied().unwrap_or(pool.target);
        }
    }
    let capacity = state.pools[0].capacity;
    let mut kept = 0;
    for node in 0..world.nodes {
        let here = &mut state.nodes[node];
        if !here.object.there {
            nature::create(state, node);
        }
        let here = &mut state.nodes[node];
        here.host.inhibited = false;
        here.agent.late = false;
        here.agent.os = None;
        here.agent.fresh = false;
        here.host.blocked = here.host.blocked && world.keep_blocked;
        if here.ghost.admin {
            kept += 1;
            if kept >= capacity {
                here.ghost.admin = false;
                match here.object.cordon {
                    Cordon::No => here.object.unschedulable = false,
                    _ => here.object.cordon = Cordon::OverSchedulable,
                }
                state.touch_node(node);
            }
        }
    }
    state.touch_pool(0);
    state.touch_pool(1);
}

/// A good image that failed somewhere, because the host did not finish it or somebody rolled it back, waits for the
/// admin's word.
fn retry(state: &mut State) {
    // Who asks while a failure is about to be recorded has to ask again.
    if state
        .slots
        .iter()
        .any(|l| matches!(l.is, Berth::Closed(c) if c.outcome == Some(Outcome::Failed)))
    {
        return;
    }
    for number in 0..state.pools.len() {
        let pool = state.pools[number];
        let tried = |n: &Node| n.host.tried == pool.target && n.host.booted != pool.target && pool.target != 0;
        let failed = |n: &Node| {
            n.host.token == pool.token && (n.host.failed & (1 << pool.target) != 0 || (tried(n) && n.ghost.unproven))
        };
        if state.nodes.iter().any(failed) || pool.failures.get(usize::from(pool.target)).is_some_and(|f| *f != 0) {
            state.pools[number].token += 1;
            state.pools[number].failures = [0; 4];
            state.touch_pool(number as u8);
        }
    }
}

/// Everybody gets a turn.
pub fn round(world: &World, state: &mut State, memo: &mut Memo) {
    retry(state);
    while !state.air.is_empty() {
        nature::land(world, state, 0);
    }
    for who in 0..state.controllers.len() {
        lead(world, state, who, memo);
    }
    for node in 0..world.nodes {
        live(world, state, node, memo);
    }
    state.air.clear();
}

fn lead(world: &World, state: &mut State, who: usize, memo: &mut Memo) {
    for _ in 0..2 {
        while !state.controllers[who].queue.is_empty() {
            *state = controller::send(world, std::mem::take(state), who, How::Done).0;
        }
        if let Some((next, _)) = controller::passes(world, state, who, false, &mut memo.plans, false)
            .into_iter()
            .next()
        {
            *state = next;
        }
    }
    while !state.controllers[who].queue.is_empty() {
        *state = controller::send(world, std::mem::take(state), who, How::Done).0;
    }
}

fn live(world: &World, state: &mut State, node: usize, memo: &mut Memo) {
    let here = &mut state.nodes[node];
    if here.host.pull != 0 {
        nature::pulled(state, node, true);
    }
    let here = &mut state.nodes[node];
    (here.host.backoff, here.host.pull_backoff) = (false, false);
    if here.host.down {
        nature::boot(state, node, true, true);
    } else if let Some(later) = nature::later(here) {
        here.agent.reboot = later;
    }
    nature::kubelet(world, state, node);
    let draining = state.held_by(node).is_some_and(|(_, h)| h.phase == Phase::Taken);
    let here = &mut state.nodes[node];
    if here.host.blocked && draining && !here.agent.drained {
        here.agent.late = true;
    }
    // A heartbeat: what nobody announces is looked at again.
    (here.agent.os, here.agent.fresh) = (None, false);
    for _ in 0..STEPS {
        if state.nodes[node].host.down {
            return;
        }
        let decision = agent::read(world, state, node, &mut memo.steps);
        *state = agent::act(world, std::mem::take(state), node, decision, How::Done).0;
        let rests = matches!(decision.act, Act::Wait(_) | Act::Pull(_));
        if rests || (decision.act == Act::Drain && !state.nodes[node].agent.drained) {
            // A boot that is not proven by the next round had its time.
            state.nodes[node].agent.overdue = state.nodes[node].ghost.unproven;
            return;
        }
    }
}

/// Every member runs what it should and is as it was before us, and no berth is open or held.
pub fn is_updated(world: &World, state: &State) -> bool {
    let rests = state
        .slots
        .iter()
        .all(|l| matches!(l.is, Berth::Missing | Berth::Closed(_)));
    let blocked = state.nodes.iter().take(world.nodes).any(|n| n.host.blocked);
    let members = state.nodes.iter().take(world.nodes).all(|node| {
        let counts = node.object.there && !node.object.excluded && node.ghost.pool != NONE && !node.host.blocked;
        let target = state.pools.get(usize::from(node.ghost.pool)).map_or(0, |p| p.target);
        !counts || (node.host.booted == target && node.object.cordon == Cordon::No)
    });
    members && (rests || blocked)
}
