//! The states of a berth and its transitions.

use jiff::Timestamp;

use crate::digest::Digest;
use crate::names::{BootId, NodeName, NodeUid, PoolName};
use crate::reasons;
use crate::seeded::Bug;

/// A berth as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Berth {
    /// Pool that the berth belongs to.
    pub pool: PoolName,
    /// Number of this berth in the pool, from 0.
    pub index: u32,
    /// Epoch (number of the term) of the leader that last stamped the berth.
    pub epoch: u64,
    /// State: closed, offered or held.
    pub state: BerthState,
}

/// State of a berth.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BerthState {
    /// No node may take the berth.
    Closed(Closed),
    /// The named node may take the berth.
    Offered(Offer),
    /// A node holds the berth.
    Held(Holding),
}

/// A closed berth.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Closed {
    /// Reason for closing the berth.
    pub reason: ClosedReason,
    /// Node of the last turn or offer; `None` on a new berth.
    pub last_node: Option<NodeName>,
    /// Target digest of the last turn or offer.
    pub last_target: Option<Digest>,
    /// Outcome of the last turn; [`Outcome::Lapsed`] after a lapsed offer. `None` without an outcome. After
    /// [`Outcome::Failed`], the berth stays closed until the pool's status lists the failure. Then the controller
    /// clears the outcome (I8).
    pub outcome: Option<Outcome>,
}

reasons! {
    /// Why a berth is closed.
    #[derive(Hash)]
    pub enum ClosedReason {
        /// The berth is new.
        New = "new",
        /// The node gave the berth back.
        Released = "released",
        /// The node gave the berth back after the target had failed there.
        Failed = "failed",
        /// The Node that held the berth, or was offered it, no longer exists.
        Gone = "gone",
        /// The pool's capacity was reduced.
        Shrunk = "shrunk",
        /// The node did not take the offer in time.
        Lapsed = "lapsed",
        /// The offer was withdrawn: the pool is paused, or the node is no longer eligible.
        Withdrawn = "withdrawn",
        /// The node that held the berth is excluded and did not give it back.
        Excluded = "excluded",
        /// An admin closed the berth.
        Admin = "admin",
    }
}

/// An offer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Node that may take the berth.
    pub node: NodeName,
    /// UID of that Node. A Node of the same name with another UID may not take the berth.
    pub uid: NodeUid,
    /// The digest that the node may boot.
    pub target: Digest,
    /// Deadline for the start of the reboot. The controller sets the deadline, and the node compares it with its own
    /// clock. No other time is compared across machines. `None` if neither a window nor an upcoming exclusion limits
    /// the start.
    pub open_until: Option<Timestamp>,
}

/// A held berth.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holding {
    /// Name of the node that holds the berth.
    pub node: NodeName,
    /// UID of that Node.
    pub uid: NodeUid,
    /// The digest that the holder may boot.
    pub target: Digest,
    /// Digest that the holder ran when it took the berth. `None` if the host did not report it.
    pub from: Option<Digest>,
    /// Boot ID of the host when it last took or committed the berth, or began to give it back.
    pub boot_id: BootId,
    /// Progress of the holder.
    pub phase: HoldPhase,
    /// Why the controller asks for the berth back. A holder that has not committed then gives the berth back. A
    /// committed holder continues, but may not switch to another digest.
    pub revoke: Option<String>,
    /// Deadline for the start of the reboot, as in [`Offer`].
    pub open_until: Option<Timestamp>,
}

/// Progress of a holder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HoldPhase {
    /// The holder may cordon and drain.
    Taken,
    /// The holder may unlock and reboot, once.
    Committed,
    /// The holder must restore the Node and give the berth back. The holder can make no other transition.
    Releasing(Outcome),
}

reasons! {
    /// Outcome of a turn.
    #[derive(Hash)]
    pub enum Outcome {
        /// The target is booted and proven.
        Updated,
        /// The drain did not end in time.
        DrainTimeout,
        /// The controller asked for the berth back.
        Revoked,
        /// The target is no longer desired on this node.
        Withdrawn,
        /// The staged image is gone, or is not the target.
        NotStaged,
        /// logind refused the reboot, or something inhibits it.
        RebootBlocked,
        /// The node rebooted but still runs its previous image.
        NotApplied,
        /// The offer lapsed.
        Lapsed,
        /// The digest failed on the node or was never proven there.
        Failed,
    }
}

/// A transition that the protocol does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("berth {berth}: {what}")]
pub struct Refused {
    berth: String,
    what: &'static str,
}

impl Berth {
    /// Makes a new berth. The berth is closed: if a former leader's request to create it arrives late, no node may take
    /// the berth.
    pub fn new(pool: PoolName, index: u32, epoch: u64) -> Self {
        let state = BerthState::Closed(Closed {
            reason: ClosedReason::New,
            last_node: None,
            last_target: None,
            outcome: None,
        });
        Self {
            pool,
            index,
            epoch,
            state,
        }
    }

