//! Whole clusters to run scenarios on. What a scenario does to one and asks of it is here; whether all was right is
//! for [`crate::truth`].

mod controllers;
mod install;
mod real;
mod simulated;
mod site;
pub mod workload;

pub use controllers::Controllers;
pub use real::RealCluster;
pub use simulated::{Cluster, ClusterOptions};
pub use site::{Published, Site};
