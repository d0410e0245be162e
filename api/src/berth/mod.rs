//! A berth: the only licence to disrupt a node, and the transitions that are allowed.
//!
//! A berth is a Lease. [`lease`] reads and writes that object; this module knows only what a berth *is*. Each
//! transition is a method that either gives the next state or says why it may not be made, so that no caller can
//! make one that the protocol does not have. Every write that stores a transition is a full PUT with the UID and
//! resourceVersion that the state was read with.

use jiff::Timestamp;

use crate::digest::Digest;
use crate::names::{BootId, NodeName, NodeUid, PoolName};
use crate::seeded::Bug;

pub mod lease;

/// A berth as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Berth {
    /// The pool whose capacity it is part of.
    pub pool: PoolName,
    /// Its number in the pool, from 0.
    pub index: u32,
    /// The leader's epoch that last stamped it.
    pub epoch: u64,
    /// Whose it is.
    pub state: BerthState,
}

/// Whose a berth is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BerthState {
    /// Nobody may take it.
    Closed(Closed),
    /// One node may take it.
    Offered(Offer),
    /// A node holds it.
    Held(Holding),
}

/// A closed berth.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Closed {
    /// Why it is closed.
    pub reason: ClosedReason,
    /// Whose turn or offer ended here last.
    pub last_node: Option<NodeName>,
    /// The digest that it was for.
    pub last_target: Option<Digest>,
    /// How that ended. [`Outcome::Failed`]: the digest failed on that node, and the berth stays closed until the pool's
    /// status says so (I8).
    pub outcome: Option<Outcome>,
}

/// Why a berth is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClosedReason {
    /// Just created.
    New,
    /// Given back.
    Released,
    /// Given back by a node on which the target failed.
    Failed,
    /// The Node that held it, or was offered it, is gone.
    Gone,
    /// The pool's capacity is smaller now.
    Shrunk,
    /// The offer was not taken in time.
    Lapsed,
    /// The offer was withdrawn: the pool is paused, or the node is no longer fit for it.
    Withdrawn,
    /// The node that held it is excluded, and does not give it back.
    Excluded,
    /// An admin said so.
    Admin,
}

/// An offer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Offer {
    /// The node that may take it.
    pub node: NodeName,
    /// That Node's UID: the same name on another Node may not.
    pub uid: NodeUid,
    /// The digest that the node may boot.
    pub target: Digest,
    /// Until when the reboot may start, when a window says so: the one time that the clocks of two machines are compared
    /// with. `None`: no window applies, and no clock is compared.
    pub open_until: Option<Timestamp>,
}

/// A held berth.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holding {
    /// Who holds it.
    pub node: NodeName,
    /// That Node's UID.
    pub uid: NodeUid,
    /// The digest that the holder may boot.
    pub target: Digest,
    /// The digest that the holder ran, proven, when it took the berth.
    pub from: Option<Digest>,
    /// The boot ID under which it was taken, committed or begun to be released.
    pub boot_id: BootId,
    /// How far the holder is.
    pub phase: HoldPhase,
    /// The controller asks for it back. Before the commit the holder then gives back; after it, this only keeps the
    /// holder from going on to another digest.
    pub revoke: Option<String>,
    /// As in the offer.
    pub open_until: Option<Timestamp>,
}

/// How far a holder is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HoldPhase {
    /// May cordon and drain.
    Taken,
    /// May unlock and reboot, once.
    Committed,
    /// Must restore the Node and give back; there is no other exit.
    Releasing(Outcome),
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The target is booted and proven.
    Updated,
    /// The drain did not end in time.
    DrainTimeout,
    /// The controller asked for the berth back.
    Revoked,
    /// The target is no longer desired here.
    Withdrawn,
    /// What was staged is gone or is not the target.
    NotStaged,
    /// logind refused the reboot, or something inhibits it.
    RebootBlocked,
    /// The node rebooted, and still runs what it ran before.
    NotApplied,
    /// The offer lapsed.
    Lapsed,
    /// The digest failed on the node, or was never proven there.
    Failed,
}

