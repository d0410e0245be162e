use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use berth_api::berth::HoldPhase;

use super::event::DrainProgress;
use crate::agent::facts::{DrainFacts, Reboot};
use crate::agent::step::Step;
use crate::{Moment, Now};

/// How long a drained node waits for another program's work on its host before the turn ends.
const BUSY_TIMEOUT: Duration = Duration::from_secs(600);

/// Knowledge about one turn, dropped when it ends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// The drain.
    pub drain: Draining,
    /// The reboot.
    pub reboot: Rebooting,
    /// Start of the wait for the proof of this boot; `None` if no proof is awaited.
    pub proving: Option<Since>,
    /// When this process first read that the Node is Ready under this boot; `None` if the last read was another.
    pub(super) ready_since: Option<Moment>,
    /// True if this process wrote the Node since it began to give the berth back.
    pub restored: bool,
    /// True if the end of the turn was recorded.
    pub counted: bool,
    pub(super) message: String,
    /// Phase of the berth as this process last wrote it.
    pub wrote: Option<Discriminant<HoldPhase>>,
    /// The last step, if it changed the staged image and succeeded, until another step is decided.
    pub(super) changed: Option<Discriminant<Step>>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draining {
    pub last_pass: DrainFacts,
    pub(super) next_pass: Option<Moment>,
    /// Number of the drain. A new number makes the agent forget the pods of the earlier drain.
    pub number: u64,
    pub since: Option<Since>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rebooting {
    pub asked: Option<Moment>,
    /// Why the requested reboot did not happen, and since when.
    pub blocked: Option<(String, Moment)>,
    /// Moment when another program's work on the host first prevented the unlock or the reboot.
    pub(super) busy_since: Option<Moment>,
}

/// Start of a drain or a wait, perhaps before the start of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Since {
    /// Moment when this process first noticed the drain or the wait.
    pub at: Moment,
    /// How long the drain or the wait had lasted by then.
    pub before: Duration,
}

impl Since {
    pub(super) fn now(now: &Now) -> Self {
        Self {
            at: now.clock,
            before: Duration::ZERO,
        }
    }

    /// Continues from a stored moment of this boot.
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
    /// True if the previous step made the same change to the staged image, so that the change had no effect.
    pub fn repeats(&self, step: &Step) -> bool {
        self.changed == Some(discriminant(step))
    }

    /// Starts a turn without knowledge of the previous one. Keeps `proving`, since the boot may still be unproven.
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
    /// Returns the time since this turn's drain began, including time before an agent restart.
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

    /// Starts the drain again, without extending its time limit.
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

    /// Records that the commit was taken back. If a reboot was requested, it did not begin.
    pub(super) fn commit_taken_back(&mut self, now: &Now) {
        let asked = self.asked.take().is_some();
        if asked && self.blocked.is_none() {
            self.block("logind accepted the reboot, but no shutdown began", now);
        }
    }

    /// Records that another program's work delays the reboot. After ten minutes, the reboot counts as blocked.
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
