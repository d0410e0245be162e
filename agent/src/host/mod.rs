//! The host that the agent runs on: its system bus, its backend, and a few files.
//!
//! This module does I/O and makes no decisions. Every query of the host ends within a bounded time. Errors contain the
//! original messages of the host's tools.

mod auth;
mod boot_image;
mod bootc;
mod bus;
mod checks;
pub mod clock;
pub mod cpu;
mod driver;
mod error;
mod exec_credential;
pub mod failure;
pub(crate) mod files;
mod handle;
pub mod lock;
mod login;
mod look_up;
pub mod memory_file;
#[doc(hidden)]
pub mod parsers;
mod record;
mod removal;
mod repository;
mod rollback_guard;
pub mod root;
mod rpm_ostree;
mod rules;
mod soft_reboots;
mod stranded;
mod survey;
mod timedate;
mod tools;
mod units;

pub use auth::{AuthOutcome, AuthSource};
pub use bootc::{BootcStatus, BootcVersion};
pub use bus::BusError;
pub use driver::{HostStatus, Pull, PullState};
pub use error::HostError;
pub use exec_credential::CredentialPrograms;
pub use failure::{Failure, Reason};
pub use handle::Host;
pub use lock::HostLock;
pub use login::Inhibitor;
pub use rollback_guard::Disarmed;
pub use root::HostRoot;
pub use survey::{Survey, Terms};
