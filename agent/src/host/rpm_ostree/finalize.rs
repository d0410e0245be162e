//! Unlocking what is staged: what the host's ostree can do for it, and the note that stands for an unlock where it can do
//! nothing. The note is of one boot and one digest, and outlives the agent.

use std::path::PathBuf;

use berth_api::{BootId, Digest};
use serde::{Deserialize, Serialize};

use crate::host::root::{HostRoot, RUN_DIR};
use crate::host::{HostError, files};

/// Ability of the host's `ostree admin lock-finalization`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockTool {
    /// Locks and unlocks.
    Unlocks,
    /// Locks only.
    Locks,
    /// There is no such command: a file locks, and only rpm-ostree unlocks.
    None,
}

impl LockTool {
    /// The ability, by the output of its `--help`.
    pub(super) fn of(help: &str) -> Self {
        let lists = |option: &str| {
            help.split(|c: char| c.is_whitespace() || c == ',')
                .any(|word| word == option)
        };
        match (lists("--unlock"), help.contains("lock-finalization")) {
            (true, _) => Self::Unlocks,
            (false, true) => Self::Locks,
            (false, false) => Self::None,
        }
    }
}

/// An unlock that the next reboot is to carry out, by rpm-ostree's daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Note {
    /// The boot under which it was written: it counts under no other.
    pub(super) boot_id: BootId,
    /// The staged digest.
    pub(super) digest: Digest,
}

/// The file with the note.
#[derive(Debug)]
pub(super) struct NoteFile(PathBuf);

impl NoteFile {
    pub(super) fn new(root: &HostRoot) -> Self {
        Self(root.path(RUN_DIR).join("finalize.json"))
    }

    /// The note, if there is one of this boot.
    pub(super) fn read(&self, boot: &BootId) -> Option<Note> {
        files::load::<Note>(&self.0, "the note that the next reboot is rpm-ostree's")
            .filter(|note| note.boot_id == *boot)
    }

    pub(super) fn write(&self, note: &Note) -> Result<(), HostError> {
        files::save(&self.0, note).map_err(|e| HostError::Io(format!("{e:#}")))
    }

    /// Makes sure that there is none.
    pub(super) fn remove(&self) -> Result<(), HostError> {
        files::remove(&self.0).map_err(|e| HostError::Io(format!("cannot remove {}: {e}", self.0.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_tells_what_ostree_can_do() {
        let new = "Usage:\n  ostree admin lock-finalization [OPTION…]\n\n  -u, --unlock   Unlock finalization\n  --sysroot=PATH";
        let old = "Usage:\n  ostree admin lock-finalization [OPTION…]\n\n  --sysroot=PATH  Create --unlocked things";
        for (help, expected) in [
            (new, LockTool::Unlocks),
            (old, LockTool::Locks),
            ("", LockTool::None),
            ("error: Unknown \"admin\" subcommand", LockTool::None),
        ] {
            assert_eq!(LockTool::of(help), expected, "{help}");
        }
    }

    #[test]
    fn a_note_counts_under_its_own_boot_and_outlives_the_agent() {
        let scratch = std::env::temp_dir().join(format!("berth-note-{}", std::process::id()));
        let root = HostRoot::new(&scratch);
        let note = Note {
            boot_id: "b1".into(),
            digest: format!("sha256:{}", "01".repeat(32)).parse().unwrap(),
        };
        NoteFile::new(&root).remove().unwrap();
        NoteFile::new(&root).write(&note).unwrap();
        assert_eq!(NoteFile::new(&root).read(&"b1".into()), Some(note));
        assert_eq!(NoteFile::new(&root).read(&"b2".into()), None);
        NoteFile::new(&root).remove().unwrap();
        assert_eq!(NoteFile::new(&root).read(&"b1".into()), None);
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}
