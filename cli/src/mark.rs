//! Labels that an admin sets on nodes.

use berth_api::keys;

/// Label that an admin sets on a Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The node is in no pool.
    Excluded,
    /// The node is offered no berth.
    HeldBack,
}

impl Mark {
    /// Returns the key of the label.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Excluded => keys::LABEL_EXCLUDE,
            Self::HeldBack => keys::LABEL_HOLD,
        }
    }

    /// Returns the words that complete the sentence `Node n1 is …`.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Excluded => "excluded",
            Self::HeldBack => "held back",
        }
    }
}
