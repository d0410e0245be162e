//! Whole clusters to run scenarios on: the changes that a scenario makes, and the questions that it asks.
//! [`crate::truth`] judges whether all was right.

mod controllers;
mod part;
mod real;
mod simulated;
mod site;
mod ways;
pub mod workload;

pub use controllers::{ControllerSettings, Controllers};
pub use part::{Part, Scenario, together};
pub use real::RealCluster;
pub use simulated::{Cluster, ClusterOptions};
pub use site::{Published, Site};
pub use ways::Ways;
