//! Decisions of the controller for the fleet.
//!
//! [`view`] and [`snapshot`] are what it knows. From that, [`belonging`] says who is a member of which pool, [`gates`]
//! and [`quorum`] what keeps berths closed (the latter by what the [`servers`] answer), [`fleet`] what the pools share,
//! [`publish`] what each node is told, [`plan`] what becomes of the berths, [`explain`] why a node is offered none,
//! [`image`] which image a pool has, and [`aggregate`] what the pools' status says. [`facts`] leads from one to the next,
//! and [`memory`], [`overdue`] and [`turns`] keep what one process has seen. [`waiting`] and [`silence`] say what it tells of
//! single nodes. [`gauges`] are what Prometheus is told.

pub mod aggregate;
pub mod belonging;
pub mod explain;
pub mod facts;
pub mod fleet;
pub mod gates;
pub mod gauges;
mod guard;
pub mod history;
pub mod image;
pub mod memory;
pub mod overdue;
pub mod plan;
pub mod plans;
pub mod proof;
pub mod publish;
pub mod quorum;
pub mod rereads;
pub mod servers;
pub mod silence;
pub mod snapshot;
pub mod stagings;
pub mod troubles;
pub mod turns;
pub mod unwritable;
pub mod view;
pub mod waiting;
