use berth_api::Digest;
use berth_api::berth::Berth;
use berth_api::pool::BootcNodePool;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use crate::mark::Mark;
use crate::snapshot::Snapshot;
use crate::text::clean;

/// Changes, and sentences that describe them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The plan in one sentence.
    pub head: String,
    /// Facts that explain the plan.
    pub facts: Vec<String>,
    /// Reasons not to apply the plan.
    pub warnings: Vec<String>,
    /// The changes, in order; empty if there is nothing to do.
    pub changes: Vec<Change>,
}

/// A change of one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Adds a label to a Node, or removes it.
    Label {
        /// Name of the Node.
        node: String,
        /// UID of the Node.
        uid: String,
        /// The label.
        mark: Mark,
        /// True to add the label, false to remove it.
        on: bool,
    },
    /// Pauses or resumes a pool.
    Pause {
        /// Name of the pool.
        pool: String,
        /// UID of the pool.
        uid: String,
        /// True to pause, false to resume.
        paused: bool,
    },
    /// Pauses or resumes all pools through the BootcFleet.
    PauseFleet {
        /// UID of the BootcFleet; `None` to create it.
        uid: Option<String>,
        /// True to pause, false to resume.
        paused: bool,
    },
    /// Stops reporting a machine that is held back on its first boot.
    Dismiss {
        /// UID of the BootcFleet.
        uid: String,
        /// Name of the machine.
        machine: String,
        /// New value of the annotation `berth.dev/dismissed-machines`.
        value: String,
    },
    /// Closes a held berth although the holder's agent has not given it back.
    Close {
        /// The Lease as it was read.
        lease: Box<Lease>,
        /// The closed berth.
        closed: Box<Berth>,
        /// Name of the node that holds the berth.
        node: String,
        /// UID of the Node that holds the berth.
        uid: String,
        /// Text of the event; the name of the admin is appended.
        note: String,
    },
    /// Pins a pool to another digest. Fails if the pool's reference or the available digest has changed.
    Approve {
        /// Name of the pool.
        pool: String,
        /// UID of the pool.
        uid: String,
        /// Current reference.
        from: String,
        /// New reference.
        to: String,
        /// Digest that the pool's `status.available` must still have when the change is made.
        digest: Digest,
    },
    /// Sets a pool's retry token.
    Retry {
        /// Name of the pool.
        pool: String,
        /// UID of the pool.
        uid: String,
        /// The token.
        token: String,
    },
}

/// Why a command cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPlan {
    /// The Node does not exist.
    #[error("there is no Node {0:?}; if the Node was deleted, the controller closes its berths (closed:gone)")]
    NoNode(String),
    /// The pool does not exist.
    #[error("there is no pool {name:?}; existing pools: {known}")]
    NoPool {
        /// Name that the admin gave.
        name: String,
        /// Names of the pools that exist.
        known: String,
    },
    /// No machine with this name is held back.
    #[error("no machine {name:?} is held back on its first boot; machines held back: {known}")]
    NoMachine {
        /// Name that the admin gave.
        name: String,
        /// Names of the machines that are held back.
        known: String,
    },
    /// The BootcFleet could not be read, so it is not known whether the fleet is paused.
    #[error("cannot read BootcFleet cluster, so nothing was changed: {0}")]
    NoFleet(String),
}

impl Plan {
    /// Returns the plan as text. Long lines are not cut, because a sentence without its end can be misunderstood.
    pub fn render(&self) -> String {
        let facts = self.facts.iter().map(|fact| format!("  {fact}\n"));
        let warnings = self.warnings.iter().map(|warning| format!("  ! {warning}\n"));
        let mut out = format!("{}\n", self.head);
        out.extend(facts.chain(warnings));
        out
    }

    /// Adds warnings about objects that could not be read, unless the plan already has them.
    #[must_use]
    pub fn noting(mut self, snapshot: &Snapshot) -> Self {
        for note in &snapshot.notes {
            let note = clean(note);
            if !self.warnings.contains(&note) {
                self.warnings.push(note);
            }
        }
        self
    }

    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// Returns one plan with the changes of all pools. `one` makes the plan for a single pool. Pools without changes are
/// left out.
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
        0 => "Nothing to do in any pool.".to_owned(),
        1 => "Changes in one pool:".to_owned(),
        count => format!("Changes in {count} pools:"),
    };
    Ok(all)
}

pub(super) fn pool_of<'a>(snapshot: &'a Snapshot, pool: &str) -> Result<&'a BootcNodePool, NoPlan> {
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
