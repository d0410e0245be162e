//! Whole clusters to run scenarios on: the changes that a scenario makes, and the questions that it asks.
//! [`berth_judge`] judges whether all was right.

use std::time::Duration;

mod controllers;
mod part;
mod real;
mod simulated;
mod site;
mod ways;
pub mod workload;

pub use controllers::{ControllerSettings, Controllers};
pub use part::{Part, Scenario, is_prepared, together};
pub use real::RealCluster;
pub use simulated::{Cluster, ClusterOptions};
pub use site::{Published, Site};
pub use ways::Ways;

/// Longest time for one thing to happen by itself, on two slow cores that run other scenarios too. Whoever waits goes on as
/// soon as it has happened, so that a long one costs nothing.
pub const SOON: Duration = Duration::from_secs(60);
/// Longest time for a small rollout.
pub const LONG: Duration = Duration::from_secs(180);
