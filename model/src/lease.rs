//! Leases of berths.

use berth_api::berth::{ClosedReason, Outcome};

use crate::number::{Image, NO_NUMBER, Number};

/// A Lease, which may be missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Epoch of the leader that last wrote it.
    pub epoch: u8,
    pub is: Berth,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Berth {
    #[default]
    Missing,
    /// No node may take it.
    Closed(Closed),
    Offered(Offer),
    Held(Held),
}

/// A closed berth. Fields that do not affect the plan have default values: see [`Closed::kept`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Closed {
    /// Reason. [`ClosedReason::Released`] stands for every reason except [`ClosedReason::Shrunk`].
    pub reason: ClosedReason,
    /// Node whose turn or offer ended.
    pub last: Number,
    /// Image of the turn or offer.
    pub target: Image,
    /// Outcome of the turn, if it matters.
    pub outcome: Option<Outcome>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Node that it is offered to.
    pub node: Number,
    pub uid: u8,
    pub target: Image,
    /// Until when the reboot may start.
    pub until: Until,
}

/// Latest start of a reboot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Until {
    /// Unlimited: the pool has no windows.
    #[default]
    Ever,
    /// Until the current window closes.
    Close,
    /// The window has closed.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    pub node: Number,
    pub uid: u8,
    pub target: Image,
    /// Previous image, proven.
    pub from: Image,
    /// Boot that the phase was written under; 0 is the running boot.
    pub boot: u8,
    pub phase: Phase,
    /// Reason why the controller wants it back ([`crate::rich::word`]); 0 if it does not.
    pub revoke: u8,
    /// Until when the reboot may start.
    pub until: Until,
}

/// Progress of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The holder may cordon and drain its node.
    Taken,
    /// The holder may unlock and reboot.
    Committed,
    /// The holder gives the berth back.
    Releasing(Outcome),
}

impl Closed {
    /// Resets the fields that do not affect the plan. [`crate::planner`] checks this with a second plan
    /// ([`crate::rich::otherwise`]).
    pub fn kept(self) -> Self {
        let reason = match self.reason {
            ClosedReason::Shrunk => ClosedReason::Shrunk,
            _ => ClosedReason::Released,
        };
        match self.outcome {
            Some(Outcome::Lapsed) => Self {
                reason,
                target: 0,
                ..self
            },
            Some(Outcome::Failed) => Self { reason, ..self },
            _ => Self {
                reason,
                last: NO_NUMBER,
                target: 0,
                outcome: None,
            },
        }
    }
}

/// Returns a closed berth that was never used.
pub fn closed() -> Berth {
    Berth::Closed(Closed {
        reason: ClosedReason::Released,
        last: NO_NUMBER,
        target: 0,
        outcome: None,
    })
}

impl Lease {
    /// The holding, if it is held.
    pub fn held(&self) -> Option<&Held> {
        match &self.is {
            Berth::Held(held) => Some(held),
            _ => None,
        }
    }

    /// Node and UID of the holder, or of the node that it is offered to.
    pub fn who(&self) -> Option<(Number, u8)> {
        match self.is {
            Berth::Offered(o) => Some((o.node, o.uid)),
            Berth::Held(h) => Some((h.node, h.uid)),
            Berth::Missing | Berth::Closed(_) => None,
        }
    }
}
