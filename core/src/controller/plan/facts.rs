//! Facts that the plan of one pool depends on.

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
use crate::controller::usage::How;

/// All that the plan of one pool depends on.
#[derive(Debug, Clone)]
pub struct PoolFacts {
    /// The pool.
    pub pool: PoolName,
    /// The epoch of this leader.
    pub epoch: u64,
    /// The capacity `k` that the spec asks for; 0 when the pool is being deleted.
    pub capacity: usize,
    /// The capacity that `status.berths.total` says. Never is more used than that.
    pub published: usize,
    /// Reason for which no berth of the pool is opened, whatever its nodes are like.
    pub gate: Option<Gate>,
    /// Time until which reboots may start, under windows or exclusions.
    pub closes: Option<Timestamp>,
    /// The waves in order, those that the spec does not name included.
    pub waves: Vec<Wave>,
    /// Content of `status.failures`.
    pub failures: Failures,
    /// The rollout halts at so many failures.
    pub max_failures: usize,
    /// The spec names another image than the target in force, and that one is not resolved yet: the target is
    /// withdrawn, whatever comes instead.
    pub unresolved: bool,
    /// True when the watches may show old objects: nothing is opened.
    pub outdated: bool,
    /// The pool's members.
    pub members: Vec<Member>,
    /// Every Lease that carries the pool's label.
    pub berths: Vec<SeenBerth>,
    /// UIDs of nodes that hold or are offered a berth of another pool.
    pub elsewhere: BTreeSet<NodeUid>,
    /// Node UIDs of which a live read has just shown that no such Node exists any more.
    pub confirmed_gone: BTreeSet<NodeUid>,
    /// UIDs of Nodes that are excluded and not Ready: nobody else will close what they hold.
    pub lost: BTreeSet<NodeUid>,
    /// Use of the fleet's limit by all pools; `None`: there is none.
    pub fleet: Option<FleetUse>,
    /// Reason for which the pool waits for those that go before it. It keeps berths from being opened, and revokes nothing.
    pub order: Option<Gate>,
}

/// A berth's Lease as it was read.
#[derive(Debug, Clone)]
pub struct SeenBerth {
    /// Name of the Lease.
    pub lease: String,
    /// The berth, or the error of reading it; an unreadable one counts as held by an unknown node.
    pub berth: Result<Berth, String>,
    /// A write of this leader had an unknown fate and may still be on its way.
    pub in_doubt: bool,
    /// The API server refused a write to it. Nothing is written to it, and it counts as used.
    pub refused: bool,
    /// Time for which this process has seen it offered as it is.
    pub age: Duration,
}

/// A member of the pool, as far as the plan is concerned.
#[derive(Debug, Clone)]
pub struct Member {
    /// Name of the Node.
    pub name: NodeName,
    /// UID of the Node.
    pub uid: NodeUid,
    /// The Node is Ready.
    pub ready: bool,
    /// The Node is unschedulable, by anyone's doing.
    pub unschedulable: bool,
    /// The Node carries our cordon annotation.
    pub our_cordon: bool,
    /// Digest that the pool's target has for the node's platform.
    pub desired: Option<Digest>,
    /// Digest that is published in the node's BootcNode.
    pub published: Option<Digest>,
    /// Node UID that the BootcNode was published for.
    pub published_uid: NodeUid,
    /// The agent has reported on the current generation of that BootcNode, from a Node of that UID.
    pub observed: bool,
    /// The agent reports `UpdatePrepared`.
    pub prepared: bool,
    /// Digest that is staged with finalization locked.
    pub staged: Option<Digest>,
    /// Digest that is booted.
    pub booted: Option<Digest>,
    /// Digests that failed on the node.
    pub failed: Vec<Digest>,
    /// Digest of the last turn that ended badly, and how many did for that digest.
    pub last_turn: Option<(Digest, u32)>,
    /// Number of offers of the desired digest that this process has seen the node let lapse.
    pub lapses: u32,
    /// The agent has been heard of lately.
    pub heard: bool,
    /// Its agent is told to undo everything, for the node leaves the pool or its BootcNode is being deleted: it counts as
    /// before, and is offered nothing.
    pub leaving: bool,
    /// True if it has left the pool and its agent has not released it in time. It uses up capacity while it is down, but no
    /// wave and no later pool waits for it.
    pub abandoned: bool,
    /// An admin holds it back: it counts as before, stages its image, and is offered nothing.
    pub held_back: bool,
    /// Its wave, as an index into [`PoolFacts::waves`].
    pub wave: usize,
    /// Its zone; nodes without one are in one zone together.
    pub zone: String,
    /// Verdict of I11 on it, when it carries the control plane.
    pub control_plane: Option<Verdict>,
    /// True if its agent reports that the host's clock is synchronised.
    pub clock_synchronized: bool,
    /// Expected length of its drain and its reboot.
    pub estimate: Estimate,
}

/// Expected length of a turn, from what was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Time from taking the berth to the end of the drain.
    pub drain: Duration,
    /// Time from the commit to the proof.
    pub reboot: Duration,
}

/// A wave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wave {
    /// Its name.
    pub name: String,
    /// Time for which it must be proven before the next one begins.
    pub soak: Duration,
    /// Time for which it has been, as far as this leader and those before it have seen.
    pub soaked: Duration,
}

/// The nodes on which each digest failed.
pub type Failures = BTreeMap<Digest, BTreeSet<NodeName>>;

impl Member {
    /// Way in which the node is unavailable, if it is.
    pub(super) fn down(&self) -> Option<How> {
        How::down(self.ready, self.unschedulable, self.our_cordon)
    }

    /// Says whether the node is in U: unavailable for whatever reason.
    pub fn unavailable(&self) -> bool {
        self.down().is_some()
    }
}

impl PoolFacts {
    pub(in crate::controller) fn readable(&self) -> impl Iterator<Item = (&SeenBerth, &Berth)> {
        self.berths.iter().filter_map(|s| s.berth.as_ref().ok().map(|b| (s, b)))
    }

    /// Says whether a write of another leader, or one of ours with an unknown fate, could still land on a berth.
    ///
    /// A berth that the API server refuses to write counts as used already, so a late write to it uses up no more.
    pub(super) fn unfenced(&self) -> bool {
        let is_unfenced = |(seen, berth): (&SeenBerth, &Berth)| {
            let is_open_to_late_writes = seen.in_doubt || berth.epoch != self.epoch;
            is_open_to_late_writes && !seen.refused
        };
        !Bug::NoEpochStamp.is_awake() && self.readable().any(is_unfenced)
    }

    /// Says whether nodes that are down use up the whole limit of the fleet.
    pub(super) fn is_fleet_starved(&self) -> bool {
        self.fleet.as_ref().is_some_and(FleetUse::is_starved)
    }
}

impl Wave {
    /// True if it has yet to soak.
    pub(super) fn is_short(&self) -> bool {
        self.soaked < self.soak && !Bug::SoakIgnored.is_awake()
    }

    /// Says whether it is a wave that no spec names.
    pub(super) fn is_implied(&self) -> bool {
        self.name == REST || self.name == CONTROL_PLANE
    }
}
