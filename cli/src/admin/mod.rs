//! Commands of an admin: `exclude`, `include`, `release`, `retry`, `approve` and `poll`.
//!
//! A pure function decides each of them from a [`Snapshot`](crate::Snapshot), as a [`Plan`]: sentences that say what
//! will be done and what it means, and the changes themselves. [`apply`] makes the changes. Each change names the
//! object by the UID that the plan was made from, and a berth by its resourceVersion too, so that nothing is done to
//! another object than the one that the admin read about.

use berth_api::Digest;
use berth_api::berth::Berth;
use berth_api::pool::BootcNodePool;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use crate::Snapshot;

mod apply;
mod approve;
mod confirm;
mod exclude;
mod holder;
mod poll;
mod release;
mod retry;

pub use apply::{FIELD_MANAGER, apply};
pub use approve::{approve, print};
pub use confirm::{Answer, ask};
pub use exclude::{exclude, include};
pub use poll::{found_words, poll};
pub use release::release;
pub use retry::retry;

/// A plan: changes, and their meaning in words.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The plan in one sentence.
    pub head: String,
    /// Facts that explain it.
    pub facts: Vec<String>,
    /// Reasons against it.
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
        /// UID of the Node.
        uid: String,
        /// True if the node is excluded from then on.
        excluded: bool,
    },
    /// Closes a held berth over its holder's head.
    Close {
        /// The Lease as it was read.
        lease: Box<Lease>,
        /// The berth, closed.
        closed: Box<Berth>,
        /// Name of the node that held it.
        node: String,
        /// UID of that Node.
        uid: String,
        /// Text of the event, in front of the name of the admin.
        note: String,
    },
    /// Pins a pool to another image, if it still is as it was.
    Approve {
        /// Name of the pool.
        pool: String,
        /// UID of the pool.
        uid: String,
        /// The reference that it has.
        from: String,
        /// The reference that it gets.
        to: String,
        /// The digest that must still be what is available.
        digest: Digest,
    },
    /// Gives a pool a new retry token.
    Retry {
        /// Name of the pool.
        pool: String,
        /// UID of the pool.
        uid: String,
        /// The token.
        token: String,
    },
}

/// Error of a command that cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPlan {
    /// The Node does not exist.
    #[error("there is no Node {0:?}; what a deleted Node held is closed by the controller (closed:gone)")]
    NoNode(String),
    /// The pool does not exist.
    #[error("there is no pool {name:?}; there are: {known}")]
    NoPool {
        /// The name that was asked for.
        name: String,
        /// Names of the pools that exist.
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

    /// Says whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// The pool of that name.
fn pool_of<'a>(snapshot: &'a Snapshot, pool: &str) -> Result<&'a BootcNodePool, NoPlan> {
    snapshot.pool(pool).ok_or_else(|| NoPlan::NoPool {
        name: pool.to_owned(),
        known: snapshot
            .pools
            .iter()
            .map(ResourceExt::name_any)
            .collect::<Vec<_>>()
            .join(", "),
    })
}
