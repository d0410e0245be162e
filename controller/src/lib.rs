//! The Berth controller: resolves images, decides which node belongs to which pool, publishes to each node its desired
//! image, keeps the berths and adds up what the nodes report. It never touches a host, a pod or a cordon.
//!
//! Decisions are pure functions over projections of the objects, in [`berth_core::controller`]; [`reconcile`] feeds
//! them from the watches ([`store`]) and makes the writes that they ask for.

pub mod api;
pub mod backoff;
pub mod cli;
pub mod clock;
pub mod events;
pub mod firstboots;
pub mod leader;
pub mod metrics;
pub mod news;
pub mod pulse;
pub mod readyz;
pub mod reconcile;
pub mod resolve;
pub mod runtime;
pub mod store;
pub mod time;
