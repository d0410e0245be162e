//! Facts that publishing depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::backend::BackendRule;
use berth_api::berth::Holding;
use berth_api::membership::Membership;
use berth_api::node::BootcNodeSpec;
use berth_api::pool::{Drain, PhaseDurations, RivalUpdaters, SignatureRule, Target};
use berth_api::{NodeName, NodeUid, PoolName};

use crate::controller::memory::StagingPermits;
use crate::controller::snapshot::Objects;
use crate::controller::view::{BootcNodeView, NodeView};

/// Terms of a pool for its members.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The target in force.
    pub target: Option<Target>,
    /// The spec names another image than that target, which is not resolved yet. The target stays published, so that
    /// nothing is unstaged because a registry is down, and nobody begins to pull it.
    pub unresolved: bool,
    /// The first attempt to resolve a target is still under way: a BootcNode that would say nothing yet is not
    /// created before.
    pub resolving: bool,
    /// Number of members that may stage at once.
    pub max_staging: usize,
    /// `drain`
    pub drain: Drain,
    /// `host.signature`
    pub signature: SignatureRule,
    /// `host.backend`
    pub backend: BackendRule,
    /// `rivalUpdaters`
    pub rival_updaters: RivalUpdaters,
    /// `toleratedUpdaters`
    pub tolerated_updaters: Vec<String>,
    /// `rollout.retryToken`
    pub retry_token: Option<String>,
    /// `rollout.rebootTimeout`
    pub reboot_timeout: Duration,
    /// `rollout.progressInterval`
    pub progress_interval: Duration,
    /// `rollout.paused`
    pub paused: bool,
    /// `status.phaseDurations`
    pub estimates: PhaseDurations,
}

/// Everything that publishing depends on.
#[derive(Debug)]
pub struct Facts<'a> {
    /// All Nodes.
    pub nodes: &'a Objects<NodeView>,
    /// All BootcNodes.
    pub hosts: &'a Objects<BootcNodeView>,
    /// The pool of each node.
    pub membership: &'a Membership,
    /// The terms of each pool that can be read.
    pub terms: &'a BTreeMap<PoolName, Terms>,
    /// Pools of the berths that each node holds or is offered.
    pub occupied: &'a BTreeMap<NodeUid, BTreeSet<PoolName>>,
    /// The berths that are held, by their holders.
    pub holdings: &'a BTreeMap<NodeUid, Holding>,
    /// Labels of the nodes that a Lease names which cannot be read.
    pub unclear: &'a BTreeSet<String>,
    /// BootcNodes (UIDs) whose agents were asked so long ago to release their node that nothing but its capacity waits for
    /// them.
    pub overdue: &'a BTreeSet<String>,
    /// The pools that exist and are not being deleted.
    pub lasting: &'a BTreeSet<PoolName>,
    /// Node UIDs that a live read has shown to exist no more.
    pub confirmed_gone: &'a BTreeSet<NodeUid>,
    /// Nodes whose agent has been heard of lately.
    pub heard: &'a BTreeSet<NodeName>,
    /// Members that were allowed to pull and did not.
    pub leaves: &'a StagingPermits,
    /// The whole fleet is paused: nobody begins to pull.
    pub fleet_paused: bool,
}

/// One node while its spec is being made.
pub(super) struct Draft<'a> {
    pub(super) node: &'a NodeView,
    pub(super) host: Option<&'a BootcNodeView>,
    pub(super) spec: BootcNodeSpec,
    pub(super) label: Option<String>,
}
