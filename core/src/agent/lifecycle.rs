//! The lifecycle conditions of a Node, such as `MaintenancePlanned`: their state as the node's agent reads it, and the
//! changes that the agent may make.

use berth_api::condition::lifecycle::{ALL, REASON};

/// State of one lifecycle condition: whether it is True, and who wrote it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sign {
    /// The Node lacks the condition, or an agent wrote the condition with a status other than True.
    #[default]
    NotSet,
    /// An agent wrote the condition, and it is True.
    Ours,
    /// Another program or person wrote the condition.
    Others,
}

/// The lifecycle conditions of a Node, in the order of [`ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lifecycle([Sign; ALL.len()]);

/// Change to one condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Type of the condition.
    pub type_: &'static str,
    /// True to set the condition to True, false to remove it.
    pub set: bool,
}

/// For each condition, in the order of [`ALL`]: true if the Node should have it.
pub type Wanted = [bool; ALL.len()];

/// Without Berth's cordon, the Node should have none of the conditions.
pub const NOTHING: Wanted = [false; ALL.len()];

impl Lifecycle {
    /// Records a condition read from the Node.
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

    /// Returns the changes that give the Node the wanted conditions. A condition that another program or person wrote
    /// is not changed.
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

    fn set(type_: &'static str) -> Change {
        Change { type_, set: true }
    }

    fn remove(type_: &'static str) -> Change {
        Change { type_, set: false }
    }

    fn ours(types: &[&'static str]) -> Lifecycle {
        let conditions: Vec<_> = types.iter().map(|type_| (*type_, "True", REASON)).collect();
        seen(&conditions)
    }

    #[test]
    fn own_conditions_are_set_and_removed() {
        let (planned, drain, drained, works) =
            (MAINTENANCE_PLANNED, DRAIN_IN_PROGRESS, DRAINED, MAINTENANCE_IN_PROGRESS);
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
    fn conditions_of_others_are_left_alone() {
        let admins = seen(&[(MAINTENANCE_IN_PROGRESS, "True", "AdminRequested")]);
        assert_eq!(admins.changes(DRAINING), vec![set(DRAIN_IN_PROGRESS)]);
        assert_eq!(admins.changes(NOTHING), vec![]);
        // A condition that another program set to False is also left alone.
        let denied = seen(&[(MAINTENANCE_IN_PROGRESS, "False", "NoMaintenance")]);
        assert_eq!(denied.changes(DRAINING), vec![set(DRAIN_IN_PROGRESS)]);
        assert_eq!(denied.changes(NOTHING), vec![]);
        // During the turn, another program took `Drained` over and set `MaintenanceInProgress` to False.
        let taken = seen(&[
            (DRAINED, "True", "DrainCompleted"),
            (MAINTENANCE_IN_PROGRESS, "False", REASON),
        ]);
        assert_eq!(taken.changes(NOTHING), vec![]);
        assert_eq!(taken.changes(DOWN), vec![set(MAINTENANCE_IN_PROGRESS)]);
        let others = seen(&[("Ready", "True", REASON), ("DiskPressure", "True", "x")]);
        assert_eq!(others, Lifecycle::default());
    }
}
