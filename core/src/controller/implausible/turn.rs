//! How long a node holds a berth without reporting a problem.

use std::time::Duration;

use berth_api::Digest;
use berth_api::berth::Holding;

use crate::Moment;
use crate::controller::view::BootcNodeContent;

/// A berth that a node holds.
#[derive(Debug, Clone, Copy)]
pub struct Held<'a> {
    /// Name of the berth.
    pub berth: &'a str,
    /// State of the berth.
    pub holding: &'a Holding,
    /// When this process last saw the holder write its berth or its BootcNode.
    pub heard: Moment,
    /// Longest time that a turn may take, without the times when the agent pulls or reports a problem. `None` if the
    /// pool cannot be read.
    pub limit: Option<Duration>,
}

/// Time that a node has held a berth. Times when its agent is silent, pulls an image or reports a problem do not count:
/// other conditions show them, and they may last for as long as an admin wants.
#[derive(Debug, Default)]
pub(super) struct HeldTime {
    turn: Option<Turn>,
    is_named: bool,
}

#[derive(Debug)]
struct Turn {
    berth: String,
    /// Published image that the berth licenses. The node may adopt a newer one in the same turn.
    target: Digest,
    total: Duration,
    /// Last write of the holder.
    last: Moment,
    /// True if the time since `last` counts.
    counts: bool,
}

impl HeldTime {
    /// Returns the memory of a node whose endless turn an earlier leader has found.
    pub(super) const fn named() -> Self {
        Self {
            turn: None,
            is_named: true,
        }
    }

    pub(super) const fn is_named(&self) -> bool {
        self.is_named
    }

    pub(super) fn pause(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.counts = false;
        }
    }

    /// `is_settled`: true if the agent's report is current.
    pub(super) fn see(
        &mut self,
        held: Option<Held<'_>>,
        content: &BootcNodeContent,
        is_settled: bool,
        silence: Duration,
    ) {
        let Some(held) = held else {
            *self = Self::default();
            return;
        };
        if self.turn.as_ref().is_some_and(|turn| turn.berth != held.berth) {
            *self = Self::default();
        }
        let target = &held.holding.target;
        let is_published = content.spec.image.as_ref().is_some_and(|image| image.digest == *target);
        // Only a newly published image starts the time again: a holder may commit to any digest.
        let turn = self.turn.take().filter(|turn| turn.target == *target || !is_published);
        let mut turn = turn.unwrap_or_else(|| Turn::new(held));
        if turn.counts {
            // A silent holder is named by `RebootTimedOut`. Here its silence counts as one heartbeat.
            turn.total += held.heard.since(turn.last).min(silence / 3);
        }
        turn.last = turn.last.max(held.heard);
        turn.counts = is_settled && content.report.degraded.is_none() && !content.report.pull.pulling;
        self.is_named |= held.limit.is_some_and(|limit| turn.total >= limit);
        self.turn = Some(turn);
    }
}

impl Turn {
    fn new(held: Held<'_>) -> Self {
        Self {
            berth: held.berth.to_owned(),
            target: held.holding.target.clone(),
            total: Duration::ZERO,
            last: held.heard,
            counts: false,
        }
    }
}
