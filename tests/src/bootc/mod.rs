//! bootc as both stand-ins play it: the program on real hosts, where ostree keeps the deployments, and the one of simulated hosts.
//!
//! No I/O: [`decide`] returns the change that a command causes on a host with this status, and the stand-in makes it.

pub mod cli;
pub mod document;
pub mod progress;
mod rules;

pub use rules::{Change, NOT_BOOTED, announcement, decide, reboot_required};
