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
        // Try a change as the first of two only if it changes the reason why the node waits.
        let firsts = others.into_iter().filter(|(_, _, obstacle)| *obstacle != first);
        let firsts: Vec<(Change, Case)> = firsts.map(|(change, case, _)| (change, case)).collect();
        answer.together = pair(&firsts).unwrap_or_else(|| chain(case));
    }
    // Other reasons to wait do not end at a known time.
    if matches!(wait, BlockReason::Gate | BlockReason::TooLate) {
        answer.opens = case.opens();
    }
    Some(answer)
}

/// Returns the first pair of changes that gets the node a berth. `firsts` has the possible first changes, each with the
/// case after the change.
fn pair(firsts: &[(Change, Case)]) -> Option<Vec<Change>> {
    firsts.iter().find_map(|(first, case)| {
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
