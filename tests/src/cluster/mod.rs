//! Whole clusters for scenarios: functions that change a cluster and functions that query it. [`berth_judge`] checks the outcome.

mod controllers;
mod deploy;
mod limits;
mod part;
mod real;
mod simulated;
mod site;
mod ways;
pub mod workload;

pub use controllers::{ControllerSettings, Controllers};
pub use limits::{LONG, SOON};
pub use part::{Part, Scenario, is_prepared, together};
pub use real::RealCluster;
pub use simulated::{Cluster, ClusterOptions};
pub use site::{Published, Site, is_ready};
pub use ways::Ways;