/// A transition that the protocol does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("berth {berth}: {what}")]
pub struct Refused {
    berth: String,
    what: &'static str,
}

impl Berth {
    /// A new berth: created closed, so that an in-flight creation of a former leader licenses nothing.
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

    /// Name of its Lease.
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

    /// The holding, when it is held.
    pub fn holding(&self) -> Option<&Holding> {
        match &self.state {
            BerthState::Held(holding) => Some(holding),
            _ => None,
        }
    }

    /// The offer, when it is offered.
    pub fn offer(&self) -> Option<&Offer> {
        match &self.state {
            BerthState::Offered(offer) => Some(offer),
            _ => None,
        }
    }

    /// The node that holds it or may take it.
    pub fn node(&self) -> Option<(&NodeName, &NodeUid)> {
        match &self.state {
            BerthState::Closed(_) => None,
            BerthState::Offered(offer) => Some((&offer.node, &offer.uid)),
            BerthState::Held(holding) => Some((&holding.node, &holding.uid)),
        }
    }

    // What the controller may do.

    /// A new leader's mark, which makes every write of an older leader to this berth lose.
    pub fn stamped(&self, epoch: u64) -> Self {
        Self { epoch, ..self.clone() }
    }

    /// Offers a closed berth to one node.
    ///
    /// # Errors
    /// When it is not closed.
    pub fn offered(&self, offer: Offer) -> Result<Self, Refused> {
        match self.state {
            BerthState::Closed(_) => Ok(self.with(BerthState::Offered(offer))),
            _ => self.refused("only a closed berth can be offered"),
        }
    }

