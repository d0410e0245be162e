//! All decisions of Berth: facts in, next step out. Pure: nothing here does I/O, reads a clock or draws a random
//! number. The time, the names of objects and a random number are arguments. The programs, the command line's preview
//! and the model checker run the same functions.
//!
//! - [`agent`] decides for one node, [`controller`] for the fleet, [`firstboot`] for a machine before it joins the
//!   cluster.
//! - [`registries`] reads registry configuration, credentials and manifests.
//! - [`cpu`] finds the image variants that a CPU can run, [`skew`] compares a boot image with the limits of an OS
//!   image.
//! - [`finding`] finds the problems of nodes, pools and the fleet, and writes their messages.
//! - [`insight`] describes the progress of a node, [`gauges`] holds metrics for Prometheus.

pub mod agent;
#[cfg(feature = "controller")]
pub mod controller;
pub mod cpu;
pub mod finding;
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

use moment::whole_seconds;
pub use moment::{BootMoment, Moment, Now};
