//! Commands of an admin: `exclude`, `include`, `hold`, `unhold`, `release`, `pause`, `resume`, `retry`, `approve`,
//! `dismiss` and `poll`.
//!
//! A pure function decides each of them from a [`Snapshot`](crate::Snapshot), as a [`Plan`]: sentences that say what
//! will be done and what it means, and the changes themselves. [`apply`] makes the changes. Each change names the
//! object by the UID that the plan was made from, and a berth by its resourceVersion too, so that nothing is done to
//! another object than the one that the admin read about.

use berth_api::berth::Berth;
use berth_api::pool::BootcNodePool;
use berth_api::{Digest, keys};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use crate::Snapshot;
use crate::text::clean;

mod apply;
mod approve;
mod confirm;
mod dismiss;
mod exclude;
mod hold;
mod holder;
mod pause;
mod poll;
mod release;
mod retry;

pub use apply::{FIELD_MANAGER, apply, would_accept};
pub use approve::{approve, print};
pub use confirm::{Answer, ask};
pub use dismiss::dismiss;
pub use exclude::{exclude, include};
pub use hold::{hold, unhold};
pub use pause::{Whole, pause, resume};
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
    /// Puts a label on a Node, or takes it off.
    Label {
        /// Name of the Node.
        node: String,
        /// UID of the Node.
        uid: String,
        /// The label.
        mark: Mark,
        /// True if the Node has it from then on.
        on: bool,
    },
    /// Pauses a pool, or lets it go on.
    Pause {
        /// Name of the pool.
        pool: String,
        /// UID of the pool.
        uid: String,
        /// True if it is paused from then on.
        paused: bool,
    },
    /// Pauses all pools by the BootcFleet, or takes that back.
    PauseFleet {
        /// UID of the BootcFleet; `None`: there is none, and it is created.
        uid: Option<String>,
        /// True if it is paused from then on.
        paused: bool,
    },
    /// Forgets a machine that is held back on its first boot.
    Dismiss {
        /// UID of the BootcFleet.
        uid: String,
        /// Name of the machine.
        machine: String,
        /// New value of the annotation.
        value: String,
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

/// An admin's word on one node, which is a label of its Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// No pool has the node.
    Excluded,
    /// The node is offered no berth.
    HeldBack,
}

impl Mark {
    /// Key of the label.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Excluded => keys::LABEL_EXCLUDE,
            Self::HeldBack => keys::LABEL_HOLD,
        }
    }

    /// Words for people, to stand behind the node's name and `is`.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Excluded => "excluded",
            Self::HeldBack => "held back",
        }
    }
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
    /// No machine of that name is held back.
    #[error("no machine {name:?} is held back on its first boot; there are: {known}")]
    NoMachine {
        /// The name that was asked for.
        name: String,
        /// Names of those that are.
        known: String,
    },
    /// The BootcFleet is there or not, paused or not: nobody knows.
    #[error("reading BootcFleet cluster: {0}; nothing was changed, since it may be paused or not")]
    NoFleet(String),
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

    /// The plan with a warning of what could not be read.
    #[must_use]
    pub fn noting(mut self, snapshot: &Snapshot) -> Self {
        self.warnings.extend(snapshot.notes.iter().map(|note| clean(note)));
        self
    }

    /// Says whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// The plan for all pools: what is to be done in each of them where something is.
///
/// # Errors
/// When one of the pools cannot be planned.
pub fn in_all_pools(
    snapshot: &Snapshot,
    one: impl Fn(&Snapshot, &str) -> Result<Plan, NoPlan>,
) -> Result<Plan, NoPlan> {
    let mut all = Plan::default();
    let mut pools = 0;
    for name in snapshot.pool_names() {
        let plan = one(snapshot, &name)?;
        if plan.is_empty() {
            continue;
        }
        pools += 1;
        all.facts.push(plan.head);
        all.facts.extend(plan.facts.into_iter().map(|fact| format!("  {fact}")));
        let warnings = plan.warnings.into_iter();
        all.warnings
            .extend(warnings.map(|warning| format!("Pool {name}: {warning}")));
        all.changes.extend(plan.changes);
    }
    all.head = match pools {
        0 => "There is nothing to do in any pool.".to_owned(),
        1 => "In one pool:".to_owned(),
        count => format!("In {count} pools:"),
    };
    Ok(all)
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
