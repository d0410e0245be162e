//! What an admin's word does: `exclude`, `include`, `release` and `retry`.
//!
//! Each is decided from a [`Snapshot`](crate::Snapshot) by a pure function, as a [`Plan`]: sentences that say what will
//! be done and what it means, and the changes themselves. [`apply`] makes the changes; each of them names the object by
//! the UID, and the berth by the resourceVersion too, that the plan was made from, so that nothing is done to another
//! object than the one that the admin read about.

use berth_api::berth::Berth;
use k8s_openapi::api::coordination::v1::Lease;

mod apply;
mod confirm;
mod exclude;
mod holder;
mod release;
mod retry;

pub use apply::{FIELD_MANAGER, apply};
pub use confirm::{Answer, ask};
pub use exclude::{exclude, include};
pub use release::release;
pub use retry::retry;

/// What will be done, and what that means.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// What will be done, in one sentence.
    pub head: String,
    /// What it means.
    pub facts: Vec<String>,
    /// What speaks against it.
    pub warnings: Vec<String>,
    /// The changes, in order. None: there is nothing to do.
    pub changes: Vec<Change>,
}

/// One change of one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Puts the label `berth.dev/exclude` on a Node, or takes it off.
    Label {
        /// Name of the Node.
        node: String,
        /// Its UID.
        uid: String,
        /// Whether it is excluded from then on.
        excluded: bool,
    },
    /// Closes a held berth over its holder's head.
    Close {
        /// The Lease as it was read.
        lease: Box<Lease>,
        /// The berth, closed.
        closed: Box<Berth>,
        /// Who held it.
        node: String,
        /// UID of that Node.
        uid: String,
        /// What the event says, in front of who did it.
        note: String,
    },
    /// Gives a pool a new retry token.
    Retry {
        /// Name of the pool.
        pool: String,
        /// Its UID.
        uid: String,
        /// The token.
        token: String,
    },
}

/// What cannot even be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPlan {
    /// No such Node.
    #[error("there is no Node {0:?}; what a deleted Node held is closed by the controller (closed:gone)")]
    NoNode(String),
    /// No such pool.
    #[error("there is no pool {name:?}; there are: {known}")]
    NoPool {
        /// The name that was asked for.
        name: String,
        /// Those that there are.
        known: String,
    },
}

impl Plan {
    /// The plan as text. No line is cut: a sentence that is half there may say the opposite.
    pub fn render(&self) -> String {
        let facts = self.facts.iter().map(|fact| format!("  {fact}\n"));
        let warnings = self.warnings.iter().map(|warning| format!("  ! {warning}\n"));
        let mut out = format!("{}\n", self.head);
        out.extend(facts.chain(warnings));
        out
    }

    /// Whether there is anything to do.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}
