//! Telemetry of the agent's loop: readiness, metrics and the log of its steps.

use std::mem::discriminant;

use berth_api::node::{BootcNode, Phase};
use berth_core::agent::facts::AgentFacts;
use berth_core::agent::report::phase;
use berth_core::agent::step::{Step, WaitReason};

use crate::metrics::Metrics;
use crate::ready::ReadyFile;

#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) ready: ReadyFile,
    pub(crate) metrics: Metrics,
    last_log: Option<(Phase, Step)>,
    failed_passes: u32,
}

impl Telemetry {
    pub(crate) fn new(ready: ReadyFile, metrics: Metrics) -> Self {
        Self {
            ready,
            metrics,
            last_log: None,
            failed_passes: 0,
        }
    }

    /// Reports to the service manager's watchdog and to the liveness probe that the loop works.
    pub(crate) fn notify_alive(&self) {
        self.ready.turn_begins();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
    }

    /// Records a pass without an error. `has_answers` is false if the host did not answer. Such a pass does not make
    /// the agent ready.
    pub(crate) fn passed(&mut self, has_answers: bool) {
        self.failed_passes = 0;
        if has_answers {
            self.ready.turn_ended();
        }
    }

    /// Counts a failed pass. Returns the number of consecutive failed passes.
    pub(crate) fn failed(&mut self) -> u32 {
        self.metrics.failed();
        self.failed_passes = self.failed_passes.saturating_add(1);
        self.failed_passes
    }

    /// Logs the step if it differs from the last one logged.
    pub(crate) fn log(&mut self, facts: &AgentFacts, next: &Step, object: Option<&BootcNode>) {
        let phase = phase(facts, next);
        let same = self.last_log.as_ref().is_some_and(|(p, s)| {
            *p == phase && discriminant(s) == discriminant(next) && wait_reason(s) == wait_reason(next)
        });
        if same {
            return;
        }
        let pool = object.map(|o| o.spec.pool_name.as_str()).unwrap_or_default();
        tracing::info!(phase = phase.as_str(), step = describe(next), pool, "step");
        self.last_log = Some((phase, next.clone()));
    }
}

fn wait_reason(step: &Step) -> Option<WaitReason> {
    match step {
        Step::Wait(why, _) => Some(*why),
        _ => None,
    }
}

pub(crate) fn describe(step: &Step) -> String {
    match step {
        Step::Wait(why, _) => format!("Wait({why:?})"),
        Step::StartPull(image, _) => format!("StartPull({})", image.reference),
        Step::CancelPull(digest) => format!("CancelPull({digest})"),
        Step::Rollback(to, ..) => format!("Rollback({to})"),
        Step::Take(b) => format!("Take({})", b.name()),
        Step::Cordon(b) => format!("Cordon({})", b.name()),
        Step::Commit(b) => format!("Commit({})", b.name()),
        Step::Fence(b) => format!("Fence({})", b.name()),
        Step::Uncommit(b) => format!("Uncommit({})", b.name()),
        Step::Relicense(b, digest) => format!("Relicense({}, {digest})", b.name()),
        Step::Release(b, outcome, message) => format!("Release({}, {}, {message})", b.name(), outcome.as_str()),
        Step::Restore(b) => format!("Restore({})", b.name()),
        Step::GiveBack(b) => format!("GiveBack({})", b.name()),
        Step::Lock(_) => "Lock".to_owned(),
        Step::Unstage(_) => "Unstage".to_owned(),
        Step::LookAtHost
        | Step::ReadNode
        | Step::TryGuard
        | Step::Unlock
        | Step::Reboot
        | Step::Drain
        | Step::Uncordon => format!("{step:?}"),
    }
}
