//! Writes to existing berths, which precede new offers. The controller fences berths, closes berths of deleted Nodes,
//! closes lapsed and withdrawn offers, asks holders to give back, and deletes berths above a lowered capacity.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::{Berth, BerthState, ClosedReason, HoldPhase, Holding, Offer};
use berth_api::seeded::Bug;
use berth_api::{NodeName, NodeUid};
use jiff::SignedDuration;

use super::facts::{Member, PoolFacts, SeenBerth};
use super::fleet_limit::FleetUse;
use super::occupancy::Occupancy;
use super::waves::Progress;
use super::writes::{BerthWrite, OPEN_FOR, Origin, Plan, WriteReason, open_until};
use super::{candidates, failures};
use crate::controller::gate::Gate;

/// Smallest change of a holder's `open-until` that is written. The value depends on the expected duration of the
/// reboot, which changes slightly with every measured turn.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(60);

/// Plans the writes to existing berths. Returns the berths as they are after these writes.
pub(super) fn settle(facts: &PoolFacts, progress: &Progress, plan: &mut Plan) -> Vec<SeenBerth> {
    let Plan {
        writes, fleet, gate, ..
    } = plan;
    let mut after = vec![];
    let members = facts.members.iter().map(|m| (&m.uid, m)).collect();
    let mut settler = Settler {
        facts,
        members,
        gate: gate.as_ref(),
        progress,
        room: Room::of(facts, fleet.as_mut()),
    };
    for seen in &facts.berths {
        let berth = match &seen.berth {
            Ok(berth) if !seen.refused => berth,
            _ => {
                after.push(seen.clone());
                continue;
            }
        };
        if deletable(facts, berth) {
            writes.push(BerthWrite::Delete {
                lease: seen.lease.clone(),
            });
            continue;
        }
        let fence = (seen.in_doubt || berth.epoch != facts.epoch) && !Bug::NoEpochStamp.is_awake();
        let next = settler
            .settled(berth, seen.age)
            .or_else(|| fence.then(|| (berth.clone(), WriteReason::Stamp)));
        let berth = match next {
            None => berth.clone(),
            Some((next, why)) => {
                let next = next.stamped(facts.epoch);
                writes.push(BerthWrite::Update {
                    lease: seen.lease.clone(),
                    berth: next.clone(),
                    why,
                });
                next
            }
        };
        after.push(SeenBerth {
            age: seen.age,
            ..SeenBerth::new(seen.lease.clone(), Ok(berth))
        });
    }
    after
}

/// Capacity that the holders leave for open offers.
struct Room<'a> {
    /// Number of further open offers that the pool's capacity has room for.
    left: usize,
    /// Nodes that hold a berth or whose offer stays open. A second offer to such a node is withdrawn.
    served: BTreeSet<NodeUid>,
    fleet: Option<&'a mut FleetUse>,
}

impl<'a> Room<'a> {
    fn of(facts: &PoolFacts, fleet: Option<&'a mut FleetUse>) -> Self {
        let occupancy = Occupancy::of(facts, &facts.berths);
        // An offer on a Lease that cannot be written cannot be withdrawn, so it counts like a holder.
        let staying = facts
            .readable()
            .filter(|(seen, berth)| berth.holding().is_some() || seen.refused);
        let nodes = staying.filter_map(|(_, berth)| berth.node());
        let served = nodes.map(|(_, uid)| uid).chain(&facts.elsewhere);
        Self {
            left: facts.capacity.saturating_sub(occupancy.held()),
            served: served.cloned().collect(),
            fleet,
        }
    }

    /// Counts an open offer that stays. Fails with the reason if the offer must be withdrawn.
    fn keep(&mut self, offer: &Offer) -> Result<(), (&'static str, Origin)> {
        if !self.served.insert(offer.uid.clone()) {
            return Err(("the node has another berth", Origin::Node));
        }
        let left = self.left.checked_sub(1);
        self.left = left.ok_or(("the capacity of the pool is used up", Origin::Pool))?;
        let fits = self.fleet.as_mut().is_none_or(|fleet| fleet.keep_offer());
        fits.then_some(())
            .ok_or(("the limit of the fleet is used up", Origin::Pool))
    }
}

/// True if the berth's index is not below a lowered capacity, and the lowered `status.berths.total` is published
/// already.
fn above(facts: &PoolFacts, berth: &Berth) -> bool {
    facts.published <= facts.capacity && berth.index as usize >= facts.capacity
}

fn deletable(facts: &PoolFacts, berth: &Berth) -> bool {
    let shrunk = matches!(&berth.state, BerthState::Closed(c) if c.reason == ClosedReason::Shrunk);
    shrunk && above(facts, berth) && !failures::is_unrecorded(berth)
}

struct Settler<'a> {
    facts: &'a PoolFacts,
    members: BTreeMap<&'a NodeUid, &'a Member>,
    gate: Option<&'a Gate>,
    progress: &'a Progress,
    room: Room<'a>,
}

