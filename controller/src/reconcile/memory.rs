//! Memory that outlives a pass. A leader that starts anew has none of it; nothing that must not go wrong depends on it.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{NodeUid, PoolName};
use berth_core::Moment;
use berth_core::controller::gates::GateCache;
use berth_core::controller::image::Ages;
use berth_core::controller::membership::MembershipCache;
use berth_core::controller::memory::{Offers, Soaks, StagingPermits};
use berth_core::controller::overdue::Overdue;
use berth_core::controller::silence::SilentQueue;
use berth_core::controller::stagings::Stagings;
use berth_core::controller::troubles::Troubles;
use berth_core::controller::turns::Turns;
use berth_core::controller::waiting::WriteQueue;

use super::unwritable::Remembered;
use crate::backoff::Backoffs;

/// Memory of one leader.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Leases with a write of ours of unknown fate. They are fenced before anything is offered.
    pub(super) in_doubt: BTreeSet<String>,
    /// Node UIDs that something still refers to, and that a live read has shown to exist no more. A UID never comes back.
    pub(super) gone: BTreeSet<NodeUid>,
    /// Time since when a BootcNode (by UID) has been asked to release its node.
    pub(super) asked: BTreeMap<String, Moment>,
    /// Time when a pool's status was last written.
    pub(super) reported: BTreeMap<PoolName, Moment>,
    /// Leases that cannot be written, by name.
    pub(super) unwritable: BTreeMap<String, Remembered>,
    /// The open offers, and who let some lapse.
    pub(super) offers: Offers,
    /// The pool of each node.
    pub(super) belonging: MembershipCache,
    /// The gates of all pools.
    pub(super) gates: GateCache,
    /// Soak times of the waves so far.
    pub(super) soaks: Soaks,
    /// Time for which each pool's available image has been known.
    pub(super) ages: Ages,
    /// Which nodes are to be told why they wait.
    pub(super) desk: WriteQueue,
    /// Which nodes have the insight that tells of their silent agent.
    pub(super) deputy: SilentQueue,
    /// Members that were allowed to pull and did not.
    pub(super) leaves: StagingPermits,
    /// Nodes that do not come back.
    pub(super) overdue: Overdue,
    /// The turns that go on, as of the last pass.
    pub(super) turns: Turns,
    /// The last pull of each node, as of the last pass.
    pub(super) stagings: Stagings,
    /// The nodes that are degraded, as of the last pass.
    pub(super) troubles: Troubles,
    /// Time when the pools were last measured.
    pub(super) measured: Option<Moment>,
    /// Time when the BootcFleet's status was last written.
    pub(super) fleet_told: Option<Moment>,
    /// Time when the BootcFleet was last made.
    pub(super) fleet_made: Option<Moment>,
    /// Writes that failed, and when each is tried again.
    pub(super) backoffs: Backoffs,
}
