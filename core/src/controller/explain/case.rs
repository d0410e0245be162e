//! One node, and the facts and rules that its pool's plan is made from.

use berth_api::NodeName;
use berth_api::pool::BootcNodePoolSpec;
use jiff::{SignedDuration, Timestamp};

use super::settle::settled;
use crate::controller::gate::{FleetGate, GateReason};
use crate::controller::gates::{Inputs, gates};
use crate::controller::plan::{self, BlockReason, PoolFacts};

/// Plans that the controller makes one after the other before nothing is left for it to do but to offer: it fences, closes,
/// records and creates.
pub(super) const PASSES: usize = 6;
/// Openings of windows that are looked at.
const OPENINGS: usize = 64;
/// Length of a window that is long enough for any turn.
const LONG: SignedDuration = SignedDuration::from_hours(30 * 24);

/// One node, and all that its pool's plan is made from.
#[derive(Debug, Clone)]
pub struct Case {
    /// The node.
    pub node: NodeName,
    /// Facts of its pool; the gates in them are those of the rules.
    pub facts: PoolFacts,
    /// Rules that the gates are judged by.
    pub rules: Rules,
    /// Time at which it is planned.
    pub now: Timestamp,
    /// A window is taken to be open, and long enough for any turn.
    pub(super) is_open: bool,
}

/// Rules that a pool's gates are judged by, beside the time.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Spec of the pool.
    pub spec: BootcNodePoolSpec,
    /// Reason for which the BootcFleet closes all pools.
    pub fleet: Option<FleetGate>,
    /// The controller's clock is synchronised.
    pub clock_synchronized: bool,
    /// Expected length of a drain and a reboot in the pool.
    pub needed: std::time::Duration,
}

impl Case {
    /// A case whose gates are judged by the rules. What a leader does first, to fence the berths of the fleet, is taken as
    /// done, unless nobody can read them.
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

    /// Judges the gates anew. Answers when a window or an exclusion begins or ends next.
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

    /// The facts of the node itself; `None`: it is no member of the pool.
    pub(super) fn own(&self) -> Option<&plan::Member> {
        self.facts.members.iter().find(|member| member.name == self.node)
    }

    /// Says whether the plan offers the node a berth, once the controller has done all that it does before; else why not.
    ///
    /// # Errors
    /// The plan's reason. For a node that is no member: [`BlockReason::Leaving`].
    pub fn offered(&self) -> Result<(), BlockReason> {
        let mut facts = self.facts.clone();
        let mut wait = BlockReason::Leaving;
        for _ in 0..PASSES {
            let plan = plan::plan(&facts, self.now);
            let offers = |write: &plan::BerthWrite| match write {
                plan::BerthWrite::Update { berth, why, .. } if *why == plan::WriteReason::Offer => {
                    berth.offer().is_some_and(|offer| offer.node == self.node)
                }
                _ => false,
            };
            if plan.writes.iter().any(offers) {
                return Ok(());
            }
            wait = plan.waiting.get(&self.node).copied().unwrap_or(BlockReason::Leaving);
            let Some(next) = settled(&facts, &plan) else { break };
            facts = next;
        }
        Err(wait)
    }

    /// The first thing that is in the way; `None`: the node is offered a berth.
    pub(super) fn obstacle(&self) -> Option<(BlockReason, Option<GateReason>)> {
        let wait = self.offered().err()?;
        Some((wait, self.facts.gate.as_ref().map(|gate| gate.reason)))
    }

    /// Time at which the node is offered a berth, when nothing changes but the time.
    pub(super) fn opens(&self) -> Option<Timestamp> {
        let mut case = self.clone();
        for _ in 0..OPENINGS {
            case.now = case.judge().filter(|next| *next > case.now)?;
            case.judge();
            if case.offered().is_ok() {
                return Some(case.now);
            }
        }
        None
    }
}
