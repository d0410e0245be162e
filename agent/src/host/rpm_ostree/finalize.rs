//! The note for unlocking a staged deployment that the host's ostree cannot unlock. The note makes the agent request
//! its next reboot from rpm-ostreed, which unlocks the deployment before the reboot. The note outlives the agent's
//! process. It is valid for one boot and one digest.

use std::path::PathBuf;

use berth_api::{BootId, Digest};
use serde::{Deserialize, Serialize};

use crate::host::error::HostError;
use crate::host::files;
use crate::host::root::{HostRoot, RUN_DIR};

/// Abilities of the host's `ostree admin lock-finalization`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockTool {
    Unlocks,
    Locks,
    /// The command does not exist. A file locks the deployment, and only rpm-ostree can unlock the deployment.
    None,
}

impl LockTool {
    pub(super) fn of(help: &str) -> Self {
        let mut words = help.split(|c: char| c.is_whitespace() || c == ',');
        if words.any(|word| word == "--unlock") {
            Self::Unlocks
        } else if help.contains("lock-finalization") {
            Self::Locks
        } else {
            Self::None
        }
    }
}

/// Reminder for the agent: its next reboot request must go to rpm-ostreed, which then unlocks the staged deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Note {
    /// The boot that the note is valid for.
    pub(super) boot_id: BootId,
    pub(super) digest: Digest,
}

#[derive(Debug)]
pub(super) struct NoteFile(PathBuf);

impl NoteFile {
    pub(super) fn new(root: &HostRoot) -> Self {
        Self(root.path(RUN_DIR).join("finalize.json"))
    }

    /// Reads the note; `None` without a note from this boot.
    pub(super) fn read(&self, boot: &BootId) -> Option<Note> {
        files::load::<Note>(
            &self.0,
            "the note that rpm-ostree must unlock the staged image at the reboot",
        )
        .filter(|note| note.boot_id == *boot)
    }

    pub(super) fn write(&self, note: &Note) -> Result<(), HostError> {
        files::save(&self.0, note).map_err(|e| HostError::Io(format!("{e:#}")))
    }

    pub(super) fn remove(&self) -> Result<(), HostError> {
        files::remove(&self.0).map_err(|e| HostError::Io(format!("cannot remove {}: {e}", self.0.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_ostrees_abilities() {
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
    fn a_note_counts_only_for_its_boot() {
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
