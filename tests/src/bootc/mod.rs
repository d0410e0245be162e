//! The rules of bootc, shared by its two stand-ins: the program on real hosts, where ostree keeps the deployments, and
//! the program of simulated hosts.
//!
//! No I/O: [`decide`] returns the change that a command causes on a host with this status, and the stand-in makes it.

pub mod cli;
pub mod document;
pub mod progress;
mod rules;

pub use rules::{Change, NOT_BOOTED, announcement, decide, reboot_required};
