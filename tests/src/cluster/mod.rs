//! Whole clusters to run scenarios on: the changes that a scenario makes, and the questions that it asks.
//! [`berth_judge`] judges whether all was right.

mod controllers;
mod deploy;
mod limits;
mod part;
mod real;
mod simulated;
mod site;
mod tail;
mod ways;
pub mod workload;

pub use controllers::{ControllerSettings, Controllers};
pub use limits::{LONG, SOON};
pub use part::{Part, Scenario, is_prepared, together};
pub use real::RealCluster;
pub use simulated::{Cluster, ClusterOptions};
pub use site::{Published, Site};
pub use ways::Ways;
