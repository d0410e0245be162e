//! The harness that every Berth test stands on: a real control plane, a real registry, and real or simulated hosts.

pub mod audit;
pub mod controlplane;
pub mod hosts;
pub mod images;
pub mod registry;
pub mod tools;
