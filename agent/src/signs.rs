//! Signs of a turn on the own Node, for tools that know nothing of Berth. They are a courtesy: nothing depends on them. One
//! write may hold up the work for as long as its deadline, so none is made between the unlock and the reboot, nor before the
//! berth is given back. What is left behind is taken off at a later rest.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_api::berth::Berth;
use berth_api::condition::lifecycle::MAINTENANCE_PLANNED;
use berth_core::agent::facts::{AgentFacts, ClusterNode};
use berth_core::agent::knowledge::Event;
use berth_core::agent::lifecycle::Change;
use berth_core::agent::maintenance::wanted;
use berth_core::agent::node::NodeFacts;
use berth_shell::retry;
use tokio::time::timeout;

use crate::node::cordon::{self, NodeError};
use crate::node::lifecycle;
use crate::run::Agent;

/// Longest time that a write may hold up the work.
const DEADLINE: Duration = Duration::from_secs(5);
/// Delays after failures in a row: the first, and the longest.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(300);

/// Time for which a node has waited for its turn before its Node says so: a turn that comes soon costs no write more.
const PLANNED_AFTER: Duration = Duration::from_secs(60);

/// Pause after a write that came to nothing, and before the Node says that a turn is planned.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    until: Option<Instant>,
    failures: u32,
    /// Moment since when nothing but the planned turn is to be shown.
    planned: Option<Instant>,
}

impl Pause {
    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| until <= Instant::now())
    }

    /// Time until the next try; `None` when nothing has to be waited for.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// True while nothing is to be shown but a planned turn, and that not for long enough.
    fn is_early(&mut self, changes: &[Change], now: Instant) -> bool {
        let is_planned = matches!(changes, [change] if change.set && change.type_ == MAINTENANCE_PLANNED);
        if !is_planned {
            self.planned = None;
            return false;
        }
        now.duration_since(*self.planned.get_or_insert(now)) < PLANNED_AFTER
    }

    /// Takes note of an error. Says whether the Node must be read again before the next try: it has changed since, which is
    /// nobody's failure and makes no pause longer.
    fn after(&mut self, error: &anyhow::Error) -> bool {
        let is_stale = matches!(error.downcast_ref(), Some(NodeError::Conflict));
        let attempts = match is_stale {
            true => 1,
            false => {
                self.failures = self.failures.saturating_add(1);
                self.failures
            }
        };
        self.until = Some(Instant::now() + retry::delay(attempts, FIRST_DELAY, LONGEST_DELAY));
        is_stale
    }
}

impl Agent {
    /// Makes the Node's lifecycle conditions say what they should now, and takes off what a cordon that is gone has left. Says
    /// whether it tried: that may have taken some time.
    pub(crate) async fn show_signs(&mut self, facts: &AgentFacts) -> bool {
        let (Some(node), Some((wanted, berth))) = (facts.cluster_node.get(), wanted(facts)) else {
            return false;
        };
        let changes = node.signs.lifecycle.changes(wanted);
        let is_nothing_left = changes.is_empty() && !node.has_left_guards();
        let is_early = self.signs.is_early(&changes, Instant::now()) && !node.has_left_guards();
        if is_nothing_left || is_early || !self.signs.is_over() {
            return false;
        }
        let message = berth.map_or_else(|| planned(facts), message);
        let name = self.node.clone();
        let write = async {
            let client = self.kubelet.get().await?;
            let mut after = node.clone();
            if !changes.is_empty() {
                after = lifecycle::write(client, name.as_str(), &after, &changes, &message).await?;
            }
            if after.has_left_guards() {
                after = cordon::take_guards_off(client, name.as_str(), &after).await?;
            }
            anyhow::Ok(after)
        };
        match in_time(write).await {
            Ok(after) => {
                self.signs = Pause::default();
                self.learn(Event::NodeRead(ClusterNode::Is(after)));
            }
            Err(error) => self.signs_not_written(&error),
        }
        true
    }

    /// Takes our lifecycle conditions off a Node that was given back.
    pub(crate) async fn take_signs_off(&mut self, node: &NodeFacts) {
        let name = self.node.clone();
        let write = async {
            let client = self.kubelet.get().await?;
            anyhow::Ok(lifecycle::take_off(client, name.as_str(), node).await?)
        };
        match in_time(write).await {
            Ok(()) => self.signs = Pause::default(),
            Err(error) => self.signs_not_written(&error),
        }
    }

    fn signs_not_written(&mut self, error: &anyhow::Error) {
        if self.signs.after(error) {
            self.learn(Event::Unreadable);
        }
        let error = format!("{error:#}");
        tracing::warn!(error, "cannot write the signs of a turn on the Node; trying again");
    }
}

async fn in_time<T>(write: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(DEADLINE, write)
        .await
        .context("the API server did not answer in time")?
}

fn message(berth: &Berth) -> String {
    let name = berth.name();
    match berth.holding() {
        Some(holding) => format!("berth {name}: on its way to {}", holding.target),
        None => format!("berth {name}"),
    }
}

/// Message of a node that waits for its turn.
fn planned(facts: &AgentFacts) -> String {
    let digest = facts.desired.digest().map(ToString::to_string).unwrap_or_default();
    format!("{digest} is staged; the node is drained and rebooted when it is offered a berth")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_less_and_less_often() {
        let mut pause = Pause::default();
        assert!(pause.is_over() && pause.left().is_none());
        let error = || anyhow::anyhow!("the API server is away");
        assert!(!pause.after(&error()));
        assert!(!pause.is_over() && pause.left().is_some());
        let first = pause.until.unwrap();
        for _ in 0..40 {
            pause.after(&error());
        }
        let last = pause.until.unwrap();
        // The jitter included.
        assert!(last > first + LONGEST_DELAY / 2 && last <= Instant::now() + 2 * LONGEST_DELAY);
    }

    #[test]
    fn a_turn_that_comes_soon_is_not_announced() {
        let mut pause = Pause::default();
        let change = |type_, set| Change { type_, set };
        let planned = [change(MAINTENANCE_PLANNED, true)];
        let now = Instant::now();
        assert!(pause.is_early(&planned, now));
        assert!(pause.is_early(&planned, now + PLANNED_AFTER / 2));
        assert!(!pause.is_early(&planned, now + PLANNED_AFTER));
        // Its turn, and the next update.
        assert!(!pause.is_early(&[change("DrainInProgress", true)], now + PLANNED_AFTER));
        assert!(
            pause.is_early(&planned, now + 2 * PLANNED_AFTER),
            "counted from the beginning"
        );
        assert!(
            !pause.is_early(&[change(MAINTENANCE_PLANNED, false)], now),
            "what is over is taken off at once"
        );
    }

    #[test]
    fn a_conflict_is_no_failure_and_the_node_is_read_again() {
        let mut pause = Pause::default();
        for _ in 0..40 {
            assert!(pause.after(&NodeError::Conflict.into()), "what was read is of no use");
        }
        assert!(pause.failures == 0 && pause.left().unwrap() <= 2 * FIRST_DELAY);
        // The first failure afterwards counts as the first.
        assert!(!pause.after(&NodeError::Gone.into()));
        assert!(pause.left().unwrap() <= 2 * FIRST_DELAY);
    }
}
