//! Fuzzes the parsers of rpm-ostreed's replies: deployments, progress and addresses.

use berth_agent::host::parsers::{deployments, transaction_address, transaction_progress};

use crate::host_status;
use crate::text::is_line;

/// Reads the input as the deployments of a host (in JSON, since random bytes are seldom a D-Bus message), and its lines
/// as texts of a transaction and as addresses of one. Panics if the deployments do not fit into a BootcNode's status, if
/// an error is not one line, or if an address leads to another place than a path below the host's root.
pub fn rpm_ostree(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(json) = serde_json::from_slice(data) {
        match deployments(&json) {
            Some(Ok(status)) => host_status::fits(&status),
            Some(Err(error)) => is_line(&error, 200),
            None => {}
        }
    }
    if let Some(progress) = transaction_progress(text.lines()) {
        assert!(progress.bytes_per_second == 0, "a text has no rate");
    }
    for line in text.split('\n') {
        let Some((address, path)) = transaction_address(line) else {
            continue;
        };
        assert!(
            path.starts_with("/host/") && !path.split('/').any(|part| part == ".."),
            "{path:?}"
        );
        assert!(
            address.starts_with("unix:") && address.contains("path=/host/"),
            "{address:?}"
        );
        assert!(!address.contains([';', '%', '\n']), "{address:?} is several addresses");
    }
}
