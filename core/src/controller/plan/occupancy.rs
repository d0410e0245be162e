//! Nodes that use up a pool's capacity: those that hold a berth (H), are offered one (R), or are unavailable (U). The
//! sets hold Node UIDs, so that each node counts once.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::NodeUid;
use berth_api::berth::BerthState;
use berth_api::seeded::Bug;

use super::facts::{Member, PoolFacts, SeenBerth};
use super::writes::BerthWrite;
use crate::controller::usage::{CapacityUse, UseKind};

/// The sets H, R and U at one moment, and the numbers derived from them.
#[derive(Debug, Clone, Default)]
pub(super) struct Occupancy<'a> {
    held: BTreeSet<&'a NodeUid>,
    offered: BTreeSet<&'a NodeUid>,
    unavailable: BTreeSet<&'a NodeUid>,
    /// Number of Leases with an unknown holder: Leases that cannot be read, and closed berths that cannot be written.
    unknown: usize,
    /// Number of nodes that hold a berth or are offered one: |H ∪ R|. Computed once, because the plan needs it for
    /// every candidate.
    held_or_offered: usize,
    /// Number of nodes in any of the three sets: |H ∪ U ∪ R|.
    all: usize,
}

impl<'a> Occupancy<'a> {
    pub(super) fn of(facts: &'a PoolFacts, berths: &'a [SeenBerth]) -> Self {
        let mut this = Self::default();
        for seen in berths {
            match seen.berth.as_ref().map(|b| &b.state) {
                Ok(BerthState::Held(h)) => this.held.insert(&h.uid),
                // The offer cannot be withdrawn, because the API server refuses writes to the Lease.
                Ok(BerthState::Offered(o)) if seen.refused => this.held.insert(&o.uid),
                Ok(BerthState::Offered(o)) => this.offered.insert(&o.uid),
                Ok(BerthState::Closed(_)) if !seen.refused || Bug::RefusedNotCounted.is_awake() => false,
                Ok(BerthState::Closed(_)) | Err(_) => {
                    this.unknown += 1;
                    false
                }
            };
        }
        for member in &facts.members {
            // A member with a berth of another pool counts as a holder here too.
            if facts.elsewhere.contains(&member.uid) {
                this.held.insert(&member.uid);
            }
            if member.node.is_unavailable() {
                this.unavailable.insert(&member.uid);
            }
        }
        this.held_or_offered = this.held.union(&this.offered).count() + this.unknown;
        this.all = this.held_or_offered + this.unavailable.iter().filter(|uid| !this.has(uid)).count();
        this
    }

    /// Number of nodes that hold a berth: |H|.
    pub(super) fn held(&self) -> usize {
        self.held.len() + self.unknown
    }

    /// Number of nodes that hold a berth or are offered one: |H ∪ R|.
    pub(super) fn held_or_offered(&self) -> usize {
        self.held_or_offered
    }

    /// True if the node is in H or R.
    pub(super) fn has(&self, uid: &NodeUid) -> bool {
        self.held.contains(uid) || self.offered.contains(uid)
    }

    /// True if the node is in H, R or U.
    pub(super) fn counts(&self, uid: &NodeUid) -> bool {
        self.has(uid) || self.unavailable.contains(uid)
    }

    /// True if the pool's capacity allows one more berth for this node (I1b). An unavailable node uses up capacity
    /// anyway, so it may be updated even if unavailable nodes use up all capacity. The update may repair it.
    pub(super) fn room_for(&self, member: &Member, limit: usize) -> bool {
        let counted = self.unavailable.contains(&member.uid);
        (self.held_or_offered < limit || Bug::NoHeldLimit.is_awake()) && (counted || self.all < limit)
    }

    pub(super) fn offered(&mut self, member: &'a Member) {
        if !self.has(&member.uid) {
            self.held_or_offered += 1;
            self.all += usize::from(!self.unavailable.contains(&member.uid));
            self.offered.insert(&member.uid);
        }
    }

    /// Returns the nodes that use up capacity, sorted by name, each with the kind of use. Includes the nodes that
    /// `offers` offers a berth to. A Lease with an unknown holder is listed by the name of the Lease.
    pub(super) fn uses(facts: &PoolFacts, berths: &[SeenBerth], offers: &[BerthWrite]) -> Vec<CapacityUse> {
        let mut uses: BTreeMap<String, UseKind> = BTreeMap::new();
        for member in &facts.members {
            let elsewhere = facts.elsewhere.contains(&member.uid).then_some(UseKind::Elsewhere);
            uses.extend(
                elsewhere
                    .or(member.node.down())
                    .map(|how| (member.name.to_string(), how)),
            );
        }
        for seen in berths {
            match seen.berth.as_ref().map(|b| &b.state) {
                Ok(BerthState::Held(h)) => uses.insert(h.node.to_string(), UseKind::Holds),
                Ok(BerthState::Offered(o)) => uses.insert(o.node.to_string(), UseKind::IsOffered),
                Ok(BerthState::Closed(_)) if seen.refused => uses.insert(seen.lease.clone(), UseKind::Refused),
                Ok(BerthState::Closed(_)) => None,
                Err(_) => uses.insert(seen.lease.clone(), UseKind::Unreadable),
            };
        }
        let offers = offers.iter().filter_map(|write| match write {
            BerthWrite::Update { berth, .. } => berth.offer(),
            _ => None,
        });
        uses.extend(offers.map(|offer| (offer.node.to_string(), UseKind::IsOffered)));
        uses.into_iter().map(|(who, how)| CapacityUse { who, how }).collect()
    }
}

impl PoolFacts {
    /// Returns the nodes that use up capacity now, without new offers, and how.
    pub fn uses(&self) -> Vec<CapacityUse> {
        Occupancy::uses(self, &self.berths, &[])
    }
}
