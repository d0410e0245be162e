//! `uninstall`: removes Berth from the hosts and from the cluster.
//!
//! [`facts`] reads the cluster, [`plan`] decides on the steps, and the modules `release`, `hosts`, `clean` and
//! `delete` carry them out. Nothing but the cluster remembers how far the removal is. Each step reads the cluster again
//! and does only the remaining work, so a run that was interrupted is continued by the next one.

mod clean;
mod context;
mod delete;
mod facts;
mod hosts;
mod node;
mod objects;
mod plan;
mod progress;
mod release;
mod requests;
mod run;
mod template;

pub use context::Options;
pub use run::Removal;
