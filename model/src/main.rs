//! berth-model: explores the worlds, and shows that each deliberate bug is found.

use std::process::ExitCode;
use std::time::Duration;

use berth_model::explore::{Limits, Outcome, explore};
use berth_model::world::World;
use berth_model::worlds;
use clap::Parser;

/// Explores the worlds of the model.
#[derive(Debug, Parser)]
struct Options {
    /// Only the worlds whose name contains this.
    #[arg(long, default_value = "")]
    world: String,
    /// States to visit in each world at most.
    #[arg(long, default_value_t = usize::MAX)]
    states: usize,
    /// Seconds for each world at most.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Workers.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let limits =
        Limits { states: options.states, time: Duration::from_secs(options.seconds), threads: options.threads };
    let mut total = 0;
    let mut broken = 0;
    for world in worlds::all().iter().filter(|w| w.name.contains(&options.world)) {
        let outcome = explore(world, limits);
        total += outcome.states;
        broken += usize::from(outcome.found.is_some());
        show(world, &outcome);
    }
    println!("{total} states in all");
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(world: &World, outcome: &Outcome) {
    println!(
        "{:<10} {:>9} states  depth {:>3}  {:>5.1} s  {} moves, fair within {} rounds{}",
        world.name,
        outcome.states,
        outcome.depth,
        outcome.took.as_secs_f64(),
        outcome.moves,
        outcome.rounds,
        if outcome.complete { "" } else { "  (not all)" },
    );
    if let Some(found) = &outcome.found {
        println!("  BROKEN: {} after {} moves", found.broken.0, found.history.len());
        for (at, line) in found.history.iter().enumerate() {
            println!("  {:>3} {line}", at + 1);
        }
        for state in &found.stuck {
            println!("  stuck: {state:#?}");
        }
    }
}
