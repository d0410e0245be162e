//! Nodes that use up capacity, and how.

use berth_api::seeded::Bug;

/// A node or Lease that uses up one unit of a pool's or the fleet's capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapacityUse {
    /// Name of the node, or of the Lease if its holder is unknown.
    pub who: String,
    /// How the node or Lease uses up capacity.
    pub how: UseKind,
}

/// Why a node or a Lease counts as using capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UseKind {
    /// The node holds a berth.
    Holds,
    /// The node is offered a berth.
    IsOffered,
    /// The node holds or is offered a berth of another pool.
    Elsewhere,
    /// The Node is not Ready.
    NotReady,
    /// The Node still has Berth's cordon, without a berth.
    CordonedByUs,
    /// The node was cordoned, but not by Berth.
    CordonedByOthers,
    /// The Lease cannot be read.
    Unreadable,
    /// The API server refuses to write the Lease.
    Refused,
}

impl CapacityUse {
    /// Returns the text for messages, such as `n7 (cordoned by someone else)`.
    pub fn words(&self) -> String {
        format!("{} ({})", self.who, self.how.words())
    }
}

impl UseKind {
    /// Returns why a Node is unavailable; `None` if it is available. `our_cordon`: the Node has Berth's cordon.
    pub(super) fn down(ready: bool, unschedulable: bool, our_cordon: bool) -> Option<Self> {
        if Bug::OwnFlagOnly.is_awake() {
            return our_cordon.then_some(Self::CordonedByUs);
        }
        if !ready {
            Some(Self::NotReady)
        } else if our_cordon {
            Some(Self::CordonedByUs)
        } else {
            unschedulable.then_some(Self::CordonedByOthers)
        }
    }

    /// Returns a phrase that follows the node's name in a message.
    pub fn words(self) -> &'static str {
        match self {
            Self::Holds => "being updated",
            Self::IsOffered => "offered a berth",
            Self::Elsewhere => "being updated by its previous pool",
            Self::NotReady => "not Ready",
            Self::CordonedByUs => "still cordoned by Berth",
            Self::CordonedByOthers => "cordoned by someone else",
            Self::Unreadable => "a Lease that cannot be read",
            Self::Refused => "a Lease that cannot be written",
        }
    }
}
