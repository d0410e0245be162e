//! Breadth-first search through all states of a world, in parallel. Each state is visited once, in its canonical form.
//!
//! Berth has its own search instead of a library, for three reasons. The search stores only hashes of visited states
//! and of their predecessors (16 bytes per state, so that tens of millions fit). It runs the fair schedule of I10 from
//! each new state, because a checker's `eventually` is unsound on cycles. Each worker has its own cache of the released
//! functions' results.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::fair::{Fair, I10};
use crate::hash::Fast;
use crate::moves::{Memo, MoveText, picture, successors};
use crate::state::{Number, State};
use crate::world::{Broken, World};

const SHARDS: usize = 64;
const CHUNK: usize = 256;

type Shard = Mutex<HashMap<u64, u64, Fast>>;

/// Limits of an exploration.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of states.
    pub states: usize,
    /// Maximum duration of the exploration.
    pub time: Duration,
    /// Number of worker threads.
    pub threads: usize,
}

/// Result of an exploration.
#[derive(Debug)]
pub struct Outcome {
    /// Number of distinct states.
    pub states: usize,
    /// Number of moves made.
    pub moves: usize,
    /// Number of moves from the start to the farthest state.
    pub depth: usize,
    /// True if every state was visited.
    pub complete: bool,
    /// Number of rounds of the longest fair schedule.
    pub rounds: usize,
    /// The shortest history that breaks a rule.
    pub found: Option<Found>,
    /// Duration of the exploration.
    pub took: Duration,
}

/// A history that breaks a rule.
#[derive(Debug)]
pub struct Found {
    /// The broken rule.
    pub broken: Broken,
    /// The moves, one line each.
    pub history: Vec<String>,
    /// The last state of the fair schedule, if I10 is broken.
    pub stuck: Vec<String>,
}

struct Search<'a> {
    world: &'a World,
    limits: Limits,
    seen: Vec<Shard>,
    states: AtomicUsize,
    moves: AtomicUsize,
    stop: AtomicBool,
    began: Instant,
    /// The recorded breach: hash of the state before the move, broken rule, and state after the move. For I10, the last
    /// state of the fair schedule.
    breach: Mutex<Option<(u64, Broken, Option<State>)>>,
}

struct Worker {
    memo: Memo,
    fair: Fair,
}

/// Explores a world.
pub fn explore(world: &World, limits: Limits) -> Outcome {
    let search = Search {
        world,
        limits,
        seen: (0..SHARDS).map(|_| Mutex::default()).collect(),
        states: AtomicUsize::new(0),
        moves: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        began: Instant::now(),
        breach: Mutex::new(None),
    };
    let mut start = world.start();
    let (first, _) = start.canonical();
    search.visit(first, 0);
    let mut workers: Vec<Worker> = (0..limits.threads)
        .map(|_| Worker {
            memo: Memo::default(),
            fair: Fair::default(),
        })
        .collect();
    let mut frontier = vec![(first, start)];
    let mut depth = 0;
    while !frontier.is_empty() && !search.stop.load(Ordering::Relaxed) {
        frontier = search.level(frontier, &mut workers);
        if search.breach.lock().is_ok_and(|b| b.is_some()) {
            break;
        }
        depth += usize::from(!frontier.is_empty());
    }
    let complete = frontier.is_empty();
    let rounds = workers.iter().map(|w| w.fair.longest).max().unwrap_or(0);
    let breach = search.breach.lock().unwrap_or_else(PoisonError::into_inner).take();
    Outcome {
        states: search.states.load(Ordering::Relaxed),
        moves: search.moves.load(Ordering::Relaxed),
        depth,
        complete: complete && breach.is_none(),
        rounds,
        found: breach.map(|(last, broken, stuck)| search.history(last, broken, stuck)),
        took: search.began.elapsed(),
    }
}

