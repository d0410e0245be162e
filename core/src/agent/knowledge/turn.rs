use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use berth_api::berth::HoldPhase;
use berth_api::node::timeline::{ProofPart, ProofStep};

use super::event::DrainProgress;
use crate::agent::facts::{CheckReading, DrainFacts, Reboot};
use crate::agent::step::Step;
use crate::{Moment, Now};

/// How long the agent waits for another program's work on the host before it gives up the unlock or the reboot. The
/// turn then ends.
const BUSY_TIMEOUT: Duration = Duration::from_secs(600);

/// The agent's knowledge about one turn, dropped at its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// State of the drain.
    pub drain: Draining,
    /// State of the reboot.
    pub reboot: Rebooting,
    /// When the agent began to wait for the proof of this boot; `None` if the boot needs no proof.
    pub proving: Option<Since>,
    /// When this agent process first saw the Node Ready under this boot; `None` if the Node was not Ready at the last
    /// read.
    pub(super) ready_since: Option<Moment>,
    /// Readings of the pool's checks under this boot.
    pub(super) pool_checks: PoolChecks,
    /// Parts of the running boot's proof that this agent process has seen, each with its time.
    pub(super) proof: Vec<ProofStep>,
    /// True if this agent process has written the Node since it began to give the berth back.
    pub restored: bool,
    /// True if the record on the host already has the end of this turn.
    pub counted: bool,
    pub(super) message: String,
    /// Phase that this agent process last wrote into the berth.
    pub wrote: Option<Discriminant<HoldPhase>>,
    /// Kind of the last step that changed the staged image successfully. Cleared when the agent waits, or performs any
    /// other step than a read.
    pub(super) changed: Option<Discriminant<Step>>,
}

/// Interval between two readings of the pool's checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Readings of the pool's checks.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PoolChecks {
    pub(super) readings: Vec<CheckReading>,
    /// When the checks were last run; `None` before the first run.
    at: Option<Moment>,
}

impl PoolChecks {
    pub(super) fn made(&mut self, readings: Vec<CheckReading>, now: &Now) {
        self.readings = readings;
        self.at = Some(now.clock);
    }

    pub(super) fn are_due(&self, now: &Now) -> bool {
        self.at.is_none_or(|at| now.clock.since(at) >= CHECK_INTERVAL)
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draining {
    pub last_pass: DrainFacts,
    pub(super) next_pass: Option<Moment>,
    /// Number of the drain in this process. When the number changes, the agent forgets the pods of the earlier drain.
    pub number: u64,
    pub since: Option<Since>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rebooting {
    pub asked: Option<Moment>,
    /// Why the requested reboot did not happen, and the moment when the agent noticed.
    pub blocked: Option<(String, Moment)>,
    /// When the unlock or the reboot first had to wait for another program's work on the host.
    pub(super) busy_since: Option<Moment>,
}

/// Start of a drain or a wait. The start may lie before the start of this agent process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Since {
    /// Moment when this agent process first knew of the drain or the wait.
    pub at: Moment,
    /// How long the drain or the wait had already lasted at that moment.
    pub before: Duration,
}

impl Since {
    pub(super) fn now(now: &Now) -> Self {
        Self {
            at: now.clock,
            before: Duration::ZERO,
        }
    }

    /// Returns the start of a drain or a wait that began at `began`, a moment of the current boot that was stored on
    /// the host.
    pub(super) fn remembered(began: Moment, now: &Now) -> Self {
        Self {
            at: now.clock,
            before: now.clock.since(began),
        }
    }

    pub(super) fn elapsed(self, now: &Now) -> Duration {
        self.before.saturating_add(now.clock.since(self.at))
    }
}

impl Turn {
    /// True if this step repeats the last step that changed the staged image. The earlier step then had no effect.
    pub fn repeats(&self, step: &Step) -> bool {
        self.changed == Some(discriminant(step))
    }

    /// Records each part of the proof that was missing before, with the seconds since the agent began to wait for the
    /// proof.
    pub(super) fn proves(&mut self, parts: &[ProofPart], now: &Now) {
        let Some(proving) = self.proving else { return };
        let seconds = proving.elapsed(now).as_secs();
        for part in parts.iter().skip(self.proof.len()) {
            self.proof.push(ProofStep {
                name: *part,
                seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
            });
        }
    }

    /// Forgets the previous turn. Keeps `proving`, since the running boot may still be unproven.
    pub(super) fn begin(&mut self) {
        *self = Self {
            drain: Draining {
                number: self.drain.number.wrapping_add(1),
                ..Draining::default()
            },
            proving: self.proving,
            ..Self::default()
        };
    }
}

impl Draining {
    /// Returns how long this turn's drain has lasted, including the time before an agent restart.
    pub fn elapsed(&self, now: &Now) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed(now))
    }

    pub(super) fn pass_ended(&mut self, progress: DrainProgress, now: &Now) {
        self.last_pass = DrainFacts::default();
        match progress {
            DrainProgress::Done { left_behind } => {
                (self.last_pass.done, self.last_pass.left_behind) = (true, left_behind);
                self.next_pass = None;
            }
            DrainProgress::Waiting { blockers, next } => {
                self.last_pass.blockers = blockers;
                self.next_pass = Some(now.clock + next);
            }
        }
    }

    /// Starts a new drain. The time limit still counts from the start of the first drain.
    pub(super) fn restart(&mut self) {
        *self = Self {
            number: self.number.wrapping_add(1),
            since: self.since,
            ..Self::default()
        };
    }

    pub(super) fn facts(&self, now: &Now) -> DrainFacts {
        DrainFacts {
            elapsed: self.elapsed(now),
            next_pass: self.next_pass.map(|at| at.since(now.clock)),
            ..self.last_pass.clone()
        }
    }
}

impl Rebooting {
    pub(super) fn block(&mut self, why: impl Into<String>, now: &Now) {
        self.blocked = Some((why.into(), now.clock));
    }

    /// Records that the commit was taken back. If a reboot was already requested, it counts as blocked.
    pub(super) fn commit_taken_back(&mut self, now: &Now) {
        let asked = self.asked.take().is_some();
        if asked && self.blocked.is_none() {
            self.block("logind accepted the reboot, but no shutdown began", now);
        }
    }

    /// Records that another program's work on the host delays the reboot. After ten minutes, the reboot counts as
    /// blocked.
    pub(super) fn wait_for_other_work(&mut self, why: &str, now: &Now) {
        self.asked = None;
        let since = *self.busy_since.get_or_insert(now.clock);
        if now.clock.since(since) >= BUSY_TIMEOUT {
            let minutes = BUSY_TIMEOUT.as_secs() / 60;
            self.block(
                format!("another program has kept the host busy for {minutes} min: {why}"),
                now,
            );
        }
    }

    pub(super) fn facts(&self, now: &Now) -> Reboot {
        match (&self.blocked, self.asked) {
            (Some((why, since)), _) => Reboot::Blocked {
                why: why.clone(),
                ago: now.clock.since(*since),
            },
            (None, Some(at)) => Reboot::Asked(now.clock.since(at)),
            (None, None) => Reboot::NotAsked,
        }
    }
}
