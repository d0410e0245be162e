//! Everything that Berth decides: facts in, next step out. Pure: nothing here does I/O, reads a clock or draws a random
//! number; time, identity and chance are arguments. The same functions run in the programs, in the command line's
//! preview and inside the model checker.
//!
//! [`agent`] decides for one node, [`controller`] for the fleet, [`firstboot`] for a machine that is no node yet;
//! [`registries`] reads the files that say how registries are reached, [`cpu`] which images a CPU runs, [`insight`] says for people how far a node is, and
//! [`gauges`] what Prometheus is told.

pub mod agent;
#[cfg(feature = "controller")]
pub mod controller;
pub mod cpu;
pub mod firstboot;
#[cfg(test)]
#[path = "../../api/src/floors.rs"]
mod floors;
pub mod gauges;
pub mod insight;
mod moment;
pub mod registries;
pub mod skew;
pub mod text;

pub use moment::{BootMoment, Moment, Now};
