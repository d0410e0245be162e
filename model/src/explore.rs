//! Breadth first through all states of a world, on all cores, each state once in its canonical form.
//!
//! An own search and not a library's, for three reasons: only fingerprints of visited states are kept, with the one they
//! were reached from (16 bytes each, so that tens of millions fit); each new state is handed to the fair schedule of I10
//! (a checker's `eventually` is unsound on cycles); and the memo of the shipped functions' answers is each worker's own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::fair::{Fair, I10};
use crate::hash::Fast;
use crate::moves::{Memo, Told, picture, ways};
use crate::state::{No, State};
use crate::world::{Broken, World};

const SHARDS: usize = 64;
const CHUNK: usize = 256;

type Shard = Mutex<HashMap<u64, u64, Fast>>;

/// Limits of an exploration.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Largest number of states.
    pub states: usize,
    /// Longest time.
    pub time: Duration,
    /// Workers.
    pub threads: usize,
}

/// End of an exploration.
#[derive(Debug)]
pub struct Outcome {
    /// Unique states.
    pub states: usize,
    /// Moves made.
    pub moves: usize,
    /// Most moves from the start.
    pub depth: usize,
    /// Every state was visited.
    pub complete: bool,
    /// The longest fair schedule, in rounds.
    pub rounds: usize,
    /// The shortest history that breaks a rule.
    pub found: Option<Found>,
    /// Time that it took.
    pub took: Duration,
}

/// A history that breaks a rule.
#[derive(Debug)]
pub struct Found {
    /// The rule.
    pub broken: Broken,
    /// The moves.
    pub history: Vec<String>,
    /// End of the fair schedule, for I10.
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
    /// The state before the breach, the rule, and where it leads.
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
        found: breach.map(|(last, broken, stuck)| search.tell(last, broken, stuck)),
        took: search.began.elapsed(),
    }
}

impl Search<'_> {
    /// `true`: it is new.
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
        for way in ways(self.world, state, &mut worker.memo) {
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
        // After the moves: a rule that one of them breaks says more than that nobody gets further.
        if let Err(stuck) = worker.fair.ends(self.world, state, &mut worker.memo) {
            return self.breach(here, I10, stuck.into_iter().next_back());
        }
        let full = self.states.load(Ordering::Relaxed) >= self.limits.states;
        if full || self.began.elapsed() >= self.limits.time {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// A breach ends the search with its level; of those in one level the least is kept, so that each run finds the same.
    fn breach(&self, last: u64, broken: Broken, to: Option<State>) {
        let mut breach = self.breach.lock().unwrap_or_else(PoisonError::into_inner);
        if breach
            .as_ref()
            .is_none_or(|(key, other, _)| (broken, last) < (*other, *key))
        {
            *breach = Some((last, broken, to));
        }
    }

    /// The history that leads to a breach, made again from the start.
    fn tell(&self, last: u64, broken: Broken, stuck: Option<State>) -> Found {
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
        let first: Vec<No> = (0..).zip(&state.nodes).map(|(n, _)| n).collect();
        let mut names = renamed(&first, &state.canonical().1);
        let mut history = vec![];
        for key in keys.iter().skip(1) {
            let on = ways(self.world, &state, &mut memo).into_iter().find_map(|way| {
                let mut to = way.to.clone();
                let (reached, moved) = to.canonical();
                (reached == *key).then_some((way.by, to, moved))
            });
            let Some((by, to, moved)) = on else { break };
            history.push(
                Told {
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
            && let Some(way) = ways(self.world, &state, &mut memo)
                .into_iter()
                .find(|w| w.broken == Some(broken))
        {
            history.push(
                Told {
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

/// Names of the nodes after they have moved.
fn renamed(names: &[No], to: &[No]) -> Vec<No> {
    let mut new = names.to_vec();
    for (old, new_place) in to.iter().enumerate() {
        new[usize::from(*new_place)] = names[old];
    }
    new
}