impl Search<'_> {
    /// Records a state. Returns true if the state is new.
    fn visit(&self, key: u64, from: u64) -> bool {
        let shard = &self.seen[key as usize % SHARDS];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let new = !shard.contains_key(&key);
        if new {
            shard.insert(key, from);
            self.states.fetch_add(1, Ordering::Relaxed);
        }
        new
    }

    fn level(&self, frontier: Vec<(u64, State)>, workers: &mut [Worker]) -> Vec<(u64, State)> {
        let next = Mutex::new(vec![]);
        let at = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for worker in workers {
                let (next, at, frontier) = (&next, &at, &frontier);
                scope.spawn(move || {
                    let mut found = vec![];
                    while !self.stop.load(Ordering::Relaxed) {
                        let from = at.fetch_add(CHUNK, Ordering::Relaxed);
                        let Some(chunk) = frontier.get(from..(from + CHUNK).min(frontier.len())) else {
                            break;
                        };
                        if chunk.is_empty() {
                            break;
                        }
                        for (key, state) in chunk {
                            self.expand(*key, state, worker, &mut found);
                        }
                    }
                    next.lock().unwrap_or_else(PoisonError::into_inner).append(&mut found);
                });
            }
        });
        next.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn expand(&self, here: u64, state: &State, worker: &mut Worker, found: &mut Vec<(u64, State)>) {
        for way in successors(self.world, state, &mut worker.memo) {
            self.moves.fetch_add(1, Ordering::Relaxed);
            if let Some(broken) = way.broken {
                return self.breach(here, broken, Some(way.to));
            }
            let mut to = way.to;
            let (key, _) = to.canonical();
            if self.visit(key, here) {
                found.push((key, to));
            }
        }
        // This check is the last: a rule broken by a move explains more than a schedule without progress.
        if let Err(stuck) = worker.fair.ends(self.world, state, &mut worker.memo) {
            return self.breach(here, I10, stuck.into_iter().next_back());
        }
        let full = self.states.load(Ordering::Relaxed) >= self.limits.states;
        if full || self.began.elapsed() >= self.limits.time {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Records a breach. The search ends after the current level. The smallest breach of a level is kept, so that every
    /// run reports the same breach.
    fn breach(&self, last: u64, broken: Broken, to: Option<State>) {
        let mut breach = self.breach.lock().unwrap_or_else(PoisonError::into_inner);
        if breach
            .as_ref()
            .is_none_or(|(key, other, _)| (broken, last) < (*other, *key))
        {
            *breach = Some((last, broken, to));
        }
    }

    /// Replays the moves from the start to a breach, and returns them as a history.
    fn history(&self, last: u64, broken: Broken, stuck: Option<State>) -> Found {
        let mut keys = vec![last];
        while let Some(key) = keys.last()
            && let Some(from) = self.seen[*key as usize % SHARDS]
                .lock()
                .ok()
                .and_then(|s| s.get(key).copied())
            && from != 0
        {
            keys.push(from);
        }
        keys.reverse();
        let mut memo = Memo::default();
        let mut state = self.world.start();
        let first: Vec<Number> = (0..).zip(&state.nodes).map(|(n, _)| n).collect();
        let mut names = renamed(&first, &state.canonical().1);
        let mut history = vec![];
        for key in keys.iter().skip(1) {
            let on = successors(self.world, &state, &mut memo).into_iter().find_map(|way| {
                let mut to = way.to.clone();
                let (reached, moved) = to.canonical();
                (reached == *key).then_some((way.by, to, moved))
            });
            let Some((by, to, moved)) = on else { break };
            history.push(
                MoveText {
                    by: &by,
                    names: &names,
                    world: self.world,
                }
                .to_string(),
            );
            names = renamed(&names, &moved);
            state = to;
        }
        if broken != I10
            && let Some(way) = successors(self.world, &state, &mut memo)
                .into_iter()
                .find(|w| w.broken == Some(broken))
        {
            history.push(
                MoveText {
                    by: &way.by,
                    names: &names,
                    world: self.world,
                }
                .to_string(),
            );
        }
        let stuck = stuck
            .filter(|_| broken == I10)
            .map_or_else(Vec::new, |s| picture(self.world, &s));
        Found { broken, history, stuck }
    }
}

fn renamed(names: &[Number], to: &[Number]) -> Vec<Number> {
    let mut new = names.to_vec();
    for (old, new_place) in to.iter().enumerate() {
        new[usize::from(*new_place)] = names[old];
    }
    new
}
