//! A berth: the only licence to disrupt a node, and the transitions that are allowed.
//!
//! A berth is a Lease. [`lease`] reads and writes that object; the types here know only what a berth *is*. Each
//! transition is a method that either gives the next state or says why it may not be made, so that no caller can
//! make one that the protocol does not have. Every write that stores a transition is a full PUT with the UID and
//! resourceVersion that the state was read with.

pub mod lease;
mod state;

#[cfg(test)]
mod tests;

pub use state::{Berth, BerthState, Closed, ClosedReason, HoldPhase, Holding, Offer, Outcome, Refused};