    /// Returns the name of the berth's Lease.
    pub fn name(&self) -> String {
        format!("{}-{}", self.pool, self.index)
    }

    fn refused<T>(&self, what: &'static str) -> Result<T, Refused> {
        Err(Refused {
            berth: self.name(),
            what,
        })
    }

    fn with(&self, state: BerthState) -> Self {
        Self { state, ..self.clone() }
    }

    /// Returns the holding if a node holds the berth.
    pub fn holding(&self) -> Option<&Holding> {
        match &self.state {
            BerthState::Held(holding) => Some(holding),
            _ => None,
        }
    }

    /// Returns the offer if the berth is offered.
    pub fn offer(&self) -> Option<&Offer> {
        match &self.state {
            BerthState::Offered(offer) => Some(offer),
            _ => None,
        }
    }

    /// Returns the name and UID of the node that holds the berth or may take it; `None` for a closed berth.
    pub fn node(&self) -> Option<(&NodeName, &NodeUid)> {
        match &self.state {
            BerthState::Closed(_) => None,
            BerthState::Offered(offer) => Some((&offer.node, &offer.uid)),
            BerthState::Held(holding) => Some((&holding.node, &holding.uid)),
        }
    }

    // Transitions by the controller.

    /// Stamps a new leader's epoch on the berth. Pending writes of an older leader then fail.
    pub fn stamped(&self, epoch: u64) -> Self {
        Self { epoch, ..self.clone() }
    }

    /// Offers a closed berth to one node.
    pub fn offered(&self, offer: Offer) -> Result<Self, Refused> {
        match self.state {
            BerthState::Closed(_) => Ok(self.with(BerthState::Offered(offer))),
            _ => self.refused("only a closed berth can be offered"),
        }
    }

    /// Closes an offer that was not taken, or changes the reason of a closed berth. Fails if the berth is held: only
    /// its holder or [`Berth::ended`] may close it.
    pub fn closed(&self, reason: ClosedReason) -> Result<Self, Refused> {
        let closed = match &self.state {
            BerthState::Offered(offer) => {
                let outcome = (reason == ClosedReason::Lapsed).then_some(Outcome::Lapsed);
                let (last_node, last_target) = (Some(offer.node.clone()), Some(offer.target.clone()));
                Closed {
                    reason,
                    last_node,
                    last_target,
                    outcome,
                }
            }
            BerthState::Closed(closed) => Closed {
                reason,
                ..closed.clone()
            },
            BerthState::Held(_) => return self.refused("only the holder of a held berth can close it"),
        };
        Ok(self.with(BerthState::Closed(closed)))
    }

    /// Clears the outcome of a closed berth after the pool's status has recorded the failure.
    pub fn acknowledged(&self) -> Result<Self, Refused> {
        match &self.state {
            BerthState::Closed(closed) => Ok(self.with(BerthState::Closed(Closed {
                outcome: None,
                ..closed.clone()
            }))),
            _ => self.refused("the berth is not closed"),
        }
    }

    /// Closes an offered or held berth whose node cannot give it back. The caller must have one of three reasons.
    /// [`ClosedReason::Gone`]: a live read has shown that the Node no longer exists under that UID.
    /// [`ClosedReason::Excluded`]: the Node is excluded and not Ready. [`ClosedReason::Admin`]: an admin takes the
    /// responsibility. A target that was committed but never proven counts as failed (I5).
    pub fn ended(&self, reason: ClosedReason) -> Result<Self, Refused> {
        let (node, target, outcome) = match &self.state {
            BerthState::Closed(_) => return self.refused("the berth is already closed"),
            BerthState::Offered(offer) => (&offer.node, &offer.target, None),
            BerthState::Held(holding) => {
                let outcome = match holding.phase {
                    HoldPhase::Taken => None,
                    HoldPhase::Committed => Some(Outcome::Failed),
                    HoldPhase::Releasing(outcome) => Some(outcome),
                };
                (&holding.node, &holding.target, outcome)
            }
        };
        let (last_node, last_target) = (Some(node.clone()), Some(target.clone()));
        Ok(self.with(BerthState::Closed(Closed {
            reason,
            last_node,
            last_target,
            outcome,
        })))
    }

    /// Asks a holder to give the berth back, or withdraws that request. A committed holder continues its turn anyway.
    pub fn revoked(&self, revoke: Option<String>) -> Result<Self, Refused> {
        match &self.state {
            BerthState::Held(h) => Ok(self.with(BerthState::Held(Holding { revoke, ..h.clone() }))),
            _ => self.refused("no node holds the berth"),
        }
    }

