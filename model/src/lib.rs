//! A model checker for the berths. The agent's step and the controller's plan, the very functions that ship, run in
//! small worlds in which everything that can go wrong does; the invariants of the design are properties of every state
//! and every move.
//!
//! Nodes and berths are indexed by numbers which nothing but the world's start makes; a number out of range is a mistake
//! in the model, and ends it.

pub mod agent;
#[cfg(feature = "seeded-bugs")]
pub mod bugs;
pub mod canonical;
pub mod controller;
pub mod decide;
pub mod explore;
pub mod fair;
pub mod fault;
pub mod hash;
pub mod host;
pub mod judge;
pub mod mind;
pub mod moves;
pub mod nature;
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
