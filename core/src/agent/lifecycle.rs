//! Lifecycle conditions of a Node as its agent reads them, and the changes that are the agent's to make.

use berth_api::condition::lifecycle::{ALL, REASON};

/// Word of one condition, and whose it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sign {
    /// The condition is not there, or has our reason and is not True.
    #[default]
    NotSet,
    /// True, and set by an agent.
    Ours,
    /// Written by somebody else.
    Others,
}

/// The lifecycle conditions of a Node, in the order of [`ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lifecycle([Sign; ALL.len()]);

/// Change of one condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Its type.
    pub type_: &'static str,
    /// True: set it to True. False: remove it.
    pub set: bool,
}

/// Conditions as they should be, in the order of [`ALL`].
pub type Wanted = [bool; ALL.len()];

/// None of them: what they should say without a cordon of ours.
pub const NOTHING: Wanted = [false; ALL.len()];

impl Lifecycle {
    /// Takes in a condition of the Node: its type, status and reason.
    pub fn take_in(&mut self, type_: &str, status: &str, reason: &str) {
        let signs = ALL.iter().zip(&mut self.0);
        for (_, sign) in signs.filter(|(known, _)| **known == type_) {
            *sign = match (status, reason) {
                ("True", REASON) => Sign::Ours,
                (_, REASON) => Sign::NotSet,
                _ => Sign::Others,
            };
        }
    }

    /// Changes that make them say what they should, as far as they are ours to change.
    pub fn changes(&self, wanted: Wanted) -> Vec<Change> {
        let each = ALL.into_iter().zip(self.0).zip(wanted);
        each.filter_map(|((type_, sign), wanted)| match (sign, wanted) {
            (Sign::NotSet, true) => Some(Change { type_, set: true }),
            (Sign::Ours, false) => Some(Change { type_, set: false }),
            _ => None,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use berth_api::condition::lifecycle::{DRAIN_IN_PROGRESS, DRAINED, MAINTENANCE_IN_PROGRESS, MAINTENANCE_PLANNED};

    use super::*;

    fn seen(conditions: &[(&str, &str, &str)]) -> Lifecycle {
        let mut lifecycle = Lifecycle::default();
        for (type_, status, reason) in conditions {
            lifecycle.take_in(type_, status, reason);
        }
        lifecycle
    }

    const PLANNED: Wanted = [true, false, false, false];
    const DRAINING: Wanted = [false, true, false, true];
    const DOWN: Wanted = [false, false, true, true];

    #[test]
    fn what_is_set_is_ours_and_what_is_ours_goes() {
        let set = |type_| Change { type_, set: true };
        let remove = |type_| Change { type_, set: false };
        let (planned, drain, drained, works) =
            (MAINTENANCE_PLANNED, DRAIN_IN_PROGRESS, DRAINED, MAINTENANCE_IN_PROGRESS);
        let ours = |types: &[&'static str]| {
            let conditions: Vec<_> = types.iter().map(|type_| (*type_, "True", REASON)).collect();
            seen(&conditions)
        };
        for (lifecycle, wanted, changes) in [
            (seen(&[]), NOTHING, vec![]),
            (seen(&[]), PLANNED, vec![set(planned)]),
            (ours(&[planned]), PLANNED, vec![]),
            (ours(&[planned]), NOTHING, vec![remove(planned)]),
            (
                ours(&[planned]),
                DRAINING,
                vec![remove(planned), set(drain), set(works)],
            ),
            (seen(&[]), DRAINING, vec![set(drain), set(works)]),
            (ours(&[drain, works]), DRAINING, vec![]),
            (ours(&[drain, works]), DOWN, vec![remove(drain), set(drained)]),
            (ours(&[drained, works]), DRAINING, vec![set(drain), remove(drained)]),
            (ours(&[drained, works]), NOTHING, vec![remove(drained), remove(works)]),
        ] {
            assert_eq!(lifecycle.changes(wanted), changes, "{lifecycle:?} {wanted:?}");
        }
    }

    #[test]
    fn what_somebody_else_says_is_theirs() {
        let admins = seen(&[(MAINTENANCE_IN_PROGRESS, "True", "AdminRequested")]);
        let only = |type_, set| vec![Change { type_, set }];
        assert_eq!(admins.changes(DRAINING), only(DRAIN_IN_PROGRESS, true));
        assert_eq!(admins.changes(NOTHING), vec![]);
        // The same for one that says that it is not so.
        let denied = seen(&[(MAINTENANCE_IN_PROGRESS, "False", "NoMaintenance")]);
        assert_eq!(denied.changes(DRAINING), only(DRAIN_IN_PROGRESS, true));
        assert_eq!(denied.changes(NOTHING), vec![]);
        // Taken over by somebody during the turn, or ours and set to False by them.
        let taken = seen(&[
            (DRAINED, "True", "DrainCompleted"),
            (MAINTENANCE_IN_PROGRESS, "False", REASON),
        ]);
        assert_eq!(taken.changes(NOTHING), vec![]);
        assert_eq!(taken.changes(DOWN), only(MAINTENANCE_IN_PROGRESS, true));
        let others = seen(&[("Ready", "True", REASON), ("DiskPressure", "True", "x")]);
        assert_eq!(others, Lifecycle::default());
    }
}
