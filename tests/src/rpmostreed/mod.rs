//! A stand-in for the rpm-ostree daemon, for any message bus and any implementation of deployments.
//!
//! Serves `org.projectatomic.rpmostree1` like version 2026.2, as far as Berth and its tests use it: names, signatures, option
//! keys, transactions on their own socket, the exit when idle, and the errors. An implementation of [`Backend`] provides the
//! deployments. Faults can be injected while it runs: see [`Faults`].

mod backend;
mod begin;
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

pub use backend::{Backend, Deployment, ProgressEvent, ProgressSender, StageRequest, SysrootLock, Undeploy};
pub use core::{Config, End};
pub use daemon::run;
pub use faults::{Broken, Call, Faults, SharedFaults};
pub use names::{NAME, SOCKET, SYSROOT_PATH, UNIT, os_path};
pub use reference::Reference;