impl<'a> Settler<'a> {
    /// Returns the member with this name and UID; `None` if the pool has no such member or it is leaving.
    fn member(&self, name: &NodeName, uid: &NodeUid) -> Option<&'a Member> {
        let member = self.members.get(uid).copied();
        member.filter(|m| m.name == *name && !m.leaving)
    }

    /// Returns the new state of a berth and the reason of the write; `None` without a change. `age`: age of its offer.
    fn settled(&mut self, berth: &Berth, age: Duration) -> Option<(Berth, WriteReason)> {
        let facts = self.facts;
        let (next, why) = match &berth.state {
            BerthState::Held(h) if facts.confirmed_gone.contains(&h.uid) => {
                (berth.ended(ClosedReason::Gone), WriteReason::Gone)
            }
            BerthState::Held(_) if age >= OPEN_FOR && Bug::ExpiredBerthStolen.is_awake() => {
                (berth.ended(ClosedReason::Lapsed), WriteReason::Lapsed)
            }
            BerthState::Held(h) if facts.lost.contains(&h.uid) => {
                (berth.ended(ClosedReason::Excluded), WriteReason::Excluded)
            }
            BerthState::Held(h) => return self.revoked(berth, h),
            BerthState::Offered(o) if facts.confirmed_gone.contains(&o.uid) => {
                (berth.ended(ClosedReason::Gone), WriteReason::Gone)
            }
            BerthState::Offered(_) if age >= OPEN_FOR => (berth.closed(ClosedReason::Lapsed), WriteReason::Lapsed),
            BerthState::Offered(o) => {
                let (reason, origin) = match self.withdrawal(o) {
                    Some(reason) => reason,
                    None => self.room.keep(o).err()?,
                };
                let why = WriteReason::Withdrawn(reason, origin);
                (berth.closed(ClosedReason::Withdrawn), why)
            }
            // I8: the failure is recorded in the pool's status, so the berth may be opened again or deleted.
            BerthState::Closed(_) if failures::is_recorded(facts, berth) => {
                (berth.acknowledged(), WriteReason::Recorded)
            }
            BerthState::Closed(_) if failures::is_unrecorded(berth) => return None,
            BerthState::Closed(c) if above(facts, berth) && c.reason != ClosedReason::Shrunk => {
                (berth.closed(ClosedReason::Shrunk), WriteReason::Shrunk)
            }
            BerthState::Closed(_) => return None,
        };
        // None of these transitions can fail. If one did, nothing would be written.
        next.ok().map(|next| (next, why))
    }

    fn withdrawal(&self, offer: &Offer) -> Option<(&'static str, Origin)> {
        if let Some(gate) = self.gate {
            return Some((gate.reason.as_str(), Origin::Pool));
        }
        let member = self.member(&offer.node, &offer.uid);
        let gated = member.and_then(|m| candidates::closed_for(self.progress, m));
        candidates::withdrawal(self.facts, offer, member).or(gated)
    }

    /// Asks a holder to give its berth back, or cancels that request when its reason is gone. A holder that has
    /// committed or cannot give back gets the request too, because the request keeps it from changing to another
    /// digest.
    ///
    /// An unproven wave is a reason only for a holder that can give back. A stuck holder may use up the capacity that
    /// the earlier wave needs, and then holder and wave would wait for each other forever (I10).
    fn revoked(&self, berth: &Berth, holding: &Holding) -> Option<(Berth, WriteReason)> {
        if matches!(holding.phase, HoldPhase::Releasing(_)) {
            return None;
        }
        let facts = self.facts;
        let member = self.member(&holding.node, &holding.uid);
        let uncommitted = holding.phase == HoldPhase::Taken;
        // A holder that is not Ready may be unable to prove its boot, and then cannot give its berth back. Only a
        // closed gate or the control plane keeps such a holder from changing to the current image.
        let can_give_back = uncommitted && member.is_some_and(|m| m.node.ready);
        let reason = match member {
            None if uncommitted => Some(("LeftPool", Origin::Node)),
            Some(_) if uncommitted && facts.unresolved => Some(("TargetChanged", Origin::Pool)),
            Some(m) if can_give_back && m.desired.as_ref() != Some(&holding.target) => {
                Some(("TargetChanged", Origin::Node))
            }
            _ => match self.gate {
                Some(gate) => Some((gate.reason.as_str(), Origin::Pool)),
                None if can_give_back => member.and_then(|m| candidates::closed_for(self.progress, m)),
                None => member.and_then(candidates::stays),
            },
        };
        let (text, why) = match (reason, &holding.revoke) {
            (Some((reason, origin)), None) => (Some(reason.to_owned()), WriteReason::Revoke(reason, origin)),
            (None, Some(_)) => (None, WriteReason::Unrevoke),
            (None, None) => return self.extended(berth, holding, member?),
            _ => return None,
        };
        berth.revoked(text).ok().map(|next| (next, why))
    }

    /// Updates the holder's latest reboot start (`open-until`) if it changed. For example, the admin edited the
    /// windows, or the holder is stuck on a bad image and the next window has opened.
    fn extended(&self, berth: &Berth, holding: &Holding, member: &Member) -> Option<(Berth, WriteReason)> {
        let wanted = open_until(self.facts, member);
        let same = match (wanted, holding.open_until) {
            (Some(wanted), Some(told)) => wanted.duration_since(told).abs() < TOLERANCE,
            (wanted, told) => wanted == told,
        };
        if same {
            return None;
        }
        berth.open_until(wanted).ok().map(|next| (next, WriteReason::Window))
    }
}
