//! Input for the plan of one pool.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::Berth;
use berth_api::seeded::Bug;
use berth_api::waves::{CONTROL_PLANE, REST};
use berth_api::{Digest, NodeName, NodeUid, PoolName};
use jiff::Timestamp;

use super::fleet_limit::FleetUse;
use crate::controller::gate::Gate;
use crate::controller::quorum::Verdict;
use crate::controller::usage::UseKind;

/// Input for the plan of one pool.
#[derive(Debug, Clone)]
pub struct PoolFacts {
    /// The pool.
    pub pool: PoolName,
    /// Epoch of this leader, which fences berths against writes of earlier leaders.
    pub epoch: u64,
    /// Number of nodes that may be unavailable at once, from the spec; 0 if the pool is being deleted.
    pub capacity: usize,
    /// The capacity in `status.berths.total`. Only berths with a smaller index may be opened.
    pub published: usize,
    /// The closed gate that keeps all berths of the pool from being opened; `None` if all gates are open.
    pub gate: Option<Gate>,
    /// Time when the open window ends or the next exclusion begins; `None` if neither applies.
    pub closes: Option<Timestamp>,
    /// All waves in order: the waves of the spec, then the waves that Berth adds.
    pub waves: Vec<Wave>,
    /// Recorded failures, from `status.failures`.
    pub failures: Failures,
    /// Nodes that an admin has excluded, among those where a digest failed. What such a node has written does not halt
    /// the rollout.
    pub excluded: BTreeSet<NodeName>,
    /// Number of failed nodes that halts the rollout.
    pub max_failures: usize,
    /// True if the target was not resolved from the reference in the spec, or if its registry is not allowed. The
    /// controller then withdraws offers of the target. See
    /// [`Pool::is_unresolved`](crate::controller::pool::Pool::is_unresolved).
    pub unresolved: bool,
    /// True if the controller may not have seen the latest changes of the pool. No berth is then opened.
    pub outdated: bool,
    /// The pool's members.
    pub members: Vec<Member>,
    /// Every Lease that carries the pool's label.
    pub berths: Vec<SeenBerth>,
    /// UIDs of nodes that hold or are offered a berth of another pool.
    pub elsewhere: BTreeSet<NodeUid>,
    /// UIDs of Nodes that a live read has just shown to be gone.
    pub confirmed_gone: BTreeSet<NodeUid>,
    /// UIDs of Nodes that are excluded and not Ready. The controller closes their berths.
    pub lost: BTreeSet<NodeUid>,
    /// Use of the fleet's limit by all pools; `None` without a limit.
    pub fleet: Option<FleetUse>,
    /// Why the pool waits for the pools in its `rollout.after`; `None` if it does not wait. A waiting pool offers a
    /// berth only to a node that must be repaired before the earlier pools can finish. Open offers and held berths
    /// stay.
    pub order: Option<Gate>,
}

/// A berth's Lease as read.
#[derive(Debug, Clone)]
pub struct SeenBerth {
    /// Name of the Lease.
    pub lease: String,
    /// The berth, or why it cannot be read. An unreadable berth counts as held by an unknown node.
    pub berth: Result<Berth, String>,
    /// True if the result of a write by this leader is unknown. The write may still reach the Lease.
    pub in_doubt: bool,
    /// True if the API server refused a write to the Lease. The plan does not write to this Lease, and counts it as
    /// used.
    pub refused: bool,
    /// Time since this process first saw the berth's current offer.
    pub age: Duration,
}

impl SeenBerth {
    /// Returns a berth that was just read or written: no write to it is in doubt or was refused.
    pub fn new(lease: String, berth: Result<Berth, String>) -> Self {
        Self {
            lease,
            berth,
            in_doubt: false,
            refused: false,
            age: Duration::ZERO,
        }
    }
}

/// Input of the plan about one member of the pool.
#[derive(Debug, Clone)]
pub struct Member {
    /// Name of the Node.
    pub name: NodeName,
    /// UID of the Node.
    pub uid: NodeUid,
    /// State of the Node.
    pub node: NodeState,
    /// Place of the member in the rollout.
    pub place: Place,
    /// Digest that the pool's target has for the node's platform.
    pub desired: Option<Digest>,
    /// Spec that the controller has published for the member, in its BootcNode.
    pub published: Published,
    /// Report of the member's agent.
    pub agent: AgentState,
    /// True if the agent must undo Berth's changes, because the node leaves the pool or its BootcNode is being deleted.
    /// The member still counts, but is offered no berth.
    pub leaving: bool,
    /// True if the node has left the pool, but its agent has not released it within the release deadline. The node uses
    /// up capacity while it is down. No wave and no later pool waits for it.
    pub abandoned: bool,
    /// How many offers of the desired digest the node has had: see [`Ledger`](crate::controller::ledger::Ledger).
    pub offers: u32,
    /// How many of these offers the controller did not take back because of the pool.
    pub turns: u32,
    /// Expected duration of the member's drain and reboot.
    pub estimate: Estimate,
}

