//! Rollouts while everything around them fails, checked by the judge. `make soak` runs any number of them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_tests::soak::attack::ensure_lied;
use berth_tests::soak::fault::{Fault, Kind};
use berth_tests::soak::liar::{self, Liars};
use berth_tests::soak::plan::Plan;
use berth_tests::soak::run::{HOSTS, Options, Outcome, Soak, keep_evidence};

const SEED: u64 = 1;
/// Numbers of the rollouts that are short enough for a test. Their faults end soon, and together they contain every
/// kind of fault.
const ROLLOUTS: [u64; 10] = [14072, 17317, 17759, 6648, 3262, 15321, 5109, 7753, 7534, 266];
/// Numbers of the rollouts with a liar. Their faults are few and end soon.
const WITH_LIAR: [u64; 2] = [54, 1022];
/// No further rollout starts after this time; with fewer than ten rollouts the test fails.
const ENOUGH: Duration = Duration::from_secs(520);

#[test]
fn the_fixed_rollouts_have_every_kind_of_fault() {
    let plans = ROLLOUTS.map(|rollout| Plan::new(SEED, rollout, HOSTS, false));
    let kinds: BTreeSet<Kind> = plans.iter().flat_map(Plan::all_faults).map(Fault::kind).collect();
    assert_eq!(kinds.len(), 22, "{kinds:?}");
}

#[tokio::test]
async fn ten_rollouts_survive_their_faults() -> Result<()> {
    let mut soak = Soak::start(&Options::default()).await?;
    let begin = Instant::now();
    for (made, rollout) in ROLLOUTS.into_iter().enumerate() {
        ensure!(begin.elapsed() < ENOUGH, "only {made} rollouts in {ENOUGH:?}");
        judged(&mut soak, &Plan::new(SEED, rollout, HOSTS, false)).await?;
    }
    Ok(())
}

/// Runs a rollout. Fails if the judge finds a violation.
async fn judged(soak: &mut Soak, plan: &Plan) -> Result<Outcome> {
    println!("seed {SEED} {plan}");
    let outcome = soak.rollout(plan).await?;
    println!(
        "  {:.1} s, {} licensed reboots",
        outcome.took.as_secs_f64(),
        outcome.verdict.licensed
    );
    if !outcome.verdict.violations.is_empty() {
        let evidence = keep_evidence(soak, SEED, plan, &outcome)?;
        let found = outcome.verdict.violations.join("\n  ");
        bail!(
            "the judge found violations:\n  {found}\n{}\nevidence: {}",
            outcome.state.unwrap_or_default(),
            evidence.display()
        );
    }
    ensure!(outcome.verdict.licensed >= HOSTS / 2, "too few reboots");
    Ok(outcome)
}

/// Two rollouts with a liar: a program with the credentials of one node takes berths, and moves them at random.
#[tokio::test]
async fn two_rollouts_survive_a_liar() -> Result<()> {
    let mut soak = Soak::start(&Options::default()).await?;
    let lies = liar::Kind::named("prepared,take,move").map_err(anyhow::Error::msg)?;
    for rollout in WITH_LIAR {
        let plan = Plan::new(SEED, rollout, HOSTS, false).with_liar(HOSTS, Liars::All, Some(&lies));
        let outcome = judged(&mut soak, &plan).await?;
        ensure_lied(outcome.attack.as_ref().context("the rollout has no liar")?)?;
    }
    Ok(())
}

/// The judge must find a real violation.
#[tokio::test]
async fn the_judge_objects_to_a_seeded_bug() -> Result<()> {
    let mut soak = Soak::start(&Options {
        bug: Some("skip-berth".to_owned()),
        hosts: 3,
    })
    .await?;
    let outcome = soak.rollout(&Plan::quiet(1, 0)).await?;
    let found = &outcome.verdict.violations;
    ensure!(found.iter().any(|v| v.starts_with("I2")), "no I2 in {found:?}");
    Ok(())
}
