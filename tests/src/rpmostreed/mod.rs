//! A stand-in for the rpm-ostree daemon, on any message bus and over any deployments.
//!
//! Serves `org.projectatomic.rpmostree1` as version 2026.2 does, as far as Berth and its tests use it: names,
//! signatures, option keys, the transaction on a socket of its own, the exit when nobody needs it, and the errors.
//! The deployments belong to who implements [`Beneath`]. Faults can be switched on while it runs: see [`Faults`].

mod begin;
mod beneath;
pub mod client;
mod core;
mod daemon;
mod dictionary;
mod faces;
mod faults;
mod names;
mod options;
mod order;
mod reference;
mod transaction;
mod transaction_face;

pub use beneath::{Beneath, Deployment, SysrootLock, Tell, Teller, Undeploy, Wanted};
pub use core::{Config, End};
pub use daemon::run;
pub use faults::{Broken, Call, Faults, SharedFaults};
pub use names::{NAME, SOCKET, SYSROOT_PATH, UNIT, os_path};
pub use reference::Reference;
