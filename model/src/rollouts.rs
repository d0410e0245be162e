//! Runs random rollouts of large worlds in parallel, one rollout of a huge world, and the search for the deliberate
//! bugs.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use berth_api::seeded::{Bug, wake};
use berth_model::bugs;
use berth_model::moves::Memo;
use berth_model::simulate::{Rollout, close_up, huge, rollout};
use berth_model::world::Broken;

#[derive(Debug)]
pub struct Plan {
    pub first: u64,
    pub rollouts: u64,
    pub threads: usize,
    pub history: bool,
    /// Number of nodes of the huge rollout; 0 for none.
    pub huge: usize,
    /// Maximum number of rollouts of large worlds in the search for each deliberate bug. If these miss the bug, up to a
    /// hundred times as many close-ups follow. 0 skips the search.
    pub bugs: u64,
}

#[derive(Debug, Default)]
struct Sum {
    rollouts: AtomicUsize,
    moves: AtomicUsize,
    faults: AtomicUsize,
    /// The smallest seed that breaks a rule, and that rule.
    found: Mutex<Option<(u64, Broken)>>,
}

pub fn run(plan: &Plan) -> ExitCode {
    println!("simulation: seed {}", plan.first);
    let began = Instant::now();
    let sum = rollouts(plan, plan.rollouts, false, &rollout);
    println!(
        "{} rollouts  {} moves, {} faults  {:.1} s",
        sum.rollouts.load(Ordering::Relaxed),
        sum.moves.load(Ordering::Relaxed),
        sum.faults.load(Ordering::Relaxed),
        began.elapsed().as_secs_f64()
    );
    let found = sum.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut well = found.is_none();
    if let Some((seed, broken)) = found {
        println!(
            "BROKEN: {} in the rollout of seed {seed}; to repeat: make simulate SEED={seed} ROLLOUTS=1",
            broken.0
        );
        let again = rollout(seed, &mut Memo::default(), true);
        let from = if plan.history {
            0
        } else {
            again.history.len().saturating_sub(120)
        };
        again.history.iter().skip(from).for_each(|line| println!("  {line}"));
    } else if plan.history {
        let again = rollout(plan.first, &mut Memo::default(), true);
        again.history.iter().for_each(|line| println!("  {line}"));
    }
    if plan.huge > 0 {
        well &= one_huge(plan);
    }
    if plan.bugs > 0 {
        let missed = Bug::ALL.iter().filter(|bug| !bug_is_found(plan, **bug)).count();
        well &= missed == 0;
    }
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Function that runs the rollout of a seed. The last argument: true to record the history.
type Make<'a> = &'a (dyn Fn(u64, &mut Memo, bool) -> Rollout + Sync);

/// Runs at most `most` rollouts in parallel. After a rollout breaks a rule, no more rollouts start. `quick` makes no
/// difference.
fn rollouts(plan: &Plan, most: u64, quick: bool, make: Make<'_>) -> Sum {
    let (sum, next, stop) = (Sum::default(), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..plan.threads {
            scope.spawn(|| {
                let mut memo = Memo::default();
                while !stop.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= most {
                        break;
                    }
                    let seed = plan.first.wrapping_add(at);
                    let one = make(seed, &mut memo, false);
                    sum.rollouts.fetch_add(1, Ordering::Relaxed);
                    sum.moves.fetch_add(one.moves, Ordering::Relaxed);
                    sum.faults.fetch_add(one.faults, Ordering::Relaxed);
                    if let Some(broken) = one.broken {
                        let mut found = sum.found.lock().unwrap_or_else(PoisonError::into_inner);
                        if found.is_none_or(|(other, _)| seed < other) {
                            *found = Some((seed, broken));
                        }
                        stop.store(true, Ordering::Relaxed);
                    }
                    if quick && one.broken.is_some() {
                        break;
                    }
                }
            });
        }
    });
    sum
}

fn one_huge(plan: &Plan) -> bool {
    let began = Instant::now();
    let before = peak();
    let huge = huge(plan.huge, plan.first, &mut Memo::default());
    let memory = peak().saturating_sub(before);
    println!(
        "1 rollouts of {} nodes  {} rounds  {:.1} s  {} bytes per node",
        huge.nodes,
        huge.rounds,
        began.elapsed().as_secs_f64(),
        memory / huge.nodes.max(1)
    );
    if let Some(broken) = huge.broken {
        println!("BROKEN: {} with {} nodes", broken.0, huge.nodes);
    }
    huge.broken.is_none()
}

/// Returns the peak memory of this process so far, in bytes; 0 if unknown.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|l| l.split_whitespace().next()?.parse::<usize>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Searches for a bug in large worlds, then in close-ups of the world where the explorer finds the bug. The bug counts
/// as found only if the same rollout without it breaks no rule.
fn bug_is_found(plan: &Plan, bug: Bug) -> bool {
    let seeded = bugs::seeded(bug);
    let close: Make<'_> = &|seed, memo, with_history| close_up(&seeded.world, seed, memo, with_history);
    let (mut made, name) = (0, bug.name());
    for (make, most, of) in [
        (&rollout as Make<'_>, plan.bugs, "rollouts"),
        (close, 100 * plan.bugs, "close-ups"),
    ] {
        wake(Some(bug));
        let sum = rollouts(plan, most, true, make);
        wake(None);
        made += sum.rollouts.load(Ordering::Relaxed);
        let found = sum.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Some((seed, broken)) = found else { continue };
        let without = make(seed, &mut Memo::default(), false).broken;
        match without {
            None => println!(
                "bug {name}: caught by {:?} in {made} rollouts, the last of seed {seed} ({of})",
                broken.0
            ),
            Some(other) => println!("bug {name}: NOT SHOWN, seed {seed} breaks {:?} without it too", other.0),
        }
        return without.is_none();
    }
    println!("bug {name}: NOT FOUND in {made} rollouts");
    false
}
