//! Hosts that can be updated, and the record of what really happened to them.
//!
//! The record is the ground truth of every end-to-end test: it is written by whoever starts and stops a host
//! (the harness as boot loader), never by Berth.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use berth_core::agent::storage::{StagingLock, Storage};
pub use berth_judge::hosts::{HostChange, HostEvent};
use jiff::Timestamp;
use serde_json::json;

pub mod real;
pub mod sim;

/// The way of staging on a host of ostree's, whose bootc does not lock what it stages.
///
/// # Errors
/// Never, as long as ostree locks.
pub fn ostrees_lock() -> Result<StagingLock> {
    StagingLock::of(Storage::Ostree, false).context("ostree locks")
}

/// The way of staging on a host of ostree's, whose backend locks what it stages as well.
///
/// # Errors
/// Never, as long as ostree locks.
pub fn both_locks() -> Result<StagingLock> {
    StagingLock::of(Storage::Ostree, true).context("both lock")
}

/// File in which `bootc install` notes what a machine was installed from, as its host sees it.
pub const INSTALLERS_NOTE: &str = "/sysroot/.bootc-aleph.json";

/// The note about an image of this version.
pub fn installers_note(version: &str) -> String {
    json!({"image": "quay.io/example/boot", "version": version, "kernel": "6.1", "selinux": "disabled"}).to_string()
}

/// The record of what happened to all hosts of one test, in order. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct HostLog(Arc<Mutex<Vec<HostEvent>>>);

impl HostLog {
    /// Adds an entry with the time of now.
    pub fn record(&self, host: &str, change: HostChange) {
        let event = HostEvent {
            at: Timestamp::now(),
            host: host.to_owned(),
            change,
        };
        tracing::info!(host, change = ?event.change, "host");
        // A poisoned lock only means that another test thread panicked between two pushes: the list is whole.
        self.0.lock().unwrap_or_else(|e| e.into_inner()).push(event);
    }

    /// All entries so far.
    pub fn events(&self) -> Vec<HostEvent> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}
