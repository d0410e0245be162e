//! Fuzzes `kubectl berth verify`: the audit log of an API server, and the verdict on it.

use berth_judge::log::Log;
use berth_judge::verdict::Terms;
use jiff::SignedDuration;
use kubectl_berth::render_report;

use crate::text::are_lines;

/// Reads the input as an audit log and prints the verdict. Panics if the output contains a control character or an
/// invisible one.
pub fn audit_log(data: &[u8]) {
    let mut log = Log::default();
    for (number, line) in (1..).zip(data.split(|byte| *byte == b'\n')) {
        log.take("audit.log", number, line, "berth-system");
    }
    let terms = Terms {
        namespace: "berth-system".to_owned(),
        fleet: None,
        lag: SignedDuration::from_secs(10),
    };
    match log.judge(&terms) {
        Ok(report) => are_lines(&render_report(&report, 100)),
        Err(error) => are_lines(&error.to_string()),
    }
}
