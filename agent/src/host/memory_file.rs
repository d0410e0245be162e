//! The agent's memory: a file on the host that outlives the agent's process, its pod and its BootcNode (invariant I8).

use std::path::PathBuf;

use berth_core::agent::facts::Past;

use super::files;
use super::root::{HostRoot, STATE_DIR};

/// File with the agent's memory, a [`Past`].
#[derive(Debug, Clone)]
pub struct MemoryFile(PathBuf);

impl MemoryFile {
    /// Creates the value for the host with this root directory.
    pub fn new(root: &HostRoot) -> Self {
        Self(root.path(STATE_DIR).join("state.json"))
    }

    /// Reads the memory. Returns an empty memory if the file is missing or invalid, so that the agent can start anyway.
    /// An invalid file is renamed, so that an admin can inspect it.
    pub fn load(&self) -> Past {
        files::load(&self.0, "the agent's memory").unwrap_or_default()
    }

    /// Writes the memory, durably. After an error, the old content stays.
    pub fn save(&self, past: &Past) -> anyhow::Result<()> {
        files::save(&self.0, past)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use berth_api::Digest;

    use super::*;

    fn digest(n: usize) -> Digest {
        format!("sha256:{n:064x}").parse().unwrap()
    }

    #[test]
    fn remembers_and_survives_nonsense() {
        let scratch = std::env::temp_dir().join(format!("berth-memory-{}", std::process::id()));
        let file = MemoryFile::new(&HostRoot::new(&scratch));
        assert_eq!(file.load(), Past::default());
        let mut memory = Past {
            staged_by_us: Some(digest(99)),
            ..Past::default()
        };
        memory.failed_digests = (0..3).map(digest).collect();
        memory.not_applied = Some((digest(4), 2));
        file.save(&memory).unwrap();
        assert_eq!(file.load(), memory);

        fs::write(&file.0, "{\"failedDigests\": [1").unwrap();
        assert_eq!(file.load(), Past::default());
        assert!(file.0.with_extension("json.unreadable").exists());
        fs::write(&file.0, "{\"later\": true}").unwrap();
        assert_eq!(file.load(), Past::default(), "unknown fields are ignored");
        assert!(file.0.exists());
        fs::remove_dir_all(&scratch).unwrap();
    }
}
