//! Fuzzes the parsers of bootc's output: status, version and progress.

use berth_agent::host::BootcStatus;
use berth_agent::host::parsers::{bootc_progress, bootc_status, bootc_version};

use crate::host_status;
use crate::text::is_line;

/// Longest message of a failure, in characters.
const MAX_MESSAGE: usize = 1025;

/// Parses the input as the output of `bootc status`, of `bootc --version` and of a pull's progress. Panics if the
/// deployments do not fit into a BootcNode's status, if an error is not one bounded line, or if the progress depends on
/// the sizes of the reads.
pub fn bootc(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match bootc_status(&text) {
        Ok(BootcStatus::Host(status)) => host_status::fits(&status),
        Ok(_) => {}
        Err(error) => is_line(&error, MAX_MESSAGE),
    }
    if let Some(version) = bootc_version(&text) {
        is_line(&version, 64);
        let again = bootc_version(&format!("bootc {version}"));
        assert_eq!(again.as_ref(), Some(&version), "a printed version can be parsed");
    }
    let (whole, staged) = bootc_progress(data, data.len());
    let (parts, staged_in_parts) = bootc_progress(data, 7);
    assert_eq!(staged, staged_in_parts);
    let bytes = [whole, parts].map(|progress| progress.map(|progress| (progress.bytes, progress.bytes_total)));
    assert_eq!(bytes[0], bytes[1], "the progress depends on the reads");
}