    /// Updates the deadline for the start of the holder's reboot. Windows may change while the berth is held. A node
    /// that is stuck on a bad image may have to wait for the next window.
    pub fn open_until(&self, open_until: Option<Timestamp>) -> Result<Self, Refused> {
        match &self.state {
            BerthState::Held(h) => Ok(self.with(BerthState::Held(Holding {
                open_until,
                ..h.clone()
            }))),
            _ => self.refused("no node holds the berth"),
        }
    }

    // Transitions by the agent of the named node.

    /// Takes an offer that was made to this Node. Fails if the berth is not offered to this name and UID.
    pub fn taken(
        &self,
        node: &NodeName,
        uid: &NodeUid,
        from: Option<Digest>,
        boot_id: BootId,
    ) -> Result<Self, Refused> {
        match &self.state {
            BerthState::Offered(o) if o.node == *node && o.uid == *uid => Ok(self.with(BerthState::Held(Holding {
                node: o.node.clone(),
                uid: o.uid.clone(),
                target: o.target.clone(),
                from,
                boot_id,
                phase: HoldPhase::Taken,
                revoke: None,
                open_until: o.open_until,
            }))),
            _ => self.refused("the berth is not offered to this node"),
        }
    }

    fn moved(&self, to: HoldPhase, boot_id: Option<BootId>) -> Result<Self, Refused> {
        let BerthState::Held(holding) = &self.state else {
            return self.refused("this node does not hold the berth");
        };
        let allowed = match (&holding.phase, &to) {
            (HoldPhase::Taken, HoldPhase::Committed) => holding.revoke.is_none(),
            (HoldPhase::Committed, HoldPhase::Taken) => true,
            (HoldPhase::Taken | HoldPhase::Committed, HoldPhase::Releasing(_)) => true,
            _ => false,
        };
        if !allowed {
            return self.refused("the phase of the berth does not allow this step");
        }
        let boot_id = boot_id.unwrap_or_else(|| holding.boot_id.clone());
        Ok(self.with(BerthState::Held(Holding {
            phase: to,
            boot_id,
            ..holding.clone()
        })))
    }

    /// Commits the berth. The node may now unlock the image, and reboot once from the boot with this ID. Fails if the
    /// berth is not in phase Taken, or was revoked.
    pub fn committed(&self, boot_id: BootId) -> Result<Self, Refused> {
        self.moved(HoldPhase::Committed, Some(boot_id))
    }

    /// Commits a held berth to another digest, because the holder's new boot cannot be proven (I2, I10). This is one
    /// write, so the node stays licensed throughout. `from` stays the same. The caller has staged and locked the
    /// digest, and has checked that the node is cordoned and drained. The same digest may be committed again after a
    /// reboot that did not boot it. Fails if the berth is not held, is being released, is revoked, or is already
    /// licensed for this digest and boot.
    pub fn relicensed(&self, target: Digest, boot_id: BootId) -> Result<Self, Refused> {
        let BerthState::Held(holding) = &self.state else {
            return self.refused("this node does not hold the berth");
        };
        let licensed = holding.target == target && holding.boot_id == boot_id;
        if matches!(holding.phase, HoldPhase::Releasing(_)) || holding.revoke.is_some() || licensed {
            return self.refused("the berth is being released, was revoked, or is already committed to this digest");
        }
        let phase = HoldPhase::Committed;
        Ok(self.with(BerthState::Held(Holding {
            phase,
            target,
            boot_id,
            ..holding.clone()
        })))
    }

    /// Takes back a commit. The caller has checked that no shutdown is pending and that the image is locked.
    pub fn uncommitted(&self) -> Result<Self, Refused> {
        self.moved(HoldPhase::Taken, None)
    }

    /// Begins to give the berth back, and records the boot ID. The holder's next transition must be
    /// [`Berth::given_back`].
    pub fn releasing(&self, outcome: Outcome, boot_id: BootId) -> Result<Self, Refused> {
        self.moved(HoldPhase::Releasing(outcome), Some(boot_id))
    }

    /// Closes a berth that is being released. The caller has restored the Node.
    pub fn given_back(&self) -> Result<Self, Refused> {
        match &self.state {
            BerthState::Held(h) if matches!(h.phase, HoldPhase::Releasing(_)) && Bug::ReleaseToOpen.is_awake() => {
                let (node, uid, target) = (h.node.clone(), h.uid.clone(), h.target.clone());
                Ok(self.with(BerthState::Offered(Offer {
                    node,
                    uid,
                    target,
                    open_until: None,
                })))
            }
            BerthState::Held(Holding {
                phase: HoldPhase::Releasing(outcome),
                node,
                target,
                ..
            }) => {
                let reason = match outcome {
                    Outcome::Failed => ClosedReason::Failed,
                    _ => ClosedReason::Released,
                };
                Ok(self.with(BerthState::Closed(Closed {
                    reason,
                    last_node: Some(node.clone()),
                    last_target: Some(target.clone()),
                    outcome: Some(*outcome),
                })))
            }
            _ => self.refused("the node has not begun to give the berth back"),
        }
    }
}
