//! The harness that every Berth test stands on: a real control plane, a real registry, and real or simulated hosts.

pub mod audit;
pub mod bench;
pub mod cluster;
pub mod controlplane;
pub mod hosts;
pub mod images;
pub mod ports;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod registry;
pub mod scratch;
pub mod soak;
pub mod tools;
pub mod truth;
pub mod walk;

pub use berth_shell::install_crypto;