    /// Closes an offer that was not taken, or says anew why a closed berth is closed.
    ///
    /// # Errors
    /// When it is held: only its holder, or [`Berth::ended`], ends that.
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
            BerthState::Held(_) => return self.refused("a held berth is closed by its holder"),
        };
        Ok(self.with(BerthState::Closed(closed)))
    }

    /// Notes on a closed berth that the failure which ended there is on record in the pool's status.
    ///
    /// # Errors
    /// When it is not closed.
    pub fn acknowledged(&self) -> Result<Self, Refused> {
        match &self.state {
            BerthState::Closed(closed) => Ok(self.with(BerthState::Closed(Closed {
                outcome: None,
                ..closed.clone()
            }))),
            _ => self.refused("it is not closed"),
        }
    }

    /// Closes a berth over its holder's head, or the offer of it, because nobody is left who could give it back: its Node
    /// no longer exists under that UID ([`ClosedReason::Gone`]; the caller has confirmed that by a live read), or is
    /// excluded and not Ready ([`ClosedReason::Excluded`]), or an admin vouches for it ([`ClosedReason::Admin`]). What
    /// was committed and never proven counts as failed (I5).
    ///
    /// # Errors
    /// When no node holds it or may take it.
    pub fn ended(&self, reason: ClosedReason) -> Result<Self, Refused> {
        let (node, target, outcome) = match &self.state {
            BerthState::Closed(_) => return self.refused("it is closed already"),
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

    /// Asks a holder for the berth, or takes that back. A committed holder goes on all the same.
    ///
    /// # Errors
    /// When nobody holds it.
    pub fn revoked(&self, revoke: Option<String>) -> Result<Self, Refused> {
        match &self.state {
            BerthState::Held(h) => Ok(self.with(BerthState::Held(Holding { revoke, ..h.clone() }))),
            _ => self.refused("nobody holds it"),
        }
    }

    /// Tells a holder anew until when its reboot may start: windows change while it holds, and whoever is stuck under a
    /// bad image may have to wait for the next one.
    ///
    /// # Errors
    /// When nobody holds it.
    pub fn open_until(&self, open_until: Option<Timestamp>) -> Result<Self, Refused> {
        match &self.state {
            BerthState::Held(h) => Ok(self.with(BerthState::Held(Holding {
                open_until,
                ..h.clone()
            }))),
            _ => self.refused("nobody holds it"),
        }
    }

    // What the agent of the named node may do.

    /// Takes an offer made to this very Node.
    ///
    /// # Errors
    /// When it is not offered to that name and UID.
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
            _ => self.refused("it is not offered to this node"),
        }
    }

    fn moved(&self, to: HoldPhase, boot_id: Option<BootId>) -> Result<Self, Refused> {
        let BerthState::Held(holding) = &self.state else {
            return self.refused("this node does not hold it");
        };
        let allowed = match (&holding.phase, &to) {
            (HoldPhase::Taken, HoldPhase::Committed) => holding.revoke.is_none(),
            (HoldPhase::Committed, HoldPhase::Taken) => true,
            (HoldPhase::Taken | HoldPhase::Committed, HoldPhase::Releasing(_)) => true,
            _ => false,
        };
        if !allowed {
            return self.refused("its phase does not allow that");
        }
        let boot_id = boot_id.unwrap_or_else(|| holding.boot_id.clone());
        Ok(self.with(BerthState::Held(Holding {
            phase: to,
            boot_id,
            ..holding.clone()
        })))
    }

    /// Commits: from here on the node may unlock and reboot, under this boot ID.
    ///
    /// # Errors
    /// When the berth is not taken, or was revoked.
    pub fn committed(&self, boot_id: BootId) -> Result<Self, Refused> {
        self.moved(HoldPhase::Committed, Some(boot_id))
    }

    /// Goes on to another digest without giving back in between: for a holder that is stuck under a new boot which cannot
    /// be proven (I2, I10). One write, so that there is no moment without a licence; what was proven last stays `from`.
    /// The caller has staged and locked the digest, and made sure that the node is cordoned and drained. The same digest
    /// once more is another one too when its licence ended with a boot that did not lead to it.
    ///
    /// # Errors
    /// When the berth is not held, is being released, is revoked, or is for that digest under that boot already.
    pub fn relicensed(&self, target: Digest, boot_id: BootId) -> Result<Self, Refused> {
        let BerthState::Held(holding) = &self.state else {
            return self.refused("this node does not hold it");
        };
        let licensed = holding.target == target && holding.boot_id == boot_id;
        if matches!(holding.phase, HoldPhase::Releasing(_)) || holding.revoke.is_some() || licensed {
            return self.refused("it cannot go on to another digest");
        }
        let phase = HoldPhase::Committed;
        Ok(self.with(BerthState::Held(Holding {
            phase,
            target,
            boot_id,
            ..holding.clone()
        })))
    }

    /// Takes a commit back. The caller has made sure that no shutdown is on its way and that the image is locked.
    ///
    /// # Errors
    /// When the berth is not committed.
    pub fn uncommitted(&self) -> Result<Self, Refused> {
        self.moved(HoldPhase::Taken, None)
    }

    /// Starts to give back, under this boot. There is no way back from here.
    ///
    /// # Errors
    /// When the berth is neither taken nor committed.
    pub fn releasing(&self, outcome: Outcome, boot_id: BootId) -> Result<Self, Refused> {
        self.moved(HoldPhase::Releasing(outcome), Some(boot_id))
    }

    /// Gives back. The caller has restored the Node.
    ///
    /// # Errors
    /// When the berth is not being released.
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
            _ => self.refused("its release has not begun"),
        }
    }
}

macro_rules! words {
    ($type:ty { $($variant:ident => $word:literal),+ $(,)? }) => {
        impl $type {
            /// The word that the Lease stores.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// Reads the word that the Lease stores.
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

words!(ClosedReason {
    New => "new", Released => "released", Failed => "failed", Gone => "gone", Shrunk => "shrunk",
    Lapsed => "lapsed", Withdrawn => "withdrawn", Excluded => "excluded", Admin => "admin",
});
words!(Outcome {
    Updated => "Updated", DrainTimeout => "DrainTimeout", Revoked => "Revoked", Withdrawn => "Withdrawn",
    NotStaged => "NotStaged", RebootBlocked => "RebootBlocked", NotApplied => "NotApplied", Lapsed => "Lapsed",
    Failed => "Failed",
});

#[cfg(test)]
mod tests;
