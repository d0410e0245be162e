//! The harness of Berth's tests: a real control plane, a real registry, and real or simulated hosts.

pub mod audit;
pub mod bench;
pub mod bootc;
pub mod browser;
pub mod cluster;
pub mod controlplane;
pub mod dashboard;
pub mod dist;
pub mod files;
pub mod golden;
pub mod hosts;
pub mod images;
pub mod last_release;
mod locked;
pub mod manifests;
mod named_error;
pub mod packages;
pub mod ports;
pub mod process;
pub mod programs;
pub mod prometheus;
pub mod proxy;
pub mod registry;
pub mod release;
pub mod rpmostreed;
pub mod scratch;
pub mod soak;
mod statistics;
pub mod tools;
pub mod traces;
pub mod wait;
pub mod walk;
pub mod writes;

pub use berth_shell::install_crypto;
