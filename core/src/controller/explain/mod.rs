//! Why a node is offered no berth now, and which changes would get it one. Nothing here knows the rules: it runs the plan
//! itself, with one thing changed at a time. Pure.

use berth_api::NodeName;
use berth_api::pool::BootcNodePoolSpec;
use jiff::{SignedDuration, Timestamp};

use crate::controller::gates::{FleetGate, Inputs, gates};
use crate::controller::plan::{self, BlockReason, GateReason, PoolFacts, forecast};

mod change;
pub(in crate::controller) mod settle;
#[cfg(test)]
mod tests;

pub use change::Change;
use settle::settled;

/// Plans that the controller makes one after the other before nothing is left for it to do but to offer: it fences, closes,
/// records and creates.
const PASSES: usize = 6;
/// Openings of windows that are looked at.
const OPENINGS: usize = 64;
/// Length of a window that is long enough for any turn.
const LONG: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Most changes that are named together, when no two of them are enough.
const TOGETHER: usize = 8;

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
    is_open: bool,
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

/// Answer to why a node is not offered a berth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Reason that the plan gives; `None`: it offers the node a berth now. [`BlockReason::HasBerth`]: the node has one.
    pub wait: Option<BlockReason>,
    /// Changes each of which gets the node its berth, the smallest first.
    pub alone: Vec<Change>,
    /// Changes that do so together, when none does alone. Empty: nothing that is known here would.
    pub together: Vec<Change>,
    /// Time at which it is offered a berth when nothing changes but the time, because a window opens or an exclusion ends.
    pub opens: Option<Timestamp>,
    /// Number of members whose turns come before its own, if all goes well; `None`: its turn does not come by itself.
    pub ahead: Option<usize>,
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
    fn judge(&mut self) -> Option<Timestamp> {
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
    fn own(&self) -> Option<&plan::Member> {
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
    fn obstacle(&self) -> Option<(BlockReason, Option<GateReason>)> {
        let wait = self.offered().err()?;
        Some((wait, self.facts.gate.as_ref().map(|gate| gate.reason)))
    }

    /// Time at which the node is offered a berth, when nothing changes but the time.
    fn opens(&self) -> Option<Timestamp> {
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

/// Explains why a node is not offered a berth. `None`: it is no member of the pool.
pub fn explain(case: &Case) -> Option<Explanation> {
    case.own()?;
    let turns = forecast(&case.facts, case.now).turns;
    let ahead = turns.iter().position(|turn| turn.node == case.node && turn.comes);
    let mut answer = Explanation {
        wait: case.offered().err(),
        alone: vec![],
        together: vec![],
        opens: None,
        ahead,
    };
    let Some(wait) = answer.wait else { return Some(answer) };
    if matches!(wait, BlockReason::HasBerth | BlockReason::UpToDate) {
        return Some(answer);
    }
    let tried: Vec<(Change, Case)> = Change::all(case)
        .into_iter()
        .filter_map(|change| Some((change.clone(), change.applied(case)?)))
        .collect();
    let first = case.obstacle();
    let judged = tried.into_iter().map(|(change, case)| {
        let obstacle = case.obstacle();
        (change, case, obstacle)
    });
    let (alone, others): (Vec<_>, Vec<_>) = judged.partition(|(_, _, obstacle)| obstacle.is_none());
    answer.alone = alone.into_iter().map(|(change, _, _)| change).collect();
    answer.alone.extend(Change::numbers(case));
    answer.alone.sort();
    if answer.alone.is_empty() {
        // One of two that are enough takes away the first thing that is in the way.
        let firsts = others.into_iter().filter(|(_, _, obstacle)| *obstacle != first);
        let firsts: Vec<(Change, Case)> = firsts.map(|(change, case, _)| (change, case)).collect();
        answer.together = pair(&firsts).unwrap_or_else(|| chain(case));
    }
    // Time alone ends no other reason.
    if matches!(wait, BlockReason::Gate | BlockReason::TooLate) {
        answer.opens = case.opens();
    }
    Some(answer)
}

/// The first two changes that are enough together.
fn pair(firsts: &[(Change, Case)]) -> Option<Vec<Change>> {
    firsts.iter().find_map(|(first, case)| {
        let is_enough = |second: &Change| second.applied(case).is_some_and(|case| case.offered().is_ok());
        let second = Change::all(case).into_iter().find(is_enough);
        let second = second.or_else(|| Change::numbers(case).into_iter().next())?;
        let mut both = vec![first.clone(), second];
        both.sort();
        Some(both)
    })
}

/// Changes that take away one thing after the other that is in the way, until nothing is.
fn chain(case: &Case) -> Vec<Change> {
    let (mut case, mut changes) = (case.clone(), vec![]);
    loop {
        let obstacle = case.obstacle();
        if obstacle.is_none() {
            return changes;
        }
        if changes.len() >= TOGETHER {
            return vec![];
        }
        if let Some(last) = Change::numbers(&case).into_iter().next() {
            changes.push(last);
            return changes;
        }
        let next = Change::all(&case).into_iter().find_map(|change| {
            let case = change.applied(&case)?;
            (case.obstacle() != obstacle && !changes.contains(&change)).then_some((change, case))
        });
        let Some((change, next)) = next else {
            return vec![];
        };
        changes.push(change);
        case = next;
    }
}
