//! Writes of a plan, and the plan itself.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::NodeName;
use berth_api::berth::Berth;
use berth_api::pool::{BerthCounts, WaveStatus};
use jiff::Timestamp;

use super::block_reason::BlockReason;
use super::facts::{Failures, Member, PoolFacts};
use super::fleet_limit::FleetUse;
use crate::controller::gate::Gate;
use crate::controller::quorum::Cause;
use crate::controller::usage::{CapacityUse, UseKind};
use crate::text::few;

/// How long an offer stays open, counted from when this process first saw it. A running agent takes an offer within
/// milliseconds.
pub const OPEN_FOR: Duration = Duration::from_secs(120);

/// Minimum number of offers of one digest for a report that the node still does not run the digest.
pub const MANY_OFFERS: u32 = 4;

/// A write to a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BerthWrite {
    /// Creates a berth that does not exist.
    Create(Berth),
    /// Updates an existing Lease.
    Update {
        /// Name of the Lease.
        lease: String,
        /// The berth after the write.
        berth: Berth,
        /// Reason of the write.
        why: WriteReason,
    },
    /// Deletes the Lease of a closed berth whose index is above the capacity.
    Delete {
        /// Name of the Lease.
        lease: String,
    },
}

impl BerthWrite {
    /// Returns the name of the Lease.
    pub fn lease(&self) -> String {
        match self {
            Self::Create(berth) => berth.name(),
            Self::Update { lease, .. } | Self::Delete { lease } => lease.clone(),
        }
    }

    /// True if the write offers the berth to a node.
    pub fn is_offer(&self) -> bool {
        let Self::Update { why, .. } = self else { return false };
        *why == WriteReason::Offer
    }
}

/// Why a berth is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteReason {
    /// Fences the berth. The API server then rejects late writes by an earlier leader, and late writes by this leader
    /// whose result is unknown.
    Stamp,
    /// The berth is offered to a node.
    Offer,
    /// The node did not take the offer within [`OPEN_FOR`].
    Lapsed,
    /// The offer is withdrawn, for this reason.
    Withdrawn(&'static str, Origin),
    /// The holder is asked to give the berth back, for this reason.
    Revoke(&'static str, Origin),
    /// The request to give the berth back is canceled: the holder may continue.
    Unrevoke,
    /// Updates the holder's deadline for starting its reboot (`open-until`).
    Window,
    /// The Node that holds the berth, or is offered it, was deleted.
    Gone,
    /// The Node that holds the berth is excluded and not Ready.
    Excluded,
    /// The failure that the closed berth records is now in the pool's status.
    Recorded,
    /// The capacity was lowered.
    Shrunk,
}

/// Origin of a reason to withdraw an offer or to ask for a berth back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The state or the place of the node. The node may be able to cause it, so the offer counts as the node's.
    Node,
    /// The pool, the fleet or other control plane nodes. The node cannot help it, so the offer does not count.
    Pool,
}

/// Writes to one pool's berths, and explanations for the pool's status.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The writes, in order.
    pub writes: Vec<BerthWrite>,
    /// For each member without a new offer, the reason; `UpToDate` if the member already runs the target.
    pub waiting: BTreeMap<NodeName, BlockReason>,
    /// Nodes that use up the pool's capacity, and how.
    pub used_by: Vec<CapacityUse>,
    /// Why the pool opens no berths: a closed gate or, if no gate is closed, the halt after too many failures. `None`
    /// if the pool may open berths.
    pub gate: Option<Gate>,
    /// The halt, if the image failed on too many nodes. Set even if `gate` has another gate.
    pub halt: Option<Gate>,
    /// Control plane nodes that may keep other control plane nodes waiting, grouped by the cause of the wait.
    pub waited_for: BTreeMap<Cause, Vec<NodeName>>,
    /// Messages about API server addresses that several Nodes share. Empty if no member is a control plane node.
    pub address_conflicts: Vec<String>,
    /// Why the pool waits for the pools in its `rollout.after`; `None` if it does not wait.
    pub order: Option<Gate>,
    /// Use of the fleet's limit after the offers.
    pub fleet: Option<FleetUse>,
    /// Progress of each wave.
    pub waves: Vec<WaveStatus>,
    /// Members of the active wave that are not proven. The members of later waves wait for them.
    pub unproven: Vec<NodeName>,
    /// Members that had at least [`MANY_OFFERS`] offers of the desired digest and do not run it, and the number of these
    /// offers. Offers that were taken back because of the pool do not count.
    pub vain: BTreeMap<NodeName, u32>,
    /// New content of `status.failures`.
    pub failures: Failures,
    /// Numbers of berths before the writes. `total` is the capacity to publish. A lower capacity is published only when
    /// every open offer fits into it (I1c).
    pub counts: BerthCounts,
}

impl Plan {
    /// True if the plan creates, updates or deletes this Lease.
    pub fn writes_to(&self, lease: &str) -> bool {
        self.writes.iter().any(|write| write.lease() == lease)
    }

    /// Returns the reason `why` as a message about the members in `waiting`. If they wait for other nodes of the control
    /// plane or of an earlier wave, the message names those nodes.
    pub fn wait_words(&self, why: BlockReason, waiting: &[&NodeName]) -> String {
        let words = why.words().to_owned();
        let waited_for = match why {
            BlockReason::ControlPlane(cause) => self.waited_for.get(&cause),
            BlockReason::Wave => Some(&self.unproven),
            _ => None,
        };
        let others: Vec<String> = waited_for
            .into_iter()
            .flatten()
            .filter(|node| !waiting.contains(node))
            .map(ToString::to_string)
            .collect();
        if others.is_empty() {
            return words;
        }
        format!("{words} ({})", few(others))
    }

    /// True if a member that does not run the target yet is waiting.
    pub fn has_waiting(&self) -> bool {
        self.waiting.values().any(|why| *why != BlockReason::UpToDate)
    }

    /// Corrects `used_by` and `waiting` if planned offers were not made. `writes`: the writes that failed or were
    /// skipped.
    pub fn not_made(&mut self, writes: &[BerthWrite]) {
        for write in writes.iter().filter(|write| write.is_offer()) {
            let BerthWrite::Update { berth, .. } = write else {
                continue;
            };
            let Some(offer) = berth.offer() else {
                continue;
            };
            self.used_by
                .retain(|used| used.how != UseKind::IsOffered || used.who != offer.node.as_str());
            self.waiting.insert(offer.node.clone(), BlockReason::NoBerth);
        }
    }
}

/// Returns the deadline for starting the member's reboot, so that the reboot ends within the window; `None` without a
/// window.
pub(super) fn open_until(facts: &PoolFacts, member: &Member) -> Option<Timestamp> {
    facts
        .closes
        .map(|closes| closes.checked_sub(member.estimate.reboot).unwrap_or(closes))
}
