//! Progress of a run, in a file of the user's cache, so that an interrupted run can continue.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::attack::Report;
use super::liar::Kind;
use super::plan::Plan;
use crate::statistics::median;

/// Number of liars that together must have used every kind of lie, and taken a berth.
const ENOUGH_LIARS: u64 = 20;

/// Results of a run so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the next rollout.
    pub next: u64,
    /// Number of finished rollouts.
    pub rollouts: u64,
    /// Duration of each rollout in seconds.
    pub seconds: Vec<f64>,
    /// Number of licensed reboots.
    pub reboots: u64,
    /// Number of faults of each kind.
    pub faults: BTreeMap<String, u64>,
    /// Violations, with the rollout's number.
    pub violations: Vec<(u64, String)>,
    /// Rollouts with a liar.
    pub liars: Liars,
}

/// Figures of the rollouts with a liar.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Liars {
    /// Number of these rollouts.
    pub rollouts: u64,
    /// Duration of each of them in seconds.
    pub seconds: Vec<f64>,
    /// Number of lies that the API server accepted.
    pub accepted: u64,
    /// Number of lies that it refused.
    pub refused: u64,
    /// Accepted, refused and missed lies of each kind.
    pub kinds: BTreeMap<String, [u64; 3]>,
    /// Number of berths that liars took.
    pub taken: u64,
    /// Rollouts with a liar that may keep others waiting, although Berth works as designed.
    pub may_block: u64,
    /// Rollouts that needed an admin, with the reason.
    pub acts: Vec<(u64, String)>,
    /// Number of replaced machines that an admin had to help with a retry.
    pub retries: u64,
    /// Violations in these rollouts.
    pub violations: u64,
}

impl State {
    /// A new run.
    pub fn new(seed: u64, from: u64) -> Self {
        Self {
            seed,
            next: from,
            ..Self::default()
        }
    }

