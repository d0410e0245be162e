//! The Berth controller resolves images, decides which pool each node belongs to, publishes each node's desired image,
//! manages the berths, and sums up the nodes' reports in the pools' status. It never touches a host, a pod or a cordon.
//!
//! Decisions are pure functions over projections of the objects, in [`berth_core::controller`]. [`reconcile`] calls
//! these functions with the watched objects ([`store`]) and makes the resulting writes.

pub mod api;
pub mod backoff;
pub mod check;
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
pub mod server_clock;
pub mod store;
pub mod time;
