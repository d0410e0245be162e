//! A berth: the only licence to disrupt a node. Defines its states and the allowed transitions.
//!
//! A berth is stored as a Lease, which [`lease`] reads and writes. Each transition is a method that returns the next
//! state, or an error with the reason, so no caller can leave the protocol. Each transition is stored by a full PUT
//! with the UID and resourceVersion of the Lease as it was read.

pub mod lease;
mod state;

#[cfg(test)]
mod tests;

pub use state::{Berth, BerthState, Closed, ClosedReason, HoldPhase, Holding, Offer, Outcome, Refused};
