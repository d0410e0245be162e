//! Rollouts while everything around them fails, checked by the judge. `make soak` runs any number of them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_tests::soak::fault::{Fault, Kind};
use berth_tests::soak::plan::Plan;
use berth_tests::soak::run::{HOSTS, Options, Soak, keep_evidence};

const SEED: u64 = 1;
/// Numbers of the rollouts that are short enough for a test. Their faults end soon, and together they contain every
/// kind of fault.
const ROLLOUTS: [u64; 10] = [14072, 17317, 17759, 6648, 3262, 15321, 5109, 7753, 7534, 266];
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
        let plan = Plan::new(SEED, rollout, HOSTS, false);
        println!("seed {SEED} {plan}");
        let outcome = soak.rollout(&plan).await?;
        println!(
            "  {:.1} s, {} licensed reboots",
            outcome.took.as_secs_f64(),
            outcome.verdict.licensed
        );
        if !outcome.verdict.violations.is_empty() {
            let evidence = keep_evidence(&soak, SEED, &plan, &outcome)?;
            let found = outcome.verdict.violations.join("\n  ");
            panic!(
                "the judge found violations:\n  {found}\n{}\nevidence: {}",
                outcome.state.unwrap_or_default(),
                evidence.display()
            );
        }
        ensure!(outcome.verdict.licensed >= HOSTS / 2, "too few reboots");
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
