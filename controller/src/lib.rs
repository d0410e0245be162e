//! The Berth controller: resolves images, decides who belongs to which pool, publishes to each node what it should
//! run, keeps the berths and adds up what the nodes report. It never touches a host, a pod or a cordon.
//!
//! Decisions are pure functions over projections of the objects ([`publish`], [`plan`],
//! [`aggregate`]); [`reconcile`] feeds them from the watches ([`store`]) and makes the writes they ask for.

pub mod aggregate;
pub mod api;
pub mod backoff;
pub mod belonging;
pub mod cli;
pub mod clock;
pub mod events;
pub mod facts;
pub mod gates;
pub mod leader;
pub mod memory;
pub mod metrics;
pub mod news;
pub mod overdue;
pub mod plan;
pub mod publish;
pub mod readyz;
pub mod reconcile;
pub mod resolve;
pub mod store;
pub mod text;
pub mod view;
