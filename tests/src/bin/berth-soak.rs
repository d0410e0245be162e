//! Soaks Berth: rollout after rollout on simulated hosts under injected faults.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use berth_api::seeded::Bug;
use berth_tests::soak::known::{self, BESIDE_LIAR, Known};
use berth_tests::soak::liar::{self, Liars};
use berth_tests::soak::plan::Plan;
use berth_tests::soak::run::{self, HOSTS, Options, Outcome, Soak};
use berth_tests::soak::state::{self, State};
use clap::Parser;

/// Soaks Berth: rollouts of twelve simulated hosts with a real API server, while agents and controllers are killed,
/// the API server goes away, admins contradict each other, reboots get lost and nodes vanish. In one rollout of six, a
/// program with one node's credentials writes whatever the API server accepts.
///
/// The seed and the number of a rollout determine its faults. To continue an interrupted run, start it again with its seed.
#[derive(Debug, Parser)]
#[command(
    name = "berth-soak",
    after_help = "EXIT STATUS\n  0  No violation; with --bug: the judge found a violation.\n  1  A violation; with --bug: no violation; or the harness failed.\n  2  The command line was wrong."
)]
struct Arguments {
    /// Seed of the run. Default: a random one.
    #[arg(long, env = "SEED", value_name = "NUMBER")]
    seed: Option<u64>,
    /// Number of the first rollout. Default: where the run of that seed was interrupted, or 0.
    #[arg(long, env = "FROM", value_name = "NUMBER")]
    from: Option<u64>,
    /// Number of rollouts of the whole run, counted from 0.
    #[arg(long, env = "ROLLOUTS", value_name = "NUMBER", default_value_t = 200)]
    rollouts: u64,
    /// Enables this deliberate bug and expects the judge to find a violation. Without a seed: in the rollout known to show it.
    /// `all`: every bug, each in its rollout.
    #[arg(long, env = "BUG", value_name = "NAME")]
    bug: Option<String>,
    /// Rollouts with a liar, which uses the credentials of one node.
    #[arg(long, env = "LIAR", value_name = "WHICH", default_value = "some")]
    liar: Liars,
    /// Kinds of lies, separated by commas, in place of the kinds that the seed determines. `-name`: all but this one.
    #[arg(long, env = "LIES", value_name = "NAMES", allow_hyphen_values = true)]
    lies: Option<String>,
    /// Keeps the evidence of every rollout, not only after a violation.
    #[arg(long)]
    keep: bool,
    /// Injects no fault, for comparison.
    #[arg(long)]
    quiet: bool,
    /// Prints the faults of each rollout without running any.
    #[arg(long)]
    dry_run: bool,
}

