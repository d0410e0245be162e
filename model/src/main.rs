//! berth-model: explores the worlds, and checks that each deliberate bug is found.

use std::process::ExitCode;
use std::time::Duration;

use berth_model::bugs;
use berth_model::explore::{Found, Limits, Outcome, explore};
use berth_model::world::World;
use berth_model::worlds;
use clap::Parser;

mod rollouts;

/// Minimum number of states of all worlds together. A lower number shows that a change removed faults from a world.
const FEWEST_STATES: usize = 5_000_000;
/// Minimum number of deliberate bugs to find.
const FEWEST_BUGS: usize = 52;

/// Explores the worlds of the model, then searches for each deliberate bug.
#[derive(Debug, Parser)]
struct Options {
    /// Run only worlds and bugs whose name contains this text.
    #[arg(long, default_value = "")]
    world: String,
    /// Most states to visit per world.
    #[arg(long, default_value_t = usize::MAX)]
    states: usize,
    /// Most seconds per world.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Allow more faults in one history.
    #[arg(long)]
    deep: bool,
    /// Run this many random rollouts of large worlds instead of exploring.
    #[arg(long)]
    rollouts: Option<u64>,
    /// Seed of the first rollout.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// With --rollouts: print every move of the failed rollout, or of the first.
    #[arg(long)]
    history: bool,
    /// With --rollouts: run one more rollout, with this many nodes; 0 for none.
    #[arg(long, default_value_t = 0)]
    huge: usize,
    /// With --rollouts: search for each deliberate bug in at most this many rollouts; 0 skips the search.
    #[arg(long, default_value_t = 0)]
    bugs: u64,
    /// Number of worker threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(rollouts) = options.rollouts {
        return rollouts::run(&rollouts::Plan {
            first: options.seed,
            rollouts,
            threads: options.threads,
            history: options.history,
            huge: options.huge,
            bugs: options.bugs,
        });
    }
    let limits = Limits {
        states: options.states,
        time: Duration::from_secs(options.seconds),
        threads: options.threads,
    };
    let mut total = 0;
    let mut broken = 0;
    let all = worlds::all(options.deep);
    for world in all.iter().filter(|w| w.name.contains(&options.world)) {
        let outcome = explore(world, limits);
        total += outcome.states;
        // An incomplete exploration proves nothing. Only a deep run may be incomplete.
        let cut_off = !outcome.complete && !options.deep;
        broken += usize::from(outcome.found.is_some() || cut_off);
        show(world, &outcome);
    }
    let is_whole = !options.deep && options.world.is_empty() && options.states == usize::MAX;
    // The deliberate bugs have worlds of their own, which a deep run does not explore.
    let (found, missed) = if options.deep {
        (0, 0)
    } else {
        seeded(limits, &options.world)
    };
    println!("{total} states in all worlds");
    println!("{found} bugs found, {missed} missed");
    if is_whole {
        println!("required: {FEWEST_STATES} states, {FEWEST_BUGS} bugs");
    }
    if let Some(seconds) = processor_time() {
        println!("{seconds} s of processor time");
    }
    let is_enough = !is_whole || (total >= FEWEST_STATES && found >= FEWEST_BUGS);
    if broken + missed == 0 && is_enough {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the processor time of this process in seconds, if known.
fn processor_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    let ticks = after_name.split_whitespace().skip(11).take(2);
    let ticks: Vec<u64> = ticks.filter_map(|field| field.parse().ok()).collect();
    // Linux counts hundredths of a second on all supported machines.
    Some(ticks.iter().sum::<u64>() / 100)
}

/// Searches for every deliberate bug, which must break its rule. Returns the numbers of found and missed bugs.
fn seeded(limits: Limits, only: &str) -> (usize, usize) {
    let (mut found, mut missed) = (0, 0);
    for seeded in bugs::all().iter().filter(|s| s.bug.name().contains(only)) {
        berth_api::seeded::wake(Some(seeded.bug));
        let outcome = explore(&seeded.world, limits);
        berth_api::seeded::wake(None);
        let name = seeded.bug.name();
        match &outcome.found {
            Some(breach) if breach.broken == seeded.breaks => {
                println!(
                    "bug {name}: caught by {:?} after {} moves ({} states)",
                    breach.broken.0,
                    breach.history.len(),
                    outcome.states
                );
                print_history(breach);
                found += 1;
            }
            Some(breach) => {
                println!(
                    "bug {name}: broke {:?} instead of {:?}",
                    breach.broken.0, seeded.breaks.0
                );
                print_history(breach);
                missed += 1;
            }
            None => {
                println!("bug {name}: NOT FOUND in {} states", outcome.states);
                missed += 1;
            }
        }
    }
    (found, missed)
}

fn print_history(found: &Found) {
    for (at, line) in found.history.iter().enumerate() {
        println!("  {:>3} {line}", at + 1);
    }
    for line in &found.stuck {
        println!("      stuck: {line}");
    }
}

fn show(world: &World, outcome: &Outcome) {
    println!(
        "{:<10} depth {:>3}  {:>5.1} s  {} moves, fair within {} rounds{}  {} states",
        world.name,
        outcome.depth,
        outcome.took.as_secs_f64(),
        outcome.moves,
        outcome.rounds,
        if outcome.complete { "" } else { "  CUT OFF" },
        outcome.states,
    );
    if let Some(found) = &outcome.found {
        println!("  BROKEN: {} after {} moves", found.broken.0, found.history.len());
        print_history(found);
    }
}
