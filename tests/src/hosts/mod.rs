//! Hosts that can be updated, and the record of what really happened to them.
//!
//! The record is the ground truth of every end-to-end test: it is written by whoever starts and stops a host
//! (the harness as boot loader), never by Berth.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;

pub mod real;
pub mod sim;

/// An event of a host.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase", tag = "what")]
pub enum HostChange {
    /// The host started to boot this deployment.
    #[serde(rename_all = "camelCase")]
    Up {
        /// The boot ID that this start has.
        boot_id: String,
        /// Manifest digest of the booted image, `sha256:…`.
        digest: String,
        /// The image's `org.opencontainers.image.version` label.
        version: String,
    },
    /// The host went down.
    Down,
    /// The host's kubelet is about to say, for the first time under this boot, that it is Ready. Simulated hosts only.
    #[serde(rename_all = "camelCase")]
    Ready {
        /// The boot ID that the kubelet names.
        boot_id: String,
    },
    /// A pull of this digest started on the host.
    PullStarted {
        /// Manifest digest that is pulled.
        digest: String,
    },
    /// A pull ended.
    PullEnded {
        /// Manifest digest that was pulled.
        digest: String,
        /// True if the image was staged.
        ok: bool,
    },
}

/// One entry of the record.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct HostEvent {
    /// Time when the harness saw it (this machine's clock, the same as the API server's).
    pub at: Timestamp,
    /// The host's name, which is its Node's name.
    pub host: String,
    /// The event.
    #[serde(flatten)]
    pub change: HostChange,
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