/// State of a member's Node object.
#[derive(Debug, Clone)]
pub struct NodeState {
    /// True if the Node is Ready.
    pub ready: bool,
    /// True if the Node is unschedulable, by any cordon.
    pub unschedulable: bool,
    /// True if the Node has Berth's cordon annotation.
    pub our_cordon: bool,
    /// True if an admin holds the node back. The member still counts and stages its image, but is offered no berth.
    pub held_back: bool,
}

/// Place of a member in the rollout.
#[derive(Debug, Clone)]
pub struct Place {
    /// Wave of the member, as an index into [`PoolFacts::waves`].
    pub wave: usize,
    /// Zone of the member. All nodes without a zone form one zone.
    pub zone: String,
    /// Whether the control plane can spare the member now (I11). `None` if the member is not a control plane node.
    pub control_plane: Option<Verdict>,
}

/// Spec that the controller has published for a member, in its BootcNode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Digest in the BootcNode's spec.
    pub digest: Option<Digest>,
    /// UID of the Node that the spec was published for.
    pub uid: NodeUid,
    /// True if the agent has reported on the BootcNode's current generation, from the Node with this UID.
    pub observed: bool,
}

/// Report of a member's agent.
#[derive(Debug, Clone)]
pub struct AgentState {
    /// True if the agent reported recently.
    pub heard: bool,
    /// True if the agent reports `UpdatePrepared`.
    pub prepared: bool,
    /// Digest that is staged and locked.
    pub staged: Option<Digest>,
    /// Digest that is booted.
    pub booted: Option<Digest>,
    /// Digests that failed on the node.
    pub failed: Vec<Digest>,
    /// Digest of the last turn; `None` unless a problem of the node ended that turn.
    pub last_turn: Option<Digest>,
    /// True if the agent reports that the host's clock is synchronized.
    pub clock_synchronized: bool,
}

/// Expected duration of a turn, from measurements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Time from taking the berth to the end of the drain.
    pub drain: Duration,
    /// Time from the commit to the proof.
    pub reboot: Duration,
}

/// A wave of the rollout, with its soak time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wave {
    /// Name of the wave.
    pub name: String,
    /// How long all members of the wave must stay proven before the next wave begins.
    pub soak: Duration,
    /// How long all members of the wave have been proven so far, as measured by this leader and earlier ones.
    pub soaked: Duration,
}

/// Nodes where each digest failed. A name has the suffix ` (deleted)` or ` (excluded)` if the controller closed the
/// berth after the commit.
pub type Failures = BTreeMap<Digest, BTreeSet<NodeName>>;

impl NodeState {
    pub(super) fn down(&self) -> Option<UseKind> {
        UseKind::down(self.ready, self.unschedulable, self.our_cordon)
    }

    /// True if the node is not Ready or is cordoned (set U of invariant I1).
    pub fn is_unavailable(&self) -> bool {
        self.down().is_some()
    }
}

impl PoolFacts {
    pub(in crate::controller) fn readable(&self) -> impl Iterator<Item = (&SeenBerth, &Berth)> {
        self.berths.iter().filter_map(|s| s.berth.as_ref().ok().map(|b| (s, b)))
    }

    /// True if a late write may still reach a berth. Such a write comes from an earlier leader, or from this leader if
    /// its result is unknown.
    ///
    /// Berths that the API server refuses to write are ignored. These berths already count as used, so a late write
    /// cannot use up more capacity.
    pub(super) fn is_unfenced(&self) -> bool {
        let mut writable = self.readable().filter(|(seen, _)| !seen.refused);
        !Bug::NoEpochStamp.is_awake() && writable.any(|(seen, berth)| seen.in_doubt || berth.epoch != self.epoch)
    }

    pub(super) fn is_fleet_starved(&self) -> bool {
        self.fleet.as_ref().is_some_and(FleetUse::is_starved)
    }
}

impl Wave {
    /// True if the wave has not soaked for long enough yet.
    pub(super) fn is_short(&self) -> bool {
        self.soaked < self.soak && !Bug::SoakIgnored.is_awake()
    }

    /// True if Berth adds the wave to the waves of the spec: the control plane, or the members in no other wave.
    pub(super) fn is_implied(&self) -> bool {
        self.name == REST || self.name == CONTROL_PLANE
    }
}
