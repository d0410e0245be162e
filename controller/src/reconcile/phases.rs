//! Values passed between the phases of a pass. Each is made by one phase, so phases in a wrong order do not compile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::membership::Membership;
use berth_api::{NodeName, NodeUid, PoolName};
use berth_core::Moment;
use berth_core::controller::fleet::health::Agent;
use berth_core::controller::gates::Gates;
use berth_core::controller::implausible::Implausible;
use berth_core::controller::occupied::Occupied;
use berth_core::controller::plan::Plan;
use berth_core::controller::pool::Pool;
use berth_core::controller::snapshot::Snapshot;
use berth_core::controller::statuses::{PassResults, holdings};
use berth_core::controller::view::{BootcNodeView, LeaseView, NodeView};
use jiff::Timestamp;

use crate::resolve::Resolution;

/// Result of phase 1: the objects that the pass acts on.
pub(super) struct Observed {
    pub(super) snapshot: Snapshot,
    /// Readable pools, and deleted pools that still have berths.
    pub(super) pools: Vec<Pool>,
    /// Nodes whose agent has reported within the time `--agent-silence`.
    pub(super) heard: BTreeSet<NodeName>,
    /// UIDs of Nodes whose deletion was confirmed by a read from the API server.
    pub(super) confirmed_gone: BTreeSet<NodeUid>,
    /// Time of this process's monotonic clock.
    pub(super) now: Moment,
    /// Time of this machine's wall clock.
    pub(super) wall: Timestamp,
}

impl Observed {
    pub(super) fn pool(&self, name: &PoolName) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == *name)
    }

    pub(super) fn node(&self, name: &str) -> Option<&NodeView> {
        self.snapshot.nodes.get(name).map(|entry| entry.view.as_ref())
    }

    pub(super) fn host(&self, name: &str) -> Option<&BootcNodeView> {
        self.snapshot.bootc_nodes.get(name).map(|entry| entry.view.as_ref())
    }
}

#[derive(Clone)]
pub(super) struct Berths {
    pub(super) leases: Vec<LeaseView>,
    /// Nodes that hold a berth or are offered one.
    pub(super) occupied: Occupied,
    /// True if this pass read the berths from the API server. They then include all of the controller's own writes.
    pub(super) live: bool,
}

impl Berths {
    pub(super) fn watched(snapshot: &Snapshot) -> Self {
        Self::of(snapshot.lease_views(), false)
    }

    /// Berths that were just read from the server.
    pub(super) fn read(leases: Vec<LeaseView>) -> Self {
        Self::of(leases, true)
    }

    fn of(leases: Vec<LeaseView>, live: bool) -> Self {
        Self {
            occupied: Occupied::of(&leases),
            leases,
            live,
        }
    }

    pub(super) fn with(mut self, more: Vec<LeaseView>) -> Self {
        if more.is_empty() {
            return self;
        }
        self.leases.extend(more);
        Self::of(self.leases, self.live)
    }

    pub(super) fn named(&self, lease: &str) -> Option<&LeaseView> {
        self.leases.iter().find(|l| l.name() == lease)
    }
}

#[derive(Clone, Copy)]
pub(super) struct PlanInputs<'a> {
    pub(super) observed: &'a Observed,
    pub(super) membership: &'a Membership,
    pub(super) gates: &'a BTreeMap<PoolName, Gates>,
    /// Pools whose watched state may be stale.
    pub(super) outdated: &'a BTreeSet<PoolName>,
    /// UIDs of the BootcNodes whose agents were asked to undo Berth's changes to their node and have not done so within
    /// the release deadline.
    pub(super) overdue: &'a BTreeSet<String>,
    /// Leases that this pass does not write, since the API server refused a write to them a short time ago.
    pub(super) left_alone: &'a BTreeSet<String>,
}

pub(super) type Resolutions = BTreeMap<PoolName, Resolution>;

/// The plans, and the berths that they were made from.
pub(super) struct Planned {
    /// Plan of each pool; empty if the berths could not be read.
    pub(super) plans: BTreeMap<PoolName, Plan>,
    pub(super) berths: Berths,
}

/// All results of a pass, for the reports.
pub(super) struct Findings {
    pub(super) observed: Observed,
    pub(super) membership: Arc<Membership>,
    pub(super) resolutions: Resolutions,
    pub(super) gates: BTreeMap<PoolName, Gates>,
    pub(super) planned: Planned,
    /// UIDs of the Nodes that hold a berth but are silent or did not come back from their reboot in time.
    pub(super) timed_out: BTreeSet<NodeUid>,
    /// Nodes whose reports cannot be true, by the UID of the Node.
    pub(super) implausible: BTreeMap<NodeUid, Implausible>,
}

impl Findings {
    /// Returns the results that the statuses depend on.
    pub(super) fn results(&self) -> PassResults<'_> {
        let leases = &self.planned.berths.leases;
        PassResults {
            snapshot: &self.observed.snapshot,
            membership: &self.membership,
            leases,
            gates: &self.gates,
            plans: &self.planned.plans,
            heard: &self.observed.heard,
            timed_out: &self.timed_out,
            implausible: &self.implausible,
            holdings: holdings(leases),
        }
    }

    /// Returns the agents of all pool members, sorted by node name.
    pub(super) fn agents<'a>(&'a self, results: &PassResults<'a>) -> Vec<Agent<'a>> {
        results.agents(|_, host| self.observed.now.since(host.heard))
    }
}
