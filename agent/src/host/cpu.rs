//! Reads the variant of the host's CPU, such as `v3` of x86-64.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use berth_core::cpu::{self, Features};

use super::root::HostRoot;

const MAX_LINE: u64 = 64 << 10;

/// Returns the highest CPU variant that the host supports. `None` if `/proc/cpuinfo` cannot be read, or the
/// architecture has no variants.
pub fn platform_variant(root: &HostRoot) -> Option<&'static str> {
    let path = root.path(cpu::PATH);
    match features(&path) {
        Ok(features) => features.variant(cpu::architecture()),
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot read the CPU's features, so the agent does not report the platform's variant");
            None
        }
    }
}

/// Reads the file line by line, because `/proc/cpuinfo` has a paragraph for each core and may be long.
fn features(path: &Path) -> io::Result<Features> {
    let mut features = Features::default();
    let mut lines = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    while lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
        features.read(cpu::architecture(), &String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(features)
}
