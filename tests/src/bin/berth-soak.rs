//! Soaks Berth: rollout after rollout on simulated hosts while everything around them fails.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use berth_tests::soak::plan::Plan;
use berth_tests::soak::run::{self, HOSTS, Options, Soak};
use berth_tests::soak::state::{self, State};
use clap::Parser;

/// Soaks Berth: rollouts of twelve simulated hosts with a real API server, while agents and controllers are killed,
/// the API server goes away, admins contradict each other, reboots get lost and nodes vanish.
///
/// What goes wrong is drawn from the seed; the same seed and number of a rollout always mean the same faults. A run
/// that was interrupted goes on when it is started again with its seed.
#[derive(Debug, Parser)]
#[command(
    name = "berth-soak",
    after_help = "EXIT STATUS\n  0  No violation; with --bug: the judge objected.\n  1  A violation; with --bug: none was found; or the harness failed.\n  2  The command line was wrong."
)]
struct Arguments {
    /// Seed of the run. Default: another one each time.
    #[arg(long, env = "SEED", value_name = "NUMBER")]
    seed: Option<u64>,
    /// Number of the first rollout. Default: where the run of that seed was interrupted, or 0.
    #[arg(long, env = "FROM", value_name = "NUMBER")]
    from: Option<u64>,
    /// How many rollouts the whole run has; the last one has a number one less.
    #[arg(long, env = "ROLLOUTS", value_name = "NUMBER", default_value_t = 200)]
    rollouts: u64,
    /// Wakes this deliberate bug, and expects the judge to object.
    #[arg(long, env = "BUG", value_name = "NAME")]
    bug: Option<String>,
    /// Keeps the evidence of every rollout, not only of those with a violation.
    #[arg(long)]
    keep: bool,
    /// Injects nothing: for comparison.
    #[arg(long)]
    quiet: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match soak(&Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("berth-soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn soak(arguments: &Arguments) -> Result<bool> {
    let seed = arguments.seed.unwrap_or_else(|| jiff::Timestamp::now().as_microsecond().unsigned_abs() % 1_000_000);
    let file = state::file(seed)?;
    let mut state = match (arguments.from, State::load(&file)?) {
        (None, Some(state)) if state.next < arguments.rollouts && arguments.bug.is_none() => state,
        (from, _) => State::new(seed, from.unwrap_or(0)),
    };
    println!(
        "seed {seed}, rollouts {} to {}; to go on after an interruption: make soak SEED={seed} ROLLOUTS={}",
        state.next,
        arguments.rollouts.saturating_sub(1),
        arguments.rollouts
    );
    let begin = Instant::now();
    let mut soak = Soak::start(&Options { bug: arguments.bug.clone(), ..Options::default() }).await?;
    println!("{:>7.1} s  {HOSTS} hosts and a control plane are up", begin.elapsed().as_secs_f64());
    while state.next < arguments.rollouts {
        let plan = match arguments.quiet {
            true => Plan::quiet(seed, state.next),
            false => Plan::new(seed, state.next, HOSTS, true),
        };
        println!("{plan}");
        let outcome = soak.rollout(&plan).await?;
        let found = &outcome.verdict.violations;
        println!(
            "{:>7.1} s  rollout {} took {:.1} s, {} licensed reboots, {} violations",
            begin.elapsed().as_secs_f64(),
            plan.rollout,
            outcome.took.as_secs_f64(),
            outcome.verdict.licensed,
            found.len()
        );
        state.add(&plan, outcome.took.as_secs_f64(), outcome.verdict.licensed, found);
        found.iter().for_each(|violation| println!("           {violation}"));
        if !found.is_empty() || arguments.keep {
            let evidence = run::keep_evidence(&soak, seed, &plan, &outcome)?;
            println!("           evidence: {}", evidence.display());
        }
        if !found.is_empty() {
            if let Some(bug) = &arguments.bug {
                println!("the judge objects to {bug} after {} rollouts", state.rollouts);
                return Ok(true);
            }
            // The next rollout would begin in what this one left behind.
            if found.iter().any(|v| v.starts_with("I10")) {
                soak = Soak::start(&Options::default()).await?;
            }
        }
        if arguments.bug.is_none() {
            state.save(&file)?;
        }
    }
    print!("{}", state.summary());
    if let Some(bug) = &arguments.bug {
        println!("the judge found nothing of {bug} in {} rollouts", state.rollouts);
        return Ok(false);
    }
    Ok(state.violations.is_empty())
}
