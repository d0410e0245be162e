//! Input for explaining why a node is not offered a berth: the node, and the facts and rules that its pool is planned
//! from.

use std::collections::BTreeSet;

use berth_api::NodeName;
use berth_api::pool::BootcNodePoolSpec;
use jiff::{SignedDuration, Timestamp};

use super::settle::settled;
use crate::controller::gate::{FleetGate, GateReason};
use crate::controller::gates::{Inputs, gates};
use crate::controller::plan::{self, BlockReason, PoolFacts};

/// Maximum number of plans to simulate. The controller may need several passes before it can offer a berth.
pub(super) const MAX_PASSES: usize = 6;
/// Maximum number of times to check. Each is a time when a window or an exclusion begins or ends.
const MAX_OPENINGS: usize = 64;
/// Assumed length of an open window. Any turn fits into it.
const LONG: SignedDuration = SignedDuration::from_hours(30 * 24);

/// A node, and the facts and rules for planning its pool.
#[derive(Debug, Clone)]
pub struct Case {
    /// The node.
    pub node: NodeName,
    /// Facts of the node's pool. The gates in the facts follow from `rules` and `now`.
    pub facts: PoolFacts,
    /// Rules that decide whether the gates are closed.
    pub rules: Rules,
    /// Time of the plan.
    pub now: Timestamp,
    /// True to assume that a window is open and long enough for every turn.
    pub(super) is_open: bool,
}

/// Input for evaluating a pool's gates, apart from the time.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Spec of the pool.
    pub spec: BootcNodePoolSpec,
    /// The BootcFleet's gate, which closes all pools; `None` if it is open.
    pub fleet: Option<FleetGate>,
    /// True if the controller's clock is synchronized.
    pub clock_synchronized: bool,
    /// Expected length of a drain and a reboot in the pool.
    pub needed: std::time::Duration,
}

impl Case {
    /// Creates a case, and evaluates the gates from `rules` at `now`. If all pools can be read, assumes that the leader
    /// has fenced all berths.
    pub fn new(node: NodeName, facts: PoolFacts, rules: Rules, now: Timestamp) -> Self {
        let mut this = Self {
            node,
            facts,
            rules,
            now,
            is_open: false,
        };
        if let Some(fleet) = this.facts.fleet.as_mut().filter(|fleet| fleet.unreadable.is_empty()) {
            fleet.unfenced = false;
        }
        this.judge();
        this
    }

    /// Evaluates the gates from the rules and the time. Returns the next time when a window or an exclusion begins or
    /// ends.
    pub(super) fn judge(&mut self) -> Option<Timestamp> {
        let pool = self.facts.pool.clone();
        let gates = gates(Inputs {
            pool: &pool,
            spec: &self.rules.spec,
            fleet: self.rules.fleet,
            clock_synchronized: self.rules.clock_synchronized,
            needed: self.rules.needed,
            now: self.now,
        });
        (self.facts.gate, self.facts.closes) = (gates.gate, gates.closes);
        if self.is_open {
            self.facts.closes = self.now.checked_add(LONG).ok();
        }
        gates.changes
    }

    pub(super) fn own(&self) -> Option<&plan::Member> {
        self.facts.members.iter().find(|member| member.name == self.node)
    }

    /// Returns `Ok` if one of the controller's next plans offers the node a berth, assuming that agents and admins
    /// write nothing. Otherwise returns why the node waits.
    pub fn offered(&self) -> Result<(), BlockReason> {
        let mut after: Option<PoolFacts> = None;
        let mut wait = BlockReason::Leaving;
        for _ in 0..MAX_PASSES {
            let facts = after.as_ref().unwrap_or(&self.facts);
            let plan = plan::plan(facts, self.now);
            if plan.writes.iter().any(|write| self.is_offered_by(write)) {
                return Ok(());
            }
            wait = plan.waiting.get(&self.node).copied().unwrap_or(BlockReason::Leaving);
            let Some(next) = settled(facts, &plan) else { break };
            after = Some(next);
        }
        Err(wait)
    }

    fn is_offered_by(&self, write: &plan::BerthWrite) -> bool {
        match write {
            plan::BerthWrite::Update { berth, why, .. } if *why == plan::WriteReason::Offer => {
                berth.offer().is_some_and(|offer| offer.node == self.node)
            }
            _ => false,
        }
    }

    /// Returns why the node waits, and the reason of the closed gate if a gate is closed; `None` if the node is offered
    /// a berth.
    pub(super) fn obstacle(&self) -> Option<(BlockReason, Option<GateReason>)> {
        let wait = self.offered().err()?;
        Some((wait, self.facts.gate.as_ref().map(|gate| gate.reason)))
    }

    /// Returns the next start of a window or end of an exclusion that gets the node a berth without any other change.
    /// `None` if there is no such time, or if it is too far ahead.
    pub(super) fn opens(&self) -> Option<Timestamp> {
        let mut case = self.clone();
        let mut next = case.judge();
        // The plan depends only on how long the gate stays open, so each length is tried once.
        let mut tried = BTreeSet::new();
        for _ in 0..MAX_OPENINGS {
            case.now = next.filter(|next| *next > case.now)?;
            next = case.judge();
            let left = case.facts.closes.map(|closes| closes.duration_since(case.now));
            // A closed gate offers nothing.
            if case.facts.gate.is_none() && tried.insert(left) && case.offered().is_ok() {
                return Some(case.now);
            }
        }
        None
    }
}
