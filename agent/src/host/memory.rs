//! What the agent remembers on the host itself, so that it survives its process, its pod and its BootcNode
//! (invariant I8).

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::Context;
use berth_api::node::Turn;
use berth_api::{BootId, Digest};
use berth_core::agent::facts::{Past, Times};
use serde::{Deserialize, Serialize};

use super::files;
use super::root::{HostRoot, STATE_DIR};

/// What the agent remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// Digests that failed here and are not tried again, oldest first.
    pub failed_digests: Vec<Digest>,
    /// The digest that Berth staged last, while it may still be staged.
    pub staged_by_us: Option<Digest>,
    /// How the last turn with a berth ended, when it ended without an update.
    pub last_turn: Option<Turn>,
    /// A digest that was committed and not booted, and how often.
    pub not_applied: Option<(Digest, u32)>,
    /// The target of the running turn, once it was seen to run unproven.
    pub tried: Option<Digest>,
    /// The boot under which the berth was licensed anew.
    pub unproven_boot: Option<BootId>,
    /// The last retry token that was obeyed.
    pub retry_token: Option<String>,
    /// How long the last turn took.
    pub times: Times,
}

impl From<Memory> for Past {
    fn from(memory: Memory) -> Self {
        Self {
            failure: None,
            failed_digests: memory.failed_digests,
            staged_by_us: memory.staged_by_us,
            last_turn: memory.last_turn,
            not_applied: memory.not_applied,
            tried: memory.tried,
            unproven_boot: memory.unproven_boot,
            retry_token: memory.retry_token,
            times: memory.times,
        }
    }
}

impl From<&Past> for Memory {
    fn from(past: &Past) -> Self {
        let past = past.clone();
        Self {
            failed_digests: past.failed_digests,
            staged_by_us: past.staged_by_us,
            last_turn: past.last_turn,
            not_applied: past.not_applied,
            tried: past.tried,
            unproven_boot: past.unproven_boot,
            retry_token: past.retry_token,
            times: past.times,
        }
    }
}

/// The file that holds a [`Memory`].
#[derive(Debug, Clone)]
pub struct MemoryFile(PathBuf);

impl MemoryFile {
    /// The file under this root.
    pub fn new(root: &HostRoot) -> Self {
        Self(root.path(STATE_DIR).join("state.json"))
    }

    /// What is remembered. A file that cannot be understood is kept aside for people, and counts as nothing
    /// remembered: an agent that refused to start over it would leave the node without any.
    pub fn load(&self) -> Memory {
        let text = match fs::read(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Memory::default(),
            Err(error) => {
                tracing::warn!(path = %self.0.display(), %error, "cannot read the agent's memory");
                return Memory::default();
            }
        };
        match serde_json::from_slice(&text) {
            Ok(memory) => memory,
            Err(error) => {
                let aside = self.0.with_extension("json.unreadable");
                let kept = fs::rename(&self.0, &aside).is_ok();
                tracing::warn!(path = %self.0.display(), %error, kept, aside = %aside.display(),
                    "the agent's memory makes no sense: starting with an empty one");
                Memory::default()
            }
        }
    }

    /// Writes it, durably.
    ///
    /// # Errors
    /// When the file cannot be written; what it held before is then still there.
    pub fn save(&self, memory: &Memory) -> anyhow::Result<()> {
        let context = || format!("cannot write {}", self.0.display());
        if let Some(directory) = self.0.parent() {
            fs::create_dir_all(directory).with_context(context)?;
        }
        let mut text = serde_json::to_vec_pretty(memory)?;
        text.push(b'\n');
        files::replace(&self.0, &text).with_context(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(n: usize) -> Digest {
        format!("sha256:{n:064x}").parse().unwrap()
    }

    #[test]
    fn remembers_and_survives_nonsense() {
        let scratch = std::env::temp_dir().join(format!("berth-memory-{}", std::process::id()));
        let file = MemoryFile::new(&HostRoot::new(&scratch));
        assert_eq!(file.load(), Memory::default());
        let mut memory = Memory {
            staged_by_us: Some(digest(99)),
            ..Memory::default()
        };
        memory.failed_digests = (0..3).map(digest).collect();
        memory.not_applied = Some((digest(4), 2));
        file.save(&memory).unwrap();
        assert_eq!(file.load(), memory);

        fs::write(&file.0, "{\"failedDigests\": [1").unwrap();
        assert_eq!(file.load(), Memory::default());
        assert!(file.0.with_extension("json.unreadable").exists());
        fs::write(&file.0, "{\"later\": true}").unwrap();
        assert_eq!(file.load(), Memory::default(), "unknown fields are no error");
        assert!(file.0.exists());
        fs::remove_dir_all(&scratch).unwrap();
    }
}
