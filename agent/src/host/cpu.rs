//! The level of the host's CPU.

use std::fs::File;
use std::io::{BufRead, BufReader};

use berth_core::cpu::{self, Features};

use super::root::HostRoot;

/// Longest line that is read.
const MAX_LINE: usize = 64 << 10;

/// Most demanding variant of its architecture that the host's CPU runs. `None` where the file cannot be read, or the
/// architecture has no variants.
pub fn platform_variant(root: &HostRoot) -> Option<&'static str> {
    let path = root.path(cpu::PATH);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot read the features of the CPU; its level is not reported");
            return None;
        }
    };
    let mut features = Features::default();
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        match std::io::Read::take(&mut lines, MAX_LINE as u64).read_until(b'\n', &mut line) {
            Ok(0) => return features.variant(cpu::architecture()),
            Ok(_) => features.read(cpu::architecture(), &String::from_utf8_lossy(&line)),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot read the features of the CPU; its level is not reported");
                return None;
            }
        }
    }
}
