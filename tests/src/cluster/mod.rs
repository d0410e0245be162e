//! Whole clusters to run scenarios on. What a scenario does to one and asks of it is here; whether all was right is
//! for [`crate::truth`].

mod controllers;
mod install;
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
