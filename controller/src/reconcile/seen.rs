//! Values that the phases of a pass hand on. A value exists once the phase that makes it is over, and nothing stands in for one
//! before that: a phase that came too early would not compile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::membership::Membership;
use berth_api::{NodeName, NodeUid, PoolName};
use berth_core::Moment;
use berth_core::controller::gates::Gates;
use berth_core::controller::occupied::Occupied;
use berth_core::controller::plan::Plan;
use berth_core::controller::pool::Pool;
use berth_core::controller::snapshot::Snapshot;
use berth_core::controller::view::LeaseView;
use jiff::Timestamp;

use crate::resolve::Resolution;

/// Findings of phase 1.
pub(super) struct Seen {
    /// Objects that the watches know.
    pub(super) snapshot: Snapshot,
    /// The pools that can be read, and those that only their berths still name.
    pub(super) pools: Vec<Pool>,
    /// Nodes whose agent has been heard of lately.
    pub(super) heard: BTreeSet<NodeName>,
    /// Node UIDs that a live read has shown to exist no more.
    pub(super) confirmed_gone: BTreeSet<NodeUid>,
    /// This process's clock.
    pub(super) now: Moment,
    /// This machine's clock.
    pub(super) wall: Timestamp,
}

/// All berths, and who has them.
#[derive(Clone)]
pub(super) struct Berths {
    /// The Leases.
    pub(super) leases: Vec<LeaseView>,
    /// Nodes that have them.
    pub(super) occupied: Occupied,
    /// They were read from the server in this very pass, so that they contain all writes of ours.
    pub(super) live: bool,
}

impl Berths {
    /// The berths as the watch knows them.
    pub(super) fn watched(snapshot: &Snapshot) -> Self {
        let leases = snapshot.leases.values();
        Self::of(leases.map(|entry| entry.view.as_ref().clone()).collect(), false)
    }

    /// The berths as they were just read.
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

    /// The same berths, and these.
    pub(super) fn with(mut self, more: Vec<LeaseView>) -> Self {
        if more.is_empty() {
            return self;
        }
        self.leases.extend(more);
        Self::of(self.leases, self.live)
    }

    /// The Lease of that name.
    pub(super) fn named(&self, lease: &str) -> Option<&LeaseView> {
        self.leases.iter().find(|l| l.name() == lease)
    }
}

/// Progress of the resolution of each pool's image.
pub(super) type Resolutions = BTreeMap<PoolName, Resolution>;

/// The plans, and the berths that they were made from.
pub(super) struct Planned {
    /// The plan of each pool; none at all when the berths could not be read.
    pub(super) plans: BTreeMap<PoolName, Plan>,
    /// The berths.
    pub(super) berths: Berths,
}

/// All that a pass has found, for those who tell of it.
pub(super) struct Findings {
    pub(super) seen: Seen,
    pub(super) membership: Arc<Membership>,
    pub(super) resolutions: Resolutions,
    pub(super) gates: BTreeMap<PoolName, Gates>,
    pub(super) planned: Planned,
    /// Nodes that hold a berth and do not come back.
    pub(super) timed_out: BTreeSet<NodeUid>,
}
