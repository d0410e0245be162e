//! Parsers of bootc's output, for [`crate::host::parsers`].

use berth_api::node::Progress;
use tokio::time::Instant;

use super::progress::{LineContent, Lines, Meter, parse};
use super::pull;
use super::status::{self, BootcStatus};
use crate::host::units::UnitFailure;

pub(in crate::host) fn status(text: &str) -> Result<BootcStatus, String> {
    status::parse(text).map_err(|error| error.to_string())
}

pub(in crate::host) fn version(text: &str) -> Option<String> {
    status::lists_download_only(text);
    status::parse_version(text).map(|(version, _)| version)
}

pub(in crate::host) fn explain(result: &str, status: i32, words: &str) -> String {
    let failure = UnitFailure {
        result: result.to_owned(),
        status,
    };
    pull::explain(&failure, words)
}

/// Reads progress as [`super::progress::ProgressReader`] does, without a pipe.
#[derive(Default)]
pub(in crate::host) struct ProgressLines {
    lines: Lines,
    meter: Meter,
    staged: bool,
}

impl ProgressLines {
    pub(in crate::host) fn feed(&mut self, now: Instant, bytes: &[u8]) {
        let (meter, staged) = (&mut self.meter, &mut self.staged);
        self.lines.feed(bytes, |line| match parse(line) {
            Some(LineContent::Download(bytes, total)) => meter.add(now, bytes, total),
            Some(LineContent::Staged) => *staged = true,
            None => {}
        });
    }

    pub(in crate::host) fn end(self) -> (Option<Progress>, bool) {
        (self.meter.latest, self.staged)
    }
}
