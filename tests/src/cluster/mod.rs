//! Whole clusters for scenarios: functions that change a cluster and functions that query it. [`berth_judge`] checks the outcome.

mod controllers;
mod deploy;
mod installer;
mod limits;
mod part;
mod plain;
mod real;
mod shipped;
mod simulated;
mod site;
mod ways;
pub mod workload;

pub use controllers::{ControllerSettings, Controllers};
pub use limits::{LONG, SOON};
pub use part::{Part, Scenarios, is_prepared, name_of};
pub use plain::{Nodes, PlainCluster};
pub use real::RealCluster;
pub use simulated::{Cluster, ClusterOptions};
pub use site::{ConditionWords, Published, Site, has_condition, is_ready, soon, until_degraded, until_so};
pub use ways::Ways;
