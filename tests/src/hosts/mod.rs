//! Hosts that can be updated, and the log of what really happened to them.
//!
//! The log is the ground truth of every end-to-end test: the harness, which starts and stops hosts as a boot loader does, writes
//! it; Berth never does.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use berth_core::agent::storage::{StagingLock, Storage};
pub use berth_judge::hosts::{HostChange, HostEvent};
use jiff::Timestamp;
use serde_json::json;

use crate::locked::locked;

pub mod real;
pub mod sim;

/// Staging lock of an ostree host whose bootc has no lock of its own: only ostree locks the staged deployment.
pub fn ostrees_lock() -> Result<StagingLock> {
    StagingLock::of(Storage::Ostree, false).context("ostree has no staging lock")
}

/// Staging lock of an ostree host whose backend also locks staged deployments.
pub fn both_locks() -> Result<StagingLock> {
    StagingLock::of(Storage::Ostree, true).context("ostree has no staging lock")
}

/// Path of the file on a host where `bootc install` records the installed image.
pub const INSTALLERS_NOTE: &str = "/sysroot/.bootc-aleph.json";

/// Content of [`INSTALLERS_NOTE`] for an image of this version.
pub fn installers_note(version: &str) -> String {
    json!({"image": "quay.io/example/boot", "version": version, "kernel": "6.1", "selinux": "disabled"}).to_string()
}

/// Log of what happened to all hosts of a test, in order. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct HostLog(Arc<Mutex<Vec<HostEvent>>>);

impl HostLog {
    /// Adds an entry with the current time.
    pub fn record(&self, host: &str, change: HostChange) {
        let event = HostEvent {
            at: Timestamp::now(),
            host: host.to_owned(),
            change,
        };
        tracing::info!(host, change = ?event.change, "host");
        // A poisoned lock only means that another thread panicked between two pushes: the list is complete.
        locked(&self.0).push(event);
    }

    /// All entries so far.
    pub fn events(&self) -> Vec<HostEvent> {
        locked(&self.0).clone()
    }
}