impl Arguments {
    /// A deliberate bug is looked for in the rollouts that were known before there were liars, unless all rollouts are
    /// to have one.
    fn liar_of_bug(&self) -> Liars {
        match self.liar {
            Liars::All => Liars::All,
            Liars::Some | Liars::None => Liars::None,
        }
    }
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

/// Maximum number of tries for a rollout that is known to show a bug: some bugs are races.
const TRIES: usize = 4;

async fn soak(arguments: &Arguments) -> Result<bool> {
    match &arguments.bug {
        Some(all) if all == "all" => find_all().await,
        Some(name) => {
            let bug = Bug::named(name).with_context(|| format!("there is no deliberate bug {name}"))?;
            match (known::known(bug), arguments.seed) {
                (Known::FoundBy(rollout), None) => find(bug, rollout, arguments.liar_of_bug()).await,
                (Known::FoundBesideLiar(rollout), None) => find(bug, rollout, Liars::All).await,
                _ => go_on(arguments).await,
            }
        }
        None => go_on(arguments).await,
    }
}

/// Finds every deliberate bug within reach, each in the rollout known to show it.
async fn find_all() -> Result<bool> {
    let mut missed = vec![];
    for bug in Bug::ALL.iter().copied() {
        match known::known(bug) {
            Known::OutOfReach(why) => println!("{}: out of reach: {why}", bug.name()),
            Known::FoundBy(rollout) => {
                if !find(bug, rollout, Liars::None).await? {
                    missed.push(bug.name());
                }
            }
            Known::FoundBesideLiar(rollout) => {
                if !find(bug, rollout, Liars::All).await? {
                    missed.push(bug.name());
                }
            }
        }
    }
    for (bug, rollout) in BESIDE_LIAR {
        if !find(bug, rollout, Liars::All).await? {
            missed.push(bug.name());
        }
    }
    if missed.is_empty() {
        println!("all bugs within reach were found");
    } else {
        println!("missed: {}", missed.join(", "));
    }
    Ok(missed.is_empty())
}

/// Runs a rollout with a bug enabled, up to [`TRIES`] times, until the judge finds a violation.
async fn find(bug: Bug, rollout: u64, liars: Liars) -> Result<bool> {
    let mut plan = Plan::new(known::SEED, rollout, HOSTS, true);
    // Removes the fleet limit and the order of pools, which delay offers, unless the bug is about them.
    plan.fleet = plan.fleet.filter(|_| bug == Bug::FleetLimitIgnored);
    plan.order = plan.order.filter(|_| bug == Bug::OrderIgnored);
    let plan = plan.with_liar(HOSTS, liars, None);
    println!("{}: seed {} {plan}", bug.name(), known::SEED);
    for tried in 1..=TRIES {
        // A new cluster for each try: in one cluster, only the first try would find the rollout's images new.
        let mut soak = Soak::start(&Options {
            bug: Some(bug.name().to_owned()),
            ..Options::default()
        })
        .await?;
        let outcome = soak.rollout(&plan).await?;
        if let Some(violation) = outcome.verdict.violations.first() {
            println!("  found, try {tried}: {violation}");
            return Ok(true);
        }
    }
    println!("  not found in {TRIES} tries");
    Ok(false)
}

async fn go_on(arguments: &Arguments) -> Result<bool> {
    let seed = arguments
        .seed
        .unwrap_or_else(|| jiff::Timestamp::now().as_microsecond().unsigned_abs() % 1_000_000);
    let file = state::file(seed)?;
    let mut state = match (arguments.from, State::load(&file)?) {
        (None, Some(state)) if state.next < arguments.rollouts && arguments.bug.is_none() => state,
        (from, _) => State::new(seed, from.unwrap_or(0)),
    };
    let rollouts = state.next..arguments.rollouts;
    let plans = plans(arguments, seed, rollouts)?;
    if arguments.dry_run {
        plans.iter().for_each(|plan| println!("{plan}"));
        return Ok(true);
    }
    println!(
        "seed {seed}, rollouts {} to {}; to continue after an interruption: make soak SEED={seed} ROLLOUTS={}",
        state.next,
        arguments.rollouts.saturating_sub(1),
        arguments.rollouts
    );
    let begin = Instant::now();
    let mut soak = start(arguments).await?;
    let elapsed = begin.elapsed().as_secs_f64();
    println!("{elapsed:>7.1} s  {HOSTS} hosts and a control plane are up");
    for plan in plans {
        let outcome = run_one(&mut soak, &plan, arguments, &mut state, begin).await?;
        let found = &outcome.verdict.violations;
        if let Some(bug) = arguments.bug.as_ref().filter(|_| !found.is_empty()) {
            let rollouts = state.rollouts;
            println!("the judge found a violation due to {bug} after {rollouts} rollouts");
            return Ok(true);
        }
        // After a deadlock (I10) the cluster is stuck in this rollout, so the next one gets a new cluster.
        // So does one whose liar has broken something.
        let is_broken = outcome.attack.is_some() && !found.is_empty();
        if is_broken || found.iter().any(|v| v.starts_with("I10")) {
            soak = start(arguments).await?;
        }
        if arguments.bug.is_none() {
            state.save(&file)?;
        }
    }
    print!("{}", state.summary());
    if let Some(bug) = &arguments.bug {
        let rollouts = state.rollouts;
        println!("the judge found no violation due to {bug} in {rollouts} rollouts");
        return Ok(false);
    }
    // Selected lies are not all lies.
    let untold = if arguments.lies.is_some() {
        vec![]
    } else {
        state.untold()
    };
    for untold in &untold {
        println!("the run shows little: {untold}");
    }
    Ok(state.violations.is_empty() && untold.is_empty())
}

/// Runs a rollout, prints its result and adds it to the state. Keeps its evidence after a violation.
async fn run_one(
    soak: &mut Soak,
    plan: &Plan,
    arguments: &Arguments,
    state: &mut State,
    begin: Instant,
) -> Result<Outcome> {
    println!("{plan}");
    let outcome = soak.rollout(plan).await?;
    report(&outcome, plan, begin);
    let found = &outcome.verdict.violations;
    state.add(plan, outcome.took.as_secs_f64(), outcome.verdict.licensed, found);
    if let Some(report) = &outcome.attack {
        state.add_liar(plan, outcome.took.as_secs_f64(), report, found.len());
    }
    if !found.is_empty() || arguments.keep {
        let evidence = run::keep_evidence(soak, state.seed, plan, &outcome)?;
        println!("           evidence: {}", evidence.display());
    }
    Ok(outcome)
}

fn plans(arguments: &Arguments, seed: u64, rollouts: std::ops::Range<u64>) -> Result<Vec<Plan>> {
    let only = arguments.lies.as_deref().map(liar::Kind::named);
    let only = only.transpose().map_err(anyhow::Error::msg)?;
    let liars = if arguments.bug.is_some() {
        arguments.liar_of_bug()
    } else {
        arguments.liar
    };
    let plan = |rollout| {
        if arguments.quiet {
            Plan::quiet(seed, rollout)
        } else {
            Plan::new(seed, rollout, HOSTS, true)
        }
    };
    let plans = rollouts.map(|rollout| plan(rollout).with_liar(HOSTS, liars, only.as_ref()));
    Ok(plans.collect())
}

async fn start(arguments: &Arguments) -> Result<Soak> {
    let options = Options {
        bug: arguments.bug.clone(),
        ..Options::default()
    };
    Soak::start(&options).await
}

fn report(outcome: &Outcome, plan: &Plan, begin: Instant) {
    let found = &outcome.verdict.violations;
    println!(
        "{:>7.1} s  rollout {} took {:.1} s, {} licensed reboots, {} violations",
        begin.elapsed().as_secs_f64(),
        plan.rollout,
        outcome.took.as_secs_f64(),
        outcome.verdict.licensed,
        found.len()
    );
    if let Some(report) = &outcome.attack {
        let (accepted, refused) = (report.tally.accepted(), report.tally.refused());
        let taken = report.tally.taken();
        println!("           the liar: {accepted} writes accepted, {refused} refused, {taken} berths taken");
        if let Some(block) = report.block {
            println!("           the liar may keep others waiting: {block}");
        }
    }
    for act in outcome.attack.iter().flat_map(|report| &report.acts) {
        println!("           the admin was needed: {act}");
    }
    if let Some(act) = outcome.attack.as_ref().and_then(|report| report.recovery.as_ref()) {
        println!("           after the replacement of the liar's machine: {act}");
    }
    for violation in found {
        println!("           {violation}");
    }
}
