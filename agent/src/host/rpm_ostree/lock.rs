//! Reads the lock of the staged deployment from ostree's files.
//!
//! Since 2024.6, rpm-ostree locks with a key in the state file of the staged deployment. Earlier releases lock with a
//! second file beside it, and the daemon's property `finalization-locked` shows only that file. A deployment counts as
//! locked if the key or the file locks it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use berth_core::agent::staged;

use crate::host::root::HostRoot;

pub(super) const STATE: &str = "/run/ostree/staged-deployment";
/// If this file exists, it locks the staged deployment.
pub(super) const LOCK_FILE: &str = "/run/ostree/staged-deployment-locked";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lock {
    /// A shutdown discards the deployment.
    Locked,
    /// A shutdown applies the deployment.
    Unlocked,
    /// The state of the lock is unknown, because a file cannot be read or parsed. The text is the reason.
    Unreadable(String),
}

impl Lock {
    /// Reads the lock. Ignore the result if nothing is staged.
    pub(super) fn read(root: &HostRoot) -> Self {
        match root.path(LOCK_FILE).try_exists() {
            Ok(true) => return Self::Locked,
            Ok(false) => {}
            Err(error) => return Self::Unreadable(format!("{LOCK_FILE}: {error}")),
        }
        match read_state(&root.path(STATE)) {
            Ok(state) => match staged::is_locked(&state) {
                Ok(true) => Self::Locked,
                Ok(false) => Self::Unlocked,
                Err(error) => Self::Unreadable(format!("{STATE}: {error}")),
            },
            Err(error) => Self::Unreadable(format!("{STATE}: {error}")),
        }
    }
}

/// Reads at most one byte more than the limit, so that the caller can detect a state that is too long.
fn read_state(path: &Path) -> io::Result<Vec<u8>> {
    let mut state = vec![];
    let most = u64::try_from(staged::MAX_LENGTH).unwrap_or(u64::MAX);
    File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut state)?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LOCKED: &[u8] = include_bytes!("../../../../fuzz/seeds/staged/locked.bin");
    const UNLOCKED: &[u8] = include_bytes!("../../../../fuzz/seeds/staged/unlocked.bin");
    const NO_KEY: &[u8] = include_bytes!("../../../../fuzz/seeds/staged/no-key.bin");

    /// The seeds are state files of rpm-ostreed 2026.2 with ostree 2026.4, and of older releases.
    #[test]
    fn either_lock_counts() {
        let scratch = std::env::temp_dir().join(format!("berth-staged-lock-{}", std::process::id()));
        fs::create_dir_all(scratch.join("run/ostree")).unwrap();
        let root = HostRoot::new(&scratch);
        for (name, state, file, expected) in [
            ("staged by the daemon", Some(LOCKED), false, Some(true)),
            ("unlocked", Some(UNLOCKED), false, Some(false)),
            ("locked again", Some(UNLOCKED), true, Some(true)),
            ("staged by an older daemon", Some(NO_KEY), true, Some(true)),
            ("staged by an admin", Some(NO_KEY), false, Some(false)),
            ("nonsense beside the file", Some(b"x" as &[u8]), true, Some(true)),
            ("nonsense", Some(b"x"), false, None),
            ("no bytes", Some(b""), false, None),
            ("no state", None, false, None),
        ] {
            fn write(root: &HostRoot, path: &str, bytes: Option<&[u8]>) -> std::io::Result<()> {
                match bytes {
                    Some(bytes) => fs::write(root.path(path), bytes),
                    None => fs::remove_file(root.path(path)).or(Ok(())),
                }
            }
            write(&root, STATE, state).unwrap();
            write(&root, LOCK_FILE, file.then_some(b"")).unwrap();
            let found = match Lock::read(&root) {
                Lock::Locked => Some(true),
                Lock::Unlocked => Some(false),
                Lock::Unreadable(why) => {
                    assert!(why.contains("/run/ostree/staged-deployment"), "{why}");
                    None
                }
            };
            assert_eq!(found, expected, "{name}");
        }
        fs::remove_dir_all(&scratch).unwrap();
    }
}
