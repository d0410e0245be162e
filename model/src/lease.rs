use berth_api::berth::{ClosedReason, Outcome};

use crate::number::{Image, NO_NUMBER, Number};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    pub epoch: u8,
    pub is: Berth,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Berth {
    #[default]
    Missing,
    Closed(Closed),
    Offered(Offer),
    Held(Held),
}

/// A closed berth. Fields that do not affect the plan have default values (see [`Closed::kept`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Closed {
    /// [`ClosedReason::Released`] stands for every reason except [`ClosedReason::Shrunk`].
    pub reason: ClosedReason,
    /// Node of the last turn or offer.
    pub last: Number,
    /// Target of the last turn or offer.
    pub target: Image,
    /// Outcome of the turn, if it matters.
    pub outcome: Option<Outcome>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Offer {
    pub node: Number,
    pub uid: u8,
    pub target: Image,
    pub until: Until,
}

/// Latest start of a reboot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Until {
    /// The pool has no windows.
    #[default]
    Ever,
    /// The close of the current window.
    Close,
    /// The window has closed.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    pub node: Number,
    pub uid: u8,
    pub target: Image,
    /// The proven image that ran before this turn.
    pub from: Image,
    /// Boot that is recorded with the phase; 0 is the running boot, 1 the boot before it.
    pub boot: u8,
    pub phase: Phase,
    /// Why the controller asks for the berth back, as a number (see [`crate::rich::word`]); 0 if it does not.
    pub revoke: u8,
    pub until: Until,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Taken,
    Committed,
    Releasing(Outcome),
}

impl Closed {
    /// Resets the fields that do not affect the plan. To check that they have no effect, [`crate::planner`] makes a
    /// second plan with other values ([`crate::rich::otherwise`]).
    pub fn kept(self) -> Self {
        let reason = match self.reason {
            ClosedReason::Shrunk => ClosedReason::Shrunk,
            _ => ClosedReason::Released,
        };
        match self.outcome {
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
    pub fn held(&self) -> Option<&Held> {
        match &self.is {
            Berth::Held(held) => Some(held),
            _ => None,
        }
    }

    /// Returns the number and UID of the holder, or of the node with the offer.
    pub fn who(&self) -> Option<(Number, u8)> {
        match self.is {
            Berth::Offered(o) => Some((o.node, o.uid)),
            Berth::Held(h) => Some((h.node, h.uid)),
            Berth::Missing | Berth::Closed(_) => None,
        }
    }
}
