//! A model checker for the berth protocol. It runs the released code of the agent's step and of the controller's plan in
//! small worlds with every kind of fault, and checks the invariants of the design in every state and on every move.
//!
//! Nodes and berths are indexed by numbers that only the start of a world creates. An index out of range is a bug in the
//! model, and panics.

pub mod agent;
pub mod agent_view;
#[cfg(feature = "seeded-bugs")]
pub mod bugs;
pub mod canonical;
pub mod controller;
pub mod controller_view;
pub mod decide;
pub mod events;
pub mod explore;
pub mod fair;
pub mod fault;
pub mod hash;
pub mod host;
pub mod judge;
pub mod knowledge;
pub mod lease;
pub mod mind;
pub mod moves;
pub mod nature;
pub mod number;
pub mod planner;
pub mod random;
pub mod rich;
pub mod set;
pub mod simulate;
pub mod state;
#[cfg(test)]
mod tests;
pub mod watch;
pub mod world;
pub mod worlds;
