//! Habits of a compromised node.

/// Behavior of a compromised node, repeated without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Habit {
    /// Anything, in any order. The explorer tries everything.
    Any,
    /// Its agent is silent. The node keeps a berth that it holds.
    Silent,
    /// Asks for a berth, takes it, and keeps it.
    Keeps,
    /// Takes every offer, and gives the berth back without an update.
    Returns,
    /// Takes every offer, and reports that the image failed.
    Fails,
    /// Asks for a berth, and lets every offer lapse.
    Lapses,
    /// Reports an endless pull.
    Pulls,
}

impl Habit {
    /// True if the node takes offers.
    pub fn takes(self) -> bool {
        matches!(self, Self::Returns | Self::Fails | Self::Keeps)
    }
}
