//! Events of hosts. They are not from Berth's own reports, but from the test harness, which acts as the boot loader, or
//! from an audit log.

use jiff::Timestamp;

/// An event of a host.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase", tag = "what")]
pub enum HostChange {
    /// The host started to boot this deployment.
    #[serde(rename_all = "camelCase")]
    Up {
        /// Boot ID of this start.
        boot_id: String,
        /// Manifest digest of the booted image, `sha256:…`.
        digest: String,
        /// The image's `org.opencontainers.image.version` label.
        version: String,
    },
    /// The host went down.
    Down,
    /// The host's kubelet reports Ready for the first time in this boot. Simulated hosts record this event just before
    /// the report.
    #[serde(rename_all = "camelCase")]
    Ready {
        /// Boot ID that the kubelet reports.
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

/// An event of a host, with its time.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct HostEvent {
    /// Time of the event, by the API server's clock.
    pub at: Timestamp,
    /// The host's name, which is its Node's name.
    pub host: String,
    /// The event.
    #[serde(flatten)]
    pub change: HostChange,
}
