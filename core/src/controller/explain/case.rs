//! Input for explaining why a node is not offered a berth: the node, and the facts and rules that its pool is planned
//! from.

use berth_api::NodeName;
use berth_api::pool::BootcNodePoolSpec;
use jiff::{SignedDuration, Timestamp};

use super::settle::settled;
use crate::controller::gate::{FleetGate, GateReason};
use crate::controller::gates::{Inputs, gates};
use crate::controller::plan::{self, BlockReason, PoolFacts};

/// Maximum number of plans to simulate, since the controller may need several passes until it can offer a berth.
pub(super) const MAX_PASSES: usize = 6;
/// Maximum number of moments to check. At each of them, a window or an exclusion begins or ends.
const MAX_OPENINGS: usize = 64;
/// Assumed length of a window that is long enough for every turn.
const LONG: SignedDuration = SignedDuration::from_hours(30 * 24);

/// A node, with the facts and rules that its pool is planned from.
#[derive(Debug, Clone)]
pub struct Case {
    /// The node.
    pub node: NodeName,
    /// Facts of the node's pool. The gates in them come from applying `rules` at `now`.
    pub facts: PoolFacts,
    /// Rules that decide whether the gates are closed.
    pub rules: Rules,
    /// Time of the plan.
    pub now: Timestamp,
    /// True if a window is assumed to be open, and long enough for every turn.
    pub(super) is_open: bool,
}

/// Input for deciding whether a pool's gates are closed, besides the time.
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
    /// Creates a case, with the gates that `rules` give at `now`. If all pools can be read, assumes that the leader has
    /// fenced all berths.
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

    /// Sets the gates from the rules and the time. Returns when a window or an exclusion begins or ends next.
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

    /// Returns `Ok` if the controller offers the node a berth in one of its next plans while agents and admins write
    /// nothing.
    pub fn offered(&self) -> Result<(), BlockReason> {
        let mut facts = self.facts.clone();
        let mut wait = BlockReason::Leaving;
        for _ in 0..MAX_PASSES {
            let plan = plan::plan(&facts, self.now);
            if plan.writes.iter().any(|write| self.is_offered_by(write)) {
                return Ok(());
            }
            wait = plan.waiting.get(&self.node).copied().unwrap_or(BlockReason::Leaving);
            let Some(next) = settled(&facts, &plan) else { break };
            facts = next;
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

    /// Returns why the node waits, with the reason of a closed gate; `None` if the node is offered a berth.
    pub(super) fn obstacle(&self) -> Option<(BlockReason, Option<GateReason>)> {
        let wait = self.offered().err()?;
        Some((wait, self.facts.gate.as_ref().map(|gate| gate.reason)))
    }

    /// Returns the next time when a window opens or an exclusion ends, and the node gets a berth without any other
    /// change. `None` if no such time was found.
    pub(super) fn opens(&self) -> Option<Timestamp> {
        let mut case = self.clone();
        for _ in 0..MAX_OPENINGS {
            case.now = case.judge().filter(|next| *next > case.now)?;
            case.judge();
            if case.offered().is_ok() {
                return Some(case.now);
            }
        }
        None
    }
}
