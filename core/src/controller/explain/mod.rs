//! Explains why a node is not offered a berth, and which changes would get the node a berth. To find them, this module
//! applies possible changes to the facts and plans again, so it has no rules of its own. Pure.

use jiff::Timestamp;

use crate::controller::forecast::forecast;
use crate::controller::plan::BlockReason;

mod case;
mod change;
pub(in crate::controller) mod settle;
#[cfg(test)]
mod tests;

pub use case::{Case, Rules};
pub use change::Change;

/// Maximum number of changes in a combination. A combination of more than two is tried only if no pair is enough.
const MAX_TOGETHER: usize = 8;

/// Explanation why a node is not offered a berth.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Explanation {
    /// Why the node waits. `None` if the node is offered a berth now. [`BlockReason::HasBerth`] if the node already has
    /// a berth.
    pub wait: Option<BlockReason>,
    /// Changes, smallest first. Each of them alone gets the node a berth.
    pub alone: Vec<Change>,
    /// Changes that get the node a berth together. Searched only if `alone` is empty. Empty if the search found none.
    pub together: Vec<Change>,
    /// Next start of a window or end of an exclusion, if the node is then offered a berth without any other change.
    pub opens: Option<Timestamp>,
    /// Number of members whose turns come before the node's turn, if every turn succeeds. `None` if the node gets no
    /// turn without a person's help.
    pub ahead: Option<usize>,
}

/// Explains why a node is not offered a berth. `None` if it is not a member of the pool.
pub fn explain(case: &Case) -> Option<Explanation> {
    case.own()?;
    let turns = forecast(&case.facts, case.now).turns;
    let ahead = turns.iter().position(|turn| turn.node == case.node && turn.comes);
    let mut answer = Explanation {
        wait: case.offered().err(),
        ahead,
        ..Explanation::default()
    };
    let Some(wait) = answer.wait else { return Some(answer) };
    if matches!(wait, BlockReason::HasBerth | BlockReason::UpToDate) {
        return Some(answer);
    }
    let first = case.obstacle();
    // Each changed case has facts about all members, so only one of them is kept at a time.
    let mut firsts = vec![];
    for change in Change::all(case) {
        let Some(changed) = change.applied(case) else { continue };
        match changed.obstacle() {
            None => answer.alone.push(change),
            // Try a change as the first of two only if it changes the reason why the node waits.
            obstacle if obstacle != first => firsts.push(change),
            Some(_) => {}
        }
    }
    answer.alone.extend(Change::numbers(case));
    answer.alone.sort();
    if answer.alone.is_empty() {
        answer.together = pair(case, &firsts).unwrap_or_else(|| chain(case));
    }
    // Other reasons to wait do not end at a known time.
    if matches!(wait, BlockReason::Gate | BlockReason::TooLate) {
        answer.opens = case.opens();
    }
    Some(answer)
}

/// Returns the first pair of changes that gets the node a berth. `firsts` has the possible first changes.
fn pair(case: &Case, firsts: &[Change]) -> Option<Vec<Change>> {
    firsts.iter().find_map(|first| {
        let case = &first.applied(case)?;
        let second = Change::all(case).into_iter().find(|second| second.is_enough(case));
        let second = second.or_else(|| Change::numbers(case).into_iter().next())?;
        let mut both = vec![first.clone(), second];
        both.sort();
        Some(both)
    })
}

/// Returns a sequence of changes that gets the node a berth. Each change removes the current reason to wait. Empty if
/// no sequence was found.
fn chain(case: &Case) -> Vec<Change> {
    let (mut case, mut changes) = (case.clone(), vec![]);
    loop {
        let obstacle = case.obstacle();
        if obstacle.is_none() {
            return changes;
        }
        if changes.len() >= MAX_TOGETHER {
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
