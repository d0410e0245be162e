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
use crate::controller::usage::{How, Use};
use crate::text::few;

/// Time for which an offer stays open, as seen by this process. An agent takes it within milliseconds; one that does
/// not is not there.
pub const OPEN_FOR: Duration = Duration::from_secs(120);

/// One write to a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BerthWrite {
    /// POST of a berth that does not exist.
    Create(Berth),
    /// PUT over the Lease that was read.
    Update {
        /// Name of the Lease.
        lease: String,
        /// The berth after the write.
        berth: Berth,
        /// Reason of the write.
        why: WriteReason,
    },
    /// DELETE of the Lease that was read: closed, and above the capacity.
    Delete {
        /// Name of the Lease.
        lease: String,
    },
}

impl BerthWrite {
    /// Name of the Lease.
    pub fn lease(&self) -> String {
        match self {
            Self::Create(berth) => berth.name(),
            Self::Update { lease, .. } | Self::Delete { lease } => lease.clone(),
        }
    }

    /// Says whether the write offers the berth to a node.
    pub fn is_offer(&self) -> bool {
        let Self::Update { why, .. } = self else { return false };
        *why == WriteReason::Offer
    }
}

/// Reason for which a berth is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteReason {
    /// A fence: in-flight writes of a former leader, or of our own that are in doubt, now lose.
    Stamp,
    /// The berth is offered.
    Offer,
    /// The offer was not taken in time.
    Lapsed,
    /// The offer is withdrawn, for this reason.
    Withdrawn(&'static str),
    /// The holder is asked to give back, for this reason.
    Revoke(&'static str),
    /// The holder may go on after all.
    Unrevoke,
    /// The holder is told anew until when its reboot may start.
    Window,
    /// Its Node is gone.
    Gone,
    /// Its Node is excluded and does not come back.
    Excluded,
    /// The failure that ended there stands in the pool's status now.
    Recorded,
    /// The capacity is smaller now.
    Shrunk,
}

/// Writes of one pool's berths, and what they mean for people.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The writes, in this order.
    pub writes: Vec<BerthWrite>,
    /// Reason for which each member that should change is not offered a berth.
    pub waiting: BTreeMap<NodeName, BlockReason>,
    /// Nodes that use up the capacity.
    pub used_by: Vec<Use>,
    /// Reason for which no berth is opened at all: a gate, or else too many failures.
    pub gate: Option<Gate>,
    /// The image failed on too many nodes, whatever else is closed.
    pub halt: Option<Gate>,
    /// Control plane nodes that others may wait for, by cause.
    pub waited_for: BTreeMap<Cause, Vec<NodeName>>,
    /// Messages about API servers' addresses that several Nodes have; none if no member carries the control plane.
    pub address_conflicts: Vec<String>,
    /// Reason for which the pool waits for those that go before it.
    pub order: Option<Gate>,
    /// Use of the fleet's limit once the offers are made.
    pub fleet: Option<FleetUse>,
    /// Progress of each wave.
    pub waves: Vec<WaveStatus>,
    /// New content of `status.failures`.
    pub failures: Failures,
    /// The berths as read. `total` is what is to be published now: a smaller capacity only once no open offer
    /// exceeds it (I1c).
    pub counts: BerthCounts,
}

impl Plan {
    /// True if the plan writes to the Lease of that name, or creates it.
    pub fn writes_to(&self, lease: &str) -> bool {
        self.writes.iter().any(|write| write.lease() == lease)
    }

    /// Returns why these members wait, in words, with the control plane nodes that they wait for.
    pub fn wait_words(&self, why: BlockReason, waiting: &[&NodeName]) -> String {
        let words = why.words().to_owned();
        let BlockReason::ControlPlane(cause) = why else {
            return words;
        };
        let Some(nodes) = self.waited_for.get(&cause) else {
            return words;
        };
        let others: Vec<String> = nodes
            .iter()
            .filter(|node| !waiting.contains(node))
            .map(ToString::to_string)
            .collect();
        if others.is_empty() {
            return words;
        }
        format!("{words} ({})", few(others))
    }

    /// True if a member waits for anything.
    pub fn has_waiting(&self) -> bool {
        self.waiting.values().any(|why| *why != BlockReason::UpToDate)
    }

    /// Takes back the offers that were not made, because these writes of the plan failed or were skipped.
    pub fn not_made(&mut self, writes: &[BerthWrite]) {
        for write in writes.iter().filter(|write| write.is_offer()) {
            let BerthWrite::Update { berth, .. } = write else {
                continue;
            };
            let Some(offer) = berth.offer() else {
                continue;
            };
            let is_offered = |used: &Use| used.how == How::IsOffered && used.who == offer.node.as_str();
            self.used_by.retain(|used| !is_offered(used));
            self.waiting.insert(offer.node.clone(), BlockReason::NoBerth);
        }
    }
}

/// Time until which the member's reboot may start: it must be over before the window is.
pub(super) fn open_until(facts: &PoolFacts, member: &Member) -> Option<Timestamp> {
    facts
        .closes
        .map(|closes| closes.checked_sub(member.estimate.reboot).unwrap_or(closes))
}
