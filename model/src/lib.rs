//! A model checker for the berth protocol. It runs the released code of the agent's step and of the controller's plan
//! in small worlds with every kind of fault, and checks the invariants of the design in every state and on every
//! move.
//!
//! Nodes and berths are indexed by numbers that only the start of a world creates. An index out of range is a bug in
//! the model, and panics.

mod agent;
mod agent_view;
#[cfg(feature = "seeded-bugs")]
pub mod bugs;
mod canonical;
mod controller;
mod controller_view;
mod decide;
mod events;
pub mod explore;
mod fair;
mod fault;
mod habit;
mod hash;
mod host;
mod judge;
mod knowledge;
mod lease;
mod liar;
mod mind;
pub mod moves;
mod nature;
mod number;
mod offered;
mod planner;
pub mod random;
mod rich;
mod set;
pub mod simulate;
mod state;
#[cfg(test)]
mod tests;
mod watch;
pub mod world;
pub mod worlds;