    /// Loads the saved run from a file; `None` if the file does not exist.
    pub fn load(file: &Path) -> Result<Option<Self>> {
        match std::fs::read(file) {
            Ok(text) => {
                let state = serde_json::from_slice(&text).map(Some);
                state.with_context(|| format!("{} is malformed; delete it to start again", file.display()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    /// Writes the file atomically.
    pub fn save(&self, file: &Path) -> Result<()> {
        let new = file.with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(self)?)
            .and_then(|()| std::fs::rename(&new, file))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Adds a rollout.
    pub fn add(&mut self, plan: &Plan, seconds: f64, licensed: usize, violations: &[String]) {
        self.next = plan.rollout + 1;
        self.rollouts += 1;
        self.seconds.push((seconds * 10.0).round() / 10.0);
        self.reboots += u64::try_from(licensed).unwrap_or(0);
        for fault in plan.all_faults() {
            *self.faults.entry(fault.kind().name().to_owned()).or_default() += 1;
        }
        let cordoned = u64::try_from(plan.cordoned.0.len()).unwrap_or(0);
        if cordoned > 0 {
            *self.faults.entry("node cordoned beforehand".to_owned()).or_default() += cordoned;
        }
        self.violations
            .extend(violations.iter().map(|v| (plan.rollout, v.clone())));
    }

    /// Adds the figures of a liar.
    pub fn add_liar(&mut self, plan: &Plan, seconds: f64, report: &Report, violations: usize) {
        let liars = &mut self.liars;
        liars.rollouts += 1;
        liars.seconds.push((seconds * 10.0).round() / 10.0);
        liars.accepted += report.tally.accepted();
        liars.refused += report.tally.refused();
        liars.taken += report.tally.taken();
        liars.may_block += u64::from(report.block.is_some());
        liars.retries += u64::from(report.recovery.is_some());
        for (kind, count) in &report.tally.counts {
            let all = liars.kinds.entry(kind.name().to_owned()).or_default();
            for (sum, new) in all.iter_mut().zip([count.accepted, count.refused, count.missed]) {
                *sum += new;
            }
        }
        liars
            .acts
            .extend(report.acts.first().map(|act| (plan.rollout, act.clone())));
        liars.violations += u64::try_from(violations).unwrap_or(0);
    }

    /// Returns what the liars of a long run never did: without it, the run shows little.
    pub fn untold(&self) -> Vec<String> {
        let liars = &self.liars;
        let mut untold = vec![];
        if liars.rollouts < ENOUGH_LIARS {
            return untold;
        }
        if liars.taken == 0 {
            untold.push("no liar took a berth".to_owned());
        }
        for kind in Kind::ALL.iter().filter(|kind| **kind != Kind::Forbidden) {
            let accepted = liars.kinds.get(kind.name()).map_or(0, |[accepted, ..]| *accepted);
            if accepted == 0 {
                untold.push(format!("no lie of the kind {} was accepted", kind.name()));
            }
        }
        untold
    }

    fn liars(&self) -> String {
        let liars = &self.liars;
        if liars.rollouts == 0 {
            return String::new();
        }
        let mut text = format!(
            "of these, {} rollouts with a liar: {} lies accepted, {} refused, {} berths taken, {} violations, median {:.1} \
             seconds\nlies by kind, accepted, refused and missed:\n",
            liars.rollouts,
            liars.accepted,
            liars.refused,
            liars.taken,
            liars.violations,
            median(&liars.seconds),
        );
        for (kind, [accepted, refused, missed]) in &liars.kinds {
            text += &format!("  {accepted:>6} {refused:>6} {missed:>6}  {kind}\n");
        }
        text += &format!(
            "a liar may keep others waiting by nature in {} rollouts; an admin was needed in {}; {} replaced machines \
             needed a retry\n",
            liars.may_block,
            liars.acts.len(),
            liars.retries
        );
        for (n, act) in &liars.acts {
            text += &format!("  rollout {n}: {act}\n");
        }
        text
    }

    /// Summary for display.
    pub fn summary(&self) -> String {
        let total: f64 = self.seconds.iter().sum();
        let longest = self.seconds.iter().copied().fold(0.0, f64::max);
        let faults: Vec<_> = self
            .faults
            .iter()
            .map(|(kind, count)| format!("  {count:>5}  {kind}\n"))
            .collect();
        let violations: Vec<_> = self
            .violations
            .iter()
            .map(|(n, what)| format!("  rollout {n}: {what}\n"))
            .collect();
        format!(
            "seed {}: {} rollouts, {} licensed reboots, {} faults, {} violations\n\
             seconds for each rollout: mean {:.1}, median {:.1}, longest {:.1}; {:.0} in all\n\
             {}faults by kind:\n{}{}{}",
            self.seed,
            self.rollouts,
            self.reboots,
            self.faults.values().sum::<u64>(),
            self.violations.len(),
            total / (self.seconds.len().max(1) as f64),
            median(&self.seconds),
            longest,
            total,
            self.liars(),
            faults.concat(),
            if violations.is_empty() { "" } else { "violations:\n" },
            violations.concat(),
        )
    }
}

/// Directory of saved runs and evidence.
pub fn directory() -> Result<PathBuf> {
    let directory = crate::tools::cache_dir()?.join("soak");
    std::fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    Ok(directory)
}

/// File of a run.
pub fn file(seed: u64) -> Result<PathBuf> {
    Ok(directory()?.join(format!("seed-{seed}.json")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_run_continues() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("seed-7.json");
        assert_eq!(State::load(&file).unwrap(), None);
        let mut state = State::new(7, 3);
        let plan = Plan::new(7, 3, 12, false);
        state.add(&plan, 6.25, 12, &["I1: too many".to_owned()]);
        state.save(&file).unwrap();
        let again = State::load(&file).unwrap().unwrap();
        assert_eq!((again.next, again.rollouts, again.reboots), (4, 1, 12));
        assert_eq!(again, state);
        let summary = again.summary();
        assert!(
            summary.contains("1 violations") && summary.contains("rollout 3: I1: too many"),
            "{summary}"
        );
        std::fs::write(&file, "{").unwrap();
        assert!(State::load(&file).is_err());
    }

    #[test]
    fn a_long_run_without_a_kind_of_lie_shows_little() {
        let mut state = State::new(7, 0);
        state.liars.rollouts = ENOUGH_LIARS - 1;
        assert!(state.untold().is_empty());
        state.liars.rollouts = ENOUGH_LIARS;
        assert_eq!(state.untold().len(), Kind::ALL.len());
        state.liars.taken = 1;
        for kind in Kind::ALL {
            state.liars.kinds.insert(kind.name().to_owned(), [1, 0, 0]);
        }
        state.liars.kinds.insert(Kind::Forbidden.name().to_owned(), [0, 9, 0]);
        assert!(state.untold().is_empty());
        state.liars.kinds.insert(Kind::Move.name().to_owned(), [0, 9, 0]);
        assert_eq!(state.untold(), ["no lie of the kind move was accepted"]);
    }
}
