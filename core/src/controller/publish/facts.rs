//! Input for publishing the specs of BootcNodes.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::Holding;
use berth_api::membership::Membership;
use berth_api::node::BootcNodeSpec;
use berth_api::pool::{SignatureRule, Target};
use berth_api::{NodeName, NodeUid, PoolName};

use crate::controller::snapshot::Objects;
use crate::controller::staging_permits::StagingPermits;
use crate::controller::view::{BootcNodeView, NodeView};

/// Pool settings that are published to the pool's members.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Current target.
    pub target: Option<Target>,
    /// True if the target was resolved from another reference than the spec's, or if the fleet does not allow the
    /// spec's registry. The target stays published, so that agents keep an image that they have staged. But no node
    /// begins to pull the target.
    pub unresolved: bool,
    /// True if the first target is still being resolved. Until then, no BootcNode is created.
    pub resolving: bool,
    /// Number of members that may stage at once.
    pub max_staging: usize,
    /// `host.signature`
    pub signature: SignatureRule,
    /// Spec that all members share. The Node UID, image and permit of each member are filled in later.
    pub spec: BootcNodeSpec,
}

/// Input for publishing the specs of BootcNodes.
#[derive(Debug)]
pub struct PublishFacts<'a> {
    /// All Nodes.
    pub nodes: &'a Objects<NodeView>,
    /// All BootcNodes.
    pub bootc_nodes: &'a Objects<BootcNodeView>,
    /// The pool of each node.
    pub membership: &'a Membership,
    /// Published settings of each pool that can be read.
    pub terms: &'a BTreeMap<PoolName, Terms>,
    /// For each node, the pools whose berths it holds or is offered.
    pub occupied: &'a BTreeMap<NodeUid, BTreeSet<PoolName>>,
    /// State of each held berth, by the UID of its holder.
    pub holdings: &'a BTreeMap<NodeUid, Holding>,
    /// Node names from the labels of Leases that cannot be read.
    pub unclear: &'a BTreeSet<String>,
    /// UIDs of BootcNodes whose agents have not released their node within the release deadline. The controller
    /// deletes these BootcNodes, unless their node still uses up capacity.
    pub overdue: &'a BTreeSet<String>,
    /// The pools that exist and are not being deleted.
    pub lasting: &'a BTreeSet<PoolName>,
    /// UIDs of Nodes that a live read has shown to be gone.
    pub confirmed_gone: &'a BTreeSet<NodeUid>,
    /// Nodes whose agent reported recently.
    pub heard: &'a BTreeSet<NodeName>,
    /// For each member, the number of permits to pull that it left unused.
    pub permits: &'a StagingPermits,
    /// True if the whole fleet is paused: no node begins to pull.
    pub fleet_paused: bool,
}

/// New spec of a BootcNode, before it is compared with the current spec.
pub(super) struct Draft<'a> {
    pub(super) node: &'a NodeView,
    pub(super) host: Option<&'a BootcNodeView>,
    pub(super) spec: BootcNodeSpec,
    pub(super) label: Option<String>,
}
