//! Memory kept between passes. A new leader starts with an empty memory, so safety does not depend on it.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{NodeUid, PoolName};
use berth_core::Moment;
use berth_core::controller::aggregate::refused::RefusedReports;
use berth_core::controller::gates::GateCache;
use berth_core::controller::image::Ages;
use berth_core::controller::implausible::Judge;
use berth_core::controller::ledger::Ledger;
use berth_core::controller::membership::MembershipCache;
use berth_core::controller::offers::Offers;
use berth_core::controller::overdue::Overdue;
use berth_core::controller::silence::SilentQueue;
use berth_core::controller::soaks::Soaks;
use berth_core::controller::staging_permits::StagingPermits;
use berth_core::controller::stagings::Stagings;
use berth_core::controller::troubles::Troubles;
use berth_core::controller::turns::Turns;
use berth_core::controller::unwritable::Unwritable;
use berth_core::controller::view::LeaseView;
use berth_core::controller::waiting::WriteQueue;

use crate::backoff::Backoffs;

#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) leases: LeaseMemory,
    pub(super) nodes: NodeMemory,
    pub(super) pools: PoolMemory,
    pub(super) fleet: FleetMemory,
    pub(super) seen: SeenMemory,
    /// Changes of `Waiting` conditions that are still to be written.
    pub(super) waiting: WriteQueue,
    pub(super) backoffs: Backoffs,
}

#[derive(Debug, Default)]
pub(super) struct LeaseMemory {
    /// Leases whose last write may or may not have been stored. The controller fences them before it offers a berth.
    pub(super) in_doubt: BTreeSet<String>,
    /// Leases that cannot be written, by name.
    pub(super) unwritable: BTreeMap<String, Remembered>,
    /// Ages of the open offers.
    pub(super) offers: Offers,
    /// Number of offers that each node has had.
    pub(super) ledger: Ledger,
}

#[derive(Debug)]
pub(super) struct Remembered {
    pub(super) unwritable: Unwritable,
    /// The Lease, if a list by label does not show it: the Lease has lost its label, or the API server refused to
    /// create it. The controller treats it like a listed Lease.
    pub(super) unlisted: Option<LeaseView>,
}

#[derive(Debug, Default)]
pub(super) struct NodeMemory {
    /// UIDs of deleted Nodes that Berth's objects still name. A read from the API server has confirmed each deletion.
    /// A UID is never used again.
    pub(super) gone: BTreeSet<NodeUid>,
    /// Time when this process first saw that a BootcNode (by UID) asks its agent to undo Berth's changes to the node.
    pub(super) release_asked: BTreeMap<String, Moment>,
    pub(super) membership: MembershipCache,
    /// Nodes that hold a berth and are silent or did not come back from their reboot in time.
    pub(super) overdue: Overdue,
    /// Nodes that have a silent agent and an up-to-date insight.
    pub(super) silent: SilentQueue,
    /// Contradictions in the reports about nodes.
    pub(super) implausible: Judge,
    /// For each member, the number of permits to pull that it left unused.
    pub(super) permits: StagingPermits,
}

#[derive(Debug, Default)]
pub(super) struct PoolMemory {
    /// Time when each pool's status was last written.
    pub(super) reported: BTreeMap<PoolName, Moment>,
    /// Parts of the pools' statuses that the API server refused, and when to try them again.
    pub(super) refused: BTreeMap<PoolName, (RefusedReports, Moment)>,
    /// Time when the pools' metrics were last computed.
    pub(super) measured: Option<Moment>,
    pub(super) gates: GateCache,
    /// How long each wave has soaked so far.
    pub(super) soaks: Soaks,
    /// How long each pool's available image has been known.
    pub(super) ages: Ages,
}

#[derive(Debug, Default)]
pub(super) struct FleetMemory {
    /// Time when the BootcFleet's status was last written.
    pub(super) reported: Option<Moment>,
    /// Time when the BootcFleet was last created.
    pub(super) created: Option<Moment>,
}

/// State as of the last pass. Differences are reported as events and metrics.
#[derive(Debug, Default)]
pub(super) struct SeenMemory {
    /// Turns in progress.
    pub(super) turns: Turns,
    /// Last pull of each node.
    pub(super) stagings: Stagings,
    pub(super) troubles: Troubles,
    /// Objects that cannot be read, by kind and name.
    pub(super) unreadable: BTreeSet<(&'static str, String)>,
}
