//! A model checker for the berths. The agent's step and the controller's plan, the very functions that ship, run in
//! small worlds in which everything that can go wrong does; the invariants of the design are properties of every state
//! and every move.
#![expect(clippy::indexing_slicing, reason = "numbers of nodes and berths are below NODES and SLOTS everywhere")]

pub mod agent;
pub mod controller;
pub mod decide;
pub mod explore;
pub mod fair;
pub mod fault;
pub mod hash;
pub mod judge;
pub mod moves;
pub mod nature;
pub mod planner;
pub mod rich;
pub mod state;
pub mod world;
pub mod worlds;
